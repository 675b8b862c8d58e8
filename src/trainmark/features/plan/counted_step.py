"""A plan's training step with shapes and no memory behind them: run without a device, and counted."""

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
from trainmark.features.plan.operator_count import ACCELERATOR, OperatorCount
from trainmark.platforms.device_errors import first_line
from trainmark.platforms.platform import Device
from trainmark.record.errors import TrainmarkError, WorkloadError
from trainmark.record.plan import Plan
from trainmark.record.precision import Precision
from trainmark.record.recipe import Recipe, from_values
from trainmark.record.step_count import CountedStep, extrapolate_step
from trainmark.train import meta_model
from trainmark.train.parallel import OneDevice
from trainmark.train.stepper import Stepper
from trainmark.train.transfers import move_to_device
from trainmark.workloads.workload import Share, Workload


def count(plan: Plan) -> CountedStep:
    """What one device is asked for by a step of its own; nothing is exchanged, and nothing compiled."""
    workload = workloads.of_plan(plan)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    try:
        precision = Precision.parse(plan.precision)
        if hasattr(workload, "step_lengths"):
            return _by_two_lengths(workload, recipe, precision)
        return of_batches(workload, recipe, precision, [_batch(workload, recipe, plan)])[0]
    except TrainmarkError:
        raise
    except Exception as error:  # a step of somebody else's may want anything of its tensors
        raise WorkloadError(
            f"the step of {workload.name} cannot be followed on shapes alone: {type(error).__name__}: "
            f"{first_line(error)}; it may read numbers that only a device would have"
        ) from error


def of_batches(workload: Workload, recipe: Recipe, precision: Precision, batches: Sequence[Any]) -> list[CountedStep]:
    """A step for each of these batches of shapes alone, shortest first."""
    model = blank_network(workload, recipe)
    with shapes_only():
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
        with OperatorCount():  # the first step makes what all others find: state of the optimizer, constants
            stepper.step(batches[0])
    return [_counted(workload, recipe, stepper, batch) for batch in batches]


def _counted(workload: Workload, recipe: Recipe, stepper: Stepper, batch: Any) -> CountedStep:
    with shapes_only(), OperatorCount(stepper.bare_model) as counter:
        stepper.step(batch, counter.update_begins)
    taken: list[Tensor] = []
    move_to_device(batch, _Noting(taken))
    items = workload.items(batch)
    return CountedStep(
        count=counter.found(),
        items=items,
        item=workload.item,
        stated_flops=workload.flops_per_item(recipe) * items,
        batch_bytes=sum(tensor.nbytes for tensor in taken),
    )


def _by_two_lengths(workload: Any, recipe: Recipe, precision: Precision) -> CountedStep:
    """Of a recurrence, every further length of which launches the same again."""
    short, longer, whole = workload.step_lengths(recipe)
    with on_no_device():
        batches = [workload.blank_batch(recipe, short), workload.blank_batch(recipe, longer)]
    few, many = of_batches(workload, recipe, precision, batches)
    return extrapolate_step(few, many, (whole - longer) / (longer - short))


@cache
def _shapes() -> FakeTensorMode:
    """One for all counts of a process: what a module keeps from one step has to fit the next."""
    return FakeTensorMode()


class _HostLists(TorchFunctionMode):
    """Numbers of the host that become a device's tensor are copied there: torch takes both places for one."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == ACCELERATOR:
            return func(*args, **{**kwargs, "device": "cpu"}).to(ACCELERATOR)
        return func(*args, **kwargs)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Meanwhile tensors have shapes and no numbers."""
    with _shapes(), _HostLists():
        yield


class NoDevice(Device):
    """Where tensors of shapes alone lie: no arithmetic has to be emulated, as none is done."""

    def __init__(self) -> None:
        self.torch, self.is_cpu = ACCELERATOR, False

    def arithmetic(self, precision: Precision) -> nullcontext[None]:
        return nullcontext()

    def take(self, tensor: Tensor) -> Tensor:
        with shapes_only():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.torch)


class _Accelerated(OneDevice):
    def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, norm, foreach=True)  # torch's choice on accelerators, not on a CPU


class _Noting:
    """Is given every tensor of a batch, and leaves it where it is."""

    def __init__(self, taken: list[Tensor]) -> None:
        self._taken = taken

    def take(self, tensor: Tensor) -> Tensor:
        self._taken.append(tensor)
        return tensor


@contextmanager
def on_no_device() -> Iterator[None]:
    """Meanwhile they are made where an accelerator's would be, too."""
    with shapes_only(), torch.device(ACCELERATOR):
        yield


def _batch(workload: Workload, recipe: Recipe, plan: Plan) -> Any:
    """By what the workload says of its batches, else the first one of its data."""
    if hasattr(workload, "blank_batch"):
        with on_no_device():
            return workload.blank_batch(recipe)
    folder = Path(plan.data.folder)
    with closing(workload.open_data(recipe, folder, Share(rank=0, world=1, local_ranks=1), 0)) as data:
        return move_to_device(next(iter(data.train(0, 0))), NoDevice())


def blank_network(workload: Workload, recipe: Recipe) -> nn.Module:
    """The network, each of its tensors on the device that is none."""
    built = meta_model.network(workload, replace(recipe, compiled="no"))
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
                    made[id(tensor)] = blank = device.take(tensor)
                    if isinstance(tensor, nn.Parameter):
                        with shapes_only():
                            made[id(tensor)] = nn.Parameter(blank, tensor.requires_grad)
                held[name] = made[id(tensor)]
    return model
