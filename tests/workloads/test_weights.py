"""Published weights are read without running code, and fit the model or are refused by name."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
from collections import UserDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY_RUN, Cli
from safetensors.torch import save_file
from support.records import make_plan
from support.tiny import RECIPE, LineFit
from torch import Tensor, nn

from trainmark import workloads
from trainmark.cli.main import main
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.atomic_files import sha256
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.precision import Precision
from trainmark.record.recipe import apply_settings
from trainmark.train import checkpoint, setup
from trainmark.workloads.weights import load_into, read_weights, weights_file, weights_sha256


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor
        for name, tensor in network().state_dict().items()
    }


FORMS: dict[str, Any] = {
    "bare": lambda state: state,
    "under state_dict": lambda state: {"state_dict": state, "epoch": 3, "config": {"a": [1, 2]}},
    "under model": lambda state: {"model": state, "optimizer": {}},
    "of all devices at once": lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
    "our own": lambda state: {"stepper": {"model": state, "master_weights": []}, "position": {"step": 1}},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_usual_form_of_a_file_gives_the_same_weights(tmp_path: Path, form: str) -> None:
    torch.save(FORMS[form](weights()), tmp_path / "w.pt")
    read = read_weights(tmp_path / "w.pt")
    assert list(read) == list(weights())
    assert all(torch.equal(read[name], value) for name, value in weights().items())


def test_a_checkpoint_is_found_in_its_folder_and_the_newest_in_a_folder_of_them(tmp_path: Path) -> None:
    for step in (1, 2):
        state = {"stepper": {"model": {"w": torch.full((2,), float(step))}}}
        checkpoint.save(tmp_path, step, state)
    assert read_weights(tmp_path / "step-000000001")["w"].tolist() == [1, 1]
    assert read_weights(tmp_path)["w"].tolist() == [2, 2]
    assert weights_file(tmp_path) == tmp_path / "step-000000002" / "state.pt"


def test_what_torchvisions_training_script_writes_is_read(tmp_path: Path) -> None:
    model = network()
    model.load_state_dict(weights())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.033, total_iters=30)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=270)
    rate = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[30])
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    rate.step()
    model.load_state_dict(weights())
    average = torch.optim.swa_utils.AveragedModel(model)
    words = argparse.Namespace(
        model="resnet50", lr=0.1, amp=True, clip_grad_norm=None, milestones=[30, 60], device="cuda"
    )
    document = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": rate.state_dict(),
        "epoch": 89,
        "args": words,
        "model_ema": average.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }
    torch.save(document, tmp_path / "checkpoint.pth")
    read = read_weights(tmp_path / "checkpoint.pth")
    assert list(read) == list(weights())
    assert all(torch.equal(read[name], value) for name, value in weights().items())
    with pytest.raises(pickle.UnpicklingError):  # allowed for that one file, not from then on
        torch.load(tmp_path / "checkpoint.pth", weights_only=True)


class Trap:
    """Whoever loads it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_file_that_holds_more_than_weights_is_not_loaded(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    cases = (Trap(sprung), argparse.Namespace(lr=Trap(sprung)), UserDict(a=1))
    for args, legacy in itertools.product(cases, (False, True)):
        torch.save(
            {"state_dict": weights(), "args": args}, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy
        )
        with pytest.raises(
            NotReadyError, match="holds more than weights and is not loaded, as loading it could run code"
        ):
            read_weights(tmp_path / "w.pt")
    assert not sprung.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    given = {**weights(), "0.weight": torch.tensor([[1.0, 2.0, 3.0], [4.0, value, 6.0]], dtype=dtype)}
    torch.save(given, tmp_path / "w.pt")
    with pytest.raises(NotReadyError, match=r"holds weights that are NaN or infinite: 1 of 7 tensors \(0\.weight\)"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"epoch": 3, "loss": torch.ones(1)}, "holds no weights"),
        ({}, "holds no weights"),
        ([torch.ones(2)], "holds no weights"),
        (b"a page that was not found", "is not a file that torch.save wrote, or it is damaged"),
        (b"garbage", "is not a file that torch.save wrote, or it is damaged"),
        (b"", "is not a file that torch.save wrote, or it is damaged"),
    ],
)
def test_what_is_no_weights_is_said_in_a_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "w.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(NotReadyError, match=sentence):
        read_weights(path)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="nowhere is not there; give a file of weights"):
        read_weights(tmp_path / "nowhere")
    with pytest.raises(NotReadyError, match="holds no checkpoint"):
        read_weights(tmp_path)


def test_weights_are_copied_and_counts_of_batches_may_be_missing() -> None:
    model, given = network(), weights()
    del given["1.num_batches_tracked"]
    load_into(model, given, "w.pt")
    assert all(torch.equal(model.state_dict()[name], value) for name, value in given.items())


def test_what_does_not_fit_is_listed_in_one_sentence() -> None:
    given = {**weights(), "0.weight": torch.zeros(2, 4), **{f"head.{i}": torch.zeros(1) for i in range(5)}}
    del given["1.bias"]
    with pytest.raises(NotReadyError) as refused:
        load_into(network(), given, "w.pt")
    assert str(refused.value) == (
        "w.pt does not fit the model: 1 missing (1.bias), 5 unexpected (head.0, head.1, head.2, …), 1 of another shape "
        "(0.weight is (2, 4) and not (2, 3)); give weights of this very network, or change the network with --set"
    )


