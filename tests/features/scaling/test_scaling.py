from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.records import make_record

from trainmark.analysis.published_library import load_rows
from trainmark.analysis.scaling import (
    compute_scaling,
    find_published_scalings,
    find_scalings,
    global_batch,
    scaling_efficiency,
    to_json,
)
from trainmark.features.scaling.after_sweep import render_scalings as render
from trainmark.record.errors import UsageError
from trainmark.record.metrics import Quantity
from trainmark.record.numbers import around
from trainmark.record.plan import DataChoice
from trainmark.record.recipe import Limits
from trainmark.record.record import Doubt, Record


def images(value: float, half: float | None = None) -> Quantity:
    """A throughput known to ± so much, or to nobody knows what."""
    return Quantity(value=value, unit="images/s", interval=None if half is None else around(value, half / value))


def a_run(topology: str, p_core: Quantity, *, run_id: str = "", **changes: Any) -> Record:
    plan = {"topology": topology, **changes.pop("plan", {})}
    metrics = {"p_core": p_core, **changes.pop("metrics", {})}
    return make_record(run_id=run_id or f"run-{topology}", plan=plan, metrics=metrics, doubts=(), **changes)


def test_twice_the_devices_with_one_and_a_half_times_the_throughput_is_075() -> None:
    found = compute_scaling([a_run("1x2", images(150, 1.5)), a_run("1x1", images(100, 1))])
    base, double = found.points
    assert (str(base.topology), base.efficiency.value, base.efficiency.interval) == ("1x1", 1.0, None)
    assert (double.speed_up, double.efficiency.value, double.global_batch) == (1.5, 0.75, 64)
    assert found.kind == "weak"
    assert found.notes == ()


def test_the_interval_adds_both_sides_in_quadrature() -> None:
    found = scaling_efficiency(images(180, 5.4), 2, images(100, 4), 1)
    assert found.value == pytest.approx(0.9)
    assert found.interval == pytest.approx(around(0.9, 0.05))  # 3 % and 4 % make 5 %


def test_the_smallest_topology_is_the_base_where_1x1_was_not_run() -> None:
    found = compute_scaling([a_run("2x8", images(1500, 1)), a_run("1x8", images(800, 1)), a_run("1x4", images(420, 1))])
    assert [str(point.topology) for point in found.points] == ["1x4", "1x8", "2x8"]
    assert found.points[2].efficiency.value == pytest.approx(1500 / (4 * 420))


def test_the_same_global_batch_is_strong_scaling() -> None:
    found = compute_scaling(
        [
            a_run("1x1", images(100, 1), plan={"recipe": {"batch_per_device": 64}}),
            a_run("1x2", images(160, 1), plan={"recipe": {"batch_per_device": 32}}),
        ]
    )
    assert found.kind == "strong"
    assert {point.global_batch for point in found.points} == {64}


@pytest.mark.parametrize(("word", "said"), [("mem", "'mem' is not a throughput"), ("p_core", "all are 1x1")])
def test_what_does_not_scale_is_refused(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compute_scaling([a_run("1x1", images(100, 1), run_id="a"), a_run("1x1", images(101, 1), run_id="b")], word)


def test_micro_batches_count_in_the_global_batch() -> None:
    accumulated = a_run("1x1", images(100, 1), plan={"recipe": {"batch_per_device": 32, "accumulate": 2}})
    assert global_batch(accumulated) == 64
    shared = a_run("1x2", images(180, 1), plan={"recipe": {"batch_per_device": 32, "accumulate": 1}})
    assert compute_scaling([accumulated, shared]).kind == "strong"


def test_runs_that_are_neither_weak_nor_strong_are_refused_with_both_values() -> None:
    with pytest.raises(UsageError) as refused:
        compute_scaling(
            [
                a_run("1x1", images(100, 1), plan={"recipe": {"batch_per_device": 64}}),
                a_run("1x2", images(160, 1), plan={"recipe": {"batch_per_device": 48}}),
            ]
        )
    assert refused.value.exit_code == 2
    assert "batch_per_device 64 and 48, global batch 64 and 96" in str(refused.value)
    assert "run-1x1 (1x1)" in str(refused.value)
    assert "run-1x2 (1x2)" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan": {"precision": "bf16"}}, "precision fp32 and bf16"),
        ({"plan": {"platform": "nvidia"}}, "platform cpu and nvidia"),
        ({"plan": {"workload": "vit"}}, "workload resnet50 and vit"),
        ({"device": "Intel Xeon"}, "device AMD EPYC and Intel Xeon"),
        (
            {"plan": {"data": DataChoice(name="imagenet", folder="/d", synthetic=False)}},
            "data synthetic imagenet and real imagenet",
        ),
        ({"plan": {"recipe": {"learning_rate": 0.2}}}, "learning_rate 0.1 and 0.2"),
        ({"plan": {"recipe": {"width": 4}}}, "width not on the record and 4"),
    ],
)
def test_unlike_runs_are_refused_in_a_sentence_that_names_what_differs(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match="not alike") as refused:
        compute_scaling([a_run("1x1", images(100, 1)), a_run("1x2", images(190, 1), **changes)])
    assert said in str(refused.value)


