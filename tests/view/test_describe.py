from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.records import a_vocoder_record, in_environment, make_quality, make_record, make_timeline

from trainmark.record.machine import Artifact, Environment
from trainmark.record.record import Doubt, Evaluation
from trainmark.record.sample import SampleDocument, SpeechScore, SpeechScores
from trainmark.record.timeline import Timeline
from trainmark.view.describe import SPARKS, describe, draw_spark


def test_the_whole_record_is_told() -> None:
    record = make_record(group="g1", skipped_files=("train/bad.jpeg",))
    shown = describe(record, path=Path("/store/records/run.json"))
    for word in (
        record.run_id,
        "2026-11-15T20:51:00+00:00",
        "valid: 60 steps were done",
        "g1",
        "fix_hp reference → this run batch_per_device 256 → 32",
        "imagenet, synthetic",
        "60 steps",
        "p_core",
        "±0.39 %",
        "items / compute",
        "steps 11 to 60 of 60",
        "warm-up, 10 steps",
        "7.000 → 6.410",
        "device.name",
        "AMD EPYC",
        "target ≥ 75.5 %: short run",
        record.doubts[0].text,
        record.doubts[1].text,
        "train/bad.jpeg",
        "/store/records/run.json",
    ):
        assert word in shown or word in " ".join(shown.split())


def test_the_phases_are_all_there_and_sum_to_the_end_to_end_time() -> None:
    record = make_record()
    shown = describe(record, width=100).split("Where the time went")[1].split("Steps")[0]
    lines = [line.split() for line in shown.splitlines()[3:-1]]
    words = [" ".join(line[: next(index for index, word in enumerate(line) if word[0].isdigit())]) for line in lines]
    assert words == ["e2e_time", "− start-up", "− set-up", "− warm-up", "p_whole", "− evaluation", "p_train",
                     "− data wait", "− other", "p_core"]  # fmt: skip
    assert shown.count("images/s") == 3  # each number beside the time it divides by
    e2e = record.metrics["e2e_time"].value
    assert e2e is not None
    assert f"{e2e:.0f} s  100.0 %" in shown


def test_each_rank_is_shown_slowest_first() -> None:
    shown = describe(make_record(timeline=make_timeline(ranks=3)))
    lines = shown.split("Ranks")[1].splitlines()[5:8]
    assert [line.split()[0] for line in lines] == ["2", "1", "0"]
    assert "+0.0 %" in lines[2]


def test_ranks_are_told_apart_by_their_own_computing_where_the_exchange_is_known() -> None:
    timeline = make_timeline(ranks=2)
    first, second = timeline.ranks
    waiting = dataclasses.replace(second, exchange_ns=[1_000_000_000] * 60)
    working = dataclasses.replace(first, exchange_ns=[100_000_000] * 60)
    shown = describe(make_record(timeline=dataclasses.replace(timeline, ranks=(working, waiting))), width=100)
    title, heads, _, *lines = shown.split("Ranks")[1].splitlines()[:5]
    assert "slowest first, by their own computing" in title
    assert [line.split()[0] for line in lines] == ["0", "1"]
    assert "exchange s" in heads
    assert "50.0" in lines[1]  # in the steps that count, as on the page
    assert "of it exchange" in shown.split("Where the time went")[1].split("Steps")[0]
    assert "exchange " in shown.split("Metrics")[1].split("Where the time went")[0]


def test_many_ranks_are_cut_short() -> None:
    assert "4 faster ranks are not shown" in describe(make_record(timeline=make_timeline(ranks=20)))


def test_artifacts_are_listed_with_paths_that_can_be_copied() -> None:
    left = (Artifact(file="samples/one.wav", caption="griffin-lim: one sentence"),)
    record = a_vocoder_record(artifacts=left)
    shown = describe(record, run_folder=Path("/a long/path" * 20))
    assert "griffin-lim: one sentence" in shown
    assert f"\n    {'/a long/path' * 20}/samples/one.wav\n" in shown
    assert "\n    samples/one.wav\n" in describe(record)
    assert "Artifacts" not in describe(a_vocoder_record())


def test_the_trace_of_a_profile_is_named_by_a_path_that_leads_to_it() -> None:
    profile = {"steps": 2, "seconds": 1.0, "busy_s": 0.9, "launches": 40, "trace": "trace.json.gz"}
    shown = describe(in_environment(make_record(), profile=profile), run_folder=Path("/store/runs/a"))
    assert "trace            /store/runs/a/trace.json.gz" in shown and "opens in ui.perfetto.dev" in shown