@pytest.mark.parametrize("word", ["fp32", "bf16"])
def test_a_stepper_begins_with_the_given_weights(word: str) -> None:
    given = {"slope": torch.tensor([2.5]), "offset": torch.tensor([-1.0])}
    device = Platform(files.load("cpu")).open(0)
    stepper = setup.build_stepper(LineFit(), RECIPE, Precision.parse(word), device, 1, given)
    assert [parameter.item() for parameter in stepper.bare_model.parameters()] == [2.5, -1.0]
    assert [float(wide) for wide in stepper.state()["master_weights"]] == ([] if word == "fp32" else [2.5, -1.0])


def test_a_file_changed_after_planning_is_refused_and_a_resumed_run_does_not_need_it(tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "w.pt")
    plan = make_plan(init_from=str(tmp_path / "w.pt"), init_sha256=sha256(tmp_path / "w.pt"))
    assert setup.load_initial_weights(plan) is not None
    torch.save({"a": torch.ones(1)}, tmp_path / "w.pt")
    with pytest.raises(NotReadyError, match="was changed after the run was planned"):
        setup.load_initial_weights(plan)
    assert setup.load_initial_weights(replace(plan, resume_from="/checkpoints")) is None


def test_resuming_and_beginning_with_weights_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out --init-from"):
        planning.resume_plan(make_plan(), tmp_path, RunOptions(init_from="w.pt"))


def test_a_file_that_does_not_fit_costs_seconds_and_exits_3(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    torch.save(weights(), tmp_path / "w.pt")
    assert main([*TINY_RUN, "--data", str(pictures), "--init-from", str(tmp_path / "w.pt")]) == 3
    said = capsys.readouterr().err
    assert "w.pt does not fit the model: 267 missing (conv1.weight, bn1.weight, bn1.bias, …)" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "store" / "runs").exists()


@pytest.mark.parametrize("kind", ["garbage", "misfit", "folder", "memory", "pipe"])
def test_a_plan_with_weights_that_no_run_could_begin_with_exits_3(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.pt"
    if kind == "garbage":
        path.write_bytes(b"a page that was not found")
    elif kind == "misfit":
        torch.save(weights(), path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "memory":
        path = Path("/proc/self/mem")
    else:
        os.mkfifo(path)
    words = {
        "garbage": "is not a file that torch.save wrote, or it is damaged",
        "misfit": "does not fit the model",
        "folder": "holds no checkpoint",
        "memory": "cannot be read: Input/output error",
        "pipe": "is no regular file",
    }
    assert main(["plan", "resnet50", "--platform", "cpu", "--init-from", str(path)]) == 3
    said = capsys.readouterr()
    assert words[kind] in said.err and str(path) in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_a_run_begins_with_the_file_and_its_record_says_so(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    resnet50 = workloads.load("resnet50")
    recipe = apply_settings(resnet50.recipes["smoke"], ["width=4"])
    torch.save({"state_dict": resnet50.build(recipe).state_dict()}, tmp_path / "w.pt")
    ended = cli(*TINY_RUN, "--data", pictures, "--steps", "1", "--init-from", tmp_path / "w.pt", "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["plan"]["init_sha256"] == sha256(tmp_path / "w.pt")
    assert [doubt["text"] for doubt in document["doubts"] if doubt["code"] == "init-from"] == [
        "training began with the weights of w.pt, so its time to target is not that of training from scratch"
    ]


# safetensors


def test_safetensors_are_read_from_a_file_and_from_a_folder_with_an_index(tmp_path: Path) -> None:
    one, other = {"a": torch.arange(6.0).view(2, 3)}, {"b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}
    save_file(one, tmp_path / "1.safetensors")
    save_file(other, tmp_path / "2.safetensors")
    assert torch.equal(read_weights(tmp_path / "1.safetensors")["a"], one["a"])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    read = read_weights(tmp_path)
    assert torch.equal(read["a"], one["a"])
    assert torch.equal(read["b"], other["b"])
    before = weights_sha256(weights_file(tmp_path))
    save_file({"b": torch.zeros(2)}, tmp_path / "2.safetensors")
    assert weights_sha256(weights_file(tmp_path)) != before


def test_a_torn_safetensors_file_and_a_wandering_index_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "v.safetensors")
    whole = (tmp_path / "v.safetensors").read_bytes()
    for content in (
        b"",
        b"x" * 20,
        (5).to_bytes(8, "little") + b"[1,2]",
        whole[:-4],
        whole.replace(b"[2,3]", b"[2,4]"),
    ):
        (tmp_path / "w.safetensors").write_bytes(content)
        with pytest.raises(NotReadyError, match="is no safetensors file, or it is damaged"):
            read_weights(tmp_path / "w.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../w.safetensors"}}))
    with pytest.raises(NotReadyError, match="no safetensors file beside it"):
        read_weights(tmp_path)


def test_weights_with_two_names_need_one_of_them(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
            self.head.weight = self.read.weight

    model = Tied()
    load_into(model, {"read.weight": torch.ones(3, 2)}, "the file")
    assert torch.equal(model.head.weight, torch.ones(3, 2))
    with pytest.raises(NotReadyError, match="2 missing"):
        load_into(model, {"other": torch.ones(1)}, "the file")
