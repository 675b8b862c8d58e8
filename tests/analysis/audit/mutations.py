"""Walks a document and changes one thing at a time, as someone might who wants a number to look better."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

Place = tuple[str | int, ...]
MOST_PLACES = 3
"""Of a long series, as many places are changed."""

NUMBERS: dict[str, Callable[[float], float]] = {
    "one percent more": lambda value: value * 1.01,
    "doubled": lambda value: value * 2,
    "negated": lambda value: -value,
}


def leaves(document: Any, chosen: random.Random, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield from leaves(value, chosen, (*path, name))
    elif isinstance(document, list):
        yield path, document
        places = range(len(document))
        if len(document) > 2 * MOST_PLACES and not isinstance(document[0], dict):
            places = sorted(chosen.sample(places, MOST_PLACES))  # type: ignore[assignment]
        for index in places:
            yield from leaves(document[index], chosen, (*path, index))
    else:
        yield path, document


def mutations(value: Any) -> Iterator[tuple[str, Any]]:
    """What may be put in a leaf's place, with a word for it."""
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, (int, float)):
        for word, change in NUMBERS.items():
            changed = change(value)
            if isinstance(value, int):
                changed = round(changed) if round(changed) != value else value + 1
            yield word, changed if changed != value else 1.0
    elif isinstance(value, str):
        yield "another word", value + "~"
        if re.search("[0-9]", value):
            yield "another figure", re.sub("[0-9]", lambda digit: str((int(digit[0]) + 1) % 10), value, count=1)
    elif value is None:
        yield "made up", 1
    elif isinstance(value, list) and value:
        yield "cut short", value[:-1]


def with_change(document: Any, path: Place, value: Any) -> Any:
    """A copy in which one leaf is another; what is not on the way to it is shared."""
    if not path:
        return copy.deepcopy(value)
    changed = copy.copy(document)
    changed[path[0]] = with_change(document[path[0]], path[1:], value)
    return changed


def spelt(path: Place) -> str:
    """`series.ranks[0].wait_ns[3]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
