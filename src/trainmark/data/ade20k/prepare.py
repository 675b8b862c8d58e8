"""Unpacks ADEChallengeData2016.zip into folders of images and masks; restarted, it keeps complete files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from trainmark.data.ade20k import reader
from trainmark.data.preparation import Report, prepare_folder, unpack
from trainmark.record.archives import ArchiveLimits, Member, zip_members
from trainmark.record.errors import NotReadyError

PUBLISHED = reader.LAYOUTS[0].published
PUBLISHED_FOLDER = "ADEChallengeData2016"
_LIMITS = ArchiveLimits(files=200_000, total_bytes=64 << 30)
"""Larger than any set of this kind; a compressed archive can unpack to far more than its own size."""
_FOLDERS = {(kind, split) for kind in ("images", "annotations") for split in ("training", "validation")}
_TEXTS = (reader.OBJECT_INFO, "sceneCategories.txt")


def prepare(out: Path, *, any_archive: bool, progress: Report, zip: Path) -> str:  # noqa: A002 - the option's name
    """Unpacks the archive to `out/images` and `out/annotations`, checking every file's CRC; returns a summary."""
    # images and masks are compressed already
    with prepare_folder(out, [zip], source="data.csail.mit.edu/places/ADEchallenge", ratio=1.05) as destination:
        members = zip_members(zip, _LIMITS)
        unpacked = unpack(members, _place, destination, progress, total_bytes=zip.stat().st_size)
    layout, root = reader.find_layout(out)
    train, val = (len(layout.list_pairs(root, split)) for split in reader.SPLITS)
    found = reader.SceneCounts(train=train, val=val)
    if not any_archive and found != PUBLISHED:
        raise NotReadyError(f"{zip} holds {found} where {PUBLISHED} were expected; is it the right archive?")
    return f"{found}, {unpacked.written:,} files written now"


def _place(member: Member) -> PurePosixPath:
    """Destination of a member: its path without the archive's top folder."""
    top, *rest = PurePosixPath(member.name).parts
    if top == PUBLISHED_FOLDER:
        if len(rest) == 1 and rest[0] in _TEXTS:
            return PurePosixPath(rest[0])
        if len(rest) == 3 and (rest[0], rest[1]) in _FOLDERS and rest[2].endswith((".jpg", ".png")):
            return PurePosixPath(*rest)
    if member.name.endswith(("_seg.png", "index_ade20k.mat", "index_ade20k.pkl")) or top.startswith("ADE20K_20"):
        raise NotReadyError(
            f"{member.archive} is the full ADE20K, whose masks have three channels and over 3,000 classes; its 150 "
            f"classes are another release, {PUBLISHED_FOLDER}.zip"
        )
    raise NotReadyError(
        f"{member} is not what {PUBLISHED_FOLDER}.zip holds: images, annotations, {' and '.join(_TEXTS)}; "
        "is it the right archive?"
    )
