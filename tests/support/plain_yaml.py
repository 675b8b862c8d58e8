"""Reads the YAML that trainmark writes."""

from __future__ import annotations

from typing import Any

import yaml


def read(text: str) -> Any:
    """The last document of a text."""
    return documents(text)[-1]


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))
