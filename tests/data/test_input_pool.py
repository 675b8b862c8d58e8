from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image, ImageOps

from trainmark.data.distributed_sampler import BatchShare, rank_batches, rank_share
from trainmark.data.image_sets import ImageSet, open_split
from trainmark.data.input_pool import Augmenter, ImageBatch, ImageMaker, choices
from trainmark.data.jpeg import JpegDecoder, train_crop
from trainmark.data.sample_pool import SamplePool, default_workers
from trainmark.record.errors import UsageError, WorkloadError

SIZE = 32
COUNT = 23


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    make_set(folder)
    return folder


@pytest.fixture
def own_root(tmp_path: Path) -> Path:
    """A set the test may damage."""
    make_set(tmp_path)
    return tmp_path


def make_set(root: Path) -> None:
    rng = np.random.default_rng(1)
    for split in ("train", "val"):
        for number in range(COUNT):
            path = root / split / f"n{number % 3:02d}" / f"{number:03d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            width, height = int(rng.integers(40, 90)), int(rng.integers(40, 90))
            coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
            coarse.resize((width, height)).save(path)


def sets(root: Path) -> dict[str, ImageSet]:
    return {"train": open_split(root, "train"), "val": open_split(root, "val")}


Pool = SamplePool[ImageBatch]


def make_pool(root: Path, workers: int = 2, skip_bad: int = 0, **changes: int) -> Pool:
    maker = ImageMaker(sets=tuple(sets(root).values()), **{"image_px": SIZE, "eval_resize_px": 36, **changes})
    return SamplePool(sets(root), maker, workers=workers, batch_capacity=8, skip_bad=skip_bad)


def open_pool(root: Path, workers: int = 2, **changes: int) -> contextlib.closing[Pool]:
    return contextlib.closing(make_pool(root, workers, **changes))


def shares(world: int = 1, rank: int = 0, epoch: int = 0, batch: int = 8, shuffle: bool = True) -> Iterator[BatchShare]:
    return rank_batches(COUNT, batch_per_device=batch, world=world, rank=rank, seed=4, epoch=epoch, shuffle=shuffle)


def training(pool: Pool, epoch: int = 0, world: int = 1, rank: int = 0, batch: int = 8) -> Iterator[ImageBatch]:
    mine = shares(world, rank, epoch, batch)
    return pool.batches("train", mine, transform="train", seed=4, epoch=epoch)


def evaluation(pool: Pool) -> Iterator[ImageBatch]:
    mine = rank_share(COUNT, batch_per_device=8, world=1, rank=0)
    return pool.batches("val", mine, transform="eval")


def copy_batches(batches: Iterator[ImageBatch]) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    return [(batch.images.clone(), batch.labels, batch.global_count) for batch in batches]


def same(a: list[tuple[torch.Tensor, torch.Tensor, int]], b: list[tuple[torch.Tensor, torch.Tensor, int]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x[0], y[0]) and torch.equal(x[1], y[1]) and x[2] == y[2] for x, y in zip(a, b, strict=True)
    )


others: set[int] = set()
"""Processes that other tests left in this one, such as a resource tracker."""


@pytest.fixture(autouse=True)
def know_others() -> None:
    others.clear()
    others.update(decode_workers())


def decode_workers() -> list[int]:
    children = [child for child in psutil.Process().children() if child.pid not in others]
    return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("augment_ops", [0, 2])
def test_batches_are_bit_identical_whatever_the_number_of_workers(root: Path, augment_ops: int) -> None:
    results = []
    for workers in (0, 1, 2, 3):
        with open_pool(root, workers, augment_ops=augment_ops) as pool:
            results.append(copy_batches(training(pool)) + copy_batches(evaluation(pool)))
    assert [len(batch[0]) for batch in results[0]] == [8, 8, 7, 8, 8, 7]
    for other in results[1:]:
        assert same(results[0], other)


