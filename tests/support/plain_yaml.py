"""Reads the YAML that trainmark writes: mappings and lists in blocks, strings in double quotes, whole-line comments."""

from __future__ import annotations

import json
import re
from typing import Any

Line = tuple[int, str]


def read(text: str) -> Any:
    """The last document of a text."""
    return documents(text)[-1]


def documents(text: str) -> list[Any]:
    return [_document(part) for part in text.split("\n---\n")]


def _document(text: str) -> Any:
    lines = [
        (len(line) - len(line.lstrip(" ")), line.strip(" "))
        for line in text.split("\n")
        if line.strip(" ") and not line.lstrip(" ").startswith("#")
    ]
    value, rest = _block(lines)
    assert not rest, f"left over: {rest[0]}"
    return value


def _block(lines: list[Line]) -> tuple[Any, list[Line]]:
    """The mapping or list that begins with the first line, and the lines behind it."""
    indent = lines[0][0]
    listed: list[Any] = []
    mapped: dict[str, Any] = {}
    while lines and lines[0][0] == indent:
        text = lines[0][1]
        if text.startswith("- "):
            inner = text[2:].lstrip(" ")
            if re.match(_KEY, inner):
                value, lines = _block([(indent + 2, inner), *lines[1:]])
            else:
                value, lines = _scalar(inner), lines[1:]
            listed.append(value)
            continue
        match = re.match(_KEY, text)
        assert match, f"neither an item nor a key: {text!r}"
        key = _scalar(match[1])
        assert key not in mapped, f"{key!r} twice"
        if match[2]:
            mapped[key], lines = _scalar(match[2]), lines[1:]
        else:
            assert lines[1][0] > indent, f"{key!r} holds nothing"
            mapped[key], lines = _block(lines[1:])
    assert not (listed and mapped), "a list and a mapping in one"
    return listed or mapped, lines


_KEY = re.compile(r'("(?:[^"\\]|\\.)*"|[A-Za-z][A-Za-z0-9]*):(?: (.+))?$')


def _scalar(text: str) -> Any:
    if text.startswith("["):
        return [_scalar(text[1:-1])]
    if text.startswith("{"):
        match = re.match(_KEY, text[1:-1])
        assert match, text
        return {_scalar(match[1]): _scalar(match[2])}
    if text.startswith('"'):
        # JSON writes what lies beyond 16 bits otherwise than YAML
        return json.loads(re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), text))
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9./-]*", text), f"a bare word must be harmless: {text!r}"
    return text
