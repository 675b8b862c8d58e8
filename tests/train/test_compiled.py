"""A network may be trained through torch.compile: recorded as a choice, and refused where it could not work."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from trainmark import workloads
from trainmark.launch import planning, preflight
from trainmark.launch.options import RunOptions
from trainmark.platforms import files
from trainmark.platforms.platform import Device, Platform
from trainmark.record.errors import UsageError
from trainmark.record.plan import Plan
from trainmark.record.precision import Precision
from trainmark.record.recipe import from_values
from trainmark.train import setup
from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import TextBatch


def compiled(*settings: str, precision: str = "fp32") -> Plan:
    words = RunOptions(
        recipe="smoke",
        platform="cpu",
        precision=precision,
        settings=["width=4", "compiled=yes", *settings],
    )
    return planning.make_plan("resnet50", words)


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


def decoder(**changes: Any) -> DecoderRecipe:
    shape = {"layers": 3, "width": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocabulary": 50, "context": 8}
    return replace(workloads.load("llama8b").recipes["smoke"], **shape, **changes)  # type: ignore[type-var]


def learnt(recipe: DecoderRecipe) -> list[float]:
    stepper = setup.build_stepper(workloads.load("llama8b"), recipe, Precision.parse("fp32"), device(), 1)
    lot = torch.Generator().manual_seed(0)
    batches = torch.randint(recipe.vocabulary, (3, 4, recipe.context + 1), generator=lot)
    return [float(stepper.step(TextBatch(tokens=tokens, count=4, global_count=4))) for tokens in batches]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
def test_blocks_that_are_alike_are_compiled_once_and_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # all of torch.compile but the translation of what it wrote, which alone takes a minute
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    compiled_blocks = learnt(decoder(compiled="blocks"))
    assert counters["stats"]["unique_graphs"] == before + 1
    assert compiled_blocks == pytest.approx(learnt(decoder()), rel=1e-5)
    assert counters["stats"]["unique_graphs"] == before + 1


def test_compiled_blocks_are_a_deviation_and_need_a_network_that_names_them() -> None:
    words = RunOptions(recipe="smoke", platform="cpu", settings=["compiled=blocks"])
    plan = planning.make_plan("gpt124m", words)
    assert plan.recipe["compiled"] == "blocks"
    assert {deviation.name: deviation.actual for deviation in plan.deviations}["compiled"] == "blocks"
    vision = workloads.load("resnet50")
    recipe = replace(vision.recipes["smoke"], compiled="blocks")
    with pytest.raises(UsageError, match="compiled=blocks needs a network with `blocks`"):
        setup.build_stepper(vision, recipe, Precision.parse("fp32"), device(), 1)


def test_a_cpu_without_a_compiler_is_not_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = preflight.check_compiler(compiled(), device().platform)
    assert found.verdict == "failed"
    assert "needs a C++ compiler here" in found.sentence


def test_an_emulated_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "emulates", lambda self, precision: True)
    monkeypatch.setattr("shutil.which", lambda name: name)
    found = preflight.check_compiler(compiled(precision="bf16"), device().platform)
    assert found.verdict == "failed"
    assert "does not work with bf16" in found.sentence
