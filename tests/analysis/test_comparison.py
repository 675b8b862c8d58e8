"""What is refused, what is listed, and what the verdict says of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.records import a_vocoder_record, make_quality, make_record, make_timeline
from support.simulated import repeats, run

from trainmark import api
from trainmark.analysis.comparison import ONE_RUN_EACH, compare, to_json
from trainmark.analysis.published_lookup import find_subject
from trainmark.cli.verdict import show_verdict
from trainmark.record.errors import UsageError
from trainmark.record.metrics import Quantity
from trainmark.record.plan import DataChoice
from trainmark.record.recipe import Limits
from trainmark.record.record import Doubt, Record
from trainmark.record.store import Store, Subject, make_subject
from trainmark.view.compare_screen import render


def one(record: Record) -> Subject:
    return make_subject(record.run_id, [record])


def two(**changes: Any) -> tuple[Subject, Subject]:
    """Two runs that are alike but for the changes to the second."""
    return one(make_record(run_id="first")), one(make_record(run_id="second", **changes))


def published(name: str, tmp_path: Path) -> Subject:
    return find_subject(f"published:{name}", Store(tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan": {"workload": "vit"}}, "workload resnet50 and vit"),
        ({"plan": {"topology": "1x8"}}, "topology 1x1 and 1x8"),
        ({"plan": {"recipe": {"batch_per_device": 64, "learning_rate": 0.2}}}, "batch_per_device 32 and 64"),
        ({"environment": {"precision": {"asked": "fp32", "ran": "tf32"}}}, "precision fp32 and tf32"),
        ({"item": "mel frames"}, "item images and mel frames"),
        (
            {"plan": {"data": DataChoice(name="imagenet", folder="/d", synthetic=False)}},
            "data synthetic imagenet and real imagenet",
        ),
        ({"plan": {"limits": Limits()}}, "coverage the steady part and all training steps"),
        ({"plan": {"init_sha256": "ab" * 32}}, "initial weights random and abababababab"),
        ({"plan": {"resume_from": "/runs/x"}}, "start the first step and a checkpoint"),
    ],
)
def test_unlike_runs_are_refused_with_what_differs_and_compared_anyway(changes: dict[str, Any], said: str) -> None:
    a, b = two(**changes)
    with pytest.raises(UsageError, match=f"run first and run second are not alike: .*{said}.*--anyway"):
        compare(a, b)
    found = compare(a, b, anyway=True)
    assert said in [str(difference) for difference in found.differences if difference.unlike]
    assert f"Not alike: {said}" in render(found, width=200)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"recipe": {"batch_per_device": 64}}, "batch_per_device 32 → 64. "),
        ({"recipe": {"learning_rate": 0.2}}, "learning_rate 0.1 → 0.2. "),
        ({"precision": "bf16"}, "precision fp32 → bf16. "),
    ],
)
def test_one_changed_setting_is_compared_and_named(plan: dict[str, Any], said: str) -> None:
    a, b = two(plan=plan)
    text = render(compare(a, b), width=200)
    assert said in text and "Not alike" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "NVIDIA H100"}, "device AMD EPYC and NVIDIA H100"),
        ({"plan": {"platform": "nvidia"}}, "platform cpu and nvidia"),
        ({"plan": {"recipe": {"seed": 7}}}, "seed 0 and 7"),
        ({"plan": {"limits": Limits(steps=200)}}, "limits 60 steps and 200 steps"),
        ({"trainmark": "0.2.0"}, "trainmark 0.1.0 and 0.2.0"),
    ],
)
def test_what_people_compare_on_purpose_is_listed_and_not_refused(changes: dict[str, Any], said: str) -> None:
    found = compare(*two(**changes))
    assert [str(difference) for difference in found.differences] == [said]
    assert f"Differs: {said}." in render(found, width=200)


def test_runs_of_unlike_length_are_not_compared_by_what_grows_with_it() -> None:
    a, b = two(plan={"limits": Limits(steps=200)})
    with pytest.raises(UsageError, match="limits 60 steps and 200 steps"):
        compare(a, b, metric="e2e_time")


def test_invalid_and_incomplete_runs_are_refused_and_so_is_one_on_both_sides() -> None:
    a, b = two(status="incomplete", ended="rank 0 died")
    with pytest.raises(UsageError, match="on both sides"):
        compare(a, a)
    with pytest.raises(UsageError, match=r"run second is incomplete \(rank 0 died\)"):
        compare(a, b)
    assert "run second is incomplete (rank 0 died)" in compare(a, b, anyway=True).doubts


def test_a_number_that_does_not_follow_from_its_steps_is_another_definition() -> None:
    record = make_record(run_id="second")
    other = {**record.metrics, "p_core": Quantity(value=99.0, unit="images/s")}
    with pytest.raises(UsageError, match=r"says p_core 99\.00, and by this version's definition its steps give 5\.7"):
        compare(two()[0], one(replace(record, metrics=other)))


@pytest.mark.parametrize(("speed", "verdict"), [(1.1, "faster"), (0.9, "slower"), (1.0, "same")])
def test_repeats_are_faster_slower_or_the_same(speed: float, verdict: str) -> None:
    draw = np.random.default_rng(0)
    a = make_subject("a", repeats(draw, 5, "a", between=0.005))
    b = make_subject("b", repeats(draw, 5, "b", between=0.005, speed=speed))
    found = compare(a, b)
    assert found.verdict == verdict
    assert found.is_regression == (verdict == "slower")
    assert found.judgement.ratio == pytest.approx(speed, rel=0.02)
    low, high = found.judgement.interval or (0, 0)
    assert low < speed < high
    assert f"\n{verdict.capitalize()}: B's p_core is {found.judgement.ratio:.3f} times A's" in render(found)


def test_less_is_better_where_time_is_compared() -> None:
    draw = np.random.default_rng(0)
    a = make_subject("a", repeats(draw, 3, "a", noise=0.001))
    b = make_subject("b", repeats(draw, 3, "b", noise=0.001, speed=0.5))
    found = compare(a, b, metric="step_time")
    assert found.judgement.ratio == pytest.approx(2, rel=0.02)
    assert found.verdict == "worse"
    assert compare(b, a, metric="step_time").verdict == "better"


@pytest.mark.parametrize("word", ["predicted_mos", "wer"])
def test_what_a_network_makes_of_speech_is_compared_with_nothing(word: str, tmp_path: Path) -> None:
    row = published("deepspark-bi-v100-tacotron2-1x8-amp-bs128", tmp_path)
    with pytest.raises(UsageError, match=f"{word} is what a network makes of speech and no listening test"):
        compare(one(a_vocoder_record()), row, metric=word, anyway=True)


def test_a_published_mos_is_held_against_no_run(tmp_path: Path) -> None:
    row = published("deepspark-bi-v100-tacotron2-1x8-amp-bs128", tmp_path)
    for word in ("MOS", "quality"):
        with pytest.raises(UsageError, match="no listener has heard it; a predicted MOS is not one"):
            compare(row, one(a_vocoder_record()), metric=word, anyway=True)


def test_quality_is_compared_by_its_own_name_and_direction() -> None:
    def trained(name: str, *losses: float) -> Subject:
        made = [
            make_record(run_id=f"{name}-{value}", quality=make_quality(name="val_loss", better="lower", value=value))
            for value in losses
        ]
        return make_subject(name, made)

    a, b = trained("a", 0.50, 0.501, 0.499), trained("b", 0.40, 0.401, 0.399)
    for word in ("val_loss", "quality"):
        assert compare(a, b, metric=word).verdict == "better"
    with pytest.raises(UsageError, match="metric 'acc' is not known"):
        compare(a, b, metric="acc")


def test_a_metric_that_a_run_lacks_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="run first has no power: nothing was sampled during the run"):
        compare(*two(), metric="power")
    with pytest.raises(UsageError, match="did you mean 'p_core'"):
        compare(*two(), metric="p_cor")
    with pytest.raises(UsageError, match="a fact and not a result"):
        compare(*two(), metric="mem_total")
    with pytest.raises(UsageError, match="acc of 0, and no ratio"):
        compare(*two(quality=make_quality(value=0.0)), metric="acc")


def test_one_run_each_says_on_what_it_rests_and_what_would_decide() -> None:
    draw = np.random.default_rng(2)
    a, b = (make_subject(name, [run(draw, name, noise=0.2, steps=40)]) for name in ("first", "second"))
    found = compare(a, b)
    assert found.verdict == "inconclusive"
    shown = " ".join(render(found).split())
    assert "1 % a run for what changes between processes" in shown
    assert "would decide" in shown


def loaded(*compute_ms: float, load: float = 0.0, device: str = "AMD EPYC", kind: str = "cpu") -> Subject:
    """Runs beside which others used so much of the machine."""
    environment = {"foreign_load": load, "device": {"name": device, "type": kind}}
    made = [
        make_record(run_id=f"{load}-{ms}-{at}", timeline=make_timeline(compute_ms=ms), environment=environment)
        for at, ms in enumerate(compute_ms)
    ]
    return make_subject(f"{load}", made)


QUIET_RUNS, SLOW_RUNS = (1000.0, 1001.0, 1002.0), (1500.0, 1501.0, 1502.0)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (loaded(1000), loaded(1500), "slower"),
        (loaded(1000), loaded(11000, load=0.5), "inconclusive"),  # half of a machine made a run 11 times slower
        (loaded(11000, load=0.5), loaded(1000), "inconclusive"),
        (loaded(1500), loaded(100, load=0.5), "faster"),  # in spite of the load
        (loaded(1000), loaded(1500, load=0.5, kind="cuda"), "slower"),  # an accelerator does not share its host's cores
        (loaded(1000), loaded(11000, load=0.5, device="another"), "slower"),
        (loaded(*QUIET_RUNS), loaded(*SLOW_RUNS, load=0.5), "inconclusive"),
        (loaded(*QUIET_RUNS), loaded(*QUIET_RUNS, load=0.5), "inconclusive"),
        (loaded(*QUIET_RUNS, load=0.5), loaded(*SLOW_RUNS, load=0.5), "slower"),
    ],
)
def test_where_others_used_the_machine_beside_the_worse_side_one_device_is_not_compared(
    a: Subject, b: Subject, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compare(a, b)
    assert found.verdict == verdict
    code = show_verdict(api.verdict(found), as_json=False, gate=False)
    shown = capsys.readouterr().out
    assert code == {"slower": 6, "inconclusive": 7, "faster": 0}[verdict]
    assert ("Cannot tell" in shown) is (verdict == "inconclusive")


def test_a_certain_difference_below_the_threshold_is_the_same_and_said_to_be_certain() -> None:
    draw = np.random.default_rng(1)
    a = make_subject("a", repeats(draw, 5, "a", noise=0.001))
    b = make_subject("b", repeats(draw, 5, "b", noise=0.001, speed=1.01))
    found = compare(a, b)
    assert found.verdict == "same"
    assert "That the two differ is significant, but it is less than the threshold." in render(found)
    assert compare(a, b, threshold=0).verdict == "faster"


def test_the_first_decisive_difference_is_said_and_not_all_that_follows_from_it() -> None:
    other = {"workload": "vit", "recipe": {"layers": 12, "batch_per_device": 4}, "topology": "1x2"}
    with pytest.raises(UsageError, match="are not alike: workload resnet50 and vit; compare like"):
        compare(*two(plan=other, item="patches"))
    recipes = {"recipe_name": "smoke", "recipe": {"width": 8, "epochs": 2, "batch_per_device": 64}}
    with pytest.raises(UsageError, match="are not alike: recipe quick and smoke, topology 1x1 and 1x2; compare like"):
        compare(*two(plan={**recipes, "topology": "1x2"}))
    many = {"recipe": {f"setting_{index}": index for index in range(6)}}
    with pytest.raises(UsageError, match="setting_3 not on the record and 3 and 2 more; compare like"):
        compare(*two(plan=many))
    assert len([one for one in compare(*two(plan=many), anyway=True).differences if one.unlike]) == 6


def test_a_recipe_of_another_name_and_the_same_settings_is_the_same() -> None:
    assert [str(one) for one in compare(*two(plan={"recipe_name": "fill"})).differences] == []


def test_a_setting_that_an_older_trainmark_did_not_have_tells_no_runs_apart_unless_it_was_changed() -> None:
    plan = make_record().plan
    newer = replace(plan, recipe={**plan.recipe, "tensor_parallel": 1})
    first, second = (make_record(run_id=name) for name in ("first", "second"))
    assert compare(one(first), one(replace(second, plan=newer))).differences == ()


def as_published(run_id: str = "mine", **changes: Any) -> Subject:
    """A full run of the published training."""
    plan = {
        "recipe": {"batch_per_device": 256},
        "limits": Limits(),
        "data": DataChoice(name="imagenet", folder="/d", synthetic=False),
    }
    return one(make_record(run_id=run_id, plan=plan, **changes))


def test_far_from_a_published_figure_there_is_a_verdict_and_near_it_there_is_none(tmp_path: Path) -> None:
    row = published("flagperf-a100-resnet50-1x1", tmp_path)
    found = compare(row, as_published())
    assert found.verdict == "slower" and found.is_regression
    assert found.unless_off_by == pytest.approx(799 / 5.78, rel=0.01)
    assert "slower, unless the published figure is off by 100 times." in " ".join(render(found).split())
    assert ", 140 times slower, unless" in " ".join(render(found).split())
    assert compare(as_published(), row).verdict == "faster"
    near = as_published(timeline=make_timeline(compute_ms=20))  # about 1 570 images/s
    found = compare(row, near)
    assert (found.verdict, found.unless_off_by) == ("inconclusive", None)
    far = as_published(timeline=make_timeline(compute_ms=15))
    assert compare(row, far).verdict == "faster"
    unsure = as_published(timeline=make_timeline(compute_ms=15, steps=12))  # too few steps for an interval
    assert compare(row, unsure).verdict == "inconclusive"


def test_how_many_times_is_said_where_the_two_are_far_apart() -> None:
    a, b = two(timeline=make_timeline(compute_ms=54900))
    assert "Slower: B's p_core is 0.100 times A's, 10 times slower (95 %" in " ".join(render(compare(a, b)).split())
    a, b = two(timeline=make_timeline(compute_ms=4900))
    assert "times faster" not in render(compare(a, b))


def test_a_published_row_says_what_its_figure_would_mean(tmp_path: Path) -> None:
    row = published("flagperf-a100-resnet50-1x1", tmp_path)
    mine = as_published()
    found = compare(row, mine)
    assert found.judgement.ratio == pytest.approx(5.7 / 799, rel=0.05)
    shown = " ".join(render(found).split())
    assert "Were the published figure exact, the ratio would lie between 0.007" in shown
    assert [str(difference) for difference in found.differences] == ["device A100-SXM4-40GB and AMD EPYC"]
    assert "Were the published figure exact, the ratio would lie between 13" in render(compare(mine, row))


def test_a_published_row_is_unlike_a_short_run_on_synthetic_data(tmp_path: Path) -> None:
    row = published("flagperf-a100-resnet50-1x1", tmp_path)
    with pytest.raises(UsageError, match="data real imagenet and synthetic imagenet, coverage all training steps and"):
        compare(row, one(make_record(run_id="mine")))
    with pytest.raises(UsageError, match="has no e2e_time: not published; its page gives mem, p_whole"):
        compare(row, one(make_record(run_id="mine")), metric="e2e_time", anyway=True)


def test_doubts_are_told_once_with_the_side_they_are_of() -> None:
    def doubting(name: str, *texts: str) -> Subject:
        made = [
            make_record(run_id=f"{name}{number}", doubts=(Doubt(code="noise", text=text),))
            for number, text in enumerate(texts)
        ]
        return make_subject(name, made)

    assert compare(doubting("a", "noisy"), doubting("b", "noisy")).doubts == (ONE_RUN_EACH, "noisy")
    found = compare(doubting("a", "noisy"), doubting("b", "±3 %", "±4 %"))
    assert found.doubts == ("A: noisy", "B: ±3 % (2 of 2 runs say so)")


def test_hostile_names_do_not_reach_the_terminal() -> None:
    a, b = two(device="\x1b]0;evil\x07|<img onerror=x>")
    shown = render(compare(a, b), width=300)
    assert "\x1b" not in shown
    assert "\\x1b]0;evil" in shown
    unlike = two(environment={"precision": {"asked": "fp32", "ran": "\x1b[31mfp32"}})
    with pytest.raises(UsageError, match=r"and \\x1b\[31mfp32"):
        compare(*unlike)


def test_programs_get_every_number() -> None:
    draw = np.random.default_rng(0)
    a = make_subject("a", repeats(draw, 3, "a"))
    b = make_subject("b", repeats(draw, 3, "b", speed=2))
    document = to_json(compare(a, b))
    assert document["verdict"] == "faster"
    assert document["ratio"] == pytest.approx(2, rel=0.05)
    assert document["interval"][0] < document["ratio"] < document["interval"][1]
    assert document["a"]["runs"] == ["a-0", "a-1", "a-2"]
    assert len(document["b"]["values"]) == 3
    assert document["b"]["unit"] == "images/s"
