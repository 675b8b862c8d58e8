"""MLPerf result logs and folders are read as their runs wrote them, damaged ones too, and become published rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import mlperf_logs
from support.mlperf_logs import at, entries, write_log, write_result

from trainmark.features.mlperf import benchmarks, log as run_log, samples_to_target
from trainmark.features.mlperf.audit_source import recognises
from trainmark.features.mlperf.log import find_result_folders
from trainmark.features.published.read import find_pages
from trainmark.record.errors import UsageError
from trainmark.record.published_row import PublishedRow


def read_row(path: Path) -> PublishedRow:
    [found] = find_pages([path])
    [row] = found.page.rows
    return row


def find_detail(row: PublishedRow, name: str) -> float | None:
    return next(entry.value for entry in row.details if entry.name == name)


def test_a_log_tells_time_samples_batch_seed_and_evaluations(tmp_path: Path) -> None:
    found = run_log.read_log(write_log(tmp_path / "result_0.txt", entries(seed=11)))
    assert (found.benchmark, found.status, found.values["seed"]) == ("resnet", "success", [11])
    assert found.number("global_batch_size") == 3264
    assert run_log.count_samples(found) == 36 * 1_281_167
    assert [event.at for event in found.evaluations] == [3, 7, 11, 15, 19, 23, 27, 31, 35]
    assert found.run_s == pytest.approx(36 * 36 + 9 * 0.53, abs=0.3)
    assert found.evaluation_s == pytest.approx(9 * 0.45)
    assert run_log.compute_training_rate(found) == pytest.approx(36 * 1_281_167 / (found.run_s - found.evaluation_s))


def test_lines_may_follow_other_words_and_damaged_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    lines = mlperf_logs.text(entries(), prefix="  3: [rank 3] ").splitlines()
    lines[5:5] = [
        "loading data ...",
        ':::MLLOG {"key": "seed", "val',
        ':::MLLOG {"key": "x", "time_ms": "soon"}',
        ":::MLLOG 7",
    ]
    path.write_bytes("\n".join(lines).encode() + b"\nd\xe9j\xe0 vu\n")
    found = run_log.read_log(path)
    assert found.damages == [
        (7, "it is no whole JSON"),
        (8, "it has no time"),
        (9, "it names no key"),
    ]
    assert found.status == "success"


def test_a_line_without_end_is_passed_over_and_named(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    long = b':::MLLOG {"key": "weights", "time_ms": 1, "value": "' + b"x" * (3 << 20) + b'"}\n'
    path.write_bytes(long + mlperf_logs.text(entries()).encode())
    found = run_log.read_log(path)
    assert found.damages == [(1, "it is no whole JSON")]
    assert found.entries == len(entries())


def test_a_log_of_very_many_lines_leaves_little_behind(tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    pattern = at(entries(), "tracked_stats")
    filler = [dict(pattern, key="train_loss", value=6.9 - i / 1e5) for i in range(10_000)]
    write_log(path, [*filler, *entries()])
    found = run_log.read_log(path)
    assert len(found.values["train_loss"]) == run_log.MAX_VALUES
    assert len(found.events) < 200


@pytest.mark.parametrize("content", [b"", b"just text\n", b":::MLL 1558639.3 run_start: {}\n", b"\x00\xff" * 99])
def test_a_log_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result_0.txt"
    path.write_bytes(content)
    assert not recognises(path)
    with pytest.raises(UsageError, match="holds no line of MLPerf's logger"):
        run_log.read_log(path)


def test_a_result_is_one_row_scored_as_the_rules_say(tmp_path: Path) -> None:
    place = write_result(tmp_path)
    slow = entries(seed=5, start_ms=mlperf_logs.START_MS + 20 * 3_600_000)
    at(slow, "run_stop")["metadata"]["status"] = "aborted"
    write_log(place / "result_4.txt", slow)
    systems = tmp_path / "systems"
    systems.mkdir()
    about = {"accelerator_model_name": "NVIDIA H100-SXM5-80GB", "number_of_nodes": "1", "accelerators_per_node": "8"}
    (systems / "lumen_l9.json").write_text(json.dumps({**about, "framework": "PyTorch 24.04"}))
    row = read_row(tmp_path)
    assert (row.vendor, row.device, row.topology, row.workload) == ("nvidia", "H100-SXM5-80GB", "1x8", "resnet50")
    assert (row.item, row.framework, row.batch_per_device) == ("images", "pytorch", 408)
    assert (row.quality_name, row.quality, row.target) == ("acc1", pytest.approx(76.02), pytest.approx(75.9))
    times = sorted(
        run.run_s or 0 for folder in find_result_folders(tmp_path) for run in folder.logs if run.status == "success"
    )
    assert row.e2e_time_s == pytest.approx(sum(times[1:]) / 3)
    assert row.p_train is not None and row.p_whole is not None and row.p_train > row.p_whole
    assert (find_detail(row, "runs"), find_detail(row, "converged"), find_detail(row, "epochs_to_target")) == (5, 4, 35)


def test_benchmarks_nobody_knows_are_read_too(tmp_path: Path) -> None:
    row = read_row(write_log(tmp_path / "result_0.txt", entries(said={"submission_benchmark": "protein_folding"})))
    assert (row.workload, row.quality_name, row.quality) == ("protein_folding", "eval_accuracy", pytest.approx(0.7602))


@pytest.mark.parametrize(
    ("benchmark", "place", "samples"),
    [
        ("bert", 2_500_000, 2_500_000),
        ("gpt3", 1_157_627_904, 565_248),
        ("dlrm_dcnv2", 0.75, 750_000),
        ("unet3d", 241_920, 241_920),
    ],
)
def test_what_stands_where_others_write_the_epoch_is_not_taken_for_one(
    tmp_path: Path, benchmark: str, place: float, samples: float
) -> None:
    found = entries(epochs=4, said={"submission_benchmark": benchmark, "train_samples": 1_000_000})
    at(found, "eval_accuracy")["metadata"]["epoch_num"] = place
    log = run_log.read_log(write_log(tmp_path / "result_0.txt", found))
    assert run_log.count_samples(log) == samples


def test_blocks_that_count_samples_are_not_taken_for_epochs(tmp_path: Path) -> None:
    """As U-Net3D's logs of round 4.0 do: `epoch_count` is 20 times 168 samples there."""
    found = [entry for entry in entries() if entry["key"] not in ("epoch_start", "epoch_stop")]
    for number, entry in enumerate([entry for entry in found if entry["key"] == "block_start"]):
        entry["metadata"] |= {"first_epoch_num": 3360 * number, "epoch_count": 3360}
    for key, value in {"submission_benchmark": "unet3d", "train_samples": 168}.items():
        at(found, key)["value"] = value
    at(found, "eval_accuracy", -1)["metadata"]["epoch_num"] = 238_560
    log = run_log.read_log(write_log(tmp_path / "result_0.txt", found))
    assert run_log.count_samples(log) == 238_560


