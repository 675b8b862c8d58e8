"""Our runs as MLPerf logs and packages: what mlcommons' own checkers accept, and nothing a run cannot claim."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Cli
from support.clean_records import Run, pictures

from trainmark.features.mlperf import command as package, report_format as write
from trainmark.features.mlperf.audit_source import audit_results
from trainmark.features.mlperf.log import find_result_folders
from trainmark.record import endings, gather
from trainmark.record.audit import collect_findings
from trainmark.record.errors import UsageError
from trainmark.record.machine import PrecisionProof
from trainmark.record.recipe import Limits, Recipe, deviations, from_values, to_values
from trainmark.record.record import Record
from trainmark.record.store import Store
from trainmark.workloads.llama8b.workload import WORKLOAD as LLAMA
from trainmark.workloads.resnet50.workload import RECIPES

MLPERF = RECIPES["mlperf"]
REFERENCE = RECIPES["reference"]


PER_EPOCH = 2
WHOLE = {"train_samples": 1_281_167.0, "val_samples": 50_000.0}


@dataclass(frozen=True, kw_only=True)
class ImageRun(Run):
    """A run of the whole network on the whole set, with few steps an epoch."""

    @property
    def its_reference(self) -> Recipe:
        return REFERENCE


def whole_run(recipe: Recipe, *, epochs: tuple[int, ...], best: int = 38_010, **changes: Any) -> ImageRun:
    """Evaluated after these epochs, with so many of 50,000 right at the end."""
    last = PER_EPOCH * epochs[-1]
    values: dict[str, Any] = {
        "recipe_name": "mlperf",
        "recipe": {name: value for name, value in to_values(recipe).items() if getattr(REFERENCE, name) != value},
        "limits": Limits(),
        "topology": "1x8",
        "ranks": 8,
        "platform": "nvidia",
        "device": "NVIDIA H100",
        "synthetic": False,
        "steps": last,
        "steps_per_epoch": PER_EPOCH,
        "evaluate_at": tuple(PER_EPOCH * epoch for epoch in epochs),
        "scores": lambda step: pictures(best if step == last else 20_000 + 100 * step, 50_000),
        "samples": 50_000,
        "ended": endings.TARGET,
        "facts": WHOLE,
    }
    return ImageRun(**{**values, **changes})


CLOSED = whole_run(MLPERF, epochs=tuple(range(1, 38, 4)))
OPEN = whole_run(REFERENCE, epochs=tuple(range(1, 61)), best=37_800, recipe_name="reference")


def write_runs(store: Path, run: ImageRun, seeds: tuple[int, ...] = (11, 12, 13, 14, 15)) -> list[Record]:
    """One run for each seed, an hour apart, in a store with their events."""
    found = []
    for number, seed in enumerate(seeds):
        made = replace(run, recipe={**run.recipe, "seed": seed}).leave(store / "making")
        folder = store / "making" / "runs" / made.run_id
        head = json.loads((folder / "run.json").read_text())
        head |= {"run_id": f"{made.run_id}{number}", "created": f"2026-11-15T{10 + number}:51:00Z"}
        (folder / "run.json").write_text(json.dumps(head))
        (store / "runs").mkdir(exist_ok=True)
        shutil.move(folder, store / "runs" / head["run_id"])
        record = gather.gather_record(store / "runs" / head["run_id"])
        Store(store).add(record)
        found.append(record)
    return found


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("closed")
    write_runs(store, CLOSED)
    return store


def open_runs(store: Path) -> list[write.MlperfRun]:
    known = Store(store)
    return [write.open_run(known.record(row.run_id), known.runs / row.run_id) for row in known.contents().rows]


def write_package(store: Path, out: Path, division: str) -> Path:
    """The folder of the logs it writes below `out`."""
    return package.write_package(open_runs(store), out, org="Lumen", status="research", division=division)


Checker = Callable[[Path], str]


@pytest.fixture
def mlcommons(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Checker:
    """Compliance, convergence, seeds, systems and package as mlcommons check them, with warnings as errors."""
    checker = pytest.importorskip("mlperf_logging.package_checker.package_checker")

    def check(folder: Path) -> str:
        caplog.set_level(logging.INFO)
        checker.check_training_package(str(folder), "training", "4.0.0", False, True, False, False, False, "none")
        return caplog.text

    return check


def read_entries(result: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in result.read_text().splitlines()]


def values(entries: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {entry["key"]: entry["value"] for entry in entries}


def test_a_closed_package_passes_all_of_mlcommons_checkers(closed: Path, tmp_path: Path, mlcommons: Checker) -> None:
    write_package(closed, tmp_path / "out", division="closed")
    said = mlcommons(tmp_path / "out")
    assert "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS" in said
    assert "RCP Test Passed" in said and "System description checker passed" in said


def test_an_open_package_passes_too_and_says_why_it_is_open(tmp_path: Path, mlcommons: Checker) -> None:
    write_runs(tmp_path, OPEN)
    runs = open_runs(tmp_path)
    assert write.choose_division(runs, None) == "open"
    assert any("schedule is steps" in reason for reason in runs[0].why_open)
    found = write_package(tmp_path, tmp_path / "out", "open")
    assert "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS" in mlcommons(tmp_path / "out")
    entries = values(read_entries(found / "result_0.txt"))
    assert entries["sgd_opt_base_learning_rate"] == 0.1
    assert "sgd_opt_learning_rate_decay_poly_power" not in entries, "it decays by steps"


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> list[write.MlperfRun]:
    """One run of Llama 3.1 8B to 3.29 after 184,320 windows, told ten times with ten seeds."""
    goal = LLAMA.facts.quality.name
    steps = 15 * 384
    run = Run(
        workload="llama8b",
        recipe_name="reference",
        limits=Limits(),
        synthetic=False,
        steps=steps,
        steps_per_epoch=10**6,
        evaluate_at=tuple(range(384, steps + 1, 384)),
        scores=lambda step: {goal: 3.29 if step == steps else 5.0 - step / 10_000},
        samples=1024,
        precision="bf16",
        ended=endings.TARGET,
        facts={"train_samples": 10_000_000.0},
    )
    recipe = replace(LLAMA.recipes["reference"], accumulate=32)
    store = tmp_path_factory.mktemp("llama")
    record = run.leave(store)
    found = []
    for seed in range(10):
        plan = replace(record.plan, recipe={**to_values(recipe), "seed": seed})
        told = replace(record, run_id=f"run-{seed}", created=f"2026-11-1{seed}T10:00:00Z", plan=plan)
        found.append(write.open_run(told, store / "runs" / record.run_id))
    return found


@pytest.mark.slow
def test_a_language_model_passes_the_newest_rules_too(
    language_model: list[write.MlperfRun], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checker = pytest.importorskip("mlperf_logging.package_checker.package_checker")
    found = package.write_package(language_model, tmp_path / "out", org="Lumen", status="research", division="closed")
    caplog.set_level(logging.INFO)
    checker.check_training_package(str(tmp_path / "out"), "training", "6.1.0", False, True, False, False, False, "none")
    assert "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS" in caplog.text, caplog.text[-3000:]
    said = values(read_entries(found / "result_0.txt"))
    assert (said["opt_learning_rate_decay_steps"], said["lowest_numerical_precision_in_linear"]) == (
        1_199_872,
        "bfloat16",
    )
    judged = [audit for _, results in audit_results(find_result_folders(found)) for audit in results]
    assert [one for one in collect_findings(judged) if one.verdict == "failed"] == []


def test_fp8_is_said_of_linear_layers_alone(language_model: list[write.MlperfRun]) -> None:
    run = language_model[0]
    proof = PrecisionProof(asked="fp8", ran="fp8")
    record = replace(run.record, environment=msgspec.structs.replace(run.record.environment, precision=proof))
    said = replace(run, record=record).values
    assert (said["linear_in"], said["computed_in"], said["exchanged_in"]) == ("fp8", "bfloat16", "bfloat16")


def test_our_own_audit_finds_nothing_wrong_with_it(closed: Path, tmp_path: Path) -> None:
    found = write_package(closed, tmp_path / "out", "closed")
    judged = [audit for _, results in audit_results(find_result_folders(found)) for audit in results]
    assert collect_findings(judged) == []


def test_a_log_tells_the_run_as_it_was(closed: Path) -> None:
    run = open_runs(closed)[0]
    entries = [
        json.loads(line.removeprefix(":::MLLOG ")) for line in write.format_log(run, division="closed").splitlines()
    ]
    said, evaluations = values(entries), [entry for entry in entries if entry["key"] == "eval_accuracy"]
    assert (said["global_batch_size"], said["opt_name"], said["model_bn_span"]) == (3264, "lars", 408)
    assert said["lars_opt_learning_rate_decay_steps"] == 37 * PER_EPOCH
    assert said["cache_clear"] is False, "nobody cleared anything"
    assert [entry["metadata"]["epoch_num"] for entry in evaluations] == list(range(1, 38, 4))
    assert evaluations[-1]["value"] == pytest.approx(0.7602)
    times = {key: [entry["time_ms"] for entry in entries if entry["key"] == key] for key in said}
    assert times["run_start"][0] - times["init_start"][0] == 2300, "what a worker takes to its first line"
    last = run.log.evaluations[-1]
    assert times["run_stop"][0] - times["init_start"][0] == pytest.approx(last.elapsed_ns / 1e6, abs=1)
    assert entries[-1]["metadata"]["status"] == "success"
    assert said["trainmark"]["run"] == run.record.run_id
    assert said["submission_org"] == write.NO_ORGANISATION


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"synthetic": True}, "synthetic data"),
        ({"plan": {"init_from": "/w.pt", "init_sha256": "0" * 64}}, "weights from a file"),
        ({"restart_after": 20}, "its clock was interrupted"),
        ({"workload": "vit"}, "no benchmark"),
        ({"evaluate_at": ()}, "never evaluated"),
        ({"ended": None}, "it is incomplete"),
        ({"bad_loss_at": 3}, "it is invalid"),
    ],
)
def test_what_a_run_cannot_claim_is_not_written(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    known = {entry.name for entry in fields(Run)}
    run = replace(CLOSED, **{name: value for name, value in change.items() if name in known})
    record = run.leave(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        write.open_run(record, tmp_path / "runs" / record.run_id)


def test_a_record_without_its_events_is_no_log(closed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its events are not in"):
        write.open_run(open_runs(closed)[0].record, tmp_path)


def test_runs_that_are_no_result_are_refused(closed: Path, tmp_path: Path) -> None:
    runs = open_runs(closed)
    with pytest.raises(UsageError, match="they are not independent"):
        package.check_runs([*runs[:4], runs[0]])
    slower = replace(runs[0], record=replace(runs[0].record, plan=replace(runs[0].record.plan, topology="2x8")))
    with pytest.raises(UsageError, match="differ in more than their seed"):
        package.check_runs([*runs[1:], slower])


def set_recipe(run: write.MlperfRun, reference: Recipe, **values: Any) -> write.MlperfRun:
    """The run with other values in its recipe, as planning would have put them on the record."""
    plan = run.record.plan
    recipe = {**plan.recipe, **values}
    deviating = deviations(from_values(type(reference), recipe), reference)
    return replace(run, record=replace(run.record, plan=replace(plan, recipe=recipe, deviations=deviating)))


def test_a_recipe_that_was_changed_is_not_closed(closed: Path) -> None:
    run = open_runs(closed)[0]
    changed = set_recipe(run, REFERENCE, mixup_alpha=0.2)
    assert changed.why_open == ("mixup_alpha is 0.2, the closed division requires 0",)
    with pytest.raises(UsageError, match="not of the closed division"):
        write.choose_division([run, changed], "closed")
    assert write.choose_division([run, changed], None) == "open"
    assert write.choose_division([run], None) == "closed"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_scaling", "none"), ("activation", "gelu"), ("norm_weights", False), ("norm_eps", 1e-6),
        ("init", "torch"), ("init_std", 0.01), ("scale_attention", True), ("vocabulary", 128_000),
        ("data_order", "in-order"), ("last_rate", 0.0), ("evaluate_every", "768 steps"), ("average_decay", 0.999),
        ("adam_beta2", 0.99),
    ],
)  # fmt: skip
def test_a_network_or_a_training_that_the_rules_fix_is_open_once_changed(
    language_model: list[write.MlperfRun], field: str, value: Any
) -> None:
    run = set_recipe(language_model[0], LLAMA.recipes["reference"], **{field: value})
    assert write.choose_division([run], None) == "open" and len(run.why_open) == 1


def test_what_everybody_may_choose_stays_closed(language_model: list[write.MlperfRun]) -> None:
    chosen = {"learning_rate": 0.0004, "batch_per_device": 2, "accumulate": 8, "evaluate_every": "768 steps"}
    chosen |= {"tensor_parallel": 2, "recompute": "full", "warmup_steps": 256, "compiled": "blocks"}
    run = set_recipe(language_model[0], LLAMA.recipes["reference"], **chosen)
    assert run.why_open == ()
    entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in format_lines(run)]
    said = values(entries)
    assert (said["tensor_parallelism"], said["micro_batch_size"]) == (2, 4), "two devices compute two batches of 2"


def format_lines(run: write.MlperfRun) -> list[str]:
    return write.format_log(run, division="closed").splitlines()


def test_the_command_writes_a_package_and_the_report_one_log(cli: Cli, closed: Path, tmp_path: Path) -> None:
    ids = [run.record.run_id for run in open_runs(closed)]
    out, store = tmp_path / "out", str(closed)
    ended = cli("package", "mlperf", *ids, "--org", "Lumen", "--system", "lumen", "--out", str(out), "--store", store)
    assert ended.returncode == 0, ended.stderr
    assert "5 runs, closed division" in ended.stdout
    assert sorted(path.name for path in (out / "results" / "lumen" / "resnet").iterdir()) == [
        f"result_{number}.txt" for number in range(5)
    ]
    described = json.loads((out / "systems" / "lumen.json").read_text())
    assert (described["accelerator_model_name"], described["cooling"]) == ("NVIDIA H100", "")
    whole = "".join(path.read_text() for path in out.rglob("*") if path.is_file())
    assert "node-a" not in whole and "/data/set" not in whole, "a package goes out into the world"
    again = cli("package", "mlperf", *ids, "--org", "Lumen", "--out", str(out), "--store", store)
    assert again.returncode == 2 and "out exists" in again.stderr
    said = cli("report", ids[0], "--format", "mllog", "--store", store)
    assert said.returncode == 0 and said.stdout.startswith(":::MLLOG ")
    assert cli("report", ids[0], ids[1], "--format", "mllog", "--store", store).returncode == 2


def test_a_run_that_did_not_end_well_gives_no_log_but_a_sentence(cli: Cli, tmp_path: Path) -> None:
    [record] = write_runs(tmp_path, replace(CLOSED, ended=None), seeds=(11,))
    out, store = tmp_path / "out", ("--store", str(tmp_path))
    for words in (("report", record.run_id, "--format", "mllog"), ("package", "mlperf", record.run_id, "--org", "L")):
        ended = cli(*words, *(("--out", str(out)) if words[0] == "package" else ()), *store)
        assert (ended.returncode, ended.stdout, out.exists()) == (2, "", False)
        assert f"run {record.run_id} cannot be an MLPerf result: it is incomplete" in ended.stderr
