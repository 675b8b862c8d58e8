"""What cannot be right in MLPerf logs is found: all that the rules' own checker finds, and what it does not."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlperf_logs
import pytest
from mlperf_logs import Entries, at, entries, write_log, write_result

from trainmark.published.mlperf.audit_result import DESCRIBED, audits
from trainmark.published.mlperf.folder import result_folders
from trainmark.spec.audit import SEVERITIES, Audit, findings, is_wrong


def audited(path: Path) -> list[Audit]:
    return [audit for folder in result_folders(path) for audit in audits(folder)]


def found(path: Path) -> set[tuple[str, str]]:
    return {(one.name, SEVERITIES[one.verdict]) for one in findings(audited(path))}


def test_an_honest_result_has_nothing_wrong(tmp_path: Path) -> None:
    write_result(tmp_path)
    assert found(tmp_path) == {("result-convergence", "note")}


def drop(key: str) -> Callable[[Entries], Entries]:
    return lambda log: [entry for entry in log if entry["key"] != key]


def put(key: str, value: Any) -> Callable[[Entries], Entries]:
    def change(log: Entries) -> Entries:
        at(log, key)["value"] = value
        return log

    return change


def stamp(key: str, like: str, by: int = 0, which: int = 0) -> Callable[[Entries], Entries]:
    def change(log: Entries) -> Entries:
        at(log, key, which)["time_ms"] = at(log, like, which)["time_ms"] + by
        return log

    return change


def tell(key: str, name: str, value: Any, which: int = 0) -> Callable[[Entries], Entries]:
    def change(log: Entries) -> Entries:
        at(log, key, which)["metadata"][name] = value
        return log

    return change


def twice(key: str, value: Any) -> Callable[[Entries], Entries]:
    return lambda log: [*log, {**at(log, key), "value": value}]


def without(log: Entries, name: str) -> Entries:
    for entry in log:
        entry["metadata"].pop(name, None)
    return log


def moved(log: Entries) -> Entries:
    """An evaluation's line is put before the epochs it came after."""
    index = log.index(at(log, "eval_accuracy", 3))
    log.insert(index - 8, log.pop(index))
    return log


def shortened(log: Entries) -> Entries:
    at(log, "epoch_stop", 10)["time_ms"] = at(log, "epoch_start", 10)["time_ms"] + 900
    return log


def evaluated_rarely(log: Entries) -> Entries:
    for entry in log:
        if entry["key"] == "eval_accuracy" and entry["metadata"]["epoch_num"] in (7, 11):
            entry["key"] = "not_evaluated"
    return log


def lost(log: Entries) -> Entries:
    at(log, "eval_accuracy", -2)["value"] = 0.7611
    at(log, "eval_accuracy", -1)["value"] = 0.7402
    return log


CHECKED_BY_MLCOMMONS = {
    "nobody's": (put("submission_org", ""), ("mllog-values", "wrong")),
    "a key left out": (drop("train_samples"), ("mllog-keys", "wrong")),
    "another optimizer": (put("opt_name", "adam"), ("mllog-values", "wrong")),
    "a rate between steps": (put("sgd_opt_base_learning_rate", 0.01234), ("mllog-values", "wrong")),
    "a decay that is no power of two": (put("sgd_opt_weight_decay", 0.00015), ("mllog-values", "wrong")),
    "an end that is another": (put("sgd_opt_end_learning_rate", 0.0), ("mllog-values", "wrong")),
    "two batches": (twice("global_batch_size", 64), ("mllog-keys", "wrong")),
    "no clearing of caches": (drop("cache_clear"), ("mllog-keys", "wrong")),
    "no end": (drop("run_stop"), ("mllog-keys", "wrong")),
    "no status": (lambda log: without(log, "status"), ("mllog-values", "wrong")),
    "no epochs on evaluations": (lambda log: without(log, "epoch_num"), ("mllog-values", "wrong")),
    "a division nobody has": (put("submission_division", "half"), ("mllog-values", "wrong")),
    "a long initialisation": (stamp("init_start", "init_stop", -31 * 60_000), ("mllog-order", "wrong")),
    "never good enough": (lambda log: entries(last=0.7589), ("mllog-target", "wrong")),
    "an accuracy above all": (lambda log: entries(last=1.2), ("mllog-target", "wrong")),
}


def _reached_early(log: Entries) -> Entries:
    at(log, "eval_accuracy", -2)["value"] = 0.7611
    return log


