"""What cannot be right in MLPerf logs is found: what mlcommons' own checkers find, and what they do not look for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import mlperf_logs
from support.mlperf_logs import Entries, at, entries, write_log, write_result

from trainmark.features.mlperf import official
from trainmark.features.mlperf.audit_source import audit_results
from trainmark.features.mlperf.command import DESCRIPTION_FIELDS
from trainmark.features.mlperf.log import find_result_folders
from trainmark.record.audit import SEVERITIES, Audit, collect_findings, is_wrong


def run_audit(path: Path) -> list[Audit]:
    return [audit for _, found in audit_results(find_result_folders(path)) for audit in found]


def found(path: Path) -> set[tuple[str, str]]:
    return {(one.name, SEVERITIES[one.verdict]) for one in collect_findings(run_audit(path))}


needs_mlcommons = pytest.mark.skipif(not official.is_installed(), reason="the extra mlperf is not installed")


@needs_mlcommons
def test_an_honest_result_has_nothing_wrong(tmp_path: Path) -> None:
    write_result(tmp_path)
    assert found(tmp_path) == {("mlcommons-convergence", "note")}


def test_without_mlcommons_checkers_the_rest_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "is_installed", lambda: False)
    place = write_result(tmp_path)
    shutil.copy(place / "result_0.txt", place / "result_4.txt")
    assert ("result-same-bytes", "wrong") in found(tmp_path)
    said = [
        check.sentence for audit in run_audit(tmp_path) for check in audit.checks if check.name.startswith("mlcommons")
    ]
    assert set(said) == {official.INSTALL}


@needs_mlcommons
def test_a_log_that_keeps_mlcommons_checkers_busy_for_ever_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official, "MAX_SECONDS", 0.001)
    write_result(tmp_path)
    assert not found(tmp_path)
    [said] = {
        check.sentence for audit in run_audit(tmp_path) for check in audit.checks if check.name == "mlcommons-files"
    }
    assert said == "mlcommons' checkers gave no answer: timeout after 0.001 s"


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


def set_metadata(key: str, name: str, value: Any, which: int = 0) -> Callable[[Entries], Entries]:
    def change(log: Entries) -> Entries:
        at(log, key, which)["metadata"][name] = value
        return log

    return change


def move_lines(log: Entries) -> Entries:
    """An evaluation's line is put before the epochs it came after."""
    index = log.index(at(log, "eval_accuracy", 3))
    log.insert(index - 8, log.pop(index))
    return log


def shorten(log: Entries) -> Entries:
    at(log, "epoch_stop", 10)["time_ms"] = at(log, "epoch_start", 10)["time_ms"] + 900
    return log


def lose_target(log: Entries) -> Entries:
    at(log, "eval_accuracy", -2)["value"] = 0.7611
    at(log, "eval_accuracy", -1)["value"] = 0.7402
    return log


NOT_CHECKED_THERE = {
    "stop before start": (stamp("run_stop", "run_start", -5000), ("mllog-order", "wrong")),
    "no time at all": (stamp("run_stop", "run_start"), ("mllog-order", "wrong")),
    "an epoch without length": (stamp("epoch_stop", "epoch_start", which=3), ("mllog-order", "wrong")),
    "an evaluation without length": (stamp("eval_stop", "eval_start", which=3), ("mllog-order", "doubtful")),
    "lines out of order": (move_lines, ("mllog-order", "wrong")),
    "epochs after the end": (stamp("run_stop", "epoch_stop", which=0), ("mllog-inside", "wrong")),
    "an epoch left out": (set_metadata("epoch_start", "epoch_num", 99, which=5), ("mllog-epochs", "doubtful")),
    "an epoch in a second": (shorten, ("mllog-epochs", "doubtful")),
    "reached and lost": (lose_target, ("mllog-target", "doubtful")),
    "an aborted run": (set_metadata("run_stop", "status", "aborted"), ("mllog-target", "note")),
}


@pytest.mark.parametrize("case", NOT_CHECKED_THERE)
def test_a_damage_of_a_log_is_found(tmp_path: Path, case: str) -> None:
    change, expected = NOT_CHECKED_THERE[case]
    assert expected in found(write_log(tmp_path / "result_0.txt", change(entries())))


@needs_mlcommons
def test_a_log_that_does_not_comply_is_wrong_by_mlcommons_word(tmp_path: Path) -> None:
    path = write_log(tmp_path / "result_0.txt", drop("train_samples")(entries()))
    assert ("mlcommons-compliance", "wrong") in found(path)


@needs_mlcommons
def test_a_word_of_a_log_leads_mlcommons_checkers_to_no_file_but_their_own(tmp_path: Path) -> None:
    """They execute the code in a file of rules, which they find by what a log calls its division."""
    from mlperf_logging import compliance_checker

    mark, rules = tmp_path / "executed", tmp_path / "evil_common.yaml"
    rules.write_text(f"- BEGIN:\n    CODE: \" open('{mark}', 'w') \"\n")
    home = Path(compliance_checker.__file__).parent / "training_4.0.0"
    word = os.path.relpath(tmp_path / "evil", home)
    assert (home / f"{word}_common.yaml").is_file()
    path = write_log(tmp_path / "result_0.txt", put("submission_division", word)(entries()))
    assert ("mlcommons-compliance", "wrong") in found(path)
    assert not mark.exists()


