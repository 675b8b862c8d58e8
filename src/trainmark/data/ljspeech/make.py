"""Writes the synthetic speech set, an LJSpeech-shaped corpus, deterministic per seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from trainmark.data import audio
from trainmark.data.atomic_dataset import DatasetSpec, Progress, check_range, make_set, write_file
from trainmark.data.ljspeech.formants import RATE_HZ, synthesize
from trainmark.data.ljspeech.sentences import sentence

VERSION = 1
"""Increased whenever the same seed gives other clips."""

CLIPS, SEED = 640, 0
MAX_CLIPS = 100_000
METADATA = "metadata.csv"

_CHAPTER = 200
"""Clips per chapter, which only names show."""


def make(root: Path, *, clips: int = CLIPS, seed: int = SEED, progress: Progress | None = None) -> None:
    """Makes the set in the folder `root` atomically; returns at once if it exists."""
    check_range("clips", clips, 1, MAX_CLIPS)
    check_range("seed", seed, 0)
    spec = DatasetSpec(
        things="synthetic clips",
        identity={
            "generator": "trainmark speech",
            "set": "ljspeech",
            "version": VERSION,
            "clips": clips,
            "seed": seed,
        },
        notes={
            "about": "Sentences made and read by trainmark; no recordings",
            "rate_hz": RATE_HZ,
            "made_with": {"numpy": np.__version__},
        },
        patterns=(METADATA, "wavs/*.wav"),
        files=1 + clips,
    )
    finish = partial(_add_metadata, clips, seed)
    make_set(root, spec, range(clips), partial(_read_clip, seed), finish=finish, progress=progress)


def default_name() -> str:
    """Folder name of the default set."""
    return f"speech-v{VERSION}-{CLIPS}-seed{SEED}"


def clip_id(number: int) -> str:
    """Name of clip `number`: chapter and position in it, both counted from 1."""
    return f"TM{number // _CHAPTER + 1:03d}-{number % _CHAPTER + 1:04d}"


def _read_clip(seed: int, root: Path, number: int) -> None:
    _, spoken = sentence(number, seed)
    # one seed per clip: no clip depends on another, nor on the process
    samples = synthesize(spoken, seed * MAX_CLIPS + number)
    write_file(root / "wavs" / f"{clip_id(number)}.wav", audio.encode_wav(samples))


def _add_metadata(clips: int, seed: int, root: Path) -> None:
    lines = "".join("|".join((clip_id(number), *sentence(number, seed))) + "\n" for number in range(clips))
    write_file(root / METADATA, lines.encode())
