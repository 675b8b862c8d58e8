"""ImageSet in tar shards: the same training as from folders, and a sentence for every kind of damage."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY_RUN

from trainmark.data import image_sets
from trainmark.data.distributed_sampler import rank_batches, rank_share
from trainmark.data.image_sets import Counts, ImageSet
from trainmark.data.imagenet import make
from trainmark.data.imagenet.prepare import verify
from trainmark.data.input_pool import ImageMaker
from trainmark.data.sample_pool import SamplePool
from trainmark.record.errors import NotReadyError, UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shards(tmp_path: Path, pictures: Path) -> Path:
    """The images of the folder, dealt to four shards of training and two of validation."""
    root = tmp_path / "shards"
    root.mkdir()
    for split, count in (("train", 4), ("val", 2)):
        make.pack(pictures, split, root, shards=count)
    return root


def write(path: Path, files: Mapping[str, bytes], **options: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", **options) as shard:
        for name, data in files.items():
            header = tarfile.TarInfo(name)
            header.size, header.mtime = len(data), 1.5  # a time with a fraction, as WebDataset's writer leaves it
            shard.addfile(header, io.BytesIO(data))


def samples(*keys: str, label: int = 0) -> dict[str, bytes]:
    return {
        name: data for key in keys for name, data in ((f"{key}.jpg", key.encode()), (f"{key}.cls", b"%d\n" % label))
    }


def contents(images: ImageSet) -> list[tuple[int, bytes]]:
    return [(int(images.labels[index]), images.read(index)) for index in range(len(images))]


Batches = list[tuple[torch.Tensor, torch.Tensor, int]]


def batches(root: Path, world: int, rank: int, workers: int, start_step: int = 0) -> Batches:
    sets = {"train": image_sets.open_split(root, "train"), "val": image_sets.open_split(root, "val")}
    order = {"batch_per_device": 12 // world, "world": world, "rank": rank}
    train = rank_batches(len(sets["train"]), seed=3, epoch=1, shuffle=True, start_step=start_step, **order)
    val = rank_share(len(sets["val"]), **order)
    maker = ImageMaker(sets=tuple(sets.values()), image_px=32, eval_resize_px=36, augment_ops=1)
    with contextlib.closing(SamplePool(sets, maker, workers=workers, batch_capacity=12)) as pool:
        found = []
        for name, shares, transform in (("train", train, "train"), ("val", val, "eval")):
            for batch in pool.batches(name, shares, transform=transform, seed=3, epoch=1):
                found.append((batch.images.clone(), batch.labels, batch.global_count))
    return found


def same(some: Batches, others: Batches) -> bool:
    return len(some) == len(others) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and a[2] == b[2] for a, b in zip(some, others, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("world", "workers", "start_step"), [(1, 0, 0), (2, 0, 1), (3, 1, 0)])
def test_shards_give_the_batches_that_folders_give(
    pictures: Path, shards: Path, world: int, workers: int, start_step: int
) -> None:
    for rank in range(world):
        folders = batches(pictures, world, rank, workers=0, start_step=start_step)
        assert len(folders) > 2
        assert same(folders, batches(shards, world, rank, workers, start_step))


def test_how_images_are_dealt_to_shards_does_not_matter(tmp_path: Path, pictures: Path, shards: Path) -> None:
    (tmp_path / "other").mkdir()
    make.pack(pictures, "train", tmp_path / "other", shards=1)
    folders = contents(image_sets.open_split(pictures, "train"))
    assert folders == contents(image_sets.open_split(shards, "train"))
    assert folders == contents(image_sets.open_split(tmp_path / "other", "train"))


@pytest.mark.slow
def test_a_run_on_shards_has_the_losses_of_a_run_on_folders(
    cli: Callable[..., Any], pictures: Path, shards: Path
) -> None:
    runs = []
    for folder in (pictures, shards):
        done = cli(*TINY_RUN, "--epochs", "1", "--data", str(folder), "--json")
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout))
    assert runs[0]["series"]["loss"] == runs[1]["series"]["loss"]
    assert runs[0]["quality"]["history"] == runs[1]["quality"]["history"] != []
    shown = cli("sample", runs[1]["run_id"])
    assert shown.returncode == 0 and "predicted classes of n9000000" in shown.stdout, shown


@pytest.mark.parametrize(
    "names",
    [
        ("train-000000.tar", "train-000001.tar", "val-000000.tar"),
        ("imagenet-train-000000.tar", "imagenet-train-000001.tar", "imagenet-val-000000.tar"),
        ("imagenet1k-train-0041.tar", "imagenet1k-train-0042.tar", "imagenet1k-validation-07.tar"),
        ("set_train_9.tar", "set_train_10.tar", "validation-00000-of-00001.tar"),
    ],
)
def test_shards_are_known_by_their_names_and_may_be_a_part_of_all(tmp_path: Path, names: tuple[str, ...]) -> None:
    root = tmp_path / "set"
    write(root / names[0], samples("b", "d", label=1))
    write(root / names[1], {**samples("sub/c", label=0), "a.JPEG": b"a", "a.cls": b"1", "a.json": b"{}"})
    write(root / names[2], samples("x" * 120, label=1))  # too long for a plain header
    (root / "readme.txt").touch()
    train, val = (image_sets.open_split(root, split) for split in image_sets.SPLITS)
    assert contents(train) == [(0, b"sub/c"), (1, b"a"), (1, b"b"), (1, b"d")]
    assert train.path(1) == f"{root}/{names[1]}/a.JPEG"
    assert contents(val) == [(1, b"x" * 120)]
    assert train.classes == val.classes == image_sets.class_names(root) == ("class 0", "class 1")


def test_folders_go_before_shards_that_lie_beside_them(tmp_path: Path, pictures: Path) -> None:
    root = shutil.copytree(pictures, tmp_path / "both")
    write(root / "train-000000.tar", samples("a"))
    assert len(image_sets.open_split(root, "train")) == 48


FAULTS: dict[str, tuple[dict[str, dict[str, bytes]], str]] = {
    "no class": ({"train-0.tar": {"a.jpg": b"a"}}, r"/train-0.tar/a.jpg: has no class; expected a.cls in the shard"),
    "no image": ({"train-0.tar": {"a.cls": b"0"}}, r"/train-0.tar/a.cls: has no image in the shard"),
    "a word": (
        {"train-0.tar": {"a.jpg": b"a", "a.cls": b"cat"}},
        r"/train-0.tar/a.cls: holds 'cat', which is not a class number",
    ),
    "below 0": (
        {"train-0.tar": {"a.jpg": b"a", "a.cls": b"-1"}},
        r"/train-0.tar/a.cls: holds '-1', which is not a class number",
    ),
    "too large": (
        {"train-0.tar": samples("a", label=10**9)},
        r"/train-0.tar/a.cls: holds '1000000000', which is not a class number",
    ),
    "outside": (
        {"train-0.tar": samples("a", label=1), "val-0.tar": samples("b", label=2)},
        r"/val-0.tar/b.jpg: is of class 2; expected 0 to 1",
    ),
    "twice": (
        {"train-0.tar": samples("a"), "train-1.tar": samples("b", "a")},
        r"/train-1.tar/a.jpg: an image of this name is also in train-0.tar",
    ),
    "twice in one": (
        {"train-0.tar": {**samples("a"), "a.jpeg": b"a"}},
        r"/train-0.tar/a: there are two images of this name",
    ),
    "nothing": ({"train-0.tar": {"a.txt": b"a"}}, r"/train-0.tar: holds no images; expected files like name.jpg"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_set_with_a_fault_is_refused_with_the_name_of_the_shard(tmp_path: Path, fault: str) -> None:
    files, sentence = FAULTS[fault]
    for name, members in {"val-0.tar": samples("z"), **files}.items():
        write(tmp_path / "set" / name, members)
    with pytest.raises(NotReadyError, match=sentence) as caught:
        [image_sets.open_split(tmp_path / "set", split) for split in image_sets.SPLITS]
    assert "\n" not in str(caught.value) and caught.value.exit_code == 3
    assert not list((tmp_path / "cache").rglob("*.part"))
    report = verify(tmp_path / "set", decode="none")
    assert not report.ok and any(str(found) in str(caught.value) for found in report.problems)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["train-0.tar"], "holds no shards of val; expected files like val-000000.tar"),
        (["val-0.tar"], "holds no shards of train; expected files like train-000000.tar"),
        (["train-0.tar", "train-2.tar", "val-0.tar"], "has no shard 1 after train-0.tar; fetch the missing ones"),
        (
            ["train-01.tar", "train-1.tar", "val-0.tar"],
            "holds train-01.tar and train-1.tar, which have the same number",
        ),
        (
            ["train-0.tar", "big-train-0.tar", "val-0.tar"],
            r"holds two series of shards, big-train-\* and train-\*; keep one",
        ),
    ],
)
def test_shards_that_make_no_set_are_refused(tmp_path: Path, names: list[str], sentence: str) -> None:
    for name in names:
        write(tmp_path / "set" / name, samples(name[0]))
    with pytest.raises(NotReadyError, match=sentence):
        [image_sets.open_split(tmp_path / "set", split) for split in image_sets.SPLITS]
    with pytest.raises(NotReadyError, match=sentence):
        verify(tmp_path / "set")


@pytest.mark.parametrize("left", [0, 100, 512 * 2, -10240])
def test_a_shard_that_is_cut_off_anywhere_is_refused(shards: Path, left: int) -> None:
    shard = shards / "train-000002.tar"
    if left < 0:  # within the last images
        left += shard.stat().st_size
    os.truncate(shard, left)
    with pytest.raises(
        NotReadyError,
        match=r"/train-000002.tar: the shard is cut off or damaged (at its very start|after member '.*'),",
    ):
        image_sets.open_split(shards, "train")


def test_headers_are_read_once_and_again_when_a_shard_has_changed(shards: Path, own_cache: Path) -> None:
    before = contents(image_sets.open_split(shards, "train"))
    shard = shards / "train-000000.tar"
    whole, times = shard.read_bytes(), shard.stat()
    shard.write_bytes(bytes(len(whole)))
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(image_sets.open_split(shards, "train")) == len(before)  # by the index alone
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    with pytest.raises(NotReadyError, match=r"train-000000.tar: holds no images"):
        image_sets.open_split(shards, "train")
    shard.write_bytes(whole)
    assert contents(image_sets.open_split(shards, "train")) == before
    for index in own_cache.rglob("*.npz"):
        index.write_bytes(index.read_bytes()[:-9])
    assert contents(image_sets.open_split(shards, "train")) == before


def test_a_set_is_read_where_nothing_can_be_kept(shards: Path, own_cache: Path) -> None:
    own_cache.touch()  # a file where the folder should be
    assert len(image_sets.open_split(shards, "train")) == 48


def test_a_shard_cut_off_during_the_run_is_an_image_that_cannot_be_read(shards: Path) -> None:
    images = image_sets.open_split(shards, "train")
    for shard in shards.glob("train-*.tar"):
        os.truncate(shard, 1024)
    with pytest.raises(OSError, match="its shard was truncated"):
        images.read(5)


def test_verifying_counts_what_shards_hold_and_names_bad_images(shards: Path) -> None:
    report = verify(shards, decode="full")
    assert report.ok and report.found == Counts(classes=3, train=48, val=12) and not report.notes
    write(shards / "train-000004.tar", {**samples("bad", label=1), "none.jpg": b"", "none.cls": b"0"})
    write(shards / "val-000002.tar", samples("strange", label=7), format=tarfile.GNU_FORMAT)
    os.truncate(shards / "train-000001.tar", 700)
    found = verify(shards)
    assert {(each.subject, each.sentence) for each in found.problems} >= {
        ("train-000004.tar/bad.jpg", "does not begin like a JPEG file"),
        ("train-000004.tar/none.jpg", "is empty"),
        ("val-000002.tar/strange.jpg", "is of class 7; expected 0 to 2"),
    }
    assert any(
        each.subject == "train-000001.tar" and "is cut off or damaged after" in each.sentence for each in found.problems
    )


def test_a_part_of_a_set_is_noted_by_its_missing_classes(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train-7.tar", {**samples("a", label=0), **samples("b", label=3)})
    write(tmp_path / "set" / "val-0.tar", samples("c", label=3))
    report = verify(tmp_path / "set", decode="none")
    assert report.ok
    assert [str(note) for note in report.notes] == [
        "train: 2 of 4 classes have no image, such as 1",
        "val: 3 of 4 classes have no image, such as 0",
    ]


SMALL: dict[str, Any] = {"classes": 2, "train_per_class": 3, "val_per_class": 2, "long_side": 64}


def test_synthetic_shards_hold_the_images_of_synthetic_folders(tmp_path: Path) -> None:
    make.make(tmp_path / "folders", **SMALL)
    for name in ("shards", "again"):
        make.make(tmp_path / name, **SMALL, shards=3)
    names = [f"{split}-00000{number}.tar" for split in ("train", "val") for number in range(3)]
    assert {path.name for path in (tmp_path / "shards").iterdir()} == {*names, "trainmark-set.json"}
    for split in image_sets.SPLITS:
        folders, shards = (image_sets.open_split(tmp_path / name, split) for name in ("folders", "shards"))
        assert contents(folders) == contents(shards) and folders.classes == shards.classes
    assert all((tmp_path / "shards" / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)
    assert verify(tmp_path / "shards").expected == Counts(classes=2, train=6, val=4)
    with pytest.raises(UsageError, match="--shards 5 is out of range; give 0 to 4"):
        make.make(tmp_path / "more", **SMALL, shards=5)
