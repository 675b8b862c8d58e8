"""Verifies an image set: counts, and files that are empty, truncated or unreadable."""

from __future__ import annotations

import os
from pathlib import Path

from trainmark.data import image_sets
from trainmark.data.image_sets import SPLITS, SUFFIXES, Counts, ShardContents, expected_counts
from trainmark.data.jpeg import BadImage
from trainmark.data.verification import Decode, Findings, Report, check_image, map_parallel
from trainmark.record.errors import NotReadyError


def verify(root: Path, *, decode: Decode = "header") -> Report[Counts]:
    """Checks every file in `root/train` and `root/val`, or in the tar shards of `root`.

    `decode="none"` checks names and sizes only; "header" also the first and last bytes, which finds truncated copies;
    "full" decodes every image. The counts are compared with the set's manifest, or with those of ImageNet-1k if the
    classes look like it.
    """
    if image_sets.has_shards(root):
        return _verify_shards(root, decode)
    for split in SPLITS:
        if not (root / split).is_dir():
            raise NotReadyError(f"{root} has no folder {split!r}; an image set is laid out {split}/<class>/*.JPEG")
    train, val = (image_sets.list_classes(root, split) for split in SPLITS)
    seen = Findings()
    for name in sorted(set(train) - set(val)):
        seen.add(f"train/{name}", "this class is in train and not in val")
    for name in sorted(set(val) - set(train)):
        seen.add(f"val/{name}", "this class is in val and not in train")
    jobs = [(root, f"{split}/{name}", decode) for split, names in (("train", train), ("val", val)) for name in names]
    seen.merge(map_parallel(_check_folder, jobs, decode, "images"))
    found = Counts(classes=len(train), train=seen.counts["train"], val=seen.counts["val"])
    return seen.report(found, expected_counts(root, train))


def inspect(root: Path) -> tuple[str, str]:
    """Counts classes or shards, and names a fault; opens no file: a million would take too long."""
    if image_sets.has_shards(root):
        train, val = (image_sets.shard_names(root, split) for split in SPLITS)
        return f"{len(train)} train and {len(val)} val shards", ""
    train, val = (image_sets.list_classes(root, split) for split in SPLITS)
    found, expected = f"{len(train)} train and {len(val)} val classes", expected_counts(root, train)
    if unshared := set(train) ^ set(val):
        return found, f"{len(unshared)} of them not in both, such as {min(unshared)}"
    if expected is not None and expected.classes != len(train):
        return found, f"{expected.classes} were expected"
    return found, ""


def _check_folder(job: tuple[Path, str, Decode]) -> Findings:
    root, path, decode = job
    found, split = Findings(), path.partition("/")[0]
    try:
        names = sorted(file.name for file in (root / path).iterdir() if not file.name.startswith("."))
    except OSError as error:
        found.add(path, f"cannot be listed: {error.strerror}")
        return found
    for name in names:
        if not name.lower().endswith(SUFFIXES):
            found.add(f"{path}/{name}", note="is not named .JPEG and was left out")
            continue
        found.counts[split] += 1
        file = root / path / name
        try:
            if decode == "none":
                found.add(f"{path}/{name}", "" if file.stat().st_size else "is empty")
            else:
                _check_bytes(found, f"{path}/{name}", file.read_bytes(), decode)
        except OSError as error:
            found.add(f"{path}/{name}", f"cannot be read: {error.strerror}")
    if not found.counts[split]:
        found.add(path, "the class has no files")
    return found


def _check_bytes(found: Findings, path: str, data: bytes, decode: Decode) -> None:
    try:
        found.add(path, note=check_image(path, data, decode)[1])
    except BadImage as error:
        found.add(path, str(error))


def _verify_shards(root: Path, decode: Decode) -> Report[Counts]:
    seen, counts, contents = Findings(), {}, {}
    for split in SPLITS:
        shards = image_sets.shard_names(root, split)
        parts = map_parallel(_check_shard, [(root / name, decode) for name in shards], decode, "shards")
        seen.merge(part for part, _ in parts)
        contents[split] = dict(zip(shards, (held for _, held in parts), strict=True))
        counts[split] = sum(len(held.images) for held in contents[split].values())
    labels = {split: {image.label for held in contents[split].values() for image in held.images} for split in SPLITS}
    made = expected_counts(root, ())
    classes = made.classes if made else 1 + max(labels["train"], default=-1)
    for split in SPLITS:
        for path, fault in image_sets.find_duplicates(contents[split], contents[split].values()):
            seen.add(path, fault)
        for shard, held in contents[split].items():
            for image in held.images:
                if image.label >= classes:
                    fault = image_sets.describe_class(image.label, classes)
                    seen.add(f"{shard}/{os.fsdecode(image.name)}", fault)
        if absent := sorted(set(range(classes)) - labels[split]):
            seen.add(split, note=f"{len(absent)} of {classes} classes have no image, such as {absent[0]}")
    found = Counts(classes=classes, train=counts["train"], val=counts["val"])
    return seen.report(found, expected_counts(root, image_sets.default_class_names(classes)))


def _check_shard(job: tuple[Path, Decode]) -> tuple[Findings, ShardContents]:
    path, decode = job
    found, contents = Findings(), image_sets.scan_shard(path)
    for subject, fault in contents.faults:
        found.add(subject, fault)
    if contents.images:
        with path.open("rb") as shard:
            for image in contents.images:
                subject = f"{path.name}/{os.fsdecode(image.name)}"
                if not image.size:
                    found.add(subject, "is empty")
                elif decode != "none":
                    shard.seek(image.offset)
                    _check_bytes(found, subject, shard.read(image.size), decode)
    return found, contents
