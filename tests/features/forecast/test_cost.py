"""The time of a training: its steps, evaluations and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.records import make_record, make_timeline

from trainmark.features.forecast import forecast as cost
from trainmark.features.forecast.rates import FORECAST, RateForecast
from trainmark.features.mlperf import samples_to_target as needed
from trainmark.features.mlperf.benchmarks import load_benchmarks
from trainmark.record.machine import CheckpointFacts
from trainmark.record.plan import Topology
from trainmark.record.record import Evaluation, Record
from trainmark.record.site import Price

S = 1_000_000_000


def run(**changes: Any) -> Record:
    history = tuple(Evaluation(step=step, epoch=step / 30, values={"acc1": 10.0}, samples=8) for step in (30, 60))
    recipe = {"batch_per_device": 32, "epochs": 90, "evaluate_every": "1 epoch", "checkpoint_every": "10 epochs"}
    found = make_record(
        timeline=changes.pop("timeline", None) or make_timeline(steps=60, compute_ms=1000, wait_ms=0),
        plan={"recipe": {**recipe, **changes.pop("recipe", {})}, **changes.pop("plan", {})},
        **changes,
    )
    return replace(found, quality=replace(found.quality, history=history))


def rate(topology: str, items_per_s: float) -> RateForecast:
    return RateForecast(
        topology=Topology.parse(topology),
        kind=FORECAST,
        rate=items_per_s,
        interval=(0.9 * items_per_s, 1.1 * items_per_s),
        efficiency=1.0,
    )


def test_evaluations_are_as_frequent_as_the_recipe_says_and_shared_by_the_devices() -> None:
    work = cost.measure_work([run()])
    one, eight = (
        cost.forecast_cost(work, rate(size, speed), Price()) for size, speed in (("1x1", 32.0), ("1x8", 256.0))
    )
    assert one is not None
    assert eight is not None
    assert one.items == 90 * 30 * 32
    each = 9.7 / 2  # two evaluations took 9.7 s
    assert one.parts_s["evaluate"] == pytest.approx(90 * each)
    assert eight.parts_s["evaluate"] == pytest.approx(90 * each / 8)
    assert "the run saved no checkpoint, so 60 s are assumed for each" in work.notes


def test_checkpoints_are_in_the_time_by_what_one_took() -> None:
    record = run()
    environment = type(record.environment)(device=record.environment.device, checkpoint=CheckpointFacts(save_s=20.0))
    work = cost.measure_work([replace(record, environment=environment)])
    found = cost.forecast_cost(work, rate("1x1", 1e4), Price())
    assert found is not None and found.parts_s["checkpoint"] == 9 * 20


def test_a_throughput_that_holds_the_wait_already_is_not_made_slower_by_it() -> None:
    waits = run(timeline=make_timeline(steps=60, compute_ms=1000, wait_ms=500))
    assert cost.measure_work([waits], metric="p_core").train_share < 0.7
    assert cost.measure_work([waits], metric="p_train").train_share == 1


def mlperf(topology: str, **recipe: Any) -> Record:
    return run(
        plan={"recipe_name": "mlperf", "topology": topology},
        recipe={"batch_per_device": 408, "target": 75.9, **recipe},
        quality=replace(make_record().quality, goal=75.9),
        timeline=make_timeline(ranks=Topology.parse(topology).devices, steps=60, items_per_step=408),
    )


def test_mlperf_s_recipe_needs_what_its_reference_needs_at_each_size_s_batch() -> None:
    record = mlperf("1x1")
    work = cost.measure_work([record], reference=needed.reference(record))
    epochs = {}
    for size in ("1x1", "1x4", "1x8", "1x9", "20x8", "64x8"):
        found = cost.forecast_cost(work, rate(size, 1e4), Price())
        epochs[size] = found and found.items / 1_281_167
    known = {batch: need.items for batch, need in needed.load_points(load_benchmarks()["resnet"])}
    assert epochs["1x1"] == pytest.approx(known[1632])  # below the smallest: the smallest
    assert epochs["1x4"] == pytest.approx(known[1632])
    assert epochs["1x8"] == pytest.approx(known[3264])
    assert known[3264] < (epochs["1x9"] or 0) < known[4096]  # on the line between two
    assert (epochs["20x8"] or 0) > known[58880]
    assert epochs["64x8"] is None  # a global batch of 208,896, which nobody tried


def test_reference_points_are_for_mlperf_s_own_recipe_and_target_alone() -> None:
    assert needed.reference(mlperf("1x8")) is not None
    assert needed.reference(run()) is None
    assert needed.reference(replace(mlperf("1x8"), quality=make_record().quality)) is None
    record = mlperf("1x8")
    asked = cost.measure_work([record], "90 epochs", reference=needed.reference(record))
    assert asked.reference is None
    reached = replace(record.quality.history[-1], values={"acc1": 76.0})
    met = replace(record, quality=replace(record.quality, history=(reached,)))
    assert "met its target" in cost.measure_work([met], reference=needed.reference(met)).why
