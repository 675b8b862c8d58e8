"""Verifies a speech set: counts, duration, and clips that are missing, truncated or of another format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainmark.data import audio, verification
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import SpeechSize
from trainmark.data.verification import Decode, Findings, Report, map_parallel, note_on, problem
from trainmark.record import cores

_CHUNK = 64
_WORTH_PROCESSES = 512
"""Number of clips from which starting processes pays off."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Clips that one process checks."""

    folder: Path
    names: tuple[str, ...]
    """Names of files in the folder."""
    below: str
    """The folder relative to the root."""
    decode: Decode


def verify(
    root: Path,
    *,
    expected: int | Literal["auto"] | None = "auto",
    decode: Decode = "header",
    processes: int | None = None,
) -> Report[SpeechSize]:
    """Compares metadata.csv with the audio files and checks each file.

    `decode="none"` checks names and sizes only; "header" also each file's rate, channels and length, which finds
    truncated copies; "full" reads every sample. `expected="auto"` takes the count of clips from the set's manifest, or
    LJSpeech's if the ids look like it, else none. One process per core by default where it pays.
    """
    metadata = reader.parse_metadata(root)
    clips = reader.expected_clips(root) if expected == "auto" else expected
    files = reader.sound_files(metadata.folder)
    below = (metadata.folder / reader.WAVS).relative_to(root).as_posix()
    named = [clip.path.name for clip in metadata.clips]
    there = [name for name in named if name in files]
    seen = Findings.total(_check_all(metadata.folder / reader.WAVS, there, below, decode, processes))
    seconds = None if decode == "none" else seen.counts["samples"] / audio.RATE
    return Report(
        expected=None if clips is None else SpeechSize(clips=clips),
        found=SpeechSize(clips=len(there), seconds=seconds),
        problems=(
            *(problem(reader.METADATA, fault) for fault in metadata.faults),
            *(problem(f"{below}/{name}", "is missing") for name in named if name not in files),
            *seen.problems,
        ),
        notes=(
            *(note_on(f"{below}/{name}", _describe_unlisted(name)) for name in sorted(files - set(named))),
            *seen.notes,
        ),
    )


def _describe_unlisted(name: str) -> str:
    if name.endswith(".wav"):
        return f"is in no line of {reader.METADATA} and was left out"
    return "is not named .wav and was left out"


def _check_all(folder: Path, names: Sequence[str], below: str, decode: Decode, processes: int | None) -> list[Findings]:
    if processes is None:
        worth_it = decode == "full" and len(names) >= _WORTH_PROCESSES
        processes = cores.count_usable_cores() if worth_it else 1
    jobs = [
        _Job(folder=folder, names=tuple(names[start : start + _CHUNK]), below=below, decode=decode)
        for start in range(0, len(names), _CHUNK)
    ]
    return map_parallel(_check_clips, jobs, processes, "audio files")


def _check_clips(job: _Job) -> Findings:
    found = Findings()
    for name in job.names:
        path = f"{job.below}/{name}"
        try:
            samples, note = _check_clip(job.folder / name, job.decode)
        except audio.BadAudioError as error:
            found.add(path, error.reason)
        else:
            found.counts["samples"] += samples
            found.add(path, note=note)
    return found


def _check_clip(path: Path, decode: Decode) -> tuple[int, str]:
    """Number of samples, and a note."""
    if decode == "full":
        samples = audio.read(path)
        return len(samples), "" if samples.any() else "is silent throughout"
    if decode == "header":
        return audio.length(path), ""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise audio.BadAudioError(path, f"it cannot be read ({error.strerror})") from error
    if not size:
        raise audio.BadAudioError(path, "it is empty")
    return 0, ""


def inspect(folder: Path) -> tuple[str, str]:
    """Counts texts and audio files without opening them."""
    return verification.inspect(verify, folder)
