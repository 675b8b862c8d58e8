"""One record out of what the ranks wrote down."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from support.records import make_plan
from support.run_folders import MS, Folder

from trainmark.record import events, gather
from trainmark.record.errors import NotReadyError
from trainmark.record.events import EventWriter
from trainmark.record.machine import Artifact, FlopsFacts
from trainmark.record.recipe import Limits
from trainmark.record.record import Record


def values(record: Record) -> dict[str, float | None]:
    return {alias: quantity.value for alias, quantity in record.metrics.items()}


def test_a_full_run_covers_every_step(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits()))
    folder.rank(0, [90] * 5 + [10] * 95)
    record = folder.record()
    assert (record.status, record.coverage, record.quality.reached) == ("valid", "all training steps", True)
    compute = 5 * 0.09 + 95 * 0.01
    found = values(record)
    assert found["p_core"] == pytest.approx(800 / compute)
    assert found["p_train"] == pytest.approx(800 / (compute + 0.1 + 0.005))
    assert found["p_whole"] == pytest.approx(800 / (compute + 0.1 + 0.005 + 0.1))
    assert found["e2e_time"] == pytest.approx(compute + 0.1 + 0.11)
    assert found["time_to_target"] == pytest.approx(0.077)
    assert found["completed"] == 100
    # the interval is that of the steady part, which is exactly even here
    assert record.metrics["p_core"].interval == pytest.approx((800 / compute, 800 / compute))


def test_a_short_run_covers_the_steady_part_and_says_so(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits(steps=100)))
    folder.rank(0, [90] * 5 + [10] * 95)
    record = folder.record()
    assert record.timeline.warmup_steps == record.timeline.steady_from == 5
    assert record.coverage == "the steady part: 95 steps after 5 of warm-up"
    assert values(record)["p_core"] == pytest.approx(800)
    assert sum(record.timeline.phases_ns.values()) == sum(
        ns for trace in record.timeline.ranks for ns in (*trace.phases_ns.values(), *trace.wait_ns, *trace.compute_ns)
    )


def test_the_slowest_rank_sets_the_time_and_all_ranks_count_items(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits()))
    folder.rank(0, [10] * 50)
    folder.rank(1, [20] * 50)
    record = folder.record()
    assert values(record)["p_core"] == pytest.approx(2 * 8 / 0.020)
    assert values(record)["mem"] == 2
    # as nothing is known of the exchange in these steps, the whole of them is compared
    assert "rank 1 on here took 2.00 times as long for its steps as rank 0, the fastest" in doubts(record)["rank-skew"]
    assert record.metrics["rank_skew"].unavailable == "the exchange was not measured"


def test_a_rank_cut_off_one_step_early_does_not_spoil_the_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits()))
    folder.rank(0, [10] * 50, ended=None)
    folder.rank(1, [10] * 49, ended=None)
    record = folder.record()
    assert (record.status, record.ended) == ("incomplete", "the run was cut off")
    assert record.timeline.steps == 49
    assert values(record)["p_core"] == pytest.approx(2 * 8 / 0.010, rel=0.03)


def test_a_torn_last_line_is_dropped_and_said_on_the_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits()))
    folder.rank(0, [10] * 50, ended=None)
    with (tmp_path / "rank0.jsonl").open("ab") as file:
        file.write(b'{"event": "steps", "first": 50, "wait_ns": [1')
    record = folder.record()
    assert record.timeline.steps == 50
    assert any("rank 0 end in the middle of a line" in doubt.text for doubt in record.doubts)


def test_no_throughput_is_published_from_an_invalid_run(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan())
    folder.rank(0, [10] * 50, exit_code=5, sentence="the loss was not finite at step 49")
    record = folder.record()
    assert (record.status, record.ended) == ("invalid", "the loss was not finite at step 49")
    assert values(record)["p_core"] is None
    assert record.metrics["p_core"].unavailable == "the result is not valid"


def test_a_run_that_never_got_to_a_step_still_has_a_record(tmp_path: Path) -> None:
    record = Folder(tmp_path, make_plan()).record()
    assert record.status == "incomplete"
    assert values(record)["p_core"] is None


SPEECH = {"item": "mel frames", "target": {"name": "val_loss", "unit": "-", "better": "lower"}}


def doubts(record: Record) -> dict[str, str]:
    return {doubt.code: doubt.text for doubt in record.doubts}


def test_doubts_speak_of_the_quality_the_workload_has(tmp_path: Path) -> None:
    plan = make_plan(limits=Limits(), recipe={"target": 0.4852})
    folder = Folder(tmp_path, plan, **SPEECH)
    folder.rank(0, [10] * 50, values={"val_loss": 0.48524})
    said = doubts(folder.record())
    assert said["generated-data"].endswith("set: val_loss only shows that training works")
    assert said["target-missed"] == "target missed: val_loss <= 0.4852 asked, 0.48524 was reached"


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (100, "global batch 8 is below the reference recipe's 256"),
        (8, "global batch 8 is below the reference recipe's 256"),
        (2, "global batch 2, for want of more data than that, is below the reference recipe's 256"),
        (None, "global batch 8 is below the reference recipe's 256"),
    ],
)
def test_the_batch_that_is_doubted_is_the_one_that_was_trained_on(
    tmp_path: Path, samples: int | None, said: str
) -> None:
    folder = Folder(tmp_path, make_plan(recipe={"batch_per_device": 8}))
    folder.rank(0, [10] * 50, facts={} if samples is None else {"train_samples": samples})
    assert doubts(folder.record())["small-batch"] == said


def test_samples_that_a_recipe_leaves_out_are_counted_on_the_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(), **SPEECH)
    folder.rank(0, [10] * 50, facts={"train_samples": 2, "left_out_samples": 1022})
    assert doubts(folder.record())["left-out"] == (
        "the recipe left 1,022 of 1,024 training samples out: it trained on 2"
    )
    (tmp_path / "other").mkdir()
    whole = Folder(tmp_path / "other", make_plan(), **SPEECH)
    whole.rank(0, [10] * 50, facts={"train_samples": 24, "left_out_samples": 0})
    assert "left-out" not in doubts(whole.record())


def test_an_evaluation_that_is_not_finite_has_no_value_and_breaks_no_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits()), **SPEECH)
    folder.rank(0, [10] * 50, values={"val_loss": float("nan"), "gate_loss": 1.0})
    record = folder.record()
    assert record.quality.value is None
    assert record.quality.history[0].values == {"gate_loss": 1.0}


def test_steps_that_hold_more_take_longer_and_are_steady_all_the_same(tmp_path: Path) -> None:
    frames = [20 + 13 * step % 61 for step in range(100)]
    folder = Folder(tmp_path, make_plan(limits=Limits(steps=100)), **SPEECH)
    folder.rank(0, [10 + 2 * count for count in frames], items=frames, values={"val_loss": 1.0})
    record = folder.record()
    assert record.timeline.warmup_steps == 0
    assert values(record)["p_core"] == pytest.approx(sum(frames) / sum(10 + 2 * count for count in frames) * 1000)
    assert values(record)["step_spread"] == pytest.approx(0, abs=1e-6)
    assert "drifting" not in doubts(record)


def test_a_run_that_became_slower_in_its_first_half_is_doubted_and_covers_both_parts(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits(steps=60)))
    folder.rank(0, [900, *(113 + step % 3 for step in range(1, 24)), *(555 + step % 7 for step in range(24, 60))])
    record = folder.record()
    assert record.timeline.warmup_steps == 1
    assert doubts(record)["drifting"] == (
        "the run became slower at step 24: from 70.2 to 14.3 images/s, so that a step takes 4.89 times as long; "
        "p_core is the mean over all of it"
    )
    assert values(record)["p_core"] == pytest.approx(59 * 8 / (23 * 0.114 + 36 * 0.558), rel=0.01)


def test_a_run_that_became_slower_little_by_little_says_its_rates_at_both_ends(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits(steps=100)))
    folder.rank(0, [1000 + 2 * step + step % 7 for step in range(100)])
    assert doubts(folder.record())["drifting"].startswith(
        "the run became slower little by little: from 7.96 to 6.64 images/s, so that a step takes 20 % longer"
    )


def test_a_slow_first_step_is_found_though_it_held_little(tmp_path: Path) -> None:
    frames = [10] + [20 + 13 * step % 61 for step in range(99)]
    folder = Folder(tmp_path, make_plan(limits=Limits(steps=100)), **SPEECH)
    folder.rank(0, [130, *(10 + 2 * count for count in frames[1:])], items=frames, values={"val_loss": 1.0})
    assert folder.record().timeline.warmup_steps == 1


def test_the_slow_rank_is_the_one_that_computed_longer_though_all_steps_are_equally_long(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x3", limits=Limits()))
    folder.rank(0, [20] * 50, exchange_ms=[10] * 50)
    folder.rank(1, [20] * 50, exchange_ms=[2] * 50)
    folder.rank(2, [20] * 50, exchange_ms=[8] * 50)
    record = folder.record()
    assert values(record)["rank_skew"] == pytest.approx(80)
    assert values(record)["exchange"] == pytest.approx(50)  # of rank 0, the first of three equally slow ones
    text = "rank 1 on here took 1.80 times as long for its own computing as rank 0, the fastest"
    assert text in doubts(record)["rank-skew"]


def test_ranks_that_compute_equally_long_are_not_doubted_for_the_exchange(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits(steps=50)))
    folder.rank(0, [90] * 5 + [14] * 45, exchange_ms=[70] * 5 + [4] * 45)
    folder.rank(1, [90] * 5 + [13] * 45, exchange_ms=[30] * 5 + [3] * 45)
    record = folder.record()
    assert values(record)["rank_skew"] == pytest.approx(0)
    assert values(record)["exchange"] == pytest.approx(100 * 4 / 14)  # of the counted steps only
    assert "rank-skew" not in doubts(record)


def test_one_rank_exchanges_nothing_and_the_record_says_why_there_is_no_number(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan())
    folder.rank(0, [10] * 50)
    record = folder.record()
    for alias in ("exchange", "rank_skew"):
        assert record.metrics[alias].value is None
        assert record.metrics[alias].unavailable == "the run has one rank"
    assert "exchange_ns" not in record.to_json()["series"]["ranks"][0]


def test_the_loss_is_that_of_the_global_batch_over_the_steps_all_ranks_finished(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits()))
    folder.rank(0, [10] * 4, loss=[1.0, 2.0, None, 4.0], ended=None)
    folder.rank(1, [10] * 3, loss=[0.5, 2.5, 3.0], ended=None)
    assert folder.record().loss == [0.75, 2.25, None]


@pytest.mark.parametrize(("slow_items", "doubted"), [(8, True), (12, False)])
def test_a_rank_is_not_called_slow_for_having_more_to_do(tmp_path: Path, slow_items: int, doubted: bool) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits()))
    folder.rank(0, [10] * 50)
    folder.rank(1, [15] * 50, items=slow_items)
    assert ("rank-skew" in doubts(folder.record())) is doubted


def test_what_rank_0_tells_beside_its_steps_is_on_the_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2"))
    artifact = {"file": "samples/one.wav", "caption": "one sentence"}
    peak = {"per_item": 24.3e9, "peak_tflops": 19.5, "peak_source": "a sheet of the card"}
    measured = [{"bytes": 8, "repeats": 3, "median_s": 1e-4, "best_s": 1e-4, "bus_gigabytes_per_s": 0.1}]
    level = {"level": "node", "collective": "all-reduce", "ranks": 2, "latency_s": 1e-5, "bytes_per_s": 1e9}
    level |= {"groups": 1, "times": [(8, 1e-4)]}
    told = [
        events.ArtifactsLeft(artifacts=[artifact]),
        events.FlopsCounted(**peak),
        events.LinksMeasured(results=measured, levels=[level]),
    ]
    folder.rank(0, [10] * 50, also=told, facts={"padding": 0.125, "unknown": float("inf")})
    folder.rank(1, [10] * 50)
    record = folder.record()
    assert record.artifacts == (Artifact(**artifact),)
    assert record.data_facts == {"padding": 0.125}
    assert "no-sample" not in doubts(record)
    assert record.environment.flops == FlopsFacts(**peak)
    assert record.metrics["mfu"].value == pytest.approx(100 * 800 * 24.3e9 / 19.5e12)
    assert msgspec.to_builtins(record.environment.link) == measured
    assert msgspec.to_builtins(record.environment.link_levels) == [level]


def test_samples_that_failed_are_a_doubt_and_the_result_stays_valid(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan())
    folder.rank(0, [10] * 50, also=[events.NoSample(reason="OSError: no room")])
    record = folder.record()
    assert (record.status, record.artifacts) == ("valid", ())
    assert doubts(record)["no-sample"] == "the trained model left no sample of its work: OSError: no room"


def test_the_files_of_events_are_named_on_the_record_with_their_hashes(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2"), revision="3f2a91c0d4e5")
    folder.rank(0, [10] * 50)
    folder.rank(1, [10] * 50)
    record = folder.record()
    files = record.event_files
    assert list(files) == ["rank0.jsonl", "rank1.jsonl"]
    assert files["rank1.jsonl"] == hashlib.sha256((tmp_path / "rank1.jsonl").read_bytes()).hexdigest()
    assert record.revision == "3f2a91c0d4e5"


def test_given_weights_are_a_doubt_about_the_time_to_target(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(init_from="/there/w.pt", init_sha256="ab"))
    folder.rank(0, [10] * 50)
    assert "began with the weights of w.pt" in doubts(folder.record())["init-from"]


def test_a_folder_that_is_no_run_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="is not a run folder"):
        gather.gather_record(tmp_path)


def test_the_launcher_s_word_about_a_fault_goes_before_what_single_ranks_said(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits()))
    folder.rank(0, [10] * 5, ended=None, exit_code=1, sentence="the connection was closed", consequence=True)
    folder.rank(1, [10] * 5, ended=None, exit_code=4, sentence="out of memory", consequence=False)
    assert folder.record().ended == "out of memory"
    EventWriter(tmp_path / "launcher.jsonl").write(events.FaultFound(exit_code=5, sentence="rank 1 had no finite loss"))
    record = folder.record()
    assert (record.status, record.ended) == ("invalid", "rank 1 had no finite loss")


def test_what_checkpoints_took_is_on_the_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits()))
    saves = [
        events.Saved(step=step, phases_ns={"checkpoint": done_ms * MS}, size_bytes=2 * 10**9)
        for step, done_ms in ((10, 4000), (20, 6000), (30, 8000))
    ]
    folder.rank(0, [10] * 50, also=[events.Resumed(step=0, took_ns=700 * MS), *saves])
    found = folder.record().environment.checkpoint
    assert found is not None
    assert (found.size_bytes, found.saves, found.save_s, found.restore_s) == (2 * 10**9, 3, 2.0, 0.7)
    assert found.gigabytes_per_s == 1.0


@pytest.mark.parametrize(
    ("device_ms", "status", "doubted"),
    [
        (5000, "valid", False),
        (4700, "valid", True),
        (5300, "valid", True),
        (2500, "invalid", True),
        (9900, "invalid", True),
    ],
)
def test_a_device_whose_events_count_unlike_the_host_is_doubted_and_far_off_not_valid(
    tmp_path: Path, device_ms: int, status: str, doubted: bool
) -> None:
    run = Folder(tmp_path, make_plan(topology="1x2"))
    honest = [events.StretchTimed(host_ns=2500 * MS, device_ns=2499 * MS)] * 2
    lying = [events.StretchTimed(host_ns=2500 * MS, device_ns=device_ms * MS // 2)] * 2
    run.rank(0, [10] * 20, also=honest)
    run.rank(1, [10] * 20, also=lying)
    record = gather.gather_record(tmp_path)
    assert record.status == status
    text = {doubt.code: doubt.text for doubt in record.doubts}.get("device-clock", "")
    assert bool(text) is doubted
    if doubted:
        assert f"rank 1's device count {device_ms / 1000:.2f} s of training where the host's clock shows 5.00 s" in text
    assert (record.metrics["p_core"].value is None) is (status == "invalid")


def test_stretches_too_short_to_tell_are_not_judged(tmp_path: Path) -> None:
    run = Folder(tmp_path, make_plan())
    run.rank(0, [10] * 20, also=[events.StretchTimed(host_ns=60 * MS, device_ns=20 * MS)] * 10)
    record = gather.gather_record(tmp_path)
    assert record.status == "valid"
    assert "device-clock" not in {doubt.code for doubt in record.doubts}
