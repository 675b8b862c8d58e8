"""Documents with one thing wrong, everywhere in them: what a reader must refuse in a sentence, or read and show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

GONE = object()
WRONG: dict[str, Any] = {
    "gone": GONE,
    "null": None,
    "a number": 9,
    "negative": -7,
    "zero": 0,
    "a fraction": 0.5,
    "10**400": 10**400,
    "2**70": 2**70,
    "1.7e308": 1.7e308,
    "a text": "x",
    "the text nan": "nan",
    "half a sign": "\ud800",
    "controls": "\x1b[31m\u202e\0",
    "yes": True,
    "a list": [1, 2, 3],
    "nested lists": [[[]]],
    "an object": {"a": {"b": [None]}},
    "no text": "",
    "an empty list": [],
}

Path = tuple["str | int", ...]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    base: Any
    path: Path
    wrong: str

    def __str__(self) -> str:
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"{name.lstrip('.')} is {self.wrong}"

    @property
    def document(self) -> Any:
        return _changed(self.base, self.path, WRONG[self.wrong])

    @property
    def text(self) -> str:
        """As JSON, in which half a sign is an escape."""
        return json.dumps(self.document)


def mutations(base: Any) -> list[Mutation]:
    """Every entry of a document, or the first and last of a list, replaced by each wrong value in turn."""
    return [Mutation(base=base, path=path, wrong=wrong) for path in _paths(base) for wrong in WRONG]


def _paths(node: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(node, dict):
        for name, entry in node.items():
            yield from _paths(entry, (*path, name))
    elif isinstance(node, list) and node:
        for place in sorted({0, len(node) - 1}):
            yield from _paths(node[place], (*path, place))


def _changed(node: Any, path: Path, wrong: Any) -> Any:
    """A copy along the path only."""
    whole = node.copy()
    if len(path) > 1:
        whole[path[0]] = _changed(node[path[0]], path[1:], wrong)
    elif wrong is GONE:
        del whole[path[0]]
    else:
        whole[path[0]] = wrong
    return whole
