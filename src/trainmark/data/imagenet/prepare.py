"""Unpacks the ILSVRC2012 archives into class folders; restarted, it continues where it stopped.

The train archive holds one tar per class (`n01440764.tar`), the validation archive 50,000 files without labels; the
labels come from the devkit archive or from a text file. The result is what the readers expect:
`train/<wnid>/*.JPEG` and `val/<wnid>/*.JPEG`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from trainmark.data import preparation
from trainmark.data.imagenet.verify import Counts
from trainmark.data.preparation import STATE, ArchiveProgress, Prepared, Report, check_archives, prepare_folder, unpack
from trainmark.record.archives import ArchiveLimits, Destination, Member, tar_members
from trainmark.record.errors import NotReadyError

MAX_CLASSES = 30_000
MAX_FILES = 20_000_000
MAX_BYTES = 4 << 40
"""Larger than any set of this kind (ImageNet-21k has 21,841 classes, 14 million files and 1.3 TB)."""

_MISTAKEN = {
    "ccaf1013018ac1037801578038d370da": "the archive of task 3 (dogs); ILSVRC2012_img_train.tar, 138 GB, is needed"
}
_CLASS_LIMITS = ArchiveLimits(files=MAX_CLASSES, total_bytes=MAX_BYTES)
_DEVKIT_LIMITS = ArchiveLimits(files=200, total_bytes=64 << 20)
_GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True, kw_only=True)
class ArchiveSet:
    """Expected checksums and counts; None where unknown."""

    train_md5: str | None = None
    val_md5: str | None = None
    devkit_md5: str | None = None
    classes: int | None = None
    train: int | None = None
    """Files in the train split."""
    val: int | None = None


ILSVRC2012 = ArchiveSet(
    train_md5="1d675b47d978889d74fa0da5fadfb00e",
    val_md5="29b22e2961454d5413ddabcf34fc5622",
    devkit_md5="fa75699e90414af021442c21a62c3abf",
    classes=1000,
    train=1_281_167,
    val=50_000,
)


def from_files(
    out: Path,
    *,
    any_archive: bool,
    progress: Report,
    train_tar: Path,
    val_tar: Path,
    devkit: Path | None,
    val_labels: Path | None,
) -> str:
    """Runs `trainmark data prepare` and returns its summary."""
    expected = ArchiveSet() if any_archive else ILSVRC2012
    return str(
        prepare(train_tar, val_tar, out, devkit=devkit, val_labels=val_labels, expected=expected, progress=progress)
    )


def prepare(
    train_tar: Path,
    val_tar: Path,
    out: Path,
    *,
    devkit: Path | None = None,
    val_labels: Path | None = None,
    expected: ArchiveSet = ILSVRC2012,
    progress: Report = lambda _: None,
    free_bytes: Callable[[Path], int] | None = None,
) -> Prepared[Counts]:
    """Unpacks both archives to `out`, after all checks that can be made beforehand.

    One of `devkit` (ILSVRC2012_devkit_t12.tar.gz) and `val_labels` (a text file, see `read_val_labels`) is needed.
    Killed and restarted, it keeps complete files and ends with the same result. `expected` describes other archives
    than ILSVRC2012's.
    """
    archives = dict.fromkeys((train_tar, val_tar), "image-net.org")
    check_archives(archives)
    labels = _labels(devkit, val_labels, expected.devkit_md5)
    classes = _class_names(train_tar, expected)
    _check_labels(labels, classes, expected)
    with prepare_folder(
        out,
        archives,
        # files fill whole blocks: about 2 % more than their bytes
        needed_bytes=lambda: 1.02 * (train_tar.stat().st_size + val_tar.stat().st_size),
        folders=("train", "val"),
        free_bytes=free_bytes,
    ) as destination:
        preparation.check_md5(train_tar, expected.train_md5, destination, progress, _MISTAKEN)
        preparation.check_md5(val_tar, expected.val_md5, destination, progress)
        train, train_written = _unpack_train(train_tar, destination, progress)
        val, val_written = _unpack_val(val_tar, labels, destination, progress)
    for split, found, wanted in (("train", train, expected.train), ("val", val, expected.val)):
        if wanted is not None and found != wanted:
            raise NotReadyError(
                f"{split}: {found} files unpacked where {wanted} were expected; is it the right archive?"
            )
    return Prepared(found=Counts(classes=len(classes), train=train, val=val), written=train_written + val_written)


def read_val_labels(path: Path) -> dict[str, str]:
    """File name to class from a text file.

    Its lines are `ILSVRC2012_val_00000001.JPEG n01751748`, or `n01751748` in the order of the images.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(f"cannot read the labels in {path}: {error}") from error
    labels: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        name, wnid = (_val_name(len(labels) + 1), words[0]) if len(words) == 1 else (words[0], words[1])
        if len(words) > 2 or not _is_wnid(wnid):
            raise NotReadyError(
                f"{path}, line {number}: {line[:80]!r} is neither 'ILSVRC2012_val_00000001.JPEG n01751748' "
                "nor 'n01751748'"
            )
        if name in labels:
            raise NotReadyError(f"{path}, line {number}: {name!r} has a label already")
        labels[name] = wnid
    return labels


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
        return {_val_name(place): wnids[number] for place, number in enumerate(numbers, start=1)}
    except (ValueError, KeyError) as error:
        raise NotReadyError(f"{path}: {_GROUND_TRUTH} holds {error}, which is no class number") from error


