"""Unpacks the ILSVRC2012 archives into class folders, and verifies image sets; restarted, it keeps complete files.

The train archive holds one tar per class (`n01440764.tar`), the validation archive 50,000 files without labels; the
labels come from the devkit archive or from a text file. The result is what the readers expect:
`train/<wnid>/*.JPEG` and `val/<wnid>/*.JPEG`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trainmark.data import image_sets
from trainmark.data.image_sets import SPLITS, SUFFIXES, Counts, ShardContents, expected_counts
from trainmark.data.jpeg import BadImage
from trainmark.data.preparation import ReportProgress, check_md5, prepare_folder, unpack
from trainmark.data.verification import Decode, Report, check_image, map_parallel
from trainmark.record.archives import ArchiveLimits, Member, tar_members
from trainmark.record.errors import NotReadyError

_WORTH_PROCESSES = 16
"""Number of class folders or shards from which starting processes pays off."""


def verify(root: Path, *, decode: Decode = "header") -> Report:
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
    seen = Report()
    for name in sorted(set(train) - set(val)):
        seen.add(f"train/{name}", "this class is in train and not in val")
    for name in sorted(set(val) - set(train)):
        seen.add(f"val/{name}", "this class is in val and not in train")
    jobs = [(root, f"{split}/{name}", decode) for split, names in (("train", train), ("val", val)) for name in names]
    seen.merge(map_parallel(_check_folder, jobs, decode, "images", worth=_WORTH_PROCESSES))
    seen.found = Counts(classes=len(train), train=seen.counts["train"], val=seen.counts["val"])
    seen.expected = expected_counts(root, train)
    return seen


def _check_folder(job: tuple[Path, str, Decode]) -> Report:
    root, path, decode = job
    found, split = Report(), path.partition("/")[0]
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


def _check_bytes(found: Report, path: str, data: bytes, decode: Decode) -> None:
    try:
        found.add(path, note=check_image(path, data, decode)[1])
    except BadImage as error:
        found.add(path, str(error))


def _verify_shards(root: Path, decode: Decode) -> Report:
    seen, counts, contents = Report(), {}, {}
    for split in SPLITS:
        shards = image_sets.shard_names(root, split)
        jobs = [(root / name, decode) for name in shards]
        parts = map_parallel(_check_shard, jobs, decode, "shards", worth=_WORTH_PROCESSES)
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
    seen.found = Counts(classes=classes, train=counts["train"], val=counts["val"])
    seen.expected = expected_counts(root, image_sets.default_class_names(classes))
    return seen


def _check_shard(job: tuple[Path, Decode]) -> tuple[Report, ShardContents]:
    path, decode = job
    found, contents = Report(), image_sets.scan_shard(path)
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


_LIMITS = ArchiveLimits(files=20_000_000, total_bytes=4 << 40)
"""Larger than any set of this kind (ImageNet-21k has 21,841 classes, 14 million files and 1.3 TB)."""
_DEVKIT_LIMITS = ArchiveLimits(files=200, total_bytes=64 << 20)
_GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_TRAIN_MD5, _VAL_MD5 = "1d675b47d978889d74fa0da5fadfb00e", "29b22e2961454d5413ddabcf34fc5622"
_DEVKIT_MD5 = "fa75699e90414af021442c21a62c3abf"


def prepare(
    out: Path, *, any_archive: bool, progress: ReportProgress, train_tar: Path, val_tar: Path, devkit: Path
) -> str:
    """Unpacks both archives to `out`, after all checks that can be made beforehand; returns a summary."""
    # files fill whole blocks: about 2 % more than their bytes
    with prepare_folder(out, [train_tar, val_tar], source="image-net.org", ratio=1.02) as destination:
        if not any_archive:
            check_md5(devkit, _DEVKIT_MD5, progress)
        labels = read_devkit_labels(devkit)
        classes = {_wnid_of(member) for member in tar_members(train_tar, train_tar.name, _LIMITS)}
        if unknown := sorted(set(labels.values()) - classes):
            raise NotReadyError(
                f"the labels name {len(unknown)} classes that the train archive does not have: {unknown[0]}"
            )
        if not any_archive:
            check_md5(train_tar, _TRAIN_MD5, progress)
            check_md5(val_tar, _VAL_MD5, progress)
        train = unpack(
            _train_images(train_tar),
            lambda image: _place("train", PurePosixPath(image.archive).stem, image),
            destination,
            progress,
            phase="train",
            total_bytes=train_tar.stat().st_size,
        )
        val = unpack(
            tar_members(val_tar, val_tar.name, _LIMITS),
            lambda image: _place("val", labels.get(image.name), image),
            destination,
            progress,
            phase="val",
            total_bytes=val_tar.stat().st_size,
        )
    found = Counts(classes=len(classes), train=train.files["train"], val=val.files["val"])
    if found.val != len(labels):
        raise NotReadyError(
            f"{val_tar} holds {found.val} images and there are {len(labels)} labels; one of them is cut short"
        )
    return f"{found}, {train.written + val.written:,} files written now"


def _train_images(train_tar: Path) -> Iterator[Member]:
    for class_tar in tar_members(train_tar, train_tar.name, _LIMITS):
        _wnid_of(class_tar)
        yield from tar_members(class_tar.content, f"{class_tar.archive}/{class_tar.name}", _LIMITS)


def _wnid_of(class_tar: Member) -> str:
    wnid, _, suffix = class_tar.name.partition(".")
    if suffix != "tar" or not _is_wnid(wnid):
        raise NotReadyError(f"{class_tar} is no tar of a class like 'n01440764.tar'; is it the train archive?")
    return wnid


def _is_wnid(text: str) -> bool:
    return re.fullmatch(r"n[0-9]{8}", text) is not None


def _place(split: str, wnid: str | None, image: Member) -> PurePosixPath:
    if wnid is None:
        raise NotReadyError(f"{image} has no label; do the labels belong to this archive?")
    if "/" in image.name or image.name.startswith(".") or not image.name.lower().endswith((".jpeg", ".jpg")):
        raise NotReadyError(f"{image} is no JPEG file; is it the right archive?")
    return PurePosixPath(split, wnid, image.name)


# Labels of the validation set


def read_devkit_labels(path: Path) -> dict[str, str]:
    """File name to class from the devkit archive: the class number of each image, and the table of class numbers."""
    found: dict[str, bytes] = {}
    for member in tar_members(path, path.name, _DEVKIT_LIMITS):
        name = PurePosixPath(member.name)
        if name.name in (_GROUND_TRUTH, "meta.mat") and name.parent.name == "data":
            found[name.name] = member.read()
    for needed in (_GROUND_TRUTH, "meta.mat"):
        if needed not in found:
            raise NotReadyError(f"{path} has no data/{needed}; it should be ILSVRC2012_devkit_t12.tar.gz")
    wnids = _wnids_by_number(found["meta.mat"], path)
    try:
        numbers = [int(word) for word in found[_GROUND_TRUTH].split()]
        return {f"ILSVRC2012_val_{place:08d}.JPEG": wnids[number] for place, number in enumerate(numbers, start=1)}
    except (ValueError, KeyError) as error:
        raise NotReadyError(f"{path}: {_GROUND_TRUTH} holds {error}, which is no class number") from error


def _wnids_by_number(mat: bytes, path: Path) -> dict[int, str]:
    """The table in meta.mat. `loadmat` runs no code, yet its parser was not written for hostile input: the file is
    bounded in size, checked by md5 by default, and only one table is read.
    """
    from scipy.io import loadmat  # slow to import, and only needed here

    try:
        rows = loadmat(io.BytesIO(mat), variable_names=["synsets"], squeeze_me=True)["synsets"]
        table = {
            int(number): str(wnid)
            for number, wnid, children in zip(rows["ILSVRC2012_ID"], rows["WNID"], rows["num_children"], strict=True)
            if int(children) == 0  # the others are groups of classes
        }
    except Exception as error:  # the parser may raise anything
        raise NotReadyError(f"{path}: data/meta.mat cannot be read ({error}); fetch the devkit again") from error
    for wnid in table.values():
        if not _is_wnid(wnid):
            raise NotReadyError(f"{path}: data/meta.mat names a class {wnid[:40]!r}, which is no WordNet id")
    return table
