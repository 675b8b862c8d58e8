"""Weights of a run leave trainmark whole, with what others need to load and to judge them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import TINY_RUN, Cli
from safetensors.torch import load_file

from trainmark import workloads
from trainmark.record.recipe import from_values
from trainmark.workloads import weights


@pytest.fixture
def image_run(cli: Cli, pictures: Path) -> str:
    ended = cli(*TINY_RUN, "--data", pictures, "--steps", "2", "--set", "checkpoint_every=end", "--quiet", "--json")
    assert ended.returncode == 0, ended.stderr
    return str(json.loads(ended.stdout)["run_id"])


def test_safetensors_hold_every_weight_and_the_card_its_doubts(cli: Cli, image_run: str, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    ended = cli("export", image_run, "--out", out)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(out / name) for name in ("README.md", "config.json", "model.safetensors")]
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    workload = workloads.load(config["workload"])
    model = workload.build(from_values(type(workload.recipes["reference"]), config["recipe"]))
    exported = load_file(out / "model.safetensors")
    model.load_state_dict(exported)
    trained = weights.read_weights(tmp_path / "store" / "runs" / image_run / "checkpoints")
    assert all(torch.equal(exported[name], trained[name]) for name in trained)
    card = (out / "README.md").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "store" / "records" / f"{image_run}.json").read_text(encoding="utf-8"))
    assert image_run in card
    assert "synthetic" in card
    assert all(f"- {doubt['code']}: " in card for doubt in record["doubts"])
    for words in ((), ("--all",)):  # and `show` tells where the weights lie
        shown = cli("show", image_run, *words).stdout
        assert f"Weights: {tmp_path / 'store' / 'runs' / image_run / 'checkpoints' / 'step-'}" in shown
        assert f"trainmark export {image_run.rpartition('-')[2]}" in shown


def test_a_folder_is_never_overwritten(cli: Cli, image_run: str, tmp_path: Path) -> None:
    ended = cli("export", image_run, "--out", tmp_path)
    assert (ended.returncode, "is not overwritten" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ("torchvision", "torchvision's resnet50 has width 64, and this run 4"),
        ("hf", "resnet50 has no network of hf's; it can be exported to safetensors, torchvision"),
        ("peft", "resnet50 trains no adapters; it can be exported to safetensors, torchvision"),
    ],
)
def test_a_form_that_does_not_fit_is_refused(
    cli: Cli, image_run: str, tmp_path: Path, form: str, sentence: str
) -> None:
    ended = cli("export", image_run, "--to", form, "--out", tmp_path / "exported")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert sentence in ended.stderr
    assert not (tmp_path / "exported").exists()


def test_a_llama_is_a_folder_for_transformers(cli: Cli, tmp_path: Path) -> None:
    run = ("run", "llama8b", "--recipe", "smoke", "--platform", "cpu", "--steps", "2", "--set", "leave_sample=false")
    assert cli(*run, "--quiet").returncode == 0
    ended = cli("export", "last", "--to", "hf", "--out", tmp_path / "llama")
    assert ended.returncode == 0, ended.stderr
    config = json.loads((tmp_path / "llama" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_scaling"]["rope_type"] == "llama3"
    exported = load_file(tmp_path / "llama" / "model.safetensors")
    assert exported["model.embed_tokens.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert {name.split(".")[2] for name in exported if ".layers." in name} == {
        str(layer) for layer in range(config["num_hidden_layers"])
    }
