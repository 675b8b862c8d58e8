"""Random sentences for the synthetic speech set, as written and as spoken.

The lists and their order are part of the data set's definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

Rng = np.random.Generator
Pair = tuple[str, str]
"""Text as written and as spoken."""


def sentence(number: int, seed: int) -> tuple[str, str]:
    """Sentence `number` of a seed, as written and with figures and abbreviations spelled out."""
    rng = np.random.default_rng([seed, number])
    # odd parts are the names of slots
    parts = re.split(r"\{(\w+)\}", _one_of(_TEMPLATES, rng))
    pairs = [_fill(part, rng) if place % 2 else (part, part) for place, part in enumerate(parts)]
    written, spoken = ("".join(half) for half in zip(*pairs, strict=True))
    return _capitalise(written), _capitalise(spoken)


def _fill(slot: str, rng: Rng) -> Pair:
    if slot in _FIGURES:
        return _FIGURES[slot](rng)
    words = _one_of(_WORDS[slot], rng)
    return words, words


def _one_of(choices: tuple[str, ...], rng: Rng) -> str:
    return choices[int(rng.integers(len(choices)))]


def _capitalise(text: str) -> str:
    return text[0].upper() + text[1:]


def _split_list(words: str) -> tuple[str, ...]:
    return tuple(words.split(", "))


# Figures and abbreviations

_SMALL = _split_list(
    "zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, "
    "fifteen, sixteen, seventeen, eighteen, nineteen"
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ODD_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def spell(number: int) -> str:
    """An integer from 0 to 999 in words."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_SMALL[number % 10]}" if number % 10 else "")
    rest = f" and {spell(number % 100)}" if number % 100 else ""
    return f"{_SMALL[number // 100]} hundred{rest}"


def spell_ordinal(number: int) -> str:
    """The first to the ninety-ninth."""
    words = spell(number)
    start, dash, last = words.rpartition("-")
    if last in _ODD_ORDINALS:
        return start + dash + _ODD_ORDINALS[last]
    return (words[:-1] + "ieth") if words.endswith("y") else words + "th"


def spell_year(year: int) -> str:
    """A year from 1101 to 1999, in two halves."""
    century, rest = divmod(year, 100)
    if rest == 0:
        return f"{spell(century)} hundred"
    return f"{spell(century)} {'oh ' if rest < 10 else ''}{spell(rest)}"


def _count(rng: Rng) -> Pair:
    number = int(rng.integers(2, 100))
    return str(number), spell(number)


def _hundreds(rng: Rng) -> Pair:
    number = int(rng.integers(100, 1000))
    return str(number), spell(number)


def _price(rng: Rng) -> Pair:
    dollars, cents = int(rng.integers(2, 40)), 5 * int(rng.integers(0, 20))
    if cents == 0:
        return f"${dollars}", f"{spell(dollars)} dollars"
    return f"${dollars}.{cents:02d}", f"{spell(dollars)} dollars and {spell(cents)} cents"


def _year(rng: Rng) -> Pair:
    year = int(rng.integers(1750, 2000))
    return str(year), spell_year(year)


def _day(rng: Rng) -> Pair:
    day, month = int(rng.integers(1, 29)), _one_of(_MONTHS, rng)
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"the {day}{ending} of {month}", f"the {spell_ordinal(day)} of {month}"


def _clock(rng: Rng) -> Pair:
    hour, minute = int(rng.integers(1, 13)), (10, 15, 20, 30, 40, 45, 50)[int(rng.integers(7))]
    return f"{hour}:{minute}", f"{spell(hour)} {spell(minute)}"


def _titled_person(rng: Rng) -> Pair:
    title, family = _TITLES[int(rng.integers(len(_TITLES)))], _one_of(_WORDS["family"], rng)
    return f"{title[0]} {family}", f"{title[1]} {family}"


_FIGURES: dict[str, Callable[[Rng], Pair]] = {
    "count": _count,
    "hundreds": _hundreds,
    "price": _price,
    "year": _year,
    "day": _day,
    "clock": _clock,
    "titled": _titled_person,
}

_TITLES = (
    ("Dr.", "Doctor"),
    ("Mr.", "Mister"),
    ("Mrs.", "Missus"),
    ("Capt.", "Captain"),
    ("Prof.", "Professor"),
    ("Col.", "Colonel"),
    ("Sgt.", "Sergeant"),
)
_MONTHS = _split_list(
    "January, February, March, April, May, June, July, August, September, October, November, December"
)

# Words

