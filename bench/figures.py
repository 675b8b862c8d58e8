"""Figures that a benchmark hands to `bench/table.py`, which names a file for them in the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

FILE = "TRAINMARK_BENCH_FIGURES"


def note(name: str, value: float) -> None:
    """Nothing happens where nobody asked for figures."""
    if path := os.environ.get(FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            print(json.dumps({"name": name, "value": value}), file=file)


def read(path: Path) -> dict[str, float]:
    """By name; of one that was noted twice, the later."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {noted["name"]: noted["value"] for noted in map(json.loads, lines)}
