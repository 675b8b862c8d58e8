"""A plan followed from run to run: runs of other plans and devices stay out, and a step is where compare says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.records import make_quality, make_record, make_timeline

from trainmark.cli.main import main
from trainmark.features.report.trend import compute_trends, draw_trends, select_trend_rows
from trainmark.record.language import translator
from trainmark.record.record import Record
from trainmark.record.store import Store


def make_run(day: int, *, ms: float = 5000, **changes: Any) -> Record:
    return make_record(
        run_id=f"resnet50-quick-1x1-fp32-{day:06x}",
        created=f"2026-10-{day:02}T20:51:00+00:00",
        timeline=make_timeline(compute_ms=ms),
        **{"revision": f"{day:04x}c0ffee00", **changes},
    )


A_SLOWER_REVISION = [
    make_run(1),
    make_run(2, ms=5020, tags={"commit": "abcdef0123456789"}),
    make_run(3, ms=5600),
    make_run(4, ms=5610, group="5a8c9d0e"),
    make_run(5, ms=5590, group="5a8c9d0e"),
    make_run(6, ms=5605, revision=None),
]
OTHERS = [
    make_run(7, plan={"topology": "1x2"}),
    make_run(8, device="Another CPU"),
    make_run(9, ms=9000, status="failed"),
]


def test_a_step_stands_where_neighbours_differ_and_repeats_are_one_point() -> None:
    speed, quality = compute_trends([*reversed(A_SLOWER_REVISION), *OTHERS])
    assert (speed.metric, quality.metric) == ("p_core", "acc")
    assert [len(point.records) for point in speed.points] == [1, 1, 1, 2, 1]
    assert [point.change is not None for point in speed.points] == [False, False, True, False, False]
    assert speed.steps[0].change == pytest.approx(-0.103, abs=0.01) and speed.steps[0].worse
    assert speed.steps[0].source == "0003c0ffee00"
    assert all(point.interval and point.interval[0] < point.value < point.interval[1] for point in speed.points)
    assert quality.steps == []


def test_a_lower_loss_is_a_step_to_the_better_only_where_repeats_tell_it() -> None:
    def repeats(day: int, loss: float) -> list[Record]:
        better = {"name": "val_loss", "better": "lower", "unit": "-", "history": ()}
        return [
            make_run(day + i, group=f"group{day}", quality=make_quality(value=loss * (1 + i / 1000), **better))
            for i in range(3)
        ]

    quality = compute_trends([*repeats(1, 6.9), *repeats(11, 5.1)])[1]
    assert quality.steps and not quality.steps[0].worse


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_chart_tells_revisions_steps_and_intervals(language: str) -> None:
    drawn = draw_trends(compute_trends(A_SLOWER_REVISION), translator(language)) or ""
    # a day with the tag, the revision, or the package's version
    assert all(mark in drawn for mark in ("10-02 abcdef0", "10-03 0003c0f", "10-06 0.1.0"))
    assert "−10." in drawn
    assert "2026-10-03 20:51 · 0003c0ffee00 · 000003 · p_core" in drawn
    assert draw_trends([], translator(language)) is None


def test_a_point_that_tells_nothing_has_the_longest_bar_and_not_none() -> None:
    wild = [make_run(day, ms=ms, group="wild") for day, ms in enumerate((500, 2400, 900), 1)]
    calm = [make_run(day, ms=900 + day, group="calm") for day in range(11, 14)]
    drawn = draw_trends(compute_trends([*wild, *calm])[:1], translator("en")) or ""
    bars = re.findall(r'<line x1="[\d.]+" x2="[\d.]+" y1="([-\d.]+)" y2="([-\d.]+)" class="spread"', drawn)
    first, second = (abs(float(low) - float(high)) for low, high in bars)
    assert first > 10 * second
    assert "too noisy to say" in drawn


def test_the_command_finds_the_runs_of_a_plan_and_says_where_there_are_too_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    for record in (*A_SLOWER_REVISION, *OTHERS):
        store.add(record)
    assert len(select_trend_rows(store.rows())) == len(A_SLOWER_REVISION)
    page, words = tmp_path / "page.html", ["--store", str(store.folder), "--lang", "en"]
    for word in ([], ["resnet50"], ["000003"]):
        assert main(["report", "--html", str(page), *words, "--trend", *word]) == 0
        text = page.read_text(encoding="utf-8")
        assert "5 points from 2026-10-01 to 2026-10-06." in text
        assert OTHERS[0].run_id not in text
    capsys.readouterr()
    for word, said in (
        ("000007", "no plan of '000007' has two valid runs on one device; a trend takes at least two"),
        ("vit", "no plan of 'vit' has two valid runs on one device"),
        ("published:flagperf-a100-vit-1x1", "is a published row; name a run or a workload"),
        ("nothing", "no run 'nothing' in the store"),
    ):
        assert main(["report", *words, "--trend", word]) == 2
        assert said in capsys.readouterr().err
    assert main(["report", "last", *words, "--trend"]) == 2
    assert "--trend finds the runs of a plan itself, but last was named too" in capsys.readouterr().err