_WORDS: dict[str, tuple[str, ...]] = {
    "name": _split_list(
        "Nora, Felix, Quinn, Iris, Hugo, Maya, Otis, Zelda, Jasper, Vera, Boris, Greta, Wanda, Yusuf, Agnes, "
        "Basil, Clara, Dexter, Edith, Floyd, Ginger, Harvey, Ingrid, Jonah, Kitty, Luke, Max, Nell, Oscar, "
        "Phoebe, Roxy, Sven, Tess, Ursula, Viktor, Zack"
    ),
    "family": _split_list(
        "Hale, Quigley, Fox, Marsh, Ziegler, Bloom, Jackson, Kirby, Vance, Wexler, Pym, Adler, Doyle, Grubb, "
        "Lively, Nash, Ottway, Rusk, Sharp, Thorne, Upton, Yates, Cobb, Eckhart"
    ),
    "people": _split_list(
        "the baker, the young queen, the postman, my uncle, her cousin, the judge, the gardener, a tall sailor, our "
        "teacher, the night watchman, the old poet, every neighbour, the quiet boy, a farmer, the new clerk, his aunt, "
        "the weaver, the jeweller, the happy crew, the mayor, nobody, somebody, the butcher, a dancer, the blacksmith, "
        "the widow, the juggler, a brave knight, the choir, the cook"
    ),
    "thing": _split_list(
        "box, lamp, violin, kettle, bridge, letter, garden, window, basket, jacket, wagon, quilt, mirror, ladder, "
        "piano, fence, hammer, chimney, pocket watch, map, barrel, anchor, jug, blanket, candle, drum, axe, velvet "
        "coat, zither, engine, oven, puzzle, boat, key, cupboard, statue, broom, wheel, flag, saddle, bell, cheese, "
        "book, story, field, gate, roof, stove, rope, trumpet"
    ),
    "things": _split_list(
        "boxes, apples, horses, sheep, jars of honey, stamps, foxes, maps, plums, lizards, quills, tents, barrels, "
        "bricks, geese, wolves, cakes, hats, jewels, frozen fish, buttons, ships, oxen, zebras, kites, turnips, pigs, "
        "roses, umbrellas, yellow beads, books, candles, vines, nails, goats, coins, eggs, spoons, owls, "
        "doves"
    ),
    "kind": _split_list(
        "small, heavy, quiet, yellow, broken, ancient, lovely, frozen, narrow, wooden, purple, dusty, golden, crooked, "
        "gentle, hidden, empty, plain, tiny, vast, waxed, queer, jolly, lazy, brown, faded, shining, useful, woven, "
        "extra, grey, big, fine, cold, round, oval, blue, green, sharp, soft, rough, silver, zigzag"
    ),
    "did": _split_list(
        "painted, carried, mended, sold, admired, lost, found, borrowed, quickly fixed, dropped, polished, wanted, "
        "examined, kept, moved, buried, opened, ignored, fetched, forgot, judged, measured, packed, recognized, "
        "shook, tied, unlocked, valued, weighed, washed, bought, covered, dragged, enjoyed, filled, guarded, hid, "
        "kicked, liked, noticed, pushed, rejected, saw, took, used, watched"
    ),
    "went": _split_list(
        "walked, ran, waited, slept, sang, sat, stood, whistled, laughed, worked, danced, jumped, rested, vanished, "
        "hurried, played, read, shivered, argued, coughed, dozed, fell, gazed, hummed, knelt, mumbled, paused, "
        "quarrelled, relaxed, shouted, travelled, wept, yawned"
    ),
    "where": _split_list(
        "by the river, under the bridge, in the garden, near the harbour, behind the mill, on the roof, at the market, "
        "beside the lake, in the kitchen, above the valley, along the coast, across the square, inside the museum, "
        "beyond the hills, outside the zoo, near the quarry, in the attic, under an oak, on the jetty, at the fair, "
        "on the lawn, by the fire, in the snow, at sea, up the hill, down the road, on the edge of the forest, in the "
        "next village"
    ),
    "when": _split_list(
        "at dawn, in winter, before supper, last night, on Friday, at noon, all morning, after the storm, every "
        "evening, in July, until dusk, for an hour, twice a week, at midnight, again, during the feast, last year, "
        "in spring, at last, long ago, today, before the rain came, once more, by moonlight, on Sunday"
    ),
    "how": _split_list(
        "quietly, slowly, with great joy, in silence, gladly, without a word, badly, by mistake, very well, on "
        "purpose, at full speed, expertly, lazily, with a sigh, with both hands, calmly, in a hurry, too late, "
        "bravely, by chance"
    ),
    "is": _split_list("was, looked, seemed, became, stayed, remained, felt, grew"),
    "link": _split_list("and, but, so, while, because, yet"),
    "opening": _split_list(
        "however, of course, as always, in the end, to our surprise, one day, by then, luckily, sadly, in fact, "
        "before long, as a rule, strange to say, at any rate, just then, even so, for example, quite often"
    ),
    "soon": _split_list("at once, before noon, today, again, next week, after lunch, by Friday, very soon"),
    "asked": _split_list("why, when, how, where"),
    "verb": _split_list(
        "open, sell, fix, bring, hide, paint, move, keep, measure, wash, choose, judge, visit, examine, buy, "
        "lift, quit, admire"
    ),
}

_TEMPLATES = (
    "{people} {did} the {thing}.",
    "{name} {did} the {kind} {thing}.",
    "{name} {went} {where}.",
    "{people} {went} {where} {when}.",
    "{people} {did} the {kind} {thing} {when}.",
    "the {kind} {thing} {is} {kind} {when}.",
    "the {thing} {where} {is} {kind}, {kind} and {kind}.",
    "{opening}, {name} {went} {how}.",
    "{opening}, {people} {did} the {kind} {thing} {where}.",
    "{name} {went} {where}, {link} {people} {did} the {thing}.",
    "{people} {did} the {thing} {how}, {link} {name} {went} {when}.",
    "{asked} did {name} {verb} the {kind} {thing}?",
    "did {people} {verb} the {thing} {where}?",
    "{name}, {name} and {name} {went} {where}.",
    "{name} {did} {kind} {things}, {kind} {things} and the {thing}.",
    "please {verb} the {thing} {soon}.",
    "{verb} the {kind} {things}, {name}!",
    "{titled} {did} the {kind} {thing}.",
    "{titled} {went} {where} {when}, {link} {name} {went}.",
    "{name} paid {price} for the {kind} {thing}.",
    "the {thing} {is} {kind} in {year}.",
    "{people} {did} {count} {kind} {things} {where}.",
    "there were {hundreds} {things} {where}.",
    "on {day}, {titled} {did} the {thing}.",
    "at {clock} {people} {went} {where}.",
)
