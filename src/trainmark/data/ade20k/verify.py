"""Verifies a segmentation set: counts, missing partners, sizes, and mask values that are no classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from PIL import Image, UnidentifiedImageError

from trainmark.data import verification
from trainmark.data.ade20k import layouts, reader
from trainmark.data.ade20k.layouts import IGNORED, SceneCounts
from trainmark.data.ade20k.reader import SceneSet
from trainmark.data.jpeg import BadImage, JpegDecoder
from trainmark.data.verification import Decode, Findings, Report, map_parallel, note_on
from trainmark.record import cores
from trainmark.record.checks import CheckResult

_CHUNK = 64
_WORTH_PROCESSES = 1024
"""Number of scenes from which starting processes pays off."""
_ENDS = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND"}
"""First bytes of JPEG and PNG, and what is found near the end."""
_TAIL = 4 << 10
_MAX_IGNORED_SHARE = 0.95
"""Share of ignored pixels above which an image is noted."""


@dataclass(frozen=True, kw_only=True)
class SceneSize(SceneCounts):
    """Counts, with the share of ignored pixels; equality compares counts alone."""

    unjudged: float | None = field(default=None, compare=False)
    """Share of ignored pixels; None where masks were not read."""

    def __str__(self) -> str:
        said = SceneCounts.__str__(self)
        return said if self.unjudged is None else f"{said}, {100 * self.unjudged:.1f} % of their pixels ignored"


@dataclass(frozen=True, kw_only=True)
class _SceneJob:
    """Scenes that one process checks."""

    scenes: SceneSet
    first: int
    last: int
    decode: Decode


def verify(
    root: Path,
    *,
    expected: SceneCounts | Literal["auto"] | None = "auto",
    decode: Decode = "header",
    processes: int | None = None,
) -> Report[SceneCounts]:
    """Checks images against masks, in any layout of `layouts`.

    `decode="none"` checks names and sizes of files only; "header" also the images' first and last bytes and every
    mask value; "full" decodes every image too. `expected="auto"` takes the counts from the set's
    manifest, or of the published set if it is nearly as large, else none.
    """
    wanted = reader.expected_counts(root) if expected == "auto" else expected
    splits = [reader.open_split(root, split) for split in layouts.SPLITS]
    jobs = [
        _SceneJob(scenes=scenes, first=first, last=min(first + _CHUNK, len(scenes)), decode=decode)
        for scenes in splits
        for first in range(0, len(scenes), _CHUNK)
    ]
    if processes is None:
        processes = cores.count_usable_cores() if sum(map(len, splits)) >= _WORTH_PROCESSES else 1
    seen = Findings.total(map_parallel(_check_scenes, jobs, processes, "images and masks"))
    pixels, unjudged = seen.counts["pixels"], seen.counts["unjudged"]
    return Report(
        expected=wanted and SceneSize(train=wanted.train, val=wanted.val),
        found=SceneSize(train=len(splits[0]), val=len(splits[1]), unjudged=unjudged / pixels if pixels else None),
        problems=tuple(seen.problems),
        notes=(*_find_unpaired_masks(splits), *seen.notes),
    )


def inspect(folder: Path) -> tuple[str, str]:
    """Counts images and masks without opening them."""
    return verification.inspect(verify, folder)


def _find_unpaired_masks(splits: list[SceneSet]) -> list[CheckResult]:
    """Masks without an image, in folders that hold masks of one split."""
    found = []
    for scenes in splits:
        named = set(scenes.masks)
        folders = {Path(mask).parent.as_posix() for mask in scenes.masks}
        others = {mask for other in splits for mask in other.masks} - named
        for below in sorted(folders):
            if any(Path(mask).parent.as_posix() == below for mask in others):
                continue  # one folder for both splits may hold masks that neither lists
            ending = scenes.masks[0].rpartition("_")[2] if "_labelIds" in scenes.masks[0] else ".png"
            for name in layouts.list_files(scenes.root / below, ending):
                if f"{below}/{name}" not in named:
                    found.append(note_on(f"{below}/{name}", "is the mask of no image and was left out"))
    return found


def _check_scenes(job: _SceneJob) -> Findings:
    found, decoder = Findings(), JpegDecoder()
    for index in range(job.first, job.last):
        name = job.scenes.images[index]
        try:
            size, complaint = _check_image(Path(job.scenes.path(index)), job.decode, decoder)
            pixels, unjudged = _check_mask(job.scenes, index, size, job.decode)
        except BadImage as error:
            found.add(name, str(error))
            continue
        found.add(name, note=complaint)
        if unjudged > _MAX_IGNORED_SHARE * pixels:
            found.add(name, note=f"{100 * unjudged / pixels:.0f} % of its pixels are ignored")
        found.counts.update(pixels=pixels, unjudged=unjudged)
    return found


def _check_image(path: Path, decode: Decode, decoder: JpegDecoder) -> tuple[tuple[int, int], str]:
    """Width and height, and a note; (0, 0) if the image was not read."""
    try:
        if not path.stat().st_size:
            raise BadImage("the file is empty")
        if decode == "none":
            return (0, 0), ""
        data = path.read_bytes()
        ending = _ENDS.get(data[:2])
        if ending is None:
            raise BadImage("no JPEG and no PNG image")
        complaint = decoder.check(data) if decode == "full" else ""
        if ending not in data[-_TAIL:]:
            raise BadImage("is cut off before its end")
        with Image.open(path) as image:
            return image.size, complaint and f"decodes with a complaint: {complaint}"
    except (OSError, UnidentifiedImageError) as error:
        raise BadImage(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


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
