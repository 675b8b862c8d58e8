from __future__ import annotations

import dataclasses

import pytest
from rich.cells import cell_len
from support.records import a_vocoder_record, make_quality, make_record, make_timeline, renamed

from trainmark.record.format import format_interval, format_quality, number, short_device
from trainmark.record.metrics import Quantity
from trainmark.record.recipe import Limits
from trainmark.record.record import Doubt, Record
from trainmark.view.table import markdown, render, spread_percent

WIDTHS = (80, 100, 120, 160)


def with_p_core(record: Record, run_id: str, value: float | None, **changes: object) -> Record:
    p_core = Quantity(value=value, unit="images/s", unavailable=None if value else "the result is not valid")
    return renamed(record, run_id, metrics={**record.metrics, "p_core": p_core}, **changes)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5.8266, "5.83"),
        (797.4, "797"),
        (11874.2, "11 874"),
        (1234567.0, "1 234 567"),
        (999.7, "1 000"),
        (99.96, "100"),
        (9.996, "10.0"),
        (0.0123, "0.0123"),
        (0.00000123, "1.23e-06"),
        (0.0, "0"),
        (-2.5, "-2.50"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", "Intel Xeon Platinum 8370C"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("AMD EPYC", "AMD EPYC"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_device_name_loses_what_vendors_add(name: str, short: str) -> None:
    assert short_device(name) == short


def test_a_value_just_short_of_the_target_is_not_rounded_onto_it() -> None:
    assert format_quality(make_quality(value=75.49996, goal=75.5)) == "75.49996 %"
    assert format_quality(make_quality(value=75.512, goal=75.5)) == "75.51 %"


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        (None, ""),
        ((200 / 1.01, 202), "±1.0 %"),
        ((200 / 1.4, 280), "±40 %"),
        ((200 / 1.6, 320), "too noisy to say"),
        ((-28, 428), "too noisy to say"),
        ((200, 200), "±0 %"),
    ],
)
def test_an_interval_is_shown_as_the_factor_it_is_or_in_words(interval: tuple[float, float] | None, shown: str) -> None:
    assert format_interval(interval) == shown


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_stands_in_the_table_with_its_unit(width: int) -> None:
    shown = render([make_record()], width=width)
    for word in ("AMD EPYC 1x1", "fp32", "bs=32,", "lr=0.1", "e2e_time", "p_whole", "p_train", "p_core", "acc", "mem"):
        assert word in shown
    for value in ("images/s", "GiB", "5.54", "5.73", "5.78", "±", "0.3125 %", "≥ 75.5 %", "2.50/16.0"):
        assert value in shown
    assert "Throughputs cover the steady part: steps 11 to 60 of 60." in shown


@pytest.mark.parametrize("width", [40, 72, *WIDTHS])
def test_no_line_is_wider_than_the_paper(width: int) -> None:
    records = [
        make_record(device="Ascend 昇腾 910B with a very long marketing name indeed", group="a"),
        make_record(
            plan={"recipe": {"epochs": 2, "a_very_long_setting_name_for_one_column": 1, "nesterov": True}}, group="a"
        ),
        make_record(status="incomplete", ended="rank 3 on node-b was killed " * 6, timeline=make_timeline(steps=4)),
        a_vocoder_record(),
    ]
    for line in render(records, width=width).splitlines():
        assert cell_len(line) <= width


def test_the_workload_is_a_column_only_where_there_are_several() -> None:
    assert "| workload |" not in markdown([make_record(), make_record()])
    several = markdown([make_record(), make_record(plan={"workload": "vit"})])
    assert several.startswith("**quick · AMD EPYC 1x1 · fp32**\n")  # what they have in common is said once
    assert "| resnet50 |" in several and "| vit |" in several and "configuration" not in several


def test_different_items_are_named_row_by_row() -> None:
    page = markdown([make_record(), a_vocoder_record()])
    assert "| counts | p_whole | p_train | p_core |" in page
    first, second = (next(line for line in page.splitlines() if name in line) for name in ("resnet50", "tacotron2"))
    assert "| images/s |" in first and "acc " in first
    assert "| mel frames/s |" in second and "val_loss " in second and "≤ 0.4852" in second


