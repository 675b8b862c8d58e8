"""Random sentences for the synthetic speech set, as written and as spoken.

The lists and templates are in sentences.toml.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from num2words import num2words

from trainmark.data import read_toml

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


# Figures and abbreviations


def spell(number: int) -> str:
    return str(num2words(number))


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
    return f"the {day}{ending} of {month}", f"the {num2words(day, to='ordinal')} of {month}"


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

_DEFINITION = read_toml(Path(__file__).with_suffix(".toml"))
_TEMPLATES: tuple[str, ...] = tuple(_DEFINITION["templates"])
_TITLES: tuple[Pair, ...] = tuple(_DEFINITION["titles"].items())
_MONTHS = tuple(_DEFINITION["months"].split(", "))
_WORDS = {slot: tuple(words.split(", ")) for slot, words in _DEFINITION["words"].items()}
