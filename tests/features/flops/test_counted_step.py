"""Every workload's step can be counted without a device, and takes what its own formula says."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmark import workloads
from trainmark.features.flops import counted_step
from trainmark.features.flops.step_count import UPDATE, CountedStep, extrapolate
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.record.errors import WorkloadError
from trainmark.record.precision import Precision

EXACT = 1e-9
WITHIN = {"wavenet": 0.03, "tacotron2": 0.03}
"""WaveNet's formula leaves out what is different at the edges of a stretch, which is more of a short one; Tacotron2's
is of clips as long as LJSpeech's, and the way back through its attention multiplies with matrices of bands."""


@cache
def counted(name: str, recipe: str = "smoke", precision: str = "fp32", settings: tuple[str, ...] = ()) -> CountedStep:
    options = RunOptions(
        workloads=(name,), recipe=recipe, precision=precision, settings=settings, platform="cpu", topology="1x1"
    )
    return counted_step.count_step(planning.make_plans(options)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.names())
def test_a_step_takes_the_flops_that_its_workload_states(name: str) -> None:
    step = counted(name)
    assert step.count.flops == pytest.approx(step.stated_flops, rel=WITHIN.get(name, EXACT))
    assert step.count.bytes > 0
    assert step.items > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.names())
def test_no_host_waits_inside_a_step(name: str) -> None:
    assert counted(name, precision="amp-fp16").count.waits == ()


@pytest.mark.slow
def test_micro_batches_are_counted_each_and_the_update_once() -> None:
    once, twice = counted("gpt124m"), counted("gpt124m", settings=("accumulate=2",))
    assert twice.count.flops == 2 * once.count.flops
    assert twice.items == 2 * once.items

    def updates(step: CountedStep) -> int:
        return sum(count for launch, count in step.count.launches if launch.part == UPDATE)

    assert updates(twice) == updates(once)


@pytest.mark.slow
def test_pictures_that_are_mixed_part_by_part_are_counted() -> None:
    step = counted("vit", settings=("accumulate=2", "mixup_alpha=0.2"))
    assert step.count.flops == pytest.approx(step.stated_flops, rel=EXACT)


def test_products_are_counted_in_the_type_they_are_made_in() -> None:
    def types(precision: str) -> set[str]:
        return {launch.type for launch, _ in counted("gpt124m", precision=precision).count.launches if launch.flops}

    assert types("fp32") == {"float32"}
    assert types("bf16") == {"bfloat16"}


@pytest.mark.slow
def test_a_network_larger_than_any_memory_here_is_counted() -> None:
    step = counted("llama8b", "quick", "bf16")
    assert step.count.flops == pytest.approx(step.stated_flops, rel=EXACT)
    assert step.count.flops > 1e14


@pytest.mark.slow
def test_a_long_recurrence_is_told_from_two_short_ones() -> None:
    workload: Any = workloads.load("tacotron2")
    recipe, lengths = workload.recipes["smoke"], (6, 10, 18)
    with counted_step.fake_device():
        batches = [workload.blank_batch(recipe, frames) for frames in lengths]
    few, many, whole = counted_step.count_batches(workload, recipe, Precision.parse("fp32"), batches)
    told = extrapolate(few, many, 2.0)
    assert told.count.flops == whole.count.flops
    assert told.count.launched == whole.count.launched
    assert told.count.bytes == pytest.approx(whole.count.bytes, rel=0.001)
    assert (told.items, told.batch_bytes) == (whole.items, whole.batch_bytes)


OUTSIDE = """
import torch
from torch import nn, optim

from trainmark.record.recipe import Recipe
from trainmark.record.workload_facts import QualityFacts
from trainmark.workloads.workload import PlainBatch, PlainSource, PlainWorkload
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows(PlainBatch):
    x: torch.Tensor


class Ones(PlainSource):
    items_per_step = 6.0

    def train(self, epoch, start_step):
        while True:
            yield Rows(x=torch.ones(6, 8), count=6, global_count=6)

    def evaluation(self):
        return iter([])


class Tiny(PlainWorkload):
    name, item, data_set, reference_global_batch, sums = "tiny", "rows", "ones", 6, ("loss",)
    recipes = {"reference": Recipe(batch_per_device=6, learning_rate=0.1, weight_decay=0, steps=9, target=1.0)}
    qualities = (QualityFacts(name="tiny_loss", better="lower", least=0),)

    def open_data(self, recipe, folder, share, skip_bad):
        return Ones()

    def build(self, recipe):
        return nn.Linear(8, 4, bias=False)

    def optimizer(self, parameters, recipe):
        return optim.SGD(parameters, lr=recipe.learning_rate)

    def items(self, batch):
        return batch.count

    def loss(self, model, batch):
        return LOSS

    def score(self, model, batch):
        return {}

    def quality(self, sums):
        return {}


WORKLOAD = Tiny()
"""


def of_file(folder: Path, loss: str) -> CountedStep:
    file = folder / "tiny.py"
    file.write_text(OUTSIDE.replace("LOSS", loss), encoding="utf-8")
    options = RunOptions(workloads=(str(file),), recipe="reference", platform="cpu")
    return counted_step.count_step(planning.make_plans(options)[0])


def test_a_workload_from_outside_is_counted_by_the_first_batch_of_its_data(tmp_path: Path) -> None:
    step = of_file(tmp_path, "model(batch.x).square().sum()")
    assert step.items == 6
    assert step.batch_bytes == 4 * 6 * 8
    assert step.count.flops == 2 * 2 * 6 * 8 * 4


def test_a_step_that_needs_numbers_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="the step of tiny cannot run on fake tensors"):
        of_file(tmp_path, "model(torch.from_numpy(batch.x.numpy())).sum()")


def test_counting_leaves_the_random_numbers_of_training_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    counted.__wrapped__("gpt124m")
    assert torch.equal(before, torch.get_rng_state())
