"""Unpacks LJSpeech-1.1.tar.bz2 into metadata.csv and a folder of WAV files; restarted, it keeps complete files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from trainmark.data.ljspeech.reader import LJSPEECH_CLIPS, METADATA, PUBLISHED_FOLDER, WAVS, SpeechSize, read_metadata
from trainmark.data.preparation import Report, check_md5, prepare_folder, unpack
from trainmark.record.archives import ArchiveLimits, Member, tar_members
from trainmark.record.errors import NotReadyError

MD5 = "c4763be9595ddfa79c2fc6eaeb3b6c8e"
LIMITS = ArchiveLimits(files=100_000, total_bytes=64 << 30)
"""Larger than any set of this kind; a compressed archive can unpack to far more than its own size."""
_RATIO = 1.4


def prepare(out: Path, *, any_archive: bool, progress: Report, tar: Path) -> str:
    """Unpacks the archive to `out/metadata.csv` and `out/wavs/`; returns a summary."""
    with prepare_folder(out, [tar], source="keithito.com/LJ-Speech-Dataset", ratio=_RATIO) as destination:
        check_md5(tar, None if any_archive else MD5, progress)
        members, total_bytes = tar_members(tar, tar.name, LIMITS), int(_RATIO * tar.stat().st_size)
        unpacked = unpack(members, _place, destination, progress, total_bytes=total_bytes)
        if not unpacked.files[METADATA]:
            raise NotReadyError(f"{tar} has no {PUBLISHED_FOLDER}/{METADATA}; is it the right archive?")
        clips, named = unpacked.files[WAVS], len(read_metadata(out))
    if clips != named:
        raise NotReadyError(f"{tar} holds {clips} audio files and its {METADATA} names {named}; is it whole?")
    if not any_archive and clips != LJSPEECH_CLIPS:
        raise NotReadyError(f"{clips} clips unpacked where {LJSPEECH_CLIPS} were expected; is it the right archive?")
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
