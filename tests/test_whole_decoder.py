"""A language model by its commands: alone and sharded the same, saved and resumed, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from support.background import Started, ranks

from trainmark.data.text import make

SHAPE = ("layers=2", "width=32", "heads=4", "kv_heads=2", "ffn=48", "context=32", "learning_rate=0.002")
STEPS = 6


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "set"
    make.make(folder, lines=400)
    return folder


def words(text: Path, topology: str, *settings: str) -> tuple[str | Path, ...]:
    batch = f"batch_per_device={8 // int(topology[-1])}"
    set_words = [word for setting in (*SHAPE, batch, *settings) for word in ("--set", setting)]
    run = ("run", "llama8b", "--recipe", "smoke", "--platform", "cpu", "--data", text)
    return (*run, "--topology", topology, *set_words)


def document(cli: Cli, *given: str | Path) -> dict[str, Any]:
    ended = cli(*given, "--json", "--quiet")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def test_a_sharded_run_is_that_of_one_device_and_goes_on_where_it_was_left(
    cli: Cli, text: Path, tmp_path: Path
) -> None:
    often = ("evaluate_every=3 steps", f"steps={STEPS}", "target=0.1")
    one = document(cli, *words(text, "1x1", *often))
    first = document(cli, *words(text, "1x2", *often), "--steps", "4")
    kept = tmp_path / "store" / "runs" / first["run_id"] / "checkpoints"
    assert len(list(kept.glob("step-000000004/rank0000?.safetensors"))) == 2
    shown = json.loads(cli("sample", "last", "Ada", "--json").stdout)
    assert shown["networks"][0]["step"] == 4
    begun = document(cli, *words(text, "1x1", *often), "--steps", "1", "--init-from", kept)
    assert begun["series"]["loss"][0] < one["series"]["loss"][0]
    second = document(cli, "run", "--resume", first["run_id"], "--topology", "1x1", "--steps", "2")
    assert (second["plan"]["topology"], second["plan"]["recipe"]["batch_per_device"]) == ("1x1", 8)
    assert first["series"]["loss"] + second["series"]["loss"] == pytest.approx(one["series"]["loss"], rel=2e-4)
    assert [evaluation["step"] for evaluation in one["quality"]["history"]] == [0, 3, STEPS]
    for alone, together in zip(one["quality"]["history"], first["quality"]["history"], strict=False):
        assert together["samples"] == alone["samples"]
        assert together["values"] == pytest.approx(alone["values"], rel=2e-4)
    said = one["quality"]["history"][-1]["values"]
    assert said["times_floor"] == pytest.approx(said["val_loss"] / one["data_facts"]["loss_floor"])
    assert said["bits_per_byte"] > 0
    assert {"6 x parameters", "causal attention"} == set(one["environment"]["flops"]["otherwise"])
    assert first["environment"]["exchange"]["kind"] == "reduce-scatter and all-gather"
    assert first["environment"]["precision"]["ran"] == "fp32"
    assert first["plan"]["recipe"]["parallel"] == "fsdp"
    assert [artifact["file"] for artifact in first["artifacts"]] == ["sample.txt"]
    ended = cli("audit", "last")
    assert ended.returncode == 0, ended.stdout


def test_two_devices_that_compute_each_block_together_train_as_one_and_count_every_token_once(
    cli: Cli, text: Path
) -> None:
    often = ("evaluate_every=3 steps", f"steps={STEPS}", "target=0.1", "eval_batch_per_device=7")
    one = document(cli, *words(text, "1x1", *often))
    two = document(cli, *words(text, "1x2", *often, "tensor_parallel=2"), "--steps", "4")
    third = document(cli, "run", "--resume", "last", "--topology", "1x1", "--steps", "2")
    assert third["plan"]["recipe"]["tensor_parallel"] == 1
    assert two["series"]["loss"] + third["series"]["loss"] == pytest.approx(one["series"]["loss"], rel=2e-4)
    for alone, together in zip(one["quality"]["history"], two["quality"]["history"], strict=False):
        assert together["samples"] == alone["samples"]
        assert together["values"] == pytest.approx(alone["values"], rel=2e-4)
    assert [rank["items"] for rank in two["series"]["ranks"]] == [[[4, 4 * 32]]] * 2
    assert one["series"]["ranks"][0]["items"] == [[STEPS, 8 * 32]]
    assert two["environment"]["exchange"]["kind"] == "all-reduce, reduce-scatter and all-gather"
    assert two["environment"]["precision"]["ran"] == "fp32"
    assert [artifact["file"] for artifact in two["artifacts"]] == ["sample.txt"]


def saved(folder: Path) -> bool:
    return bool(list(folder.glob("rank0.jsonl")) and ranks(folder)[0].saved)


def test_a_rank_killed_in_a_sharded_run_is_named_and_the_run_goes_on_from_its_checkpoint(
    environment: dict[str, str], text: Path, cli: Cli
) -> None:
    often = ("checkpoint_every=5 steps", "steps=100000", "evaluate_every=end", "evaluate_first=no", "leave_sample=no")
    run = Started(environment, *words(text, "1x2", *often))
    store, deadline = Path(environment["TRAINMARK_STORE"]), time.monotonic() + 90
    while not any(saved(folder) for folder in (store / "runs").glob("*")):
        assert run.process.poll() is None, run.process.communicate()
        assert time.monotonic() < deadline, "no checkpoint was made"
        time.sleep(0.02)
    os.kill(run.pids()[1], signal.SIGKILL)
    code, _, err = run.end()
    assert code == 4
    assert "rank 1 was killed by SIGKILL" in err
    resumed = document(cli, "run", "--resume", "last", "--steps", "3")
    assert resumed["status"] == "valid"
    assert len(resumed["series"]["loss"]) == 3
    assert any("resumed at step" in doubt["text"] for doubt in resumed["doubts"])
