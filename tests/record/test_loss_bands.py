"""A run of a public recipe is told early whether its loss lies where others' lay."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.records import make_plan, make_record

from trainmark import workloads
from trainmark.cli.progress import ProgressLine
from trainmark.record import workload_facts
from trainmark.record.language import translator
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.recipe import Deviation
from trainmark.record.record import Evaluation, Quality
from trainmark.view import facts


def plan(batch: int = 4, rate: float = 8e-4, **change: Any) -> Plan:
    recipe = {"batch_per_device": batch, "accumulate": 1, "learning_rate": rate, "target": 3.3}
    data = DataChoice(name="text", folder="/data/c4", synthetic=False)
    words: dict[str, Any] = {"workload": "llama8b", "topology": "1x8", "recipe": recipe, "deviations": (), "data": data}
    return make_plan(**{**words, **change})


def evaluation(step: int, value: float) -> Evaluation:
    return Evaluation(step=step, epoch=None, values={"val_loss": value}, samples=1024)


def bands() -> tuple[workload_facts.LossBand, ...]:
    known = workloads.facts("llama8b")
    assert known is not None
    return known.bands


def test_the_band_is_that_of_the_batch_and_the_rate() -> None:
    found = workload_facts.find_band(plan(), bands())
    assert found is not None
    assert found.global_batch == 32
    assert workload_facts.find_band(plan(2, 4e-4), bands()) == bands()[0]
    assert workload_facts.find_band(plan(2), bands()) is None


@pytest.mark.parametrize(
    "change",
    [
        {"data": DataChoice(name="text", folder="/x", synthetic=True)},
        {"init_from": "/weights"},
        {"deviations": (Deviation(name="layers", short="", reference=32, actual=2),)},
    ],
)
def test_a_run_of_another_recipe_is_held_to_none(change: dict[str, Any]) -> None:
    assert workload_facts.find_band(plan(**change), bands()) is None


def test_what_does_not_change_learning_may_differ() -> None:
    differs = (Deviation(name="parallel", short="", reference="fsdp", actual="hsdp"),)
    assert workload_facts.find_band(plan(deviations=differs), bands()) is not None


def test_every_evaluation_at_a_point_is_judged() -> None:
    history = [evaluation(0, 11.8), evaluation(384, 5.6), evaluation(768, 4.6), evaluation(1536, 3.8)]
    found = [*workload_facts.compare_to_band(bands()[1], history)]
    assert [(one.samples, one.place) for one in found] == [
        (12_288, "in the band"),
        (24_576, "above the band"),
        (49_152, "below the band"),
    ]
    low, high = bands()[0].points[0].low, bands()[0].points[0].high
    assert (low, high) == pytest.approx((5.087, 5.399))


def test_the_record_s_page_and_the_running_line_say_it() -> None:
    history = (evaluation(384, 5.6), evaluation(768, 4.6))
    quality = Quality(name="val_loss", unit="nats", goal=3.3, better="lower", value=4.6, reached=False, history=history)
    section = facts.bands(replace(make_record(), plan=plan(), quality=quality), translator("en"))
    assert section is not None
    assert section.rows[1] == ("24,576", "4.600", "4.47 – 4.54", "above the band")
    assert facts.bands(make_record(), translator("en")) is None
    line = ProgressLine(plan(), "tokens", "val_loss")
    log: Any = SimpleNamespace(compute_ns=[], evaluations=history)
    assert line._facts([log]) == "val_loss 4.600  above the band of public runs"
