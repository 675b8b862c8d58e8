"""What words on the command line become: one workload or several, and batches by recipe and topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmark import workloads
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.record.errors import UsageError
from trainmark.record.plan import Plan
from trainmark.record.recipe import Limits


@pytest.mark.parametrize("word", ["--data", "--init-from"])
def test_a_file_or_folder_is_for_one_workload(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "names", lambda: ("resnet50", "another"))
    name = word.removeprefix("--").replace("-", "_")
    with pytest.raises(UsageError, match=f"{word} is for one workload; name it: resnet50, another"):
        planning.make_plans(RunOptions(**{name: "somewhere"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("workload", workloads.names())
def test_smoke_keeps_its_global_batch_on_every_topology_unless_one_is_given(workload: str) -> None:
    def batch(topology: str, *settings: str) -> object:
        words = RunOptions(recipe="smoke", platform="cpu", topology=topology, settings=settings)
        return planning.make_plan(workload, words).recipe["batch_per_device"]

    alone = workloads.load(workload).recipes["smoke"].batch_per_device
    assert [batch("1x1"), batch("1x2"), batch("2x2")] == [alone, alone // 2, alone // 4]
    assert batch("8x64") == 1
    assert batch("1x2", "batch_per_device=24") == 24


@pytest.mark.parametrize(
    ("said", "shared_s"),
    [
        ({}, 180),
        ({"recipe": "quick", "precision": "amp-bf16", "topology": "1x2"}, 180),
        ({"repeat": 2}, 360),
        ({"budget_s": 60.0}, 60),
        ({"workloads": ("vit",), "budget_s": 60.0, "recipe": "smoke"}, 60),
        ({"workloads": ("vit",)}, None),
        ({"recipe": "smoke"}, None),
        ({"seconds": 5.0}, None),
        ({"steps": 5}, None),
        ({"resume": "a1b2c3"}, None),
    ],
)
def test_only_a_bare_command_has_a_time_budget_of_its_own(said: dict[str, Any], shared_s: float | None) -> None:
    assert RunOptions(**said).shared_s == shared_s


def test_a_bare_command_shares_three_minutes_among_its_workloads_however_many_there_are() -> None:
    decided = planning.make_plans(RunOptions(platform="cpu"))
    assert {plan.limits.wall_s for plan in decided} == {round(180 / len(workloads.names()), 1)}
    assert {plan.limits.seconds for plan in decided} == {None}  # the share takes the place of the recipe's own
    assert {plan.limits.half_width for plan in decided} == {0.02}
    repeated = planning.make_plans(RunOptions(platform="cpu", workloads=("vit",), budget_s=90.0, repeat=3))
    assert [plan.limits.wall_s for plan in repeated] == [30]


def test_what_a_run_gets_of_a_budget_is_recorded_and_makes_it_no_other_training() -> None:
    plan = planning.make_plan("vit", RunOptions(platform="cpu", recipe="smoke"))
    shared = planning.set_time_share(plan, 51.26)
    assert Plan.from_json(shared.to_json()).limits == Limits(wall_s=51.3)
    assert shared.fingerprint == plan.fingerprint
    assert str(shared.limits) == "the target or 51.3 s with start-up"
    assert (shared.limits.full, shared.limits.to_target) == (False, True)
    assert planning.set_time_share(plan, None) is plan
    seconds = planning.set_time_share(planning.make_plan("vit", RunOptions(platform="cpu", seconds=9.0)), 51.0)
    assert str(seconds.limits) == "9 s or 51 s with start-up"  # what was said stays


def test_a_resumed_run_has_no_share_but_its_own(tmp_path: Path) -> None:
    plan = planning.set_time_share(planning.make_plan("vit", RunOptions(platform="cpu", recipe="smoke")), 30.0)
    assert planning.resume_plan(plan, tmp_path, RunOptions(resume="x")).limits == Limits()


def test_a_run_goes_on_with_other_devices_that_share_its_batch(tmp_path: Path) -> None:
    plan = planning.make_plan("gpt124m", RunOptions(platform="cpu", recipe="smoke", topology="1x4"))
    assert plan.recipe["batch_per_device"] == 4
    resumed = planning.resume_plan(plan, tmp_path, RunOptions(resume="x", topology="2x4"))
    assert (resumed.topology, resumed.recipe["batch_per_device"]) == ("2x4", 2)
    assert any(deviation.name == "batch_per_device" and deviation.actual == 2 for deviation in resumed.deviations)
    with pytest.raises(UsageError, match="batch of 16 samples cannot be split over the 3 devices of 1x3"):
        planning.resume_plan(plan, tmp_path, RunOptions(resume="x", topology="1x3"))


def test_devices_that_compute_blocks_together_are_those_of_a_node(tmp_path: Path) -> None:
    def plan(topology: str, *settings: str, workload: str = "llama8b") -> Plan:
        words = RunOptions(platform="cpu", recipe="smoke", topology=topology, settings=settings)
        return planning.make_plan(workload, words)

    four = plan("2x4", "tensor_parallel=4")
    fewer = [planning.resume_plan(four, tmp_path, RunOptions(resume="x", topology=word)) for word in ("8x1", "1x2")]
    assert [resumed.recipe["tensor_parallel"] for resumed in fewer] == [1, 2]
    for refused, why in (
        (("1x2", "tensor_parallel=4"), "tensor_parallel=4 does not divide the 2 devices per node of 1x2"),
        (("2x1", "tensor_parallel=2"), "does not divide the 1 devices per node of 2x1"),
        (("1x2", "tensor_parallel=2", "parallel=ddp"), "needs a sharded network; add --set parallel=fsdp"),
    ):
        with pytest.raises(UsageError, match=why):
            plan(*refused)
    with pytest.raises(UsageError, match="'tensor_parallel' is not known"):
        plan("1x2", "tensor_parallel=2", workload="resnet50")
