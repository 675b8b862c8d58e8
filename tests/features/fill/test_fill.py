"""The largest useful batch is found whatever a device does, and a try that runs out of memory harms nobody."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from trainmark import workloads
from trainmark.features.fill.search import Trial, search
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.record.errors import NotReadyError, UsageError, WorkloadError
from trainmark.record.machine import BatchTry, FillSearch
from trainmark.record.plan import Plan, Topology

GIB = 2**30


def device(most: int, rate: Callable[[int], float] = float) -> Callable[[int], BatchTry]:
    """A device with room for `most` samples."""

    def attempt(batch: int) -> BatchTry:
        if batch > most:
            return BatchTry(batch=batch, unfit="out of memory")
        return BatchTry(batch=batch, items_per_s=rate(batch), step_s=batch / rate(batch))

    return attempt


def searched(attempt: Callable[[int], BatchTry], start: int = 8) -> FillSearch:
    return search(attempt, start=start, all_s=1e9)


@given(most=st.integers(1, 100_000), start=st.integers(1, 300))
def test_the_largest_batch_that_fits_is_found_within_an_eighth(most: int, start: int) -> None:
    tried: list[int] = []
    attempt = device(most)

    def counting(batch: int) -> BatchTry:
        tried.append(batch)
        return attempt(batch)

    found = searched(counting, start)
    assert most / (1 + 1 / 8 + 0.03) - 1 <= found.batch_per_device <= most
    assert len(tried) == len(set(tried)) <= 30
    assert [a_try.batch for a_try in found.curve] == sorted(tried)
    # one that fits and is hardly larger is hardly faster, too
    larger = any(found.batch_per_device < batch <= most for batch in tried)
    assert found.reason.endswith("by more than 3 %" if larger else "out of memory")


def test_growing_ends_where_two_larger_batches_gain_less_than_3_percent() -> None:
    found = searched(device(10**9, lambda batch: float(min(batch, 64))))
    assert found.batch_per_device == 64
    assert found.curve[-1].batch == 256
    assert found.reason == "larger ones are not faster by more than 3 %"


def test_one_batch_that_meets_a_slow_kernel_does_not_end_the_search() -> None:
    found = searched(device(1000, lambda batch: 1.0 if batch == 32 else float(min(batch, 256))))
    assert found.batch_per_device == 256


def test_a_batch_that_is_not_faster_than_a_smaller_one_is_not_taken_even_if_it_fits() -> None:
    found = searched(device(100, lambda batch: 50.0 if batch == 32 else 40.0))
    assert found.batch_per_device == 32


def test_a_device_on_which_nothing_fits_is_said_to_be_one() -> None:
    with pytest.raises(WorkloadError, match="no batch fits this device, not even of 1: out of memory") as refused:
        searched(device(0))
    assert refused.value.exit_code == 4


def test_the_best_so_far_is_taken_when_the_time_is_over() -> None:
    clock = iter(range(0, 1000, 10))
    found = search(device(10**9), start=8, all_s=35, now_s=lambda: next(clock))
    assert found.batch_per_device == found.curve[-1].batch > 8
    assert found.reason.endswith("the 35 s for the search were over")


@pytest.mark.parametrize(("name", "expected"), [("resnet50", 0.4), ("vit", 0.0015), ("tacotron2", 0.001)])
def test_the_learning_rate_follows_the_batch_by_the_workloads_rule(name: str, expected: float) -> None:
    usual = int(workloads.load(name).recipes["fill"].batch_per_device)
    plan = planning.make_plan(name, words(f"batch_per_device={usual // 2}"))
    assert plan.recipe["learning_rate"] == pytest.approx(expected)
    given_rate = planning.make_plan(name, words(f"batch_per_device={usual // 2}", "learning_rate=0.25"))
    assert given_rate.recipe["learning_rate"] == 0.25


def words(*settings: str, **changes: str) -> RunOptions:
    return RunOptions(**{"recipe": "fill", "platform": "cpu", "settings": settings, **changes})  # type: ignore[arg-type]


def test_a_batch_that_was_given_is_not_looked_for() -> None:
    plan = planning.make_plan("resnet50", words())
    assert planning.needs_search(plan, words())
    assert not planning.needs_search(plan, words("momentum=0", "batch_per_device = 4"))
    assert not planning.needs_search(planning.make_plan("resnet50", words(recipe="quick")), words())


def test_several_launchers_are_told_to_give_the_batch() -> None:
    plan = planning.make_plan("resnet50", words(topology="2x8"))
    with pytest.raises(UsageError, match="give it: --set batch_per_device=N"):
        planning.refuse_search([plan], words())
    planning.refuse_search([plan], words("batch_per_device=256"))


def tiny(folder: Path, topology: str = "1x1") -> Plan:
    """A network so small that a try is mostly start-up."""
    settings = ("width=4", "classes=3", "image_px=32", "eval_resize_px=32", "input_workers=0")
    return planning.make_plan("resnet50", words(*settings, data=str(folder), topology=topology))


@pytest.mark.slow
def test_a_real_search_ends_with_the_batch_that_fills_the_set(pictures: Path) -> None:
    trial = Trial(tiny(pictures))
    found = search(trial, start=16, all_s=600, find_max_batch=lambda: trial.max_batch)
    assert [a_try.batch for a_try in found.curve] == [16, 32]
    assert all(a_try.items_per_s and a_try.memory_bytes and not a_try.unfit for a_try in found.curve)
    assert found.batch_per_device in (16, 32)


@pytest.mark.slow
def test_a_try_without_memory_ends_as_a_word_and_a_later_one_works(pictures: Path) -> None:
    if not hasattr(resource, "prlimit"):
        pytest.skip("this system has no prlimit to take memory from a try")
    large = {"width": 32, "image_px": 224, "eval_resize_px": 224}
    plan = tiny(pictures)
    trial = Trial(replace(plan, recipe={**plan.recipe, **large}), memory_bytes=2 * GIB)
    assert trial(48) == BatchTry(batch=48, unfit="out of memory")
    done = trial(1)
    assert (done.unfit, trial.max_batch) == ("", 48)
    assert done.items_per_s > 0
    assert done.memory_bytes is not None


def test_a_try_that_is_killed_ran_out_of_memory(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tiny(pictures))
    monkeypatch.setattr(trial, "_limit_memory", lambda pid: os.kill(pid, signal.SIGKILL))
    assert trial(4).unfit == "out of memory: the kernel killed it"


def test_a_try_that_takes_too_long_is_ended(pictures: Path) -> None:
    assert "not done after 0 s" in Trial(tiny(pictures), try_s=0.2)(4).unfit


@pytest.mark.slow
def test_what_has_nothing_to_do_with_the_batch_ends_the_search_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="no batch could be tried; with batch_per_device=4: "):
        Trial(tiny(tmp_path))(4)


@pytest.mark.slow
def test_ranks_share_the_set_and_the_memory_of_a_host(pictures: Path) -> None:
    plan = tiny(pictures, "1x2")
    assert Topology.parse(plan.topology).devices == 2
    trial = Trial(plan)
    assert (trial(8).unfit, trial.max_batch) == ("", 20)