def test_a_loss_is_shown_without_a_unit_and_with_the_digits_of_its_target() -> None:
    page = markdown([a_vocoder_record()])
    assert "| 0.4774 reached |" in page
    assert "%" not in page.splitlines()[0]
    short = dataclasses.replace(a_vocoder_record().quality, value=0.48524, reached=False)
    assert "| 0.48524 missed |" in markdown([a_vocoder_record(quality=short)])


def test_workloads_share_a_table_that_says_what_differs() -> None:
    records = [make_record(group="g1"), a_vocoder_record(group="g2"), make_record(group="g1")]
    shown = render([*records, a_vocoder_record(group="g2")], width=140)
    assert shown.count("p_core  ") == shown.count("p_train") == 1
    assert shown.count("resnet50") == shown.count("tacotron2") == 3  # two rows and the repeats
    assert "AMD EPYC" in shown and "A100" in shown  # the devices differ, so each row has its own
    assert "Repeats of resnet50, g1: 2 of 2 completed" in shown
    assert "Repeats of tacotron2, g2: 2 of 2 completed" in shown


def test_an_evaluation_that_was_not_finite_is_not_called_missing() -> None:
    record = make_record(quality=make_quality(value=None))
    assert "no acc: its last evaluation gave no finite value" in markdown([record])


def test_a_full_run_reached_or_missed_its_target_and_a_short_one_is_not_held_to_it() -> None:
    full = {"limits": Limits()}
    assert "0.3125 % missed" in markdown([make_record(plan=full)])
    reached = make_record(plan=full, quality=make_quality(value=76.1, reached=True))
    assert "76.10 % reached" in markdown([reached])
    assert "0.3125 % short run" in markdown([make_record()])


def test_different_targets_stand_with_each_value() -> None:
    records = [make_record(), make_record(quality=make_quality(goal=70.0))]
    page = markdown(records)
    assert "short run ≥ 75.5 %" in page
    assert "short run ≥ 70 %" in page


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_one_workload_names_it_and_its_recipe(width: int) -> None:
    assert render([make_record()], width=width).startswith("resnet50 · quick\n")
    assert markdown([make_record(), make_record()]).startswith("**resnet50 · quick**\n")
    recipes = markdown([make_record(), make_record(plan={"recipe_name": "fill"})])
    assert recipes.startswith("**resnet50**\n") and "| quick |" in recipes and "| fill |" in recipes


def shown_notes(records: list[Record], width: int = 200) -> list[str]:
    """Below the table of a terminal, without their numbers."""
    after = render(records, width=width).rpartition("╯\n")[2]
    return [line[2:].strip() for line in after.splitlines() if line[:1].isdigit()]


def test_a_terminal_shows_five_notes_and_says_where_the_others_are() -> None:
    doubts = tuple(Doubt(code=f"kind-{index}", text=f"reason {index}") for index in range(7))
    shown = render([make_record(doubts=doubts)], width=160)
    assert "reason 4" in shown and "reason 5" not in shown
    assert "2 more: trainmark show --all\n" in shown
    assert "more" not in render([make_record(doubts=doubts[:5])], width=160)
    assert "2 more: trainmark show --all RUN" in render(
        [make_record(doubts=doubts), make_record(doubts=doubts)], width=160
    )
    assert "reason 6" in markdown([make_record(doubts=doubts)])


def test_notes_of_one_kind_are_told_once_with_the_rows_they_are_about() -> None:
    small, other = (Doubt(code="small-batch", text=f"global batch {size} is below 256") for size in (8, 4))
    shared = Doubt(code="generated-data", text="synthetic data")
    records = [make_record(plan={"workload": name}, doubts=doubts) for name, doubts in
               (("resnet50", (shared, small)), ("vit", (shared, other)), ("tacotron2", (shared,)))]  # fmt: skip
    assert shown_notes(records) == ["synthetic data", "resnet50: global batch 8 is below 256; similar: vit"]
    repeats = [make_record(doubts=(small,)), make_record(doubts=())]
    assert shown_notes(repeats) == ["row 1: global batch 8 is below 256"]