@pytest.mark.parametrize("augment_ops", [0, 2])
def test_a_sample_looks_the_same_whatever_the_number_of_ranks(root: Path, augment_ops: int) -> None:
    with open_pool(root, 2, augment_ops=augment_ops) as pool:
        alone = copy_batches(training(pool, batch=8))
        ranks = [copy_batches(training(pool, batch=2, world=4, rank=rank)) for rank in range(4)]
    for step, (images, labels, count) in enumerate(alone):
        assert torch.equal(images, torch.cat([rank[step][0] for rank in ranks]))
        assert torch.equal(labels, torch.cat([rank[step][1] for rank in ranks]))
        assert {rank[step][2] for rank in ranks} == {count}


def test_a_batch_holds_its_samples_in_order_with_their_labels(root: Path) -> None:
    images = open_split(root, "train")
    expected = np.zeros((SIZE, SIZE, 3), np.uint8)
    with open_pool(root) as pool:
        for share, batch in zip(shares(epoch=2), training(pool, epoch=2), strict=True):
            assert batch.images.dtype == torch.uint8 and batch.labels.dtype == torch.int64
            assert batch.images.shape == (len(share.indices), 3, SIZE, SIZE)
            assert batch.images.is_contiguous(memory_format=torch.channels_last)
            assert batch.count == len(share.indices) == batch.global_count
            assert batch.labels.tolist() == images.labels[share.indices].tolist()
            for row, index in enumerate(share.indices.tolist()):
                JpegDecoder().decode(
                    Path(images.path(index)).read_bytes(),
                    lambda w, h, index=index: train_crop(w, h, size=SIZE, seed=4, epoch=2, index=index),
                    expected,
                )
                assert (batch.images[row].permute(1, 2, 0).numpy() == expected).all()


