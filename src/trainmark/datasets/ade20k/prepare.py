"""Turns ADEChallengeData2016.zip into folders of pictures and masks; started again, it keeps what is whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainmark.datasets import archive_checks
from trainmark.datasets.ade20k import layouts
from trainmark.datasets.ade20k.layouts import SceneCounts
from trainmark.datasets.archive_checks import PROGRESS_EVERY_BYTES, ArchiveProgress, Report
from trainmark.spec.archives import ArchiveLimits, Destination, Member, zip_members
from trainmark.spec.errors import NotReadyError

MOST_FILES = 200_000
MOST_BYTES = 64 << 30
"""Larger than any set of this kind; a compressed archive can unpack to far more than its own size."""

PUBLISHED_FOLDER = "ADEChallengeData2016"
_FOLDERS = {(kind, split) for kind in ("images", "annotations") for split in ("training", "validation")}
_TEXTS = (layouts.OBJECT_INFO, "sceneCategories.txt")


@dataclass(frozen=True, kw_only=True)
class PreparedScenes:
    """What the prepared folder holds, and how much of it this call wrote (the rest was there from an earlier one)."""

    counts: SceneCounts
    written: int


def from_files(out: Path, *, any_archive: bool, progress: Report, zip: Path) -> str:  # noqa: A002 - the option's name
    """What `trainmark data prepare` does, and what it says at the end."""
    expected = None if any_archive else layouts.LAYOUTS[0].whole
    done = prepare(zip, out, expected=expected, progress=progress)
    return f"{done.counts}, {done.written:,} files written now"


def prepare(
    archive: Path,
    out: Path,
    *,
    expected: SceneCounts | None = layouts.LAYOUTS[0].whole,
    progress: Report = lambda _: None,
    free_bytes: Callable[[Path], int] | None = None,
) -> PreparedScenes:
    """Unpacks the archive so that `out/images` and `out/annotations` are there, each file held to its own checksum.

    Killed at any time and started again, it keeps what is whole and ends with the same files. `expected` says what
    another archive than the published one should hold; None takes any.
    """
    if not archive.is_file():
        raise NotReadyError(f"archive {archive} is not there; download it from data.csail.mit.edu/places/ADEchallenge")
    limits = ArchiveLimits(files=MOST_FILES, total_bytes=MOST_BYTES)
    with Destination(out) as destination, archive_checks.sole_user(out):
        # pictures and masks are compressed already: they unpack to little more
        archive_checks.check_space(out, 1.05 * archive.stat().st_size, ("images", "annotations"), free_bytes)
        written, done_bytes, reported, files = 0, 0, 0, 0
        for member in zip_members(archive, limits):
            place = _place(member)
            written += destination.write(place, member, member.size)
            done_bytes, files = done_bytes + member.size, files + 1
            if done_bytes - reported >= PROGRESS_EVERY_BYTES:
                reported = done_bytes
                progress(_far(done_bytes, archive, files))
        progress(_far(done_bytes, archive, files))
    layout, root = layouts.find(out)
    found = SceneCounts(train=len(layout.list_pairs(root, "train")), val=len(layout.list_pairs(root, "val")))
    if expected is not None and found != expected:
        raise NotReadyError(f"{archive} holds {found} where {expected} were expected; is it the right archive?")
    return PreparedScenes(counts=found, written=written)


def _far(done_bytes: int, archive: Path, files: int) -> ArchiveProgress:
    total_bytes = max(done_bytes, archive.stat().st_size)
    return ArchiveProgress(phase="unpack", done_bytes=done_bytes, total_bytes=total_bytes, files=files)


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
