"""Writes the synthetic text: lines of the synthetic language as tokens, deterministic per seed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from trainmark.data.atomic_dataset import DatasetSpec, Progress, check_range, make_set, write_file
from trainmark.data.text import language
from trainmark.data.text.token_files import INDEX, SPLITS, WORDS, Index, TokenFile, TokenSplit

VERSION = 1
"""Increased whenever the same seed gives other lines."""

LINES, SEED = 40_000, 0
MIN_LINES, MAX_LINES = 20, 10_000_000
FOR_VALIDATION = 20
"""Training lines per validation line."""


def make(root: Path, *, lines: int = LINES, seed: int = SEED, progress: Progress | None = None) -> None:
    """Makes the set in the folder `root` atomically, in seconds; returns at once if it exists."""
    del progress
    check_range("lines", lines, MIN_LINES, MAX_LINES)
    check_range("seed", seed, 0)
    spec = DatasetSpec(
        things="synthetic lines",
        identity={"generator": "trainmark text", "set": "text", "version": VERSION, "lines": lines, "seed": seed},
        notes={"about": "Lines of a language made by trainmark; nobody wrote them"},
        patterns=("*.bin", INDEX, WORDS),
        files=len(SPLITS) + 2,
    )
    make_set(root, spec, [(lines, seed)], _write_lines)


def default_name() -> str:
    """Folder name of the default set."""
    return f"text-v{VERSION}-{LINES}-seed{SEED}"


def _write_lines(root: Path, contents: tuple[int, int]) -> None:
    lines, seed = contents
    words = language.vocabulary()
    ids = {word: number for number, word in enumerate(words)}
    splits = {}
    for place, name in enumerate(SPLITS):
        count = lines if name == "train" else max(1, lines // FOR_VALIDATION)
        tokens: list[int] = []
        text_bytes, nats = 0, 0.0
        for number in range(count):
            line = language.random_line(seed, place, number)
            tokens += [ids[token] for token in line.tokens]
            text_bytes += len(language.join_tokens(line.tokens).encode())
            nats += line.nats
        write_file(root / f"{name}.bin", np.array(tokens, "<u2").tobytes())
        file = TokenFile(name=f"{name}.bin", tokens=len(tokens), dtype="uint16")
        splits[name] = TokenSplit(files=(file,), largest=max(tokens), text_bytes=text_bytes, nats=nats)
    index = Index(splits=splits, source="synthetic")
    write_file(root / WORDS, json.dumps(words, ensure_ascii=False).encode())
    write_file(root / INDEX, index.to_json())
