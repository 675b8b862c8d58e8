"""Turns ADEChallengeData2016.zip into folders of images and masks; started again, it keeps what is whole."""

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
    """What `trainmark data prepare` does, and what it says at the end."""
    return str(prepare(zip, out, expected=None if any_archive else layouts.LAYOUTS[0].whole, progress=progress))


def prepare(
    archive: Path,
    out: Path,
    *,
    expected: SceneCounts | None = layouts.LAYOUTS[0].whole,
    progress: Report = lambda _: None,
    free_bytes: Callable[[Path], int] | None = None,
) -> Prepared[SceneCounts]:
    """Unpacks the archive so that `out/images` and `out/annotations` are there, each file held to its own checksum.

    Killed at any time and started again, it keeps what is whole and ends with the same files. `expected` says what
    another archive than the published one should hold; None takes any.
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
    """Where a file of the archive belongs below the destination: the same place without the published folder."""
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