NOT_CHECKED_THERE = {
    "stop before start": (stamp("run_stop", "run_start", -5000), ("mllog-order", "wrong")),
    "no time at all": (stamp("run_stop", "run_start"), ("mllog-order", "wrong")),
    "an epoch without length": (stamp("epoch_stop", "epoch_start", which=3), ("mllog-stamps", "wrong")),
    "an evaluation without length": (stamp("eval_stop", "eval_start", which=3), ("mllog-stamps", "doubtful")),
    "lines out of order": (moved, ("mllog-stamps", "wrong")),
    "epochs after the end": (stamp("run_stop", "epoch_stop", which=0), ("mllog-inside", "wrong")),
    "an epoch left out": (tell("epoch_start", "epoch_num", 99, which=5), ("mllog-epochs", "doubtful")),
    "an epoch in a second": (shortened, ("mllog-epochs", "doubtful")),
    "rare evaluations": (evaluated_rarely, ("mllog-evaluations", "doubtful")),
    "reached and lost": (lost, ("mllog-target", "doubtful")),
    "reached and trained on": (_reached_early, ("mllog-target", "note")),
    "no seed": (drop("seed"), ("mllog-seed", "wrong")),
    "a seed in words": (put("seed", "random"), ("mllog-seed", "wrong")),
    "other data": (put("train_samples", 640_000), ("mllog-data", "doubtful")),
    "a rate that is none": (lambda log: _stated(log, 2.0), ("mllog-rate", "doubtful")),
    "an aborted run": (tell("run_stop", "status", "aborted"), ("mllog-target", "note")),
    "too soon": (lambda log: entries(epochs=28), ("result-convergence", "doubtful")),
}


def _stated(log: Entries, factor: float) -> Entries:
    for entry in log:
        if entry["key"] == "tracked_stats":
            entry["value"] = {"throughput": factor * entry["value"]["throughput"]}
    return log


@pytest.mark.parametrize("case", [*CHECKED_BY_MLCOMMONS, *NOT_CHECKED_THERE])
def test_a_damage_of_a_log_is_found(tmp_path: Path, case: str) -> None:
    change, expected = {**CHECKED_BY_MLCOMMONS, **NOT_CHECKED_THERE}[case]
    path = write_log(tmp_path / "result_0.txt", change(entries()))
    assert expected in found(path)


