"""Verifies a speech set: counts, duration, and clips that are missing, truncated or of another format."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainmark.data import audio
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import METADATA, WAVS, SpeechSize
from trainmark.data.verification import Decode, Findings, Report, map_parallel

_CHUNK = 64


class _Job(NamedTuple):
    """Clips that one process checks."""

    root: Path
    paths: list[str]
    """Relative to the root."""
    decode: Decode


def verify(root: Path, *, decode: Decode = "header") -> Report[SpeechSize]:
    """Compares metadata.csv with the audio files and checks each file.

    `decode="none"` checks names and sizes only; "header" also each file's rate, channels and length, which finds
    truncated copies; "full" reads every sample. The number of clips is compared with the set's manifest, or with
    LJSpeech's if the ids look like it.
    """
    metadata = reader.parse_metadata(root)
    files = reader.sound_files(metadata.folder)
    below = (metadata.folder / WAVS).relative_to(root).as_posix()
    named = [clip.path.name for clip in metadata.clips]
    there = [f"{below}/{name}" for name in named if name in files]
    seen = Findings()
    for fault in metadata.faults:
        seen.add(METADATA, fault)
    for name in named:
        seen.add(f"{below}/{name}", "" if name in files else "is missing")
    for name in sorted(files - set(named)):
        why = f"is in no line of {METADATA}" if name.endswith(".wav") else "is not named .wav"
        seen.add(f"{below}/{name}", note=f"{why} and was left out")
    jobs = [_Job(root, there[start : start + _CHUNK], decode) for start in range(0, len(there), _CHUNK)]
    seen.merge(map_parallel(_check_clips, jobs, decode, "audio files"))
    seconds = None if decode == "none" else seen.counts["samples"] / audio.RATE
    wanted = reader.expected_clips(root)
    found = SpeechSize(clips=len(there), seconds=seconds)
    return seen.report(found, None if wanted is None else SpeechSize(clips=wanted))


def _check_clips(job: _Job) -> Findings:
    found = Findings()
    for path in job.paths:
        try:
            if job.decode == "full":
                samples = audio.read(job.root / path)
                found.counts["samples"] += len(samples)
                found.add(path, note="" if samples.any() else "is silent throughout")
            elif job.decode == "header":
                found.counts["samples"] += audio.length(job.root / path)
            elif not (job.root / path).stat().st_size:
                found.add(path, "it is empty")
        except audio.BadAudioError as error:
            found.add(path, error.reason)
        except OSError as error:
            found.add(path, f"it cannot be read ({error.strerror})")
    return found
