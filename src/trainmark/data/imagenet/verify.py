"""Verifies an image set: counts, and files that are empty, truncated or unreadable."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from trainmark.data import image_shards
from trainmark.data.data_set import MANIFEST
from trainmark.data.image_shards import ShardContents
from trainmark.data.verification import Decode, Findings, Report, map_parallel, problem
from trainmark.record import cores
from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Size of a set."""

    classes: int
    train: int
    val: int

    def __str__(self) -> str:
        return f"{self.classes} classes, {self.train} train and {self.val} val files"


IMAGENET_1K = Counts(classes=1000, train=1_281_167, val=50_000)


def read_manifest(root: Path) -> Counts | None:
    """Counts in the set's manifest; None if it has none."""
    path = root / MANIFEST
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(f"cannot read {path}: {error}") from error
    try:
        values = json.loads(text)
        numbers = {key: values[key] for key in ("classes", "train", "val")}
    except (ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"{path} does not give 'classes', 'train' and 'val'; make the set again") from error
    for key, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise NotReadyError(f"{path}: {key!r} is {number!r}, which is no count; make the set again")
    return Counts(**numbers)


def expected_counts(root: Path, classes: Sequence[str]) -> Counts | None:
    """Counts of the complete set; None if unknown."""
    manifest = read_manifest(root)
    if manifest is not None:
        return manifest
    # a subset of ImageNet has a few hundred classes; slightly below 1000 means that some are missing
    like_imagenet = all(re.fullmatch(r"n[0-9]{8}|class [0-9]+", name) for name in classes)
    return IMAGENET_1K if like_imagenet and 900 < len(classes) <= 1000 else None


SPLITS = ("train", "val")

_HEAD = 64 << 10
_TAIL = 4 << 10
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = b"\xff\xd9"


@dataclass(kw_only=True)
class _ShardFindings(Findings):
    contents: ShardContents


def verify(
    root: Path,
    *,
    expected: Counts | Literal["auto"] | None = "auto",
    decode: Decode = "header",
    processes: int | None = None,
) -> Report[Counts]:
    """Checks every file in `root/train` and `root/val`, or in the tar shards of `root`.

    `decode="none"` checks names and sizes only; "header" also the first and last bytes, which finds truncated copies;
    "full" decodes every image. `expected="auto"` takes the counts from the set's manifest, or those of ImageNet-1k if
    the classes look like it, else none. One process per core by default.
    """
    if image_shards.has_shards(root):
        return _verify_shards(root, expected, decode, processes or cores.count_usable_cores())
    for split in SPLITS:
        if not (root / split).is_dir():
            raise NotReadyError(f"{root} has no folder {split!r}; an image set is laid out {split}/<class>/*.JPEG")
    classes = {split: _class_folders(root / split) for split in SPLITS}
    jobs = [(root, f"{split}/{name}", decode) for split in SPLITS for name in classes[split]]
    seen = Findings.total(map_parallel(_check_folder, jobs, processes or cores.count_usable_cores(), "images"))
    return Report(
        expected=expected_counts(root, classes["train"]) if expected == "auto" else expected,
        found=Counts(classes=len(classes["train"]), train=seen.counts["train"], val=seen.counts["val"]),
        problems=(*_find_unshared(classes), *seen.problems),
        notes=tuple(seen.notes),
    )


def _verify_shards(
    root: Path, expected: Counts | Literal["auto"] | None, decode: Decode, processes: int
) -> Report[Counts]:
    shards = {split: image_shards.shard_names(root, split) for split in image_shards.SPLITS}
    jobs = [(root / name, decode) for names in shards.values() for name in names]
    parts = map_parallel(_check_shard, jobs, processes, "shards")
    found = Findings.total(parts)
    seen = {path.name: part.contents for (path, _), part in zip(jobs, parts, strict=True)}
    contents = {split: [seen[name] for name in names] for split, names in shards.items()}
    labels = {split: {each.label for held in contents[split] for each in held.images} for split in shards}
    made = read_manifest(root)
    classes = made.classes if made else 1 + max(labels["train"], default=-1)
    for split, names in shards.items():
        found.problems += image_shards.find_duplicates(names, contents[split])
        found.problems += image_shards.find_unknown_classes(names, contents[split], classes)
        if absent := sorted(set(range(classes)) - labels[split]):
            found.add(split, note=f"{len(absent)} of {classes} classes have no image, such as {absent[0]}")
    images = {split: sum(len(held.images) for held in contents[split]) for split in shards}
    return Report(
        expected=expected_counts(root, image_shards.default_class_names(classes)) if expected == "auto" else expected,
        found=Counts(classes=classes, train=images["train"], val=images["val"]),
        problems=tuple(found.problems),
        notes=tuple(found.notes),
    )


def _check_shard(job: tuple[Path, Decode]) -> _ShardFindings:
    path, decode = job
    contents = image_shards.scan_shard(path)
    found = _ShardFindings(contents=contents, problems=list(contents.problems))
    if not contents.images:
        return found
    with path.open("rb") as shard:
        for image in contents.images:
            subject = f"{path.name}/{os.fsdecode(image.name)}"
            if not image.size:
                found.add(subject, "is empty")
            elif decode != "none":
                shard.seek(image.offset)
                found.add(subject, *_check_bytes(io.BytesIO(shard.read(image.size)), image.size, decode))
    return found


