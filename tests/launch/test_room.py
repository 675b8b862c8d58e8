"""What a machine, or the time given, has no room for is known before it is started."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from trainmark import workloads
from trainmark.launch import planning, preflight
from trainmark.launch.options import RunOptions
from trainmark.record.plan import WorkloadSource

FAST = 1e15


@pytest.fixture
def plan() -> planning.Plan:
    return planning.make_plan("vit", RunOptions(platform="cpu"))


SHARDED = "llama8b"
"""No machine of one device has room for it."""


@pytest.mark.parametrize("workload", [name for name in workloads.names() if name != SHARDED])
def test_every_quick_run_has_room_on_a_small_machine(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=4 << 30))
    assert preflight.check_budget(planning.make_plan(workload, RunOptions(platform="cpu")), 40.0, 1e11) is None


def test_weights_that_do_not_fit_the_memory_are_left_out_and_said(
    plan: planning.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1 << 29))
    assert preflight.check_budget(plan, 60.0, FAST) == (
        "ViT-B/16 was left out: its weights, gradients and optimizer alone take 0.967 GiB, and 0.5 GiB are free here."
    )


def test_a_step_that_is_far_longer_than_the_share_is_left_out_and_said(plan: planning.Plan) -> None:
    # 4 images of 105 GFLOP
    assert preflight.check_budget(plan, 20.0, 1e10) is None
    assert preflight.check_budget(plan, 10.0, 1e10) == (
        "ViT-B/16 was left out: one step takes about 42.1 s here, and its share of the time is 10 s; a longer --budget "
        "has room for it."
    )


def test_a_small_network_is_counted_before_it_is_left_out(plan: planning.Plan) -> None:
    smoke = planning.make_plan("vit", RunOptions(platform="cpu", recipe="smoke"))
    assert preflight.estimate_step_flops(smoke, most=1e20) == pytest.approx(32 * 105.2e9)
    assert preflight.estimate_step_flops(smoke, most=1.0) < 1e10
    assert preflight.check_budget(smoke, 1.0, 1e11) is None


def test_of_a_workload_from_outside_nothing_is_guessed(plan: planning.Plan) -> None:
    outside = dataclasses.replace(plan, workload_source=WorkloadSource(sha256="0" * 64, file="x.py"))
    assert preflight.check_budget(outside, 1e-9, 1.0) is None


def large(topology: str, *settings: str) -> planning.Plan:
    return planning.make_plan(SHARDED, RunOptions(platform="cpu", topology=topology, settings=settings))


def test_a_network_too_large_for_its_devices_is_refused_with_what_would_fit() -> None:
    assert preflight.explain_too_large(large("1x1"), 80e9) == (
        "Llama 3.1 8B on 1x1 does not fit: weights, gradients and optimizer alone take 89.7 GiB per device, and one "
        "has 74.5; shard it over 2 devices or more (--set parallel=fsdp), or give it fewer layers (--set layers=16)"
    )
    assert preflight.explain_too_large(large("1x8"), 80e9) is None
    assert preflight.explain_too_large(large("2x8", "parallel=hsdp"), 10e9) is not None
    assert preflight.explain_too_large(large("2x8", "parallel=fsdp"), 10e9) is None
    assert "layers=1)" in str(preflight.explain_too_large(large("1x2", "parallel=ddp"), 16e9))


def test_the_refusal_comes_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=4 << 30, total=4 << 30))
    result = preflight.check_memory(large("1x1"))
    assert result.verdict == "failed"
    assert "does not fit" in str(result)
    assert (
        preflight.check_memory(planning.make_plan("gpt124m", RunOptions(platform="cpu", recipe="smoke"))).verdict
        == "ok"
    )