@needs_mlcommons
def test_one_run_that_does_not_comply_is_left_out_of_the_score(tmp_path: Path) -> None:
    write_result(tmp_path, change=lambda run, log: drop("train_samples")(log) if run == 3 else log)
    [one] = [one for one in collect_findings(run_audit(tmp_path)) if one.name == "mlcommons-compliance"]
    assert (one.subject, one.verdict) == ("result_3.txt", "note")
    assert "train_samples" in one.evidence


def test_a_run_told_again_at_another_hour_is_found(tmp_path: Path) -> None:
    def again(run: int, log: Entries) -> Entries:
        return entries(seed=1000, start_ms=mlperf_logs.START_MS + 40 * 3_600_000) if run == 4 else log

    write_result(tmp_path, change=again)
    [one] = [one for one in collect_findings(run_audit(tmp_path)) if one.name == "result-same-bytes"]
    assert one.evidence == "result_0.txt, result_4.txt"


RESULTS: dict[str, tuple[Callable[[int, Entries], Entries], tuple[str, str]]] = {
    "another batch": (lambda run, log: put("global_batch_size", 3264 + 8 * (run == 2))(log), ("result-alike", "wrong")),
    "one much faster": (
        lambda run, log: entries(seed=9, said={"train_samples": 1_500_000}) if run == 3 else log,
        ("result-spread", "doubtful"),
    ),
    "one a little faster": (
        lambda run, log: entries(seed=9, said={"train_samples": 1_400_000}) if run == 3 else log,
        ("result-spread", "note"),
    ),
}


@pytest.mark.parametrize("case", RESULTS)
def test_what_is_wrong_with_a_set_of_runs_is_found(tmp_path: Path, case: str) -> None:
    change, expected = RESULTS[case]
    write_result(tmp_path, change=change)
    assert expected in found(tmp_path)


@needs_mlcommons
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda run, log: put("seed", 4)(log), ("mlcommons-files", "doubtful")),
        (lambda run, log: drop("seed")(log), ("mlcommons-files", "note")),
        (
            lambda run, log: entries(seed=run, epochs=32, start_ms=mlperf_logs.START_MS + run * 3_600_000),
            ("mlcommons-convergence", "doubtful"),
        ),
        (lambda run, log: put("global_batch_size", 100_000)(log), ("mlcommons-convergence", "note")),
    ],
    ids=["one seed", "no seed", "all too soon", "a batch nobody has tried"],
)
def test_mlcommons_word_on_a_set_of_runs_is_passed_on(
    tmp_path: Path, change: Callable[[int, Entries], Entries], expected: tuple[str, str]
) -> None:
    write_result(tmp_path, change=change)
    assert expected in found(tmp_path)


def test_missing_runs_and_strange_files_are_named(tmp_path: Path) -> None:
    place = write_result(tmp_path, runs=4)
    (place / "result_9.txt").write_text("not a log\n")
    said = [one for one in collect_findings(run_audit(tmp_path)) if one.name == "result-files"]
    assert [SEVERITIES[one.verdict] for one in said] == ["wrong", "wrong"]
    assert "4 runs" in said[1].evidence


@needs_mlcommons
def test_a_description_of_a_system_is_held_against_the_rules(tmp_path: Path) -> None:
    write_result(tmp_path)
    systems = tmp_path / "systems"
    systems.mkdir()
    about = {**dict.fromkeys(DESCRIPTION_FIELDS, "1"), "division": "closed", "status": "Available on-premise"}
    (systems / "lumen_l9.json").write_text(json.dumps(about))
    assert not any(name == "mlcommons-files" for name, _ in found(tmp_path))
    (systems / "lumen_l9.json").write_text(json.dumps({"division": "closed"}))
    assert ("mlcommons-files", "doubtful") in found(tmp_path)


def test_a_log_that_counts_no_epochs_has_none_left_out(tmp_path: Path) -> None:
    log = entries()
    for entry in log:
        if entry["key"] in ("epoch_start", "epoch_stop"):
            entry["metadata"]["epoch_num"] *= 20
    assert not any(name == "mllog-epochs" for name, _ in found(write_log(tmp_path / "result_0.txt", log)))


def test_what_is_evaluated_after_the_run_is_not_called_wrong(tmp_path: Path) -> None:
    log = entries(said={"submission_benchmark": "stable_diffusion", "eval_samples": 30_000})
    at(log, "run_stop")["time_ms"] = at(log, "epoch_stop", 30)["time_ms"]
    assert not any(name.startswith("mllog") for name, _ in found(write_log(tmp_path / "result_0.txt", log)))


def test_a_block_that_had_begun_when_the_clock_stopped_is_no_training_after_it(tmp_path: Path) -> None:
    log = entries()
    begun = {**at(log, "block_start", -1), "time_ms": log[-1]["time_ms"] + 40}
    assert not is_wrong(run_audit(write_log(tmp_path / "result_0.txt", [*log, begun])))


def test_the_open_division_asks_for_less(tmp_path: Path) -> None:
    said = {"submission_division": "open", "gradient_accumulation_steps": None, "opt_name": "adam"}
    path = write_log(tmp_path / "result_0.txt", entries(last=0.61, said=said))
    assert not is_wrong(run_audit(path))
