"""Unpacks LJSpeech-1.1.tar.bz2 into metadata.csv and a folder of WAV files; restarted, it keeps complete files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainmark.data import preparation
from trainmark.data.ljspeech.reader import LJSPEECH_CLIPS, METADATA, PUBLISHED_FOLDER, WAVS, SpeechSize, read_metadata
from trainmark.data.preparation import STATE, Prepared, Report, prepare_folder, unpack
from trainmark.record.archives import ArchiveLimits, Destination, Member, tar_members
from trainmark.record.errors import NotReadyError

MAX_FILES = 100_000
MAX_BYTES = 64 << 30
"""Larger than any set of this kind; a compressed archive can unpack to far more than its own size."""

_MARKER = STATE / "unpacked.json"


@dataclass(frozen=True, kw_only=True)
class Release:
    """Expected checksum and size; None where unknown."""

    md5: str | None = None
    clips: int | None = None
    disk_bytes: int | None = None
    """Size of the unpacked set."""


LJSPEECH_1_1 = Release(md5="c4763be9595ddfa79c2fc6eaeb3b6c8e", clips=LJSPEECH_CLIPS, disk_bytes=3_830_000_000)


def from_files(out: Path, *, any_archive: bool, progress: Report, tar: Path) -> str:
    """Runs `trainmark data prepare` and returns its summary."""
    return str(prepare(tar, out, expected=Release() if any_archive else LJSPEECH_1_1, progress=progress))


def prepare(
    tar: Path,
    out: Path,
    *,
    expected: Release = LJSPEECH_1_1,
    progress: Report = lambda _: None,
    free_bytes: Callable[[Path], int] | None = None,
) -> Prepared[SpeechSize]:
    """Unpacks the archive to `out/metadata.csv` and `out/wavs/`.

    Killed and restarted, it keeps complete files and ends with the same result, though a compressed archive must be
    read from its start again. `expected` describes another archive than LJSpeech-1.1's.
    """
    with prepare_folder(
        out,
        {tar: "keithito.com/LJ-Speech-Dataset"},
        needed_bytes=lambda: expected.disk_bytes or tar.stat().st_size,
        folders=(WAVS,),
        free_bytes=free_bytes,
    ) as destination:
        preparation.check_md5(tar, expected.md5, destination, progress)
        clips, written = _count_unpacked(tar, destination), 0
        if clips is None:
            clips, written = _unpack(tar, destination, expected.disk_bytes or tar.stat().st_size, progress)
    if expected.clips is not None and clips != expected.clips:
        raise NotReadyError(f"{clips} clips unpacked where {expected.clips} were expected; is it the right archive?")
    named = len(read_metadata(out))
    if named != clips:
        raise NotReadyError(f"{tar} holds {clips} audio files and its {METADATA} names {named}; is it damaged?")
    return Prepared(found=SpeechSize(clips=clips), written=written)


def _count_unpacked(tar: Path, destination: Destination) -> int | None:
    """Number of clips unpacked by an earlier run, if the folder still holds exactly those."""
    state = preparation.read_json(destination, _MARKER)
    if not state:
        return None
    clips, wav_bytes = destination.files(PurePosixPath(WAVS))
    metadata_bytes = len(destination.read(PurePosixPath(METADATA)) or b"")
    return clips if state == _note(tar, clips, wav_bytes, metadata_bytes) else None


def _unpack(tar: Path, destination: Destination, guessed_bytes: int, progress: Report) -> tuple[int, int]:
    """Number of clips in the archive, and of files written."""
    members = tar_members(tar, tar.name, ArchiveLimits(files=MAX_FILES, total_bytes=MAX_BYTES))
    unpacked = unpack(members, _place, destination, progress, total_bytes=guessed_bytes)
    metadata_bytes = unpacked.sizes.get(PurePosixPath(METADATA), 0)
    if not metadata_bytes:
        raise NotReadyError(f"{tar} has no {PUBLISHED_FOLDER}/{METADATA} or an empty one; is it the right archive?")
    wavs = PurePosixPath(WAVS)
    clips = sum(place.parent == wavs for place in unpacked.sizes)
    note = _note(tar, clips, unpacked.total_bytes(wavs), metadata_bytes)
    preparation.write_json(destination, _MARKER, note)
    return clips, unpacked.written


def _note(tar: Path, clips: int, wav_bytes: int, metadata_bytes: int) -> dict[str, int]:
    """Record of an unpacked archive, so that it need not be decompressed again."""
    status = tar.stat()
    return {
        "archive_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "clips": clips,
        "wav_bytes": wav_bytes,
        "metadata_bytes": metadata_bytes,
    }


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
