"""A small synthetic language: random lines from templates and lists, whose probabilities are known exactly.

Templates, and phrases of a list, are equally likely. `{name}` draws a phrase; `{=2}` repeats that of the line's second
slot, and `{~2}` is its counterpart. No two sequences of draws give the same line, so the information in a line is the
sum of the logarithms of its numbers of choices: the lower bound of any model's loss.
The lists and their order are part of the data set's definition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from trainmark.data.distributed_sampler import CounterRng

END = "\n"
"""Ends every line; the first token of the vocabulary."""
_TIGHT = frozenset(".,?!:;")
"""Signs without a space before them."""


class RandomLine(NamedTuple):
    tokens: tuple[str, ...]
    nats: float
    """-ln of the line's probability."""


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """Exact means over all lines."""

    nats_per_line: float
    tokens_per_line: float

    @property
    def nats_per_token(self) -> float:
        return self.nats_per_line / self.tokens_per_line


def random_line(seed: int, split: int, number: int) -> RandomLine:
    """Line `number` of a split, for a seed."""
    draws = CounterRng(seed, split, number)
    templates = parse_templates()
    template = templates[draws.below(len(templates))]
    nats = math.log(len(templates))
    chosen: list[int] = []
    tokens: list[str] = []
    for part in template:
        if isinstance(part, Slot):
            nats += math.log(len(part.phrases))
            chosen.append(draws.below(len(part.phrases)))
            tokens += part.phrases[chosen[-1]]
        elif isinstance(part, Echo):
            tokens += part.phrases[chosen[part.slot]]
        else:
            tokens.append(part)
    tokens[0] = capitalise(tokens[0])
    return RandomLine((*tokens, END), nats)


def join_tokens(tokens: Sequence[str]) -> str:
    """The tokens as text, with a space before every word that does not begin a line."""
    return "".join(
        add_space(token) if place and tokens[place - 1] != END else token for place, token in enumerate(tokens)
    )


def add_space(token: str) -> str:
    """A token as written inside a line."""
    return token if token in _TIGHT or token == END else f" {token}"


def split_text(text: str) -> list[str]:
    """The tokens of a text, whether or not the language has them."""
    return re.findall(r"\n|[.,?!:;]|[^\s.,?!:;]+", text)


@cache
def vocabulary() -> tuple[str, ...]:
    """Every token, the end of a line first."""
    found: set[str] = set()
    for template in parse_templates():
        for place, part in enumerate(template):
            phrases = ((part,),) if isinstance(part, str) else part.phrases
            for phrase in phrases:
                found |= {capitalise(phrase[0]) if place == 0 else phrase[0], *phrase[1:]}
    return (END, *sorted(found))


def entropy() -> Entropy:
    templates = parse_templates()
    nats = math.log(len(templates))
    tokens = 0.0
    for template in templates:
        for part in template:
            if isinstance(part, str):
                tokens += 1 / len(templates)
                continue
            tokens += sum(map(len, part.phrases)) / len(part.phrases) / len(templates)
            if isinstance(part, Slot):
                nats += math.log(len(part.phrases)) / len(templates)
    return Entropy(nats_per_line=nats, tokens_per_line=tokens + 1)


def capitalise(word: str) -> str:
    return word[0].upper() + word[1:]


Phrase = tuple[str, ...]


class Slot(NamedTuple):
    """Draws one of its phrases."""

    phrases: tuple[Phrase, ...]


class Echo(NamedTuple):
    """Repeats an earlier slot's phrase, or gives its counterpart."""

    slot: int
    phrases: tuple[Phrase, ...]


@cache
def parse_templates() -> tuple[tuple[str | Slot | Echo, ...], ...]:
    """The templates as sequences of parts."""
    return tuple(tuple(_parse_template(template)) for template in _TEMPLATES)


def _parse_template(template: str) -> Iterator[str | Slot | Echo]:
    drawn: list[str] = []
    for word in template.split():
        if not word.startswith("{"):
            yield word
        elif word[1] in "=~":
            slot = int(word[2:-1]) - 1
            yield Echo(slot, _LISTS[drawn[slot]][0 if word[1] == "=" else 1])
        else:
            drawn.append(word[1:-1])
            yield Slot(_LISTS[word[1:-1]][0])


def _parse_list(words: str) -> tuple[tuple[Phrase, ...], tuple[Phrase, ...]]:
    """The phrases of a list, and the counterpart of each, which follows a colon."""
    pairs = [entry.partition(":") for entry in words.split(", ")]
    return tuple(tuple(one.split()) for one, _, _ in pairs), tuple(tuple(other.split()) for _, _, other in pairs)