def test_the_round_is_what_a_path_names_or_what_the_date_says() -> None:
    assert (
        benchmarks.find_round("resnet", path="/x/training_results_v3.1/A/results", time_ms=mlperf_logs.START_MS)
        == "3.1"
    )
    assert benchmarks.find_round("resnet", path="/x", time_ms=mlperf_logs.START_MS) == "4.0"
    assert benchmarks.find_round("resnet", path="/x", time_ms=2e12) == "4.0", "the newest that has the benchmark"
    assert benchmarks.find_round("llama31_8b", path="/x", time_ms=mlperf_logs.START_MS) == "5.1"
    assert benchmarks.find_round("no such", path="/x", time_ms=None) is None


def test_reference_convergence_points_are_those_of_the_rules() -> None:
    resnet = benchmarks.load_benchmarks()["resnet"]
    known = dict(samples_to_target.load_points(resnet))
    said = {1632: (35.0, 33, 37), 3264: (35.2, 34, 37), 8192: (41.9, 41, 44), 32768: (56.0, 55, 57)}
    for batch, (mean, fastest, slowest) in said.items():
        need = known[batch]
        assert (round(need.items, 1), need.fewest, need.most) == (mean, fastest, slowest)
    between = samples_to_target.expect_need(resnet, 6144)
    assert between is not None
    assert 35.2 < between.items < 41.9, "4,096 and 8,192 lie above a line between their neighbours, and are left out"
    assert samples_to_target.expect_need(resnet, 100_000) is None
    assert samples_to_target.expect_need(resnet, 256) == known[1632]


@pytest.mark.parametrize("name", ["resnet", "llama31_8b"])
def test_our_copy_of_the_points_is_mlcommons_newest(name: str) -> None:
    checker = pytest.importorskip("mlperf_logging.rcp_checker.rcp_checker")
    known = benchmarks.load_benchmarks()[name]
    theirs = checker.RCP_Checker("training", f"{known.rounds[-1]}.0", name, False)
    ours = {batch: need.items for batch, need in samples_to_target.load_points(known)}
    assert ours == pytest.approx({point["BS"]: point["RCP Mean"] for point in theirs.rcp_data.values()})


def test_our_table_of_benchmarks_is_mlcommons_newest() -> None:
    meta = pytest.importorskip("mlperf_logging.benchmark_meta")
    runs = meta.get_result_file_counts("training")
    for name, known in benchmarks.load_benchmarks().items():
        assert known.runs == runs[name]
        assert {one for one in benchmarks.CLOSES if name in meta.get_allowed_benchmarks("training", one)} == {
            *known.rounds
        }