def test_scores_of_speech_are_told_as_predicted(tmp_path: Path) -> None:
    row = SpeechScore(of="speech", clips=4, seconds=33, predicted_mos=3.64, wer=0.033)
    scores = SpeechScores(predictor="DistillMOS", recogniser="moonshine", rows=(row,))
    document = SampleDocument(workload="w", input="x", networks=(), files=(), scores=scores)
    (tmp_path / "sample.json").write_bytes(document.dumps())
    record = a_vocoder_record(artifacts=(Artifact(file="sample.wav", caption="c"),))
    shown = " ".join(describe(record, run_folder=tmp_path).split())
    assert "speech 3.64 3.3 % 4 clips, 33 s" in shown
    assert "predicted by a network, not a listening test: DistillMOS; words by moonshine" in shown


def test_how_the_data_was_read_and_what_steps_held_is_told() -> None:
    timeline = make_timeline()
    [trace] = timeline.ranks
    uneven = dataclasses.replace(trace, items=[20_000 + 100 * step for step in range(60)])
    varied = dataclasses.replace(timeline, ranks=(uneven,))
    shown = describe(a_vocoder_record(timeline=varied, data_facts={"padding_share": 0.1875}))
    assert "median 23 450 mel frames a step, from 21 000 to 25 900" in " ".join(shown.split())
    assert "Data as it was read padding_share 0.1875" in " ".join(shown.split())
    assert "a step, from" not in describe(a_vocoder_record())


def test_the_quality_of_a_loss_and_given_weights_are_told() -> None:
    record = a_vocoder_record()
    begun = dataclasses.replace(record, plan=dataclasses.replace(record.plan, init_from="/there/w.pt"))
    shown = describe(begun)
    assert "val_loss 0.4774, target ≤ 0.4852: reached" in shown
    assert "begins with /there/w.pt" in " ".join(shown.split())


def test_a_long_history_keeps_its_ends() -> None:
    history = tuple(
        Evaluation(step=step, epoch=float(step), values={"acc1": step / 2}, samples=50_000) for step in range(1, 101)
    )
    shown = describe(make_record(quality=make_quality(history=history, value=50.0)))
    assert "88 more" in shown
    assert "50 000" in shown
    assert shown.count("50 000") == 12


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_fits_the_width_and_the_encoding(width: int, encoding: str) -> None:
    record = make_record(device="昇腾 910B " * 12, timeline=make_timeline(ranks=2))
    shown = describe(record, width=width, encoding=encoding)
    shown.encode(encoding)
    assert max(cell_len(line) for line in shown.splitlines()) <= width


def test_the_path_of_the_record_can_be_copied_however_long_it_is() -> None:
    path = "/a long/path" * 20 + "/record.json"
    assert f"\nRecord: {path}\n" in describe(make_record(), path=Path(path), width=80)


def test_hostile_text_is_shown_and_not_obeyed() -> None:
    hostile = "\x1b[2J[bold]x[/bold]\n| <img>"
    record = make_record(
        device=hostile,
        run_id=hostile,
        ended=hostile,
        coverage=hostile,
        doubts=(Doubt(code="x", text=hostile),),
        skipped_files=(hostile,),
        environment={hostile: {hostile: [hostile, 1, None]}},
    )
    shown = describe(record, path=Path("/records/\x1b[2J.json"), width=160)
    assert "\x1b" not in shown
    assert "[bold]x[/bold]" in shown


def test_a_run_that_measured_nothing_is_still_shown() -> None:
    empty = make_record(timeline=make_timeline(steps=0, warmup_steps=0), loss=(), status="incomplete", ended="cut off")
    assert "incomplete: cut off" in describe(empty)
    nobody = dataclasses.replace(empty, timeline=Timeline(ranks=()), metrics={}, environment=Environment())
    assert "incomplete: cut off" in describe(nobody)


def test_a_loss_that_was_not_finite_leaves_a_gap() -> None:
    shown = describe(make_record(loss=(2.0, None, float("nan"), 1.0)))
    assert "2.000 → 1.000" in shown


def test_a_spark_rises_with_its_values_and_fits() -> None:
    assert draw_spark([1, 2, 3, 4, 5, 6, 7, 8]) == SPARKS
    assert draw_spark([5, 5, 5]) == SPARKS[0] * 3
    assert draw_spark([]) == ""
    assert len(draw_spark(list(range(1000)), columns=40)) == 40
    assert draw_spark([0, 10, 99], low=0, high=10) == SPARKS[0] + SPARKS[-1] * 2


def test_color_is_used_only_where_asked_for() -> None:
    assert "\x1b" not in describe(make_record())
    assert "\x1b[" in describe(make_record(), color=True)
