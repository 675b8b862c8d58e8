"""Unpacks ADEChallengeData2016.zip into folders of images and masks; restarted, it keeps complete files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from trainmark.data.ade20k import layouts
from trainmark.data.ade20k.layouts import SceneCounts
from trainmark.data.preparation import Prepared, Report, prepare_folder, unpack
from trainmark.record.archives import ArchiveLimits, Member, zip_members
from trainmark.record.errors import NotReadyError

MAX_FILES = 200_000
MAX_BYTES = 64 << 30
"""Larger than any set of this kind; a compressed archive can unpack to far more than its own size."""

PUBLISHED_FOLDER = "ADEChallengeData2016"
_FOLDERS = {(kind, split) for kind in ("images", "annotations") for split in ("training", "validation")}
_TEXTS = (layouts.OBJECT_INFO, "sceneCategories.txt")


def from_files(out: Path, *, any_archive: bool, progress: Report, zip: Path) -> str:  # noqa: A002 - the option's name
    """Runs `trainmark data prepare` and returns its summary."""
    return str(prepare(zip, out, expected=None if any_archive else layouts.LAYOUTS[0].published, progress=progress))


def prepare(
    archive: Path,
    out: Path,
    *,
    expected: SceneCounts | None = layouts.LAYOUTS[0].published,
    progress: Report = lambda _: None,
    free_bytes: Callable[[Path], int] | None = None,
) -> Prepared[SceneCounts]:
    """Unpacks the archive to `out/images` and `out/annotations`, checking every file's CRC.

    Killed and restarted, it keeps complete files and ends with the same result. `expected` is what the archive should
    hold; None accepts any.
    """
    with prepare_folder(
        out,
        {archive: "data.csail.mit.edu/places/ADEchallenge"},
        needed_bytes=lambda: 1.05 * archive.stat().st_size,  # images and masks are compressed already
        folders=("images", "annotations"),
        free_bytes=free_bytes,
    ) as destination:
        members = zip_members(archive, ArchiveLimits(files=MAX_FILES, total_bytes=MAX_BYTES))
        unpacked = unpack(members, _place, destination, progress, total_bytes=archive.stat().st_size)
    layout, root = layouts.find(out)
    found = SceneCounts(train=len(layout.list_pairs(root, "train")), val=len(layout.list_pairs(root, "val")))
    if expected is not None and found != expected:
        raise NotReadyError(f"{archive} holds {found} where {expected} were expected; is it the right archive?")
    return Prepared(found=found, written=unpacked.written)


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
