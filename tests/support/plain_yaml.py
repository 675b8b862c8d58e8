"""Reads the YAML that trainmark writes: documents in JSON notation, between comments."""

from __future__ import annotations

import json
from typing import Any


def read(text: str) -> Any:
    """The last document of a text."""
    return documents(text)[-1]


def documents(text: str) -> list[Any]:
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    return [json.loads(part) for part in "\n".join(lines).split("\n---\n")]