@pytest.mark.parametrize("status", ["incomplete", "invalid"])
def test_a_run_that_is_not_valid_is_refused_by_name(status: str) -> None:
    broken = a_run("1x2", images(190, 1), run_id="broken-one", status=status, ended="rank 1 was killed")
    with pytest.raises(UsageError, match=f"broken-one is {status} \\(rank 1 was killed\\)"):
        compute_scaling([a_run("1x1", images(100, 1)), broken])


def test_repeats_are_pooled_and_their_spread_widens_the_interval() -> None:
    found = compute_scaling(
        [
            a_run("1x1", images(98, 1), run_id="a"),
            a_run("1x1", images(102, 1), run_id="b"),
            a_run("1x1", images(100, 1), run_id="c"),
            a_run("1x2", images(190, 1), run_id="d"),
        ]
    )
    base = found.points[0].throughput
    assert base.value == pytest.approx(math.prod((98, 102, 100)) ** (1 / 3))
    # Student's t with two degrees of freedom is 4.303
    half = 4.3027 * float(np.std(np.log([98, 102, 100]), ddof=1)) / math.sqrt(3)
    assert base.interval == pytest.approx(around(base.value, half), rel=1e-4)
    assert found.points[0].runs == ("a", "b", "c")
    assert "(3 runs)" in render([found])


def test_an_efficiency_that_noise_hides_is_said_to_be_so() -> None:
    found = compute_scaling([a_run("1x1", images(100, 60)), a_run("1x2", images(150, 1))])
    assert "too noisy to say" in found.notes[0]
    assert "[" not in render([found])
    low, high = found.points[1].efficiency.interval or (0, 0)
    assert 0 < low < high


def test_a_run_without_interval_gives_an_efficiency_without_one_and_says_so() -> None:
    found = compute_scaling([a_run("1x1", images(100)), a_run("1x2", images(150, 1))])
    assert found.points[1].efficiency.value == 0.75
    assert found.points[1].efficiency.interval is None
    assert "no interval" in found.notes[0]


def test_an_efficiency_surely_above_1_is_doubted() -> None:
    surely = compute_scaling([a_run("1x1", images(100, 1)), a_run("1x2", images(220, 1))])
    assert "above ideal: check that both ran alike" in surely.notes[0]
    perhaps = compute_scaling([a_run("1x1", images(100, 5)), a_run("1x2", images(204, 1))])
    assert perhaps.notes == ()


def test_full_and_short_runs_in_one_table_are_pointed_out() -> None:
    found = compute_scaling(
        [a_run("1x1", images(100, 1)), a_run("1x2", images(190, 1), plan={"limits": Limits()}, coverage="all steps")]
    )
    assert "1x2 all steps" in found.notes[0]