@pytest.mark.parametrize(("turn_by_exif", "workers"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_a_large_photograph_is_scored_on_the_pixels_of_a_full_decode(
    tmp_path: Path, turn_by_exif: bool, workers: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(np.random.default_rng(2).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    image = image.resize((480, 360), Image.Resampling.BICUBIC)
    for split in ("train", "val"):
        (tmp_path / split / "n00").mkdir(parents=True)
        image.save(tmp_path / split / "n00" / "0.JPEG", exif=exif)
    usual = Image.open(tmp_path / "val/n00/0.JPEG")
    usual = ImageOps.exif_transpose(usual) if turn_by_exif else usual
    width, height = (36, 48) if turn_by_exif else (48, 36)
    usual = usual.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - SIZE) // 2, (height - SIZE) // 2
    wanted = np.asarray(usual.crop((left, top, left + SIZE, top + SIZE))).astype(int)
    with open_pool(tmp_path, workers, turn_by_exif=turn_by_exif) as pool:
        one = [BatchShare(indices=np.zeros(1, np.int64), global_count=1)]
        seen = next(pool.batches("val", one, transform="eval")).images[0].permute(1, 2, 0).numpy()
    assert np.abs(seen - wanted).max() <= 2


def test_another_epoch_or_view_gives_other_pixels(root: Path) -> None:
    def first(epoch: int, view: int) -> torch.Tensor:
        share = BatchShare(indices=np.arange(4), global_count=4, views=np.full(4, view))
        return next(pool.batches("train", iter([share]), transform="train", epoch=epoch)).images.clone()

    with open_pool(root, 1) as pool:
        assert torch.equal(first(0, 0), first(0, 0))
        assert not torch.equal(first(0, 0), first(1, 0))
        assert not torch.equal(first(0, 0), first(0, 1))


def test_operations_come_after_the_crop_and_belong_to_sample_epoch_and_view(root: Path) -> None:
    augmenter = Augmenter(size_px=SIZE, operations=2, magnitude=12)
    share = BatchShare(indices=np.array([5, 5, 9, 2]), global_count=4, views=np.array([0, 1, 2, 0]))
    with (
        open_pool(root, 1) as plain_pool,
        open_pool(root, 1, augment_ops=2, augment_magnitude=12) as pool,
    ):
        how = {"transform": "train", "seed": 6, "epoch": 3}
        plain = next(plain_pool.batches("train", [share], **how)).images.permute(0, 2, 3, 1).numpy()
        found = next(pool.batches("train", [share], **how)).images.permute(0, 2, 3, 1).numpy()
        assert not np.array_equal(plain, found)
        for row, (index, view) in enumerate(zip([5, 5, 9, 2], [0, 1, 2, 0], strict=True)):
            expected = plain[row].copy()
            for choice in choices(2, seed=6, epoch=3, index=index, view=view):
                augmenter.apply(choice, expected)
            assert np.array_equal(found[row], expected)


def test_evaluation_sees_images_as_they_are(root: Path) -> None:
    with open_pool(root, 1) as plain, open_pool(root, 1, augment_ops=2) as pool:
        assert same(copy_batches(evaluation(pool)), copy_batches(evaluation(plain)))


def test_a_batch_is_cut_into_parts_that_hold_all_of_it(root: Path) -> None:
    with open_pool(root, 0) as pool:
        batch = next(training(pool))
        for wanted, counts in ((1, [8]), (3, [2, 3, 3]), (8, [1] * 8), (20, [1] * 8)):
            parts = batch.parts(wanted)
            assert [part.count for part in parts] == counts == [len(part.images) for part in parts]
            assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
            assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)
            assert {part.global_count for part in parts} == {batch.global_count}
            assert all(part.images.is_contiguous(memory_format=torch.channels_last) for part in parts)
            assert parts[0].images.data_ptr() == batch.images.data_ptr()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_stopped_in_the_middle_does_not_spoil_the_next(root: Path, workers: int) -> None:
    with open_pool(root, workers) as pool:
        whole, evaluated = copy_batches(training(pool)), copy_batches(evaluation(pool))
        for stop_after in (0, 1, 2):
            stopped = training(pool, epoch=9)
            for _ in range(stop_after):
                next(stopped)
            assert same(copy_batches(evaluation(pool)), evaluated)
            with pytest.raises(RuntimeError, match="abandoned"):
                next(stopped)
            assert same(copy_batches(training(pool)), whole)


def test_no_more_batches_are_decoded_ahead_than_memory_was_set_aside_for(root: Path) -> None:
    taken = 0

    def counted() -> Iterator[BatchShare]:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield BatchShare(indices=np.arange(4), global_count=4)

    with open_pool(root, 2) as pool:
        batches = pool.batches("train", counted(), transform="train")
        assert taken == 3
        next(batches)
        assert taken == 3
        next(batches)
        assert taken == 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("damage", "reason"), [("truncate", "truncated"), ("delete", "No such file"), ("empty", "empty")]
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    own_root: Path, workers: int, damage: str, reason: str
) -> None:
    with open_pool(own_root, workers) as pool:
        before = copy_batches(training(pool))
        victim = Path(pool_path(own_root, 10))
        if damage == "delete":
            victim.unlink()
        else:
            victim.write_bytes(victim.read_bytes()[: -200 if damage == "truncate" else 0])
        batches = pool.batches("train", shares(shuffle=False), transform="train")
        next(batches)
        with pytest.raises(WorkloadError, match=f"{re.escape(str(victim))} cannot be read: .*{reason}") as caught:
            next(batches)
        assert caught.value.exit_code == 4
        assert len(copy_batches(evaluation(pool))) == len(before)


def pool_path(root: Path, index: int) -> str:
    return open_split(root, "train").path(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_are_left_out_and_listed_up_to_the_number_allowed(own_root: Path, workers: int) -> None:
    with open_pool(own_root, workers, skip_bad=2) as pool:
        [first, second, third] = copy_batches(pool.batches("train", shares(shuffle=False), transform="train"))
        for index in (0, 10):
            Path(pool_path(own_root, index)).write_bytes(b"junk")
        for _ in range(2):  # the same two files again do not use up more
            [a, b, c] = copy_batches(pool.batches("train", shares(shuffle=False), transform="train"))
            assert torch.equal(a[0], first[0][1:]) and torch.equal(a[1], first[1][1:])
            keep = [0, 1, 3, 4, 5, 6, 7]
            assert torch.equal(b[0], second[0][keep]) and torch.equal(b[1], second[1][keep])
            assert torch.equal(c[0], third[0])
            assert a[2] == 8
        assert pool.skipped == [(pool_path(own_root, i), "no JPEG and no PNG image") for i in (0, 10)]
        third_bad = Path(pool_path(own_root, 20))
        third_bad.unlink()
        with pytest.raises(
            WorkloadError, match=rf"{third_bad} .*No such file.* \(skip-bad allows 2 and all are used up"
        ):
            copy_batches(pool.batches("train", shares(shuffle=False), transform="train"))
        assert len(pool.skipped) == 2


def test_a_batch_with_no_readable_file_left_is_refused(own_root: Path) -> None:
    Path(pool_path(own_root, 0)).write_bytes(b"")
    with open_pool(own_root, 1, skip_bad=5) as pool, pytest.raises(WorkloadError, match="no image of a batch of 1"):
        next(pool.batches("train", shares(batch=1, shuffle=False), transform="train"))


def test_a_killed_decode_worker_is_named_and_nothing_hangs(root: Path) -> None:
    with open_pool(root, 2) as pool:
        batches = training(pool)
        next(batches)
        victim = min(decode_workers())
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(WorkloadError, match=rf"decode worker \d \(pid {victim}\) was killed by SIGKILL"):
            for _ in range(1000):
                copy_batches(training(pool))
    assert decode_workers() == []


def test_a_fault_of_our_own_in_a_worker_comes_back_with_its_traceback(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("our bug")

    monkeypatch.setattr(JpegDecoder, "decode", broken)
    with open_pool(root, 2) as pool:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"(?s)decode worker failed.*in broken.*TypeError: our bug"):
                copy_batches(training(pool))


def test_interrupts_meant_for_the_trainer_leave_the_workers_at_work(root: Path) -> None:
    with open_pool(root, 2) as pool:
        for pid in decode_workers():
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)
        assert len(copy_batches(training(pool))) == 3
        assert len(decode_workers()) == 2


def shared_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("/dev/zero")


def test_closing_ends_the_workers_and_twice_is_harmless(root: Path) -> None:
    gc.collect()  # what earlier tests left must not go away meanwhile
    mappings = shared_mappings()
    pool = make_pool(root, 2)
    batches = training(pool)
    batch = next(batches)
    kept = batch.images.clone()
    assert len(decode_workers()) == 2
    pool.close()
    pool.close()
    assert decode_workers() == []
    assert torch.equal(batch.images, kept)  # memory lives as long as someone looks at it
    with pytest.raises(RuntimeError, match="closed"):
        next(batches)
    with pytest.raises(ValueError, match="closed"):
        training(pool)
    del pool, batches, batch
    assert shared_mappings() == mappings


def test_a_pool_that_is_dropped_takes_its_workers_along(root: Path) -> None:
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    pool = make_pool(root, 2)
    next(training(pool))
    del pool
    assert decode_workers() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "pass"])
def test_workers_end_with_their_trainer_however_it_ends(root: Path, ending: str) -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from pathlib import Path
from test_input_pool import make_pool, training
torch.ones(600, 600) @ torch.ones(600, 600)  # threads ran before the fork
os.close(0)
pool = make_pool(Path({str(root)!r}), 2)
batches = training(pool)
print(next(batches).count, flush=True)
{ending}
"""
    # the workers hold the same standard output: it only ends when they all have
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.stdout == b"8\n", done.stderr.decode()


def test_what_cannot_work_is_refused_in_a_sentence(root: Path) -> None:
    with open_pool(root, 0) as pool, pytest.raises(ValueError, match="a batch of 9 does not fit"):
        pool.batches("train", shares(batch=9), transform="train")
    with pytest.raises(UsageError, match="magnitude 31 is not one of 0 to 30"):
        make_pool(root, 0, augment_ops=2, augment_magnitude=31)


def test_the_default_leaves_the_trainer_a_core_and_is_never_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, ranks, workers in ((1, 1, 1), (2, 1, 1), (8, 1, 7), (128, 8, 15), (256, 1, 16), (4, 8, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert default_workers(ranks) == workers
