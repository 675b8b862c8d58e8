"""Unpacks ADEChallengeData2016.zip into folders of images and masks, and verifies such folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePosixPath

from trainmark.data.ade20k import reader
from trainmark.data.ade20k.reader import IGNORED, SPLITS, SceneCounts, SceneSet
from trainmark.data.jpeg import BadImage
from trainmark.data.preparation import ReportProgress, prepare_folder, unpack
from trainmark.data.verification import Decode, Report, check_image, map_parallel
from trainmark.record.archives import ArchiveLimits, Member, zip_members
from trainmark.record.errors import NotReadyError

_MAX_IGNORED_SHARE = 0.95
"""Share of ignored pixels above which an image is noted."""


def verify(root: Path, *, decode: Decode = "header") -> Report:
    """Checks images against masks, in any layout that `reader` knows.

    `decode="none"` checks names and sizes of files only; "header" also the images' first and last bytes and every
    mask value; "full" decodes every image too. The counts are compared with the set's manifest, or with those of the
    published set if it is nearly as large.
    """
    splits = [reader.open_split(root, split) for split in SPLITS]
    seen = Report()
    for scenes in splits:
        check = partial(_check_scene, scenes, decode)
        seen.merge(map_parallel(check, range(len(scenes)), decode, "images and masks"))
    pixels = seen.counts["pixels"]
    ignored = seen.counts["ignored"] / pixels if pixels else None
    seen.found = SceneCounts(train=len(splits[0]), val=len(splits[1]), ignored=ignored)
    seen.expected = reader.expected_counts(root)
    return seen


def _check_scene(scenes: SceneSet, decode: Decode, index: int) -> Report:
    found, name = Report(), scenes.images[index]
    try:
        size, note = _check_image(Path(scenes.path(index)), decode)
        pixels, ignored = _check_mask(scenes, index, size, decode)
    except BadImage as error:
        found.add(name, str(error))
        return found
    found.add(name, note=note)
    if ignored > _MAX_IGNORED_SHARE * pixels:
        found.add(name, note=f"{100 * ignored / pixels:.0f} % of its pixels are ignored")
    found.counts.update(pixels=pixels, ignored=ignored)
    return found


def _check_image(path: Path, decode: Decode) -> tuple[tuple[int, int], str]:
    """Width and height, and a note; (0, 0) if the image was not read."""
    try:
        if decode != "none":
            return check_image(path.name, path.read_bytes(), decode)
        if not path.stat().st_size:
            raise BadImage("is empty")
        return (0, 0), ""
    except OSError as error:
        raise BadImage(f"cannot be read: {error.strerror}") from error


def _check_mask(scenes: SceneSet, index: int, size: tuple[int, int], decode: Decode) -> tuple[int, int]:
    """Number of pixels, and of ignored ones."""
    path = Path(scenes.mask_path(index))
    try:
        if not path.stat().st_size:
            raise BadImage(f"its mask {scenes.masks[index]} is empty")
        if decode == "none":
            return 0, 0
        labels = scenes.labels(path.read_bytes())
    except OSError as error:
        raise BadImage(f"its mask {scenes.masks[index]} cannot be read: {error.strerror}") from error
    if labels.shape != (size[1], size[0]):
        raise BadImage(f"its mask is {labels.shape[1]}x{labels.shape[0]} and it is {size[0]}x{size[1]}")
    return labels.size, int((labels == IGNORED).sum())


PUBLISHED = reader.LAYOUTS[0].published
PUBLISHED_FOLDER = "ADEChallengeData2016"
_LIMITS = ArchiveLimits(files=200_000, total_bytes=64 << 30)
"""Larger than any set of this kind; a compressed archive can unpack to far more than its own size."""
_FOLDERS = {(kind, split) for kind in ("images", "annotations") for split in ("training", "validation")}
_TEXTS = (reader.OBJECT_INFO, "sceneCategories.txt")


def prepare(out: Path, *, any_archive: bool, progress: ReportProgress, zip: Path) -> str:  # noqa: A002 - the option's name
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
    raise NotReadyError(
        f"{member} is not what {PUBLISHED_FOLDER}.zip holds: images, annotations, {' and '.join(_TEXTS)}; is it the "
        "right archive? The full ADE20K, of 3,000 classes, is another"
    )
