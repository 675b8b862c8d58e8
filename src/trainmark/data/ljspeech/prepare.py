"""Unpacks LJSpeech-1.1.tar.bz2 into metadata.csv and a folder of WAV files, and verifies such folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePosixPath

from trainmark.data import audio
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import METADATA, PUBLISHED_FOLDER, WAVS, SpeechSize, read_metadata
from trainmark.data.preparation import ReportProgress, check_md5, prepare_folder, unpack
from trainmark.data.verification import Decode, Report, map_parallel
from trainmark.record.archives import ArchiveLimits, Member, tar_members
from trainmark.record.errors import NotReadyError


def verify(root: Path, *, decode: Decode = "header") -> Report:
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
    seen = Report()
    for fault in metadata.faults:
        seen.add(METADATA, fault)
    for name in named:
        seen.add(f"{below}/{name}", "" if name in files else "is missing")
    for name in sorted(files - set(named)):
        why = f"is in no line of {METADATA}" if name.endswith(".wav") else "is not named .wav"
        seen.add(f"{below}/{name}", note=f"{why} and was left out")
    seen.merge(map_parallel(partial(_check_clip, root, decode), there, decode, "audio files"))
    seconds = None if decode == "none" else seen.counts["samples"] / audio.RATE
    wanted = reader.expected_clips(root)
    seen.found = SpeechSize(clips=len(there), seconds=seconds)
    seen.expected = None if wanted is None else SpeechSize(clips=wanted)
    return seen


def _check_clip(root: Path, decode: Decode, path: str) -> Report:
    found = Report()
    try:
        if decode == "full":
            samples = audio.read(root / path)
            found.counts["samples"] = len(samples)
            found.add(path, note="" if samples.any() else "is silent throughout")
        elif decode == "header":
            found.counts["samples"] = audio.length(root / path)
        elif not (root / path).stat().st_size:
            found.add(path, "it is empty")
    except audio.BadAudioError as error:
        found.add(path, error.reason)
    except OSError as error:
        found.add(path, f"it cannot be read ({error.strerror})")
    return found


MD5 = "c4763be9595ddfa79c2fc6eaeb3b6c8e"
LIMITS = ArchiveLimits(files=100_000, total_bytes=64 << 30)
"""Larger than any set of this kind; a compressed archive can unpack to far more than its own size."""
_RATIO = 1.4


def prepare(out: Path, *, any_archive: bool, progress: ReportProgress, tar: Path) -> str:
    """Unpacks the archive to `out/metadata.csv` and `out/wavs/`; returns a summary."""
    with prepare_folder(out, [tar], source="keithito.com/LJ-Speech-Dataset", ratio=_RATIO) as destination:
        if not any_archive:
            check_md5(tar, MD5, progress)
        members, total_bytes = tar_members(tar, tar.name, LIMITS), int(_RATIO * tar.stat().st_size)
        unpacked = unpack(members, _place, destination, progress, total_bytes=total_bytes)
        if not unpacked.files[METADATA]:
            raise NotReadyError(f"{tar} has no {PUBLISHED_FOLDER}/{METADATA}; is it the right archive?")
        clips, named = unpacked.files[WAVS], len(read_metadata(out))
    if clips != named:
        raise NotReadyError(f"{tar} holds {clips} audio files and its {METADATA} names {named}; is it whole?")
    return f"{SpeechSize(clips=clips)}, {unpacked.written:,} files written now"


def _place(member: Member) -> PurePosixPath:
    """Destination of a member: its path without the archive's top folder."""
    top, *rest = PurePosixPath(member.name).parts
    if top == PUBLISHED_FOLDER:
        if rest in ([METADATA], ["README"]):
            return PurePosixPath(rest[0])
        if len(rest) == 2 and rest[0] == WAVS and rest[1].endswith(".wav") and not rest[1].startswith("."):
            return PurePosixPath(*rest)
    raise NotReadyError(
        f"{member} is not what LJSpeech holds, {PUBLISHED_FOLDER}/{METADATA}, README and wavs/*.wav; "
        "is it the right archive?"
    )
