"""Topologies, precisions, targets and plans."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from trainmark.record.errors import UsageError
from trainmark.record.numbers import Target, digits_to_tell_apart
from trainmark.record.plan import DataChoice, Plan, Topology
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.record.recipe import Deviation, Limits

PLAN = Plan(
    workload="resnet50",
    recipe_name="fill",
    recipe={"batch_per_device": 256, "learning_rate": 0.8, "target": 75.5},
    deviations=(Deviation(name="batch_per_device", short="bs", reference=32, actual=256),),
    topology="1x8",
    precision="fp32",
    platform="cpu",
    data=DataChoice(name="imagenet", folder="/somewhere", synthetic=False),
    limits=Limits(steps=100),
)


@given(st.integers(1, 999), st.integers(1, 999))
def test_a_topology_reads_as_it_is_written(nodes: int, devices: int) -> None:
    topology = Topology.parse(f"{nodes}x{devices}")
    assert (topology.nodes, topology.devices_per_node, topology.devices) == (nodes, devices, nodes * devices)
    assert Topology.parse(str(topology)) == topology


@pytest.mark.parametrize("text", ["8", "0x1", "1x0", "x", "1x8x2", "-1x8", "onexeight", "", "1x8 "[:-1] + "y"])
def test_what_is_not_a_topology_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not NODESxDEVICES; try '1x8'"):
        Topology.parse(text)


def test_every_precision_says_what_it_computes_in() -> None:
    assert {name: precision.computes_in for name, precision in PRECISIONS.items()} == {
        "fp32": "float32",
        "tf32": "tf32",
        "fp16": "float16",
        "bf16": "bfloat16",
        "amp-fp16": "float16",
        "amp-bf16": "bfloat16",
        "fp8": "float8_e4m3fn",
    }
    assert {name for name, precision in PRECISIONS.items() if precision.scales_loss} == {"fp16", "amp-fp16"}


def test_an_unknown_precision_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'bf16'"):
        Precision.parse("bf61")


def test_a_target_knows_which_way_is_better() -> None:
    accuracy = Target(name="acc1", unit="%", better="higher")
    loss = Target(name="val_loss", unit="-", better="lower")
    assert accuracy.is_reached(75.5, 75.5)
    assert not accuracy.is_reached(75.4, 75.5)
    assert loss.is_reached(0.48, 0.4852)
    assert not loss.is_reached(0.49, 0.4852)


@pytest.mark.parametrize(
    ("value", "goal", "better", "digits"),
    [
        (0.48524, 0.4852, "lower", 5),
        (0.48516, 0.4852, "lower", 4),
        (0.4774, 0.4852, "lower", 4),
        (75.49996, 75.5, "higher", 7),
        (75.512, 75.5, "higher", 4),
    ],
)
def test_a_value_is_told_with_the_digits_that_show_on_which_side_of_the_target_it_lies(
    value: float, goal: float, better: str, digits: int
) -> None:
    assert digits_to_tell_apart(value, goal, better) == digits


def test_a_plan_survives_the_way_through_json() -> None:
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_the_fingerprint_ignores_where_files_lie_and_nothing_that_matters() -> None:
    elsewhere = replace(PLAN, data=replace(PLAN.data, folder="/elsewhere"))
    assert elsewhere.fingerprint == PLAN.fingerprint
    for change in (
        {"precision": "bf16"},
        {"topology": "1x4"},
        {"platform": "nvidia"},
        {"limits": Limits(steps=101)},
        {"limits": replace(PLAN.limits, items=101)},
        {"recipe": {**PLAN.recipe, "learning_rate": 0.4}},
        {"data": replace(PLAN.data, synthetic=True)},
    ):
        assert replace(PLAN, **change).fingerprint != PLAN.fingerprint


def test_a_plan_written_before_weights_and_items_could_be_given_is_read_with_its_fingerprint() -> None:
    document = PLAN.to_json()
    assert document["fingerprint"] == "7a739ebbda0e60062177378ddaa2fd93a5ab3de800d8408cb1c6e55e9cebb66f"
    del document["init_from"], document["init_sha256"], document["limits"]["items"]
    assert Plan.from_json(document) == PLAN


@pytest.mark.parametrize(
    ("recipe", "limits", "steps_per_epoch", "last"),
    [
        ({"epochs": 5}, Limits(), 30, 150),
        ({"epochs": 5}, Limits(epochs=2), 30, 60),
        ({"epochs": 5, "steps": 100}, Limits(), 30, 100),
        ({"epochs": 0, "items": 1000}, Limits(), None, 125),
        ({"epochs": 0, "steps": 100}, Limits(items=81), None, 18),
        ({"epochs": 5}, Limits(steps=9, items=81), 30, 16),
        ({"epochs": 5}, Limits(seconds=60), 30, None),
        ({"epochs": 5}, Limits(), None, None),
    ],
)
def test_a_plan_knows_the_step_at_which_its_run_ends_at_the_latest(
    recipe: dict[str, int], limits: Limits, steps_per_epoch: int | None, last: int | None
) -> None:
    plan = replace(PLAN, recipe=recipe, limits=limits)
    assert plan.last_step(first_step=7, steps_per_epoch=steps_per_epoch, items_per_step=8.0) == last


def test_the_fingerprint_knows_given_weights_by_what_they_are_not_by_where_they_lie() -> None:
    given = replace(PLAN, init_from="/here/w.pt", init_sha256="ab")
    assert given.fingerprint == replace(given, init_from="/there/w.pt").fingerprint
    assert given.fingerprint not in (PLAN.fingerprint, replace(given, init_sha256="cd").fingerprint)
    assert Plan.from_json(json.loads(json.dumps(given.to_json()))) == given


def test_a_plan_that_was_changed_after_it_was_decided_is_refused() -> None:
    document = PLAN.to_json()
    document["precision"] = "bf16"
    with pytest.raises(UsageError, match="fingerprint does not match"):
        Plan.from_json(document)