def test_what_can_be_acted_on_is_told_first() -> None:
    doubts = [Doubt(code=code, text=code) for code in ("generated-data", "small-batch", "foreign-load", "never-heard")]
    assert shown_notes([make_record(doubts=tuple(doubts))]) == [
        "foreign-load", "never-heard", "generated-data", "small-batch",
    ]  # fmt: skip


def test_that_a_run_did_not_reach_its_end_is_told_once() -> None:
    doubt = Doubt(code="incomplete", text="the run did not reach its end: the numbers cover what was measured before")
    record = make_record(status="incomplete", ended="interrupted", doubts=(doubt,), plan={"limits": Limits()})
    assert shown_notes([record]) == ["incomplete: interrupted"]
    assert "0.3125 % interrupted" in markdown([record])
    lost = make_record(status="incomplete", ended="rank 0 was killed", plan={"limits": Limits()})
    assert "0.3125 % unfinished" in markdown([lost])


def test_what_is_missing_is_a_dash_and_a_reason_never_zero() -> None:
    record = make_record(timeline=make_timeline(steps=4), quality=make_quality(value=None, history=()), doubts=())
    page = markdown([record])
    (row,) = [line for line in page.splitlines() if line.startswith("| AMD")]
    assert row.count("—") == 4
    assert "no p_whole, p_train, p_core: no step was counted" in page
    assert "no acc: the model was not evaluated" in page


def test_a_metric_that_is_not_on_the_record_is_missing_with_a_reason() -> None:
    record = dataclasses.replace(make_record(doubts=()), metrics={})
    page = markdown([record])
    assert "not on the record" in page
    assert "e2e_time" in render([record])


def test_coverages_that_differ_are_said_of_each_row() -> None:
    page = markdown([make_record(), make_record(coverage="all training steps")])
    assert "throughputs cover the steady part: steps 11 to 60 of 60" in page
    assert "throughputs cover all training steps" in page


def test_repeats_say_how_far_they_lie_apart_and_how_many_completed() -> None:
    base = make_record(group="g1")
    repeats = [with_p_core(base, f"r{value}", value) for value in (98.0, 100.0, 103.0)]
    lost = renamed(base, "lost", status="incomplete")
    page = markdown([*repeats, lost])
    assert "Repeats of g1: 3 of 4 completed; spread 5.0 % (p_core 98.0 to 103 images/s, median 100)." in page
    assert spread_percent([98, 100, 103]) == pytest.approx(5.0)


def test_hostile_names_are_shown_and_not_obeyed() -> None:
    hostile = "<img src=x onerror=alert(1)> | \x1b[31mred [bold]loud[/bold] \n=cmd"
    record = make_record(
        device=hostile,
        plan={"workload": hostile},
        doubts=(Doubt(code="x", text=hostile),),
        coverage=hostile,
        status="invalid",
        ended=hostile,
        group=hostile,
    )
    page = markdown([record, record])
    assert "<" not in page
    assert "\x1b" not in page
    table_rows = [line for line in page.splitlines() if line.startswith("|")]
    columns = {line.replace(r"\|", "").count("|") for line in table_rows}
    assert len(columns) == 1
    shown = render([record, record], width=200)
    assert "\x1b" not in shown
    assert "[bold]loud[/bold]" in shown
    colored = render([record, record], width=200, color=True)
    assert "\x1b[31mred" not in colored
    assert r"\x1b[31mred" in colored


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stream_that_carries_only_ascii_gets_only_ascii(width: int) -> None:
    records = [make_record(device="昇腾 910B"), make_record(timeline=make_timeline(steps=4)), a_vocoder_record()]
    shown = render(records, width=width, encoding="ascii")
    shown.encode("ascii")
    assert "+/-" in shown
    assert "?" not in shown
