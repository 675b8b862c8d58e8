"""Writes the synthetic speech set: an LJSpeech-shaped corpus read by our own voice, the same for the same seed."""

from __future__ import annotations

import io
import wave
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from trainmark.data.atomic_dataset import (
    DatasetSpec,
    Progress,
    WrittenFile,
    every_core,
    stage,
    write_chunks,
    write_file,
)
from trainmark.data.ljspeech.formants import RATE_HZ, synthesize
from trainmark.data.ljspeech.sentences import sentence
from trainmark.record.errors import UsageError

VERSION = 1
"""Counts up whenever the same seed gives other clips."""

CLIPS, SEED = 640, 0
MAX_CLIPS = 100_000
METADATA = "metadata.csv"

_CHAPTER = 200
"""Clips to a chapter; only their names tell chapters apart."""
_CHUNK = 25
_WORTH_PROCESSES = 150
"""Clips from which on reading takes longer than starting processes to read them."""


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """What a set holds; two sets that agree in this agree in every byte."""

    clips: int
    seed: int

    @property
    def name(self) -> str:
        return f"speech-v{VERSION}-{self.clips}-seed{self.seed}"


def make(
    root: Path,
    *,
    clips: int = CLIPS,
    seed: int = SEED,
    processes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Makes the set in the folder `root`, which appears whole or not at all; returns at once if it is there already.

    Several processes may make the same set at once. `processes` does not change a byte; left out, every core reads.
    """
    contents = _checked(clips, seed)
    if processes is not None and processes < 1:
        raise UsageError(f"{processes} processes were asked for; give 1 or more")
    if processes is None:
        processes = every_core() if clips >= _WORTH_PROCESSES else 1
    stage(root, _plan(contents), partial(_write_clips, contents=contents, processes=processes, progress=progress))


def default_name() -> str:
    """What the folder of the default set is called."""
    return _checked(CLIPS, SEED).name


def clip_id(number: int) -> str:
    """What clip `number`, counted from 0, is called: its chapter and its place in it, both counted from 1."""
    return f"TM{number // _CHAPTER + 1:03d}-{number % _CHAPTER + 1:04d}"


def _checked(clips: int, seed: int) -> _Contents:
    if not 1 <= clips <= MAX_CLIPS:
        raise UsageError(f"a synthetic set of {clips} clips was asked for; give 1 to {MAX_CLIPS}")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give 0 or more")
    return _Contents(clips=clips, seed=seed)


def _plan(contents: _Contents) -> DatasetSpec:
    return DatasetSpec(
        things="synthetic clips",
        identity={"generator": "trainmark speech", "set": "ljspeech", "version": VERSION, **asdict(contents)},
        notes={
            "about": "Sentences made and read by trainmark; no recordings",
            "rate_hz": RATE_HZ,
            "made_with": {"numpy": np.__version__},
        },
        patterns=(METADATA, "wavs/*.wav"),
        files=1 + contents.clips,
    )


def _write_clips(root: Path, contents: _Contents, processes: int, progress: Progress | None) -> list[WrittenFile]:
    (root / "wavs").mkdir()
    numbers = range(contents.clips)
    chunks = [numbers[start : start + _CHUNK] for start in range(0, contents.clips, _CHUNK)]
    read = partial(_read_chunk, root, contents.seed)
    written = write_chunks(read, chunks, total=contents.clips, processes=processes, progress=progress)
    lines = "".join("|".join((clip_id(number), *sentence(number, contents.seed))) + "\n" for number in numbers)
    return [*written, write_file(root, METADATA, lines.encode())]


def _read_chunk(root: Path, seed: int, numbers: range) -> list[WrittenFile]:
    written = []
    for number in numbers:
        _, spoken = sentence(number, seed)
        # a clip's own noise: no clip depends on another, nor on who reads it
        samples = synthesize(spoken, seed * MAX_CLIPS + number)
        written.append(write_file(root, f"wavs/{clip_id(number)}.wav", _wav(samples.astype("<i2").tobytes())))
    return written


def _wav(samples: bytes) -> bytes:
    """A sound file of 16 bit and one channel."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, RATE_HZ, 0, "NONE", "not compressed"))
        file.writeframes(samples)
    return data.getvalue()
