"""A small synthetic language: random lines from templates and lists, whose probabilities are known exactly.

Templates, and phrases of a list, are equally likely. `{name}` draws a phrase; `{=2}` repeats that of the line's second
slot, and `{~2}` is its counterpart. No two sequences of draws give the same line, so the information in a line is the
sum of the logarithms of its numbers of choices: the lower bound of any model's loss.
The lists and templates are in language.toml.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trainmark.data import read_toml
from trainmark.data.distributed_sampler import CounterRng

END = "\n"
"""Ends every line; the first token of the vocabulary."""
_TIGHT = frozenset(".,?!:;")
"""Signs without a space before them."""


class RandomLine(NamedTuple):
    tokens: tuple[str, ...]
    nats: float
    """-ln of the line's probability."""


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
    text = ""
    for token in tokens:
        begins_line = not text or text.endswith(END)
        text += token if begins_line or token in _TIGHT or token == END else f" {token}"
    return text


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


_DEFINITION = read_toml(Path(__file__).with_suffix(".toml"))
_LISTS = {name: _parse_list(words) for name, words in _DEFINITION["lists"].items()}
_TEMPLATES: tuple[str, ...] = tuple(_DEFINITION["templates"])
