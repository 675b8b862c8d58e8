"""Counts images and masks, and names every one that has no partner, another size, or numbers that are no classes."""

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
from trainmark.data.verification import Decode, Findings, Report, in_parallel, note_on
from trainmark.record import cores
from trainmark.record.checks import CheckResult

_CHUNK = 64
_WORTH_PROCESSES = 1024
"""Scenes from which on looking at them takes longer than starting processes to do so."""
_ENDS = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND"}
"""By how a JPEG and a PNG begin, what stands near their end."""
_TAIL = 4 << 10
_MAX_UNJUDGED = 0.95
"""Share of an image that nobody judges, above which it is worth a word."""


@dataclass(frozen=True, kw_only=True)
class SceneSize(SceneCounts):
    """With what was seen in the masks; two sets of as many scenes are of the same size."""

    unjudged: float | None = field(default=None, compare=False)
    """Share of all pixels; None where nobody looked into the masks."""

    def __str__(self) -> str:
        said = SceneCounts.__str__(self)
        return said if self.unjudged is None else f"{said}, {100 * self.unjudged:.1f} % of their pixels not judged"


@dataclass(frozen=True, kw_only=True)
class _SceneJob:
    """Some scenes, looked at by one process."""

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
    """Holds images against masks, of any set that `layouts` knows.

    `decode="none"` looks at names and sizes of files only; "header" also at the images' first and last bytes and at
    every number in the masks; "full" decodes every image too. `expected="auto"` takes the counts from the set's
    manifest, or those of the published set where it is nearly as large, else none.
    """
    wanted = reader.expected(root) if expected == "auto" else expected
    splits = [reader.open_split(root, split) for split in layouts.SPLITS]
    jobs = [
        _SceneJob(scenes=scenes, first=first, last=min(first + _CHUNK, len(scenes)), decode=decode)
        for scenes in splits
        for first in range(0, len(scenes), _CHUNK)
    ]
    if processes is None:
        processes = cores.count_usable_cores() if sum(map(len, splits)) >= _WORTH_PROCESSES else 1
    seen = Findings.total(in_parallel(_look_at_scenes, jobs, processes, "images and masks"))
    pixels, unjudged = seen.counts["pixels"], seen.counts["unjudged"]
    return Report(
        expected=wanted and SceneSize(train=wanted.train, val=wanted.val),
        found=SceneSize(train=len(splits[0]), val=len(splits[1]), unjudged=unjudged / pixels if pixels else None),
        problems=tuple(seen.problems),
        notes=(*_strangers(splits), *seen.notes),
    )


def look(folder: Path) -> tuple[str, str]:
    """Images and masks are counted, none is opened."""
    return verification.look(verify, folder)


def _strangers(splits: list[SceneSet]) -> list[CheckResult]:
    """Masks without an image, where a folder holds masks of one split alone."""
    found = []
    for scenes in splits:
        named = set(scenes.masks)
        folders = {Path(mask).parent.as_posix() for mask in scenes.masks}
        others = {mask for other in splits for mask in other.masks} - named
        for below in sorted(folders):
            if any(Path(mask).parent.as_posix() == below for mask in others):
                continue  # one folder for both splits may hold masks that neither lists
            ending = scenes.masks[0].rpartition("_")[2] if "_labelIds" in scenes.masks[0] else ".png"
            for name in layouts.files(scenes.root / below, ending):
                if f"{below}/{name}" not in named:
                    found.append(note_on(f"{below}/{name}", "is the mask of no picture and was left out"))
    return found


def _look_at_scenes(job: _SceneJob) -> Findings:
    found, decoder = Findings(), JpegDecoder()
    for index in range(job.first, job.last):
        name = job.scenes.pictures[index]
        try:
            size, complaint = _look_at_picture(Path(job.scenes.path(index)), job.decode, decoder)
            pixels, unjudged = _look_at_mask(job.scenes, index, size, job.decode)
        except BadImage as error:
            found.add(name, str(error))
            continue
        found.add(name, note=complaint)
        if unjudged > _MAX_UNJUDGED * pixels:
            found.add(name, note=f"{100 * unjudged / pixels:.0f} % of its pixels are not judged")
        found.counts.update(pixels=pixels, unjudged=unjudged)
    return found


def _look_at_picture(path: Path, decode: Decode, decoder: JpegDecoder) -> tuple[tuple[int, int], str]:
    """Width and height, and what is unusual; both without meaning where nobody looked."""
    try:
        if not path.stat().st_size:
            raise BadImage("the file is empty")
        if decode == "none":
            return (0, 0), ""
        data = path.read_bytes()
        ending = _ENDS.get(data[:2])
        if ending is None:
            raise BadImage("no JPEG and no PNG picture")
        complaint = decoder.check(data) if decode == "full" else ""
        if ending not in data[-_TAIL:]:
            raise BadImage("is cut off before its end")
        with Image.open(path) as image:
            return image.size, complaint and f"decodes with a complaint: {complaint}"
    except (OSError, UnidentifiedImageError) as error:
        raise BadImage(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _look_at_mask(scenes: SceneSet, index: int, size: tuple[int, int], decode: Decode) -> tuple[int, int]:
    """Its pixels, and those that are not judged."""
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