def _labels(devkit: Path | None, val_labels: Path | None, devkit_md5: str | None) -> dict[str, str]:
    if val_labels is not None:
        return read_val_labels(val_labels)
    if devkit is None:
        raise NotReadyError(
            "the validation archive has no labels in it: give the devkit (--devkit ILSVRC2012_devkit_t12.tar.gz) "
            "or a text file of labels (--val-labels FILE, lines 'ILSVRC2012_val_00000001.JPEG n01751748')"
        )
    if devkit_md5 is not None:
        preparation.compare_md5(devkit, devkit_md5, lambda _: None)
    return read_devkit_labels(devkit)


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


def _class_names(train_tar: Path, expected: ArchiveSet) -> list[str]:
    """The classes in the train archive, from its headers alone."""
    names = [_wnid_of(member) for member in tar_members(train_tar, train_tar.name, _CLASS_LIMITS)]
    if expected.classes is not None and len(names) != expected.classes:
        raise NotReadyError(
            f"{train_tar} holds {len(names)} classes where {expected.classes} were expected; is it the right archive?"
        )
    return names


def _check_labels(labels: Mapping[str, str], classes: list[str], expected: ArchiveSet) -> None:
    if expected.val is not None and len(labels) != expected.val:
        raise NotReadyError(f"{len(labels)} validation labels where {expected.val} were expected")
    unknown = sorted(set(labels.values()) - set(classes))
    if unknown:
        raise NotReadyError(
            f"the labels name {len(unknown)} classes that the train archive does not have: {unknown[0]}"
        )


def _unpack_train(train_tar: Path, destination: Destination, progress: Report) -> tuple[int, int]:
    total_bytes, files, written = train_tar.stat().st_size, 0, 0
    done_bytes = 0
    for class_tar in tar_members(train_tar, train_tar.name, _CLASS_LIMITS):
        wnid = _wnid_of(class_tar)
        folder, marker = PurePosixPath("train", wnid), STATE / "train" / f"{wnid}.json"
        done = _read_finished(destination, marker, folder, class_tar.size)
        if done is None:
            name = f"{class_tar.archive}/{class_tar.name}"
            limits = ArchiveLimits(files=MAX_FILES - files, total_bytes=MAX_BYTES)
            unpacked = unpack(tar_members(class_tar.content, name, limits), partial(_place, folder), destination)
            done = len(unpacked.sizes), unpacked.total_bytes(folder)
            written += unpacked.written
            note = {"files": done[0], "bytes": done[1], "archive_bytes": class_tar.size}
            preparation.write_json(destination, marker, note)
        files += done[0]
        done_bytes += class_tar.size
        progress(ArchiveProgress(phase="train", done_bytes=done_bytes, total_bytes=total_bytes, files=files))
    return files, written


def _read_finished(
    destination: Destination, marker: PurePosixPath, folder: PurePosixPath, archive_bytes: int
) -> tuple[int, int] | None:
    """Files and bytes of a class finished by an earlier run, if its folder still holds exactly those.

    Counted again because files are not synced: after a power cut a marker may exist and a file not.
    """
    state = preparation.read_json(destination, marker)
    found = destination.files(folder) if state else None
    if found and state == {"files": found[0], "bytes": found[1], "archive_bytes": archive_bytes}:
        return found
    return None


def _unpack_val(
    val_tar: Path, labels: Mapping[str, str], destination: Destination, progress: Report
) -> tuple[int, int]:
    def place(image: Member) -> PurePosixPath:
        where = _place(PurePosixPath("val", labels.get(image.name, "")), image)
        if image.name not in labels:
            raise NotReadyError(f"{image} has no label; do the labels belong to this archive?")
        return where

    members = tar_members(val_tar, val_tar.name, ArchiveLimits(files=MAX_FILES, total_bytes=MAX_BYTES))
    unpacked = unpack(members, place, destination, progress, phase="val", total_bytes=val_tar.stat().st_size)
    files = len(unpacked.sizes)
    if files != len(labels):
        raise NotReadyError(
            f"{val_tar} holds {files} images and there are {len(labels)} labels; one of them is cut short"
        )
    return files, unpacked.written


def _wnid_of(class_tar: Member) -> str:
    wnid, dot, suffix = class_tar.name.partition(".")
    if not (dot and suffix == "tar" and _is_wnid(wnid)):
        raise NotReadyError(f"{class_tar} is no tar of a class like 'n01440764.tar'; is it the train archive?")
    return wnid


def _is_wnid(text: str) -> bool:
    return re.fullmatch(r"n[0-9]{8}", text) is not None


def _place(folder: PurePosixPath, image: Member) -> PurePosixPath:
    if "/" in image.name or image.name.startswith(".") or not image.name.lower().endswith((".jpeg", ".jpg")):
        raise NotReadyError(f"{image} is no JPEG file; is it the right archive?")
    return folder / image.name


def _val_name(place: int) -> str:
    return f"ILSVRC2012_val_{place:08d}.JPEG"