_LISTS = {
    "name": _parse_list(
        "Ada, Bruno, Clara, Dora, Emil, Flora, Gustav, Hanna, Igor, Judith, Kasper, Lena, Milo, Nora, Oskar, Paula, "
        "Quentin, Rosa, Simon, Thea, Ulrich, Vera, Walter, Xenia"
    ),
    "who": _parse_list(
        "the baker, the farmer, the doctor, the painter, the captain, the tailor, the miller, the singer, the pilot, "
        "the teacher, the judge, the gardener, the sailor, the carpenter, the poet, the nurse, the clerk, the hunter, "
        "the weaver, the porter, my uncle, my aunt, our neighbour, the old king"
    ),
    "did": _parse_list(
        "found, painted, sold, hid, repaired, carried, admired, dropped, borrowed, cleaned, measured, opened, bought, "
        "stole, broke, burned, kept, lost, moved, drew, lifted, praised, returned, saved"
    ),
    "thing": _parse_list(
        "lamp, clock, chair, kettle, ladder, mirror, basket, violin, hammer, blanket, bottle, button, candle, carpet, "
        "drum, feather, guitar, helmet, jacket, lantern, map, needle, oven, pencil, quilt, ribbon, saddle, table, "
        "umbrella, vase, wagon, whistle"
    ),
    "things": _parse_list(
        "apples, barrels, bells, books, boots, bricks, coins, cups, eggs, flags, flowers, forks, hats, keys, kites, "
        "knives, letters, nails, nets, onions, pears, pies, pipes, plates, ropes, shells, shoes, spoons, stones, tools"
    ),
    "kind": _parse_list(
        "red, green, yellow, heavy, broad, broken, tiny, huge, round, golden, silver, wooden, dusty, shiny, warm, wet, "
        "cheap, rare, soft, sharp, plain, bright, crooked, noble"
    ),
    "went": _parse_list(
        "slept, sang, waited, laughed, danced, rested, worked, whistled, shouted, dreamed, walked, prayed, wept, "
        "jogged, swam, argued"
    ),
    "where": _parse_list(
        "by the river, under the bridge, in the garden, near the harbour, behind the mill, on the roof, at the market, "
        "beside the lake, above the valley, along the coast, across the square, inside the museum, beyond the hills, "
        "outside the gate, among the trees, below the tower"
    ),
    "when": _parse_list(
        "at dawn, before supper, last night, after the storm, every evening, until dusk, for an hour, twice a week, "
        "during the feast, since spring, all morning, once again"
    ),
    "how": _parse_list(
        "quietly, slowly, gladly, badly, expertly, lazily, calmly, bravely, secretly, politely, loudly, carefully"
    ),
    "link": _parse_list("and, but, so, while, because, yet"),
    "opening": _parse_list(
        "however, suddenly, luckily, sadly, meanwhile, afterwards, naturally, strangely, finally, usually, sometimes, "
        "nowadays"
    ),
    "count": _parse_list("two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, twenty"),
    "beast": _parse_list(
        "cow:moos, dog:barks, cat:purrs, horse:neighs, lion:roars, wolf:howls, frog:croaks, duck:quacks, bee:buzzes, "
        "owl:hoots"
    ),
    "land": _parse_list(
        "France:Paris, Italy:Rome, Spain:Madrid, Japan:Tokyo, Egypt:Cairo, Greece:Athens, Norway:Oslo, Peru:Lima, "
        "Kenya:Nairobi, China:Beijing"
    ),
    "sort": _parse_list(
        "king:queen, brother:sister, father:mother, uncle:aunt, prince:princess, husband:wife, son:daughter, "
        "nephew:niece"
    ),
    "verb": _parse_list("open, sell, fix, bring, hide, wash, choose, visit, examine, buy, lift, admire"),
    "soon": _parse_list("today, tomorrow, soon, later, tonight, now"),
}

_TEMPLATES = (
    "{who} {did} the {thing} .",
    "{name} {did} the {kind} {thing} .",
    "{name} {went} {where} .",
    "{who} {went} {where} {when} .",
    "{who} {did} the {kind} {thing} {when} .",
    "the {thing} {where} was {kind} , {kind} and {kind} .",
    "{opening} , {name} {went} {how} .",
    "{opening} , {who} {did} {count} {things} {where} .",
    "{name} {went} {where} , {link} {who} {did} the {thing} .",
    "{who} {did} the {thing} {how} , {link} {name} {went} {when} .",
    "did {name} {verb} the {thing} ? Yes , {=1} did {=2} it .",
    "nobody {did} the {things} {when} .",
    "there is a {kind} {thing} {where} .",
    "{name} , {name} and {name} {went} {where} .",
    "{name} gave {name} {count} {things} .",
    "please {verb} the {thing} {soon} .",
    "{verb} the {kind} {things} , {name} !",
    "the {beast} {where} {~1} {when} .",
    "{name} has a {beast} , and the {=2} of {=1} {~2} .",
    "the capital of {land} is {~1} .",
    "{name} flew from {land} to {land} , that is , from {~2} to {~3} .",
    "the {sort} of {name} met the {~1} of {name} {where} .",
    "there were {count} {kind} {things} {where} .",
    "{who} and {who} {went} {how} .",
)