def test_doubts_of_the_runs_stand_below_the_table() -> None:
    def doubtful(topology: str, value: float, *texts: str) -> Record:
        doubts = tuple(Doubt(code="some", text=text) for text in texts)
        return make_record(
            run_id=topology, plan={"topology": topology}, metrics={"p_core": images(value, 1)}, doubts=doubts
        )

    found = compute_scaling(
        [doubtful("1x1", 100, "drawn pictures"), doubtful("1x2", 190, "drawn pictures", "rank 1 is slow")]
    )
    assert found.notes == ("drawn pictures", "1x2: rank 1 is slow")


def test_exchange_and_skew_are_shown_where_the_records_have_them() -> None:
    why = {"exchange": Quantity(value=12.5, unit="%"), "rank_skew": Quantity(value=3.1, unit="%")}
    found = compute_scaling([a_run("1x1", images(100, 1)), a_run("1x2", images(150, 1), metrics=why)])
    assert found.points[0].explaining == {}
    shown = render([found], width=120)
    assert "exchange" in shown
    assert "3.1 %" in shown
    assert "—" in shown


def test_a_run_without_the_metric_is_named() -> None:
    without = a_run("1x2", Quantity(value=None, unit="images/s", unavailable="no step was counted"))
    with pytest.raises(UsageError, match="run-1x2 has no p_core: no step was counted"):
        compute_scaling([a_run("1x1", images(100, 1)), without])


def test_a_store_full_of_runs_is_sorted_into_weak_and_strong_groups() -> None:
    found = find_scalings(
        [
            a_run("1x1", images(100, 1), run_id="a", plan={"recipe": {"batch_per_device": 64}}),
            a_run("1x2", images(190, 1), run_id="b", plan={"recipe": {"batch_per_device": 64}}),
            a_run("1x2", images(160, 1), run_id="c", plan={"recipe": {"batch_per_device": 32}}),
            a_run("1x2", images(150, 1), run_id="other", plan={"precision": "bf16"}),
            a_run("1x4", images(300, 1), run_id="cut", status="incomplete"),
        ]
    )
    assert [(group.kind, [run for point in group.points for run in point.runs]) for group in found] == [
        ("weak", ["a", "b"]),
        ("strong", ["a", "c"]),
    ]


def test_programs_get_every_number() -> None:
    found = to_json(compute_scaling([a_run("1x1", images(100, 1)), a_run("1x2", images(150, 1))]))
    assert found["base"] == "1x1"
    point = found["points"][1]
    assert (point["devices"], point["efficiency"], point["exchange"]) == (2, 0.75, None)
    assert point["throughput"]["interval"] == list(around(150, 1 / 150))


def test_the_vit_page_contradicts_itself() -> None:
    (found,) = find_published_scalings(load_rows("vit"))
    eight, sixteen = found.points[1:]
    assert eight.row.topology == "1x8"
    assert eight.efficiency["p_whole"] == pytest.approx(0.912, abs=5e-4)
    assert eight.efficiency["p_core"] == pytest.approx(0.591, abs=5e-4)
    assert sixteen.efficiency["p_core"] == pytest.approx(0.572, abs=5e-4)


def test_rows_of_another_batch_are_not_compared() -> None:
    found = find_published_scalings(load_rows("resnet50"))
    names = [point.row.name for group in found for point in group.points]
    assert "published:flagperf-a100-resnet50-1x8-fp32-bs256" in names
    assert "published:flagperf-a100-resnet50-1x8-fp32" not in names
    assert found[0].points[2].efficiency["p_core"] == pytest.approx(0.929, abs=5e-4)


def test_what_is_not_published_has_no_efficiency() -> None:
    examples = next(
        group for group in find_published_scalings(load_rows("resnet50")) if group.base.batch_per_device is None
    )
    assert examples.points[1].efficiency == {"p_whole": None, "p_train": pytest.approx(0.966, abs=5e-4), "p_core": None}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_tables_can_be_drawn_in_ascii_at_any_width(width: int) -> None:
    runs = compute_scaling([a_run("1x1", images(100, 1)), a_run("1x2", images(150, 1))])
    ours = render([runs], width=width, encoding="ascii")
    assert ours.isascii()
    assert "Weak scaling by p_core" in " ".join(ours.split())
    assert "1x1" in ours and "1x2" in ours
