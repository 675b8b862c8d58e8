"""The synthetic image set: whole or absent, the same for everyone, and not to be guessed from colour or size."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from trainmark.data import atomic_dataset, image_sets
from trainmark.data.imagenet import make, renderer, shapes
from trainmark.record.errors import NotReadyError, UsageError

SMALL: dict[str, Any] = {"classes": 2, "train_per_class": 3, "val_per_class": 2, "long_side": 64}


def contents(root: Path) -> dict[str, str]:
    """The hash of every image by its path."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*.JPEG"))
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def manifest(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "trainmark-set.json").read_text())
    return found


def test_the_tree_is_shaped_like_imagenet(tmp_path: Path) -> None:
    make.make(tmp_path / "set", **SMALL)
    assert list(contents(tmp_path / "set")) == [
        *(f"train/n9000000{c}/n9000000{c}_{n}.JPEG" for c in range(2) for n in range(3)),
        *(f"val/n9000000{c}/n9000000{c}_{n}.JPEG" for c in range(2) for n in range(2)),
    ]
    assert names(tmp_path) == ["set"]


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    root = tmp_path / "set"
    make.make(root, **SMALL, seed=5)
    assert image_sets.expected_counts(root, ()) == image_sets.Counts(classes=2, train=6, val=4)
    says = manifest(root)
    assert (says["version"], says["seed"], says["long_side"]) == (make.VERSION, 5, 64)
    assert says["bytes"] == sum(path.stat().st_size for path in root.rglob("*.JPEG"))
    assert says["names"] == {"n90000000": "striped star", "n90000001": "spotted ring"}


@pytest.mark.slow
def test_a_seed_gives_the_same_bytes_whatever_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**SMALL, "train_per_class": 25}
    make.make(tmp_path / "one", **sizes)
    monkeypatch.setattr(atomic_dataset, "WORTH_PROCESSES", 1)
    make.make(tmp_path / "two", **sizes)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert manifest(tmp_path / "one") == manifest(tmp_path / "two")


def test_no_two_images_are_alike_and_another_seed_gives_others(tmp_path: Path) -> None:
    make.make(tmp_path / "a", **SMALL)
    make.make(tmp_path / "b", **SMALL, seed=1)
    hashes = [*contents(tmp_path / "a").values(), *contents(tmp_path / "b").values()]
    assert len(set(hashes)) == len(hashes) == 20


def test_progress_is_told_up_to_the_last_image(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    make.make(tmp_path / "set", **SMALL, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 10) for done in range(1, 11)]


def test_a_set_that_is_there_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    make.make(folder, **SMALL)
    before = folder.stat().st_ino
    make.make(folder, **SMALL)
    assert folder.stat().st_ino == before


@pytest.mark.slow
@pytest.mark.parametrize("worth_processes", [1, 1000])
def test_an_interrupted_maker_leaves_nothing(
    tmp_path: Path, worth_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_dataset, "WORTH_PROCESSES", worth_processes)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make.make(tmp_path / "set", **{**SMALL, "train_per_class": 40}, progress=interrupt)
    assert names(tmp_path) == []


def test_what_a_killed_maker_left_is_swept_away_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".set.1-0a", tmp_path / ".set.2-0b"
    for folder in (old, new):
        (folder / "train").mkdir(parents=True)
    os.utime(old, (0, 0))
    make.make(tmp_path / "set", **SMALL)
    assert names(tmp_path) == [".set.2-0b", "set"]


def test_two_makers_at_once_both_succeed(tmp_path: Path) -> None:
    both_drawing = threading.Barrier(2)
    failures: list[BaseException] = []

    def wait(done: int, total: int) -> None:
        if done == total:
            both_drawing.wait(30)

    def run() -> None:
        try:
            make.make(tmp_path / "set", **SMALL, progress=wait)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert names(tmp_path) == ["set"]
    assert len(contents(tmp_path / "set")) == 10


@pytest.mark.parametrize("harm", ["cut", "lost", "split"])
def test_a_damaged_set_is_made_again(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "set"
    make.make(folder, **SMALL)
    whole = contents(folder)
    victim = folder / "train/n90000001/n90000001_0.JPEG"
    if harm == "cut":
        victim.write_bytes(b"")
    elif harm == "lost":
        victim.unlink()
    else:
        (folder / "val").rename(folder / "value")
    make.make(folder, **SMALL)
    assert contents(folder) == whole
    assert names(tmp_path) == [folder.name]


def test_a_folder_with_other_things_in_it_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all I have")
    with pytest.raises(NotReadyError, match="not a set made by trainmark"):
        make.make(tmp_path, **SMALL)
    with pytest.raises(NotReadyError, match="not a set made by trainmark"):
        make.make(tmp_path / "thesis.txt", **SMALL)
    assert (tmp_path / "thesis.txt").read_text() == "all I have"


def test_another_generated_set_is_refused_and_kept(tmp_path: Path) -> None:
    make.make(tmp_path / "set", **SMALL)
    before = contents(tmp_path / "set")
    with pytest.raises(NotReadyError, match="another synthetic set"):
        make.make(tmp_path / "set", **SMALL, seed=1)
    assert contents(tmp_path / "set") == before


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match="Not a directory; choose another folder"):
        make.make(tmp_path / "file" / "set", **SMALL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 1001},
        {"val_per_class": 0},
        {"seed": -1},
        {"long_side": 16},
    ],
)
def test_sizes_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
        make.make(tmp_path / "set", **{**SMALL, **wrong})
    assert names(tmp_path) == []


# The images


def test_there_are_a_thousand_different_classes_in_the_order_of_their_folders() -> None:
    assert len({shapes.form(index)[0] for index in range(1000)}) == 1000
    folders = [make.class_folder(index) for index in range(1000)]
    assert folders == sorted(set(folders))
    assert all(len(folder) == 9 for folder in folders)


def test_a_seed_gives_the_pixels_it_gave_when_records_were_made() -> None:
    digest = hashlib.sha256()
    for index in range(40):  # every outline and every surface
        digest.update(renderer.draw(index, np.random.default_rng(index), long_side=64).tobytes())
    assert digest.hexdigest()[:16] == "4c530a06fd4c2061"


def test_a_full_size_file_is_like_a_photograph(tmp_path: Path) -> None:
    make.make(tmp_path / "set", classes=2, train_per_class=12, val_per_class=1)
    files = [path.read_bytes() for path in (tmp_path / "set").rglob("*.JPEG")]
    shapes = {simplejpeg.decode_jpeg_header(data)[:2] for data in files}
    assert (375, 500) in shapes
    assert len(shapes) > 2
    assert all(max(shape) == 500 for shape in shapes)
    assert all(simplejpeg.decode_jpeg_header(data)[2:] == ("YCbCr", "420") for data in files)
    assert 40_000 < np.mean([len(data) for data in files]) < 80_000
    assert all(20_000 < len(data) < 150_000 for data in files)
