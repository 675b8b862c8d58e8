"""The interval of a number is the same wherever it is shown, and says in words when it tells nothing."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from support.records import make_record

from trainmark.analysis.comparison import compare
from trainmark.analysis.scaling import pool
from trainmark.features.report.header import write_sentence
from trainmark.features.report.output import to_csv
from trainmark.record.machine import FlopsFacts
from trainmark.record.metrics import Measured, measure
from trainmark.record.numbers import around, average_repeats, half_width, share
from trainmark.record.record import Record
from trainmark.record.store import Subject
from trainmark.record.timeline import RankTrace, Timeline
from trainmark.view import compare_screen, table
from trainmark.view.describe import describe


def a_run(run_id: str, spread: float, seed: int = 0) -> Record:
    """A run of 30 steps whose logarithms lie so far apart."""
    step_ns = np.exp(spread * np.random.default_rng(seed).standard_normal(30)) * 1e8
    trace = RankTrace(rank=0, wait_ns=[0] * 30, compute_ns=[int(ns) for ns in step_ns], items=[8] * 30)
    timeline = Timeline(ranks=(trace,))
    metrics = measure(Measured(item="images", timeline=timeline, flops=FlopsFacts(per_item=1e9, peak_tflops=1.0)))
    return replace(make_record(run_id=run_id), timeline=timeline, metrics=metrics, doubts=())


def alone(record: Record) -> Subject:
    return Subject(word=record.run_id, label=record.run_id, records=(record,))


@pytest.mark.parametrize("spread", [0.01, 0.3, 1.5])
def test_every_view_has_the_interval_of_the_record(spread: float) -> None:
    record = a_run("one", spread)
    p_core, mfu = record.metrics["p_core"], record.metrics["mfu"]
    assert p_core.value is not None
    assert p_core.interval is not None
    assert mfu.interval is not None
    assert 0 < p_core.interval[0] < p_core.value < p_core.interval[1]
    assert p_core.interval == pytest.approx(around(p_core.value, half_width(p_core.interval)))
    assert half_width(mfu.interval) == pytest.approx(half_width(p_core.interval))
    found = compare(alone(record), alone(a_run("other", spread, seed=1)))
    assert found.a.interval == pytest.approx(p_core.interval)
    assert pool([p_core]).interval == p_core.interval
    row = next(csv.DictReader(io.StringIO(to_csv([record]))))
    assert (float(row["p_core_low"]), float(row["p_core_high"])) == p_core.interval
    noisy = share(p_core.interval) > 0.5
    shown = "too noisy to say" if noisy else "±"
    assert noisy == (spread > 1)
    for view in (table.render([record]), describe(record), compare_screen.render(found), write_sentence(record, str)):
        assert shown in " ".join(view.replace("│", " ").split())


def test_a_difference_that_noise_hides_is_inconclusive_for_that_reason_and_has_no_absurd_numbers() -> None:
    found = compare(alone(a_run("one", 1.5)), alone(a_run("other", 1.5, seed=1)))
    said = f"{compare_screen.format_headline(found)} {compare_screen.explain_verdict(found)}"
    assert found.verdict == "inconclusive"
    assert found.judgement.is_too_noisy
    assert "too noisy to say" in said
    assert "true difference" not in said
    assert "95 % interval" not in said


def test_a_difference_that_no_noise_hides_is_told_however_noisy_the_runs_are() -> None:
    slow = a_run("other", 1.0, seed=1)
    trace = replace(slow.timeline.ranks[0], compute_ns=[100 * ns for ns in slow.timeline.ranks[0].compute_ns])
    timeline = Timeline(ranks=(trace,))
    slow = replace(slow, timeline=timeline, metrics=measure(Measured(item="images", timeline=timeline)))
    found = compare(alone(a_run("one", 1.0)), alone(slow))
    assert found.verdict == "slower"


def test_repeats_have_one_interval_in_compare_and_in_scaling() -> None:
    runs = [a_run(f"run{seed}", 0.05, seed) for seed in range(6)]
    values = [float(run.metrics["p_core"].value or 0) for run in runs]
    found = compare(
        Subject(word="a", label="a", records=tuple(runs[:3])), Subject(word="b", label="b", records=tuple(runs[3:]))
    )
    together = pool([run.metrics["p_core"] for run in runs[:3]])
    assert (together.value, together.interval) == average_repeats(values[:3])
    assert found.a.interval == together.interval
    assert found.a.side.mean == together.value
