"""Runs a plan's training step on fake tensors, without a device, and counts its operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from trainmark import workloads
from trainmark.features.flops.operator_count import ACCELERATOR, OperatorCount
from trainmark.features.flops.step_count import CountedStep, extrapolate
from trainmark.platforms.device_errors import first_line
from trainmark.platforms.platform import Device
from trainmark.record.errors import TrainmarkError, WorkloadError
from trainmark.record.plan import Plan
from trainmark.record.precision import Precision
from trainmark.record.recipe import Recipe, from_values
from trainmark.train.parallel import OneDevice
from trainmark.train.stepper import Stepper
from trainmark.train.transfers import map_tensors
from trainmark.workloads import weights
from trainmark.workloads.workload import Share, Workload


def count_step(plan: Plan) -> CountedStep:
    """Counts one step of one device; nothing is exchanged, and nothing compiled."""
    workload = workloads.of_plan(plan)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    try:
        precision = Precision.parse(plan.precision)
        if hasattr(workload, "step_lengths"):
            return _extrapolate_lengths(workload, recipe, precision)
        return count_batches(workload, recipe, precision, [_make_batch(workload, recipe, plan)])[0]
    except TrainmarkError:
        raise
    except Exception as error:  # the step of an external workload may do anything with its tensors
        raise WorkloadError(
            f"the step of {workload.name} cannot run on fake tensors: {type(error).__name__}: "
            f"{first_line(error)}; it may read values, which fake tensors do not have"
        ) from error


def count_batches(
    workload: Workload, recipe: Recipe, precision: Precision, batches: Sequence[Any]
) -> list[CountedStep]:
    """Counts one step per batch of fake tensors, shortest first."""
    model = make_fake_network(workload, recipe)
    with fake_tensors():
        stepper = Stepper(
            model,
            optimizer=partial(workload.optimizer, recipe=recipe),
            loss=workload.loss,
            precision=precision,
            device=NoDevice(),
            parallel=_Accelerated(),
            clip_gradient_norm=recipe.clip_gradient_norm,
            accumulate=recipe.accumulate,
            average_decay=recipe.average_decay,
        )
        with OperatorCount():  # the first step creates optimizer state and constants
            stepper.step(batches[0])
    return [_count_batch(workload, recipe, stepper, batch) for batch in batches]


def _count_batch(workload: Workload, recipe: Recipe, stepper: Stepper, batch: Any) -> CountedStep:
    with fake_tensors(), OperatorCount(stepper.bare_model) as counter:
        stepper.step(batch, counter.begin_update)
    sizes: list[int] = []

    def count_bytes(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    map_tensors(batch, count_bytes)
    items, count = workload.items(batch), counter.result()
    return CountedStep(
        count=count,
        items=items,
        item=workload.item,
        stated_flops=workload.flops_per_item(recipe) * items or count.flops,
        batch_bytes=sum(sizes),
    )


def _extrapolate_lengths(workload: Any, recipe: Recipe, precision: Precision) -> CountedStep:
    """Extrapolates a recurrence, which launches the same for every further step of its length."""
    short, longer, whole = workload.step_lengths(recipe)
    with fake_device():
        batches = [workload.blank_batch(recipe, short), workload.blank_batch(recipe, longer)]
    few, many = count_batches(workload, recipe, precision, batches)
    return extrapolate(few, many, (whole - longer) / (longer - short))


@cache
def _fake_mode() -> FakeTensorMode:
    """One per process: what a module keeps from one step must fit the next."""
    return FakeTensorMode()


class _HostLists(TorchFunctionMode):
    """Turns tensors made from host numbers into copies to the device: torch takes both devices for one."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == ACCELERATOR:
            return func(*args, **{**kwargs, "device": "cpu"}).to(ACCELERATOR)
        return func(*args, **kwargs)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside are fake: shapes without memory."""
    with _fake_mode(), _HostLists():
        yield


class NoDevice(Device):
    """The device of fake tensors, on which no arithmetic has to be emulated."""

    def __init__(self) -> None:
        self.torch, self.is_cpu = ACCELERATOR, False

    def arithmetic(self, precision: Precision) -> nullcontext[None]:
        return nullcontext()

    def to_device(self, tensor: Tensor) -> Tensor:
        with fake_tensors():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.torch)


class _Accelerated(OneDevice):
    def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, norm, foreach=True)  # torch's default on accelerators, not on a CPU


@contextmanager
def fake_device() -> Iterator[None]:
    """Fake tensors made inside are on the accelerator."""
    with fake_tensors(), torch.device(ACCELERATOR):
        yield


def _make_batch(workload: Workload, recipe: Recipe, plan: Plan) -> Any:
    """The workload's blank batch, or the first one of its data."""
    if hasattr(workload, "blank_batch"):
        with fake_device():
            return workload.blank_batch(recipe)
    folder = Path(plan.data.folder)
    with closing(workload.open_data(recipe, folder, Share(rank=0, world=1, local_ranks=1), 0)) as data:
        return map_tensors(next(iter(data.train(0, 0))), NoDevice().to_device)


def make_fake_network(workload: Workload, recipe: Recipe) -> nn.Module:
    """The network on fake tensors."""
    built = weights.build_network(workload, replace(recipe, compiled="no"))
    form = torch.channels_last if recipe.memory_format == "channels_last" else torch.contiguous_format
    model: nn.Module = built.to(memory_format=form)  # type: ignore[call-overload]
    device, made = NoDevice(), dict[int, Tensor]()
    for module in model.modules():
        holders: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for held in holders:
            for name, tensor in list(held.items()):
                if not isinstance(tensor, Tensor):
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = blank = device.to_device(tensor)
                    if isinstance(tensor, nn.Parameter):
                        with fake_tensors():
                            made[id(tensor)] = nn.Parameter(blank, tensor.requires_grad)
                held[name] = made[id(tensor)]
    return model
