"""Writes the synthetic text: lines of the synthetic language as tokens, deterministic per seed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np

from trainmark.data.atomic_dataset import DatasetSpec, Progress, WrittenFile, stage, write_file
from trainmark.data.text import language
from trainmark.data.text.token_files import INDEX, SPLITS, WORDS, Index, TokenFile, TokenSplit
from trainmark.record.errors import UsageError

VERSION = 1
"""Increased whenever the same seed gives other lines."""

LINES, SEED = 40_000, 0
MIN_LINES, MAX_LINES = 20, 10_000_000
FOR_VALIDATION = 20
"""Training lines per validation line."""
_PROGRESS_EVERY = 1000


def make(root: Path, *, lines: int = LINES, seed: int = SEED, progress: Progress | None = None) -> None:
    """Makes the set in the folder `root` atomically; returns at once if it exists."""
    _check(lines, seed)
    stage(root, _spec(lines, seed), partial(_write, lines=lines, seed=seed, progress=progress))


def default_name() -> str:
    """Folder name of the default set."""
    return f"text-v{VERSION}-{LINES}-seed{SEED}"


def _check(lines: int, seed: int) -> None:
    if not MIN_LINES <= lines <= MAX_LINES:
        raise UsageError(f"a synthetic text of {lines} lines was requested; give {MIN_LINES} to {MAX_LINES}")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give 0 or more")


def _spec(lines: int, seed: int) -> DatasetSpec:
    entropy = language.entropy()
    return DatasetSpec(
        things="synthetic lines",
        identity={"generator": "trainmark text", "set": "text", "version": VERSION, "lines": lines, "seed": seed},
        notes={
            "about": "Lines of a language made by trainmark; nobody wrote them",
            "entropy_nats_per_line": entropy.nats_per_line,
            "entropy_nats_per_token": entropy.nats_per_token,
        },
        patterns=("*.bin", INDEX, WORDS),
        files=len(SPLITS) + 2,
    )


def _write(root: Path, lines: int, seed: int, progress: Progress | None) -> list[WrittenFile]:
    words = language.vocabulary()
    ids = {word: number for number, word in enumerate(words)}
    written, splits = [], {}
    for place, name in enumerate(SPLITS):
        count = lines if name == "train" else max(1, lines // FOR_VALIDATION)
        tokens: list[int] = []
        text_bytes, nats = 0, 0.0
        for number in range(count):
            drawn = language.random_line(seed, place, number)
            tokens += [ids[token] for token in drawn.tokens]
            text_bytes += len(language.join_tokens(drawn.tokens).encode())
            nats += drawn.nats
            if progress is not None and name == "train" and (number + 1 == count or not (number + 1) % _PROGRESS_EVERY):
                progress(number + 1, count)
        written.append(write_file(root, f"{name}.bin", np.array(tokens, "<u2").tobytes()))
        file = TokenFile(name=f"{name}.bin", tokens=len(tokens), dtype="uint16")
        splits[name] = TokenSplit(files=(file,), largest=max(tokens), text_bytes=text_bytes, nats=nats)
    index = Index(splits=splits, source="synthetic")
    written.append(write_file(root, WORDS, json.dumps(words, ensure_ascii=False).encode()))
    return [*written, write_file(root, INDEX, index.to_json())]
