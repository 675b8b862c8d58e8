"""Whole runs on the stand-in: every workload trains on it, and what its devices do wrong is found out and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from support.background import record_of
from support.short_speech import make_short

from trainmark.platforms import standin

TINY_WORDS = {
    "resnet50": ("width=4", "batch_per_device=8"),
    "vit": ("hidden=16", "layers=1", "heads=2", "mlp=32", "batch_per_device=8"),
    "tacotron2": (
        *("encoder_width=16", "prenet_width=8", "rnn_width=16", "attention_width=8", "postnet_width=8"),
        *("batch_per_device=4", "longest_frames=0"),
    ),
}
"""Networks so small that a run is mostly start-up."""


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_short(tmp_path_factory.mktemp("speech") / "set", clips=24)


def words(workload: str, *more: str | Path) -> list[str | Path]:
    settings = [word for setting in TINY_WORDS[workload] for word in ("--set", setting)]
    return ["run", workload, "--recipe", "smoke", "--platform", "standin", "--quiet", *settings, *more]


def scripted(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "script.toml"
    path.write_text(text, encoding="utf-8")
    return {standin.VARIABLE: str(path)}


def doubts(record: dict[str, Any]) -> dict[str, str]:
    return {doubt["code"]: doubt["text"] for doubt in record["doubts"]}


@pytest.mark.parametrize("topology", ["1x1", "1x2"])
@pytest.mark.parametrize("workload", sorted(TINY_WORDS))
def test_every_workload_trains_on_the_stand_in_and_its_record_says_what_it_was(
    workload: str, topology: str, cli: Cli, pictures: Path, speech: Path
) -> None:
    data = speech if workload == "tacotron2" else pictures
    done = cli(*words(workload, "--topology", topology, "--data", data, "--steps", "2", "--json"))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "valid"
    assert [len(rank["compute_ns"]) for rank in record["series"]["ranks"]] == [2] * int(topology[-1])
    assert len(record["series"]["loss"]) == 2
    assert all(loss > 0 for loss in record["series"]["loss"])
    assert doubts(record)["stand-in"] == "this is a stand-in, not a device: its speed, memory and power mean nothing"
    device = record["environment"]["device"]
    assert (device["type"], device["name"]) == ("standin", "Stand-in (not a device)")
    assert 0 < record["metrics"]["mem"]["value"] < 8


def test_a_slow_hot_rank_with_memory_errors_is_named_on_the_record(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    slow = (
        "power_w = 120\n[[device]]\nindex = 1\nslowdown = 6\npower_w = 250\n"
        'throttled = ["thermal"]\necc_errors_per_s = 5\n'
    )
    done = cli(
        *words("resnet50", "--topology", "1x2", "--data", pictures, "--steps", "5", "--json"),
        **scripted(tmp_path, slow),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    said = doubts(record)
    assert "rank 1" in said["rank-skew"].partition(" took ")[0]
    assert "thermal" in said["throttled"]
    assert "device 1" in said["ecc-errors"]
    assert 120 < record["metrics"]["power"]["value"] < 250


def test_out_of_memory_exits_4_and_names_the_next_batch_to_try(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    done = cli(*words("resnet50", "--data", pictures, "--steps", "2"), **scripted(tmp_path, "memory_mib = 2\n"))
    assert done.returncode == 4
    assert "out of memory with batch_per_device=8" in done.stderr
    assert "stand-in device 0 is out of memory" in done.stderr
    assert "try --set batch_per_device=4" in done.stderr
    assert record_of(tmp_path / "store")["status"] == "incomplete"


def test_a_device_that_hangs_ends_the_run_at_the_limit(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    hang = scripted(tmp_path, "hang_after = 6000\n")
    done = cli(*words("resnet50", "--data", pictures, "--hang-timeout", "3", "--set", "epochs=1000"), **hang)
    assert done.returncode == 124, done.stderr
    assert "no progress for 3 s: rank 0 was last seen in train" in done.stderr


def test_a_lost_device_exits_4_and_its_rank_is_named(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    lost = scripted(tmp_path, "[[device]]\nindex = 1\nlost_after = 6000\n")
    done = cli(*words("resnet50", "--topology", "1x2", "--data", pictures, "--set", "epochs=1000"), **lost)
    assert done.returncode == 4, done.stderr
    assert "rank 1 failed in train" in done.stderr
    assert "the device failed: stand-in device 1 is lost" in done.stderr


def test_a_device_that_lies_gets_no_valid_record(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    """Its events count half of the time, its batch norm loses the running statistics, it lowers float32 by itself."""
    lies = "event_clock = 0.5\nslowdown = 4\nfloat32_inside = 'bfloat16'\n"
    lies += "unwritten_operators = ['native_batch_norm']\n"
    done = cli(*words("resnet50", "--data", pictures, "--steps", "12", "--json"), **scripted(tmp_path, lies))
    assert done.returncode == 5, done.stderr
    assert "the device counts time unlike the host" in done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "invalid"
    assert record["metrics"]["p_core"].get("value") is None
    assert record["metrics"]["mem"]["value"] > 0
    clock = record["environment"]["clock"]
    assert clock["device_s"] == pytest.approx(clock["host_s"] / 2, rel=0.1)
    said = doubts(record)
    assert "where the host's clock shows" in said["device-clock"]
    assert "fp32 was asked for and mixed: 100 % bfloat16, weights float32 ran" in said["precision-differs"]
    assert "the device itself computes matmuls of float32 in bfloat16" in said["precision-differs"]
    assert "output of conv1 (Conv2d) differs by" in said["cpu-differs"]
    audited = cli("audit", record["run_id"])
    assert ", 0 failed" in audited.stdout or "failed" not in audited.stdout, audited.stdout


def test_collectives_that_exchange_nothing_stop_a_run_and_are_named(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    nothing = scripted(tmp_path, "exchanges = false\n")
    done = cli(*words("resnet50", "--topology", "1x2", "--data", pictures, "--steps", "2"), **nothing)
    assert done.returncode == 3, done.stderr
    assert "collectives of gloo return wrong results" in done.stderr


def test_collectives_that_stop_exchanging_during_training_make_the_run_invalid(
    cli: Cli, pictures: Path, tmp_path: Path
) -> None:
    later = scripted(tmp_path, "honest_for = 1500\nexchanges = false\n")
    done = cli(*words("vit", "--topology", "1x2", "--data", pictures, "--steps", "12", "--json"), **later)
    assert done.returncode == 5, done.stderr
    assert "after training, collectives of gloo return wrong results" in done.stderr
    assert json.loads(done.stdout)["status"] == "invalid"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "missing_operators = ['max_pool2d_with_indices']\n",
            "the device has no operator aten::max_pool2d_with_indices",
        ),
        ("memory_mib = 2\nplain_memory_error = true\n", "out of memory with batch_per_device=8"),
    ],
)
def test_an_error_of_the_device_is_one_sentence_and_its_table_stays_in_the_log(
    script: str, sentence: str, cli: Cli, pictures: Path, tmp_path: Path
) -> None:
    done = cli(*words("resnet50", "--data", pictures, "--steps", "2"), **scripted(tmp_path, script))
    assert done.returncode == 4, done.stderr
    assert sentence in done.stderr
    record = json.dumps(record_of(tmp_path / "store"))
    for table in ("registered at", "standin_allocator.cpp"):
        assert table not in done.stderr + done.stdout + record
    [log] = (tmp_path / "store" / "runs").glob("*/rank0.log")
    assert "standin_" in log.read_text(encoding="utf-8")