@pytest.mark.parametrize("case", ["as it was", *CHECKED_BY_MLCOMMONS])
def test_what_fails_at_mlcommons_is_wrong_here_too(tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    checker = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    change = CHECKED_BY_MLCOMMONS[case][0] if case in CHECKED_BY_MLCOMMONS else lambda log: log
    path = write_log(tmp_path / "result_0.txt", change(entries()))
    caplog.set_level(logging.CRITICAL)
    checker.enqueued_configs.clear()
    theirs = checker.make_checker("training", "4.0.0", False, False)
    try:
        valid, *_ = checker.main(str(path), "training_4.0.0/common.yaml", theirs)
    except FileNotFoundError:  # where a word of the log is taken for the name of a rule file
        valid = False
    assert valid == (not is_wrong(audited(path)))


def test_a_run_that_is_there_twice_is_found(tmp_path: Path) -> None:
    place = write_result(tmp_path)
    shutil.copy(place / "result_0.txt", place / "result_4.txt")
    assert {("result-same-bytes", "wrong"), ("result-seeds", "wrong")} <= found(tmp_path)


def test_a_run_told_again_at_another_hour_is_found(tmp_path: Path) -> None:
    def again(run: int, log: Entries) -> Entries:
        return entries(seed=1000, start_ms=mlperf_logs.START_MS + 40 * 3_600_000) if run == 4 else log

    write_result(tmp_path, change=again)
    [one] = [one for one in findings(audited(tmp_path)) if one.name == "result-same-bytes"]
    assert one.evidence == "result_0.txt, result_4.txt"


RESULTS: dict[str, tuple[Callable[[int, Entries], Entries], tuple[str, str]]] = {
    "one seed": (lambda run, log: put("seed", 4)(log), ("result-seeds", "wrong")),
    "another batch": (lambda run, log: put("global_batch_size", 3264 + 8 * (run == 2))(log), ("result-alike", "wrong")),
    "two aborted": (
        lambda run, log: tell("run_stop", "status", "aborted")(log) if run < 2 else log,
        ("result-converged", "wrong"),
    ),
    "one aborted": (
        lambda run, log: tell("run_stop", "status", "aborted")(log) if run < 1 else log,
        ("result-converged", "note"),
    ),
    "one much faster": (
        lambda run, log: entries(seed=9, said={"train_samples": 1_500_000}) if run == 3 else log,
        ("result-spread", "doubtful"),
    ),
    "one a little faster": (
        lambda run, log: entries(seed=9, said={"train_samples": 1_400_000}) if run == 3 else log,
        ("result-spread", "note"),
    ),
    "all too soon": (
        lambda run, log: entries(seed=run, epochs=32, start_ms=mlperf_logs.START_MS + run * 3_600_000),
        ("result-convergence", "wrong"),
    ),
    "all very late": (
        lambda run, log: entries(seed=run, epochs=60, start_ms=mlperf_logs.START_MS + run * 3_600_000),
        ("result-convergence", "note"),
    ),
    "all at once": (lambda run, log: entries(seed=run), ("result-apart", "note")),
}


@pytest.mark.parametrize("case", RESULTS)
def test_what_is_wrong_with_a_set_of_runs_is_found(tmp_path: Path, case: str) -> None:
    change, expected = RESULTS[case]
    write_result(tmp_path, change=change)
    assert expected in found(tmp_path)


def test_missing_runs_and_strange_files_are_named(tmp_path: Path) -> None:
    place = write_result(tmp_path, runs=4)
    (place / "result_9.txt").write_text("not a log\n")
    (place / "notes.docx").write_text("x")
    said = [one for one in findings(audited(tmp_path)) if one.name == "result-files"]
    assert [SEVERITIES[one.verdict] for one in said] == ["wrong", "wrong", "note"]
    assert "4 runs" in said[1].evidence and "notes.docx" in said[2].evidence


def test_a_description_of_a_system_is_held_against_the_rules(tmp_path: Path) -> None:
    write_result(tmp_path)
    systems = tmp_path / "systems"
    systems.mkdir()
    about = {**dict.fromkeys(DESCRIBED, "1"), "division": "closed", "status": "Available on-premise"}
    (systems / "lumen_l9.json").write_text(json.dumps(about))
    assert ("result-system", "wrong") not in found(tmp_path)
    (systems / "lumen_l9.json").write_text(json.dumps({**about, "division": "open", "status": "soon"}))
    said = [one.sentence for one in findings(audited(tmp_path)) if one.name == "result-system"]
    assert len(said) == 2
    (systems / "lumen_l9.json").write_text("{")
    assert ("result-system", "wrong") in found(tmp_path)


def test_power_that_was_measured_badly_is_found(tmp_path: Path) -> None:
    place = write_result(tmp_path)
    start = mlperf_logs.START_MS + 60_010
    few = [
        ("power_measurement_start", None, start - 9e6),
        *(("power_reading", 700.0, start - 9e6 + s) for s in range(30)),
    ]
    written = [{"key": key, "value": value, "time_ms": time, "metadata": {}} for key, value, time in few]
    for run in range(4):
        write_log(place / "power" / f"result_{run}" / "node_0.txt", written)
    sentences = {one.sentence for one in findings(audited(tmp_path)) if one.name == "result-power"}
    assert "there is no power log of this run" in sentences
    assert "the rules ask for 60" in sentences
    assert "less than half of the run lies within what was measured" in sentences


def test_a_log_that_counts_no_epochs_has_none_left_out(tmp_path: Path) -> None:
    log = entries()
    for entry in log:
        if entry["key"] in ("epoch_start", "epoch_stop"):
            entry["metadata"]["epoch_num"] *= 20
    assert not any(name == "mllog-epochs" for name, _ in found(write_log(tmp_path / "result_0.txt", log)))


def test_a_throughput_of_one_device_is_no_other_throughput(tmp_path: Path) -> None:
    path = write_log(tmp_path / "result_0.txt", _stated(entries(), 0.5))
    assert not any(name == "mllog-rate" for name, _ in found(path))


def test_parts_of_an_epoch_are_rounded_as_the_rules_round_them(tmp_path: Path) -> None:
    """0.6999 of an epoch is the 0.7 that the reference needs."""
    log = entries(epochs=28, said={"submission_benchmark": "dlrm_dcnv2", "global_batch_size": 55_296})
    for number, entry in enumerate([entry for entry in log if entry["key"] == "eval_accuracy"], 1):
        entry["metadata"]["epoch_num"] = 0.049_99 * 2 * number
    path = write_log(tmp_path / "result_0.txt", log)
    assert not any(name == "result-convergence" for name, _ in found(path))


def test_what_is_logged_by_every_rank_is_told_once(tmp_path: Path) -> None:
    log = entries()
    again = [at(log, key) for key in ("global_batch_size", "opt_name", "train_samples") for _ in range(3)]
    path = write_log(tmp_path / "result_0.txt", [*log[:8], *again, *log[8:]])
    [one] = [one for one in findings(audited(path)) if one.name == "mllog-keys"]
    assert "global_batch_size: 4 times" in one.evidence and "opt_name: 4 times" in one.evidence


def test_the_open_division_asks_for_less(tmp_path: Path) -> None:
    said = {"submission_division": "open", "gradient_accumulation_steps": None, "opt_name": "adam"}
    path = write_log(tmp_path / "result_0.txt", entries(last=0.61, said=said))
    assert not is_wrong(audited(path))
