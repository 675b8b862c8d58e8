"""Writes the synthetic speech set, an LJSpeech-shaped corpus, deterministic per seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from trainmark.data import audio
from trainmark.data.atomic_dataset import (
    DatasetSpec,
    Progress,
    WrittenFile,
    choose_processes,
    stage,
    write_chunks,
    write_file,
)
from trainmark.data.ljspeech.formants import RATE_HZ, synthesize
from trainmark.data.ljspeech.sentences import sentence
from trainmark.record.errors import UsageError

VERSION = 1
"""Increased whenever the same seed gives other clips."""

CLIPS, SEED = 640, 0
MAX_CLIPS = 100_000
METADATA = "metadata.csv"

_CHAPTER = 200
"""Clips per chapter, which only names show."""
_CHUNK = 25
_WORTH_PROCESSES = 150
"""Number of clips from which starting processes pays off."""


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """Parameters that determine every byte of a set."""

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
    """Makes the set in the folder `root` atomically; returns at once if it exists.

    Several processes may make the same set at once. `processes` (default: one per core) does not change the result.
    """
    contents = _make_contents(clips, seed)
    processes = choose_processes(processes, clips, _WORTH_PROCESSES)
    stage(root, _spec(contents), partial(_write_clips, contents=contents, processes=processes, progress=progress))


def default_name() -> str:
    """Folder name of the default set."""
    return _make_contents(CLIPS, SEED).name


def clip_id(number: int) -> str:
    """Name of clip `number`: chapter and position in it, both counted from 1."""
    return f"TM{number // _CHAPTER + 1:03d}-{number % _CHAPTER + 1:04d}"


def _make_contents(clips: int, seed: int) -> _Contents:
    if not 1 <= clips <= MAX_CLIPS:
        raise UsageError(f"a synthetic set of {clips} clips was requested; give 1 to {MAX_CLIPS}")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give 0 or more")
    return _Contents(clips=clips, seed=seed)


def _spec(contents: _Contents) -> DatasetSpec:
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
        # one seed per clip: no clip depends on another, nor on the process
        samples = synthesize(spoken, seed * MAX_CLIPS + number)
        written.append(write_file(root, f"wavs/{clip_id(number)}.wav", audio.encode_wav(samples)))
    return written
