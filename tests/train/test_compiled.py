"""A network may be trained through torch.compile: recorded as a choice, and refused where it could not work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from trainmark import workloads
from trainmark.launch import planning, preflight
from trainmark.launch.options import RunOptions
from trainmark.platforms import files
from trainmark.platforms.platform import Device, Platform
from trainmark.spec.plan import Plan
from trainmark.spec.precision import Precision
from trainmark.spec.recipe import from_values
from trainmark.train import setup


def compiled(*settings: str, precision: str = "fp32") -> Plan:
    words = RunOptions(
        recipe="smoke",
        platform="cpu",
        precision=precision,
        settings=["width=4", "compiled=yes", *settings],
    )
    return planning.decide("resnet50", words)


def device() -> Device:
    return Platform(files.load("cpu")).open(0)


def test_what_is_trained_is_the_compiled_network_and_what_is_saved_the_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[nn.Module] = []
    monkeypatch.setattr(torch, "compile", lambda model: asked.append(model) or nn.Sequential(model))
    workload = workloads.load("resnet50")
    recipe = from_values(type(workload.recipes["reference"]), compiled().recipe)
    stepper = setup.build_stepper(workload, recipe, Precision.parse("fp32"), device(), 1)
    assert asked == [stepper.bare_model]
    assert isinstance(stepper.model, nn.Sequential)
    assert list(stepper.state()["model"]) == list(workload.build(recipe).state_dict())


def test_the_choice_is_a_deviation_on_the_record() -> None:
    assert {deviation.name: deviation.actual for deviation in compiled().deviations}["compiled"] == "yes"


def test_a_cpu_without_a_compiler_is_not_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = preflight.compiler(compiled(), device().platform)
    assert found.verdict == "failed"
    assert "needs a C++ compiler here" in found.sentence


def test_an_emulated_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "emulates", lambda self, precision: True)
    monkeypatch.setattr("shutil.which", lambda name: name)
    found = preflight.compiler(compiled(precision="bf16"), device().platform)
    assert found.verdict == "failed"
    assert "does not go with bf16" in found.sentence