def _class_folders(split: Path) -> list[str]:
    with os.scandir(split) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _find_unshared(classes: dict[str, list[str]]) -> Iterable[CheckResult]:
    train, val = set(classes["train"]), set(classes["val"])
    for name in sorted(train - val):
        yield problem(f"train/{name}", "this class is in train and not in val")
    for name in sorted(val - train):
        yield problem(f"val/{name}", "this class is in val and not in train")


def _check_folder(job: tuple[Path, str, Decode]) -> Findings:
    root, path, decode = job
    found, split = Findings(), path.partition("/")[0]
    try:
        with os.scandir(root / path) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        found.add(path, f"cannot be listed: {error.strerror}")
        return found
    for name in names:
        if name.lower().endswith((".jpeg", ".jpg")):
            found.counts[split] += 1
            found.add(f"{path}/{name}", *_check_file(root / path / name, decode))
        else:
            found.add(f"{path}/{name}", note="is not named .JPEG and was left out")
    if not found.counts[split]:
        found.add(path, "the class has no files")
    return found


def _check_file(path: Path, decode: Decode) -> tuple[str, str]:
    """A fault and a note; both empty for a good file."""
    try:
        if path.is_dir():
            return "is a folder", ""
        size = path.stat().st_size
        if not size:
            return "is empty", ""
        if decode == "none":
            return "", ""
        with path.open("rb") as file:
            return _check_bytes(file, size, decode)
    except OSError as error:
        return f"cannot be read: {error.strerror}", ""


def _check_bytes(file: BinaryIO, size: int, decode: Decode) -> tuple[str, str]:
    fault, note = _check_ends(file, size)
    if decode != "full":
        return fault, note
    # decided by the decoder that a run uses
    from trainmark.data.jpeg import BadImage, JpegDecoder

    file.seek(0)
    try:
        complaint = JpegDecoder().check(file.read())
    except BadImage as error:
        return fault or f"cannot be decoded: {error}", ""
    return "", fault or note or (complaint and f"decodes with a complaint: {complaint}")


def _check_ends(file: BinaryIO, size: int) -> tuple[str, str]:
    import simplejpeg

    head = file.read(_HEAD)
    if not head.startswith(b"\xff\xd8"):
        return _check_other_format(file)
    scan = _scan_offset(head)
    if scan is None and size > _HEAD:  # a long profile or thumbnail precedes it
        head += file.read()
        scan = _scan_offset(head)
    if scan is None:
        return "is truncated within its header", ""
    try:
        simplejpeg.decode_jpeg_header(head, strict=False)
    except ValueError as error:
        return f"has a damaged header: {error}", ""
    file.seek(max(scan, size - _TAIL))
    if _END_OF_IMAGE not in file.read():  # farther from the end, or missing
        file.seek(scan)
        if _END_OF_IMAGE not in file.read():
            return "is truncated before its end marker", ""
    return "", ""


def _check_other_format(file: BinaryIO) -> tuple[str, str]:
    """ImageNet has one PNG file named .JPEG, which is read; files of other formats are not."""
    from PIL import Image, UnidentifiedImageError

    from trainmark.data.jpeg import FORMATS

    file.seek(0)
    try:
        with Image.open(file, formats=(*FORMATS, "GIF", "BMP", "WEBP", "TIFF")) as image:
            kind = image.format
    except UnidentifiedImageError:
        return "does not begin like a JPEG file", ""
    except Exception as error:  # Pillow's readers may raise anything
        return f"is no JPEG file and cannot be decoded: {error}", ""
    if kind not in FORMATS:
        return f"is a {kind} file, which a run does not read; convert it to JPEG", ""
    return "", f"is a {kind} file, not a JPEG"


def _scan_offset(data: bytes) -> int | None:
    """Offset of the first scan, found by walking the segments; None if they do not lead there."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes may precede a marker
            at += 1
        elif marker == _START_OF_SCAN:
            return at
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    found = data.find(b"\xff\xda", at) if at < len(data) - 4 else -1  # stray bytes, which decoders skip
    return None if found < 0 else found


def inspect(folder: Path) -> tuple[str, str]:
    """Counts and compares classes, and opens the first only: a million files would take too long."""
    if image_shards.has_shards(folder):
        shards = {split: image_shards.shard_names(folder, split) for split in image_shards.SPLITS}
        return f"{len(shards['train'])} train and {len(shards['val'])} val shards", ""
    classes = {split: _class_folders(folder / split) for split in ("train", "val")}
    found = f"{len(classes['train'])} train and {len(classes['val'])} val classes"
    expected = expected_counts(folder, classes["train"])
    if not classes["train"]:
        return found, "no training classes"
    if unshared := set(classes["train"]) ^ set(classes["val"]):
        return found, f"{len(unshared)} of them not in both, such as {min(unshared)}"
    if expected is not None and expected.classes != len(classes["train"]):
        return found, f"{expected.classes} were expected"
    for split in classes:
        first = folder / split / classes[split][0]
        if not any(path.stat().st_size for path in first.iterdir()):
            return found, f"{split}/{first.name} holds no images"
    return found, ""
