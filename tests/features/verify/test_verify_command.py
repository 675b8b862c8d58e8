"""`trainmark verify` as a user runs it: ranks on the stand-in, a flip named by rank, and a chip held against a CPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from conftest import Cli
from support.background import Started, ranks, wait_until_gone

from trainmark.cli.main import main
from trainmark.data.text import make
from trainmark.platforms import standin
from trainmark.record.run_folder import RankLog

TINY = ("--recipe", "smoke", "--set", "width=4", "--set", "batch_per_device=4", "--set", "batch_norm=per-device")


def scripted(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "script.toml"
    path.write_text(f"latency_us = 0\n{text}", encoding="utf-8")
    return {standin.VARIABLE: str(path), "OMP_NUM_THREADS": "1"}


def test_the_rank_whose_weight_flips_is_named_by_the_rounds_and_by_the_other_ranks(
    cli: Cli, pictures: Path, tmp_path: Path
) -> None:
    # the optimizer's one call a step was made twice to see whether it is steady, then once in the first round
    flips = (
        "temperature_c = 71\n[[device]]\nindex = 1\n[[device.flips]]\noperator = '_fused_sgd_'\nat = [4]\ntensor = 3\n"
    )
    words = ("resnet50", *TINY, "--platform", "standin", "--topology", "1x2", "--data", pictures, "--steps", "1")
    done = cli("verify", *words, "--json", **scripted(tmp_path, flips))
    assert done.returncode == 5, done.stderr
    told = json.loads(done.stdout)["verify"]
    assert told["verdict"] == "wrong" and told["rounds"] == 3
    [difference] = told["differences"]
    assert (difference["rank"], difference["step"], difference["stage"]) == (1, 1, "weight")
    assert len(difference["layers"]) == 1
    assert told["telemetry"]["temperature_c"] == 71
    assert "round 3: 1 step in" in done.stderr and "1 difference  71 °C" in done.stderr


def test_a_chip_is_held_against_a_cpu_and_one_that_computes_in_less_is_found_out(
    cli: Cli, pictures: Path, tmp_path: Path
) -> None:
    done = cli("verify", "resnet50", *TINY, "--platform", "cpu", "--data", pictures, "--steps", "2", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "2 rounds of 2 steps on 1 rank came out alike, to the last bit of" in done.stdout
    less = scripted(tmp_path, "float32_inside = 'bfloat16'\n")
    done = cli("verify", "--against", "last", "--platform", "standin", "--quiet", COLUMNS="400", **less)
    assert done.returncode == 6, done.stderr
    assert "another training from step 1 on: " in done.stdout and "% is allowed" in done.stdout


@pytest.mark.parametrize(("workload", "layout"), [("llama8b", "tensor_parallel=2"), ("gpt124m", "parallel=fsdp")])
def test_a_sharded_network_repeats_its_bits_and_computes_what_one_device_does(
    workload: str, layout: str, cli: Cli, tmp_path: Path
) -> None:
    make.make(tmp_path / "text", lines=400)
    where = ("--platform", "cpu", "--data", tmp_path / "text", "--quiet")
    words = ("--recipe", "smoke", "--set", "layers=2", "--set", "context=32", "--steps", "2", "--set", layout)
    done = cli("verify", workload, *words, *where, "--topology", "1x2", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "2 rounds of 2 steps on 2 ranks came out alike" in done.stdout
    done = cli("verify", "--against", "last", *where, "--topology", "1x1", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "the same training for 2 steps" in done.stdout


def test_what_was_found_before_a_kill_is_on_disk_and_is_shown(
    cli: Cli, pictures: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    words = ("resnet50", *TINY, "--platform", "standin", "--data", pictures, "--steps", "1", "--soak", "1h")
    started = Started({**environment, **scripted(tmp_path, "")}, "verify", *words)
    logs = wait_for_rounds(started, 3)
    started.process.kill()
    started.end()
    wait_until_gone([log.pid for log in logs if log.pid is not None])
    assert list((started.store / "verify").glob("*.json")) == []
    shown = cli("verify", "--show", "last", "--json")
    told = json.loads(shown.stdout)["verify"]
    assert shown.returncode == 4 and told["verdict"] == "incomplete"
    assert told["rounds"] >= 3 and told["numbers"] is not None and "which came out alike" in told["sentence"]


def wait_for_rounds(started: Started, count: int) -> list[RankLog]:
    """Its ranks, once each has written down so many rounds."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert started.process.poll() is None, started.process.communicate()
        logs = [log for folder in (started.store / "verify").glob("*/") for log in ranks(folder)]
        if logs and all(len(log.rounds) >= count for log in logs):
            return logs
        time.sleep(0.05)
    raise AssertionError("the verify made no rounds")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--against last", 2, "there is no verify or file 'last'"),
        ("--steps 0", 2, "--steps must be more than 0"),
        ("--soak soon", 2, "--soak 'soon' is not a duration"),
        ("resnet50 --recipe smoke --platform standin --topology 1x9", 3, "needs 9 devices of platform standin"),
    ],
)
def test_what_cannot_be_verified_is_refused_in_a_sentence(
    words: str, code: int, said: str, tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    data = ["--data", str(pictures)] if "resnet50" in words else []
    assert main(["verify", *words.split(), *data]) == code
    assert said in capsys.readouterr().err
