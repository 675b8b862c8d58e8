"""Makes one step and one evaluation of the workload's own network on the device and on the CPU, and says what differs.

It comes before the model of the run is made, on a network of its own with a few samples of the first batches, so that
weights, random numbers and the order of the data are as they would be without it. How far a device may be off is not
guessed: the CPU makes the step once more with every weight and every result off by as much as the precision rounds, and
what that changes is what rounding can do to this network.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from msgspec.structs import asdict
from torch import Tensor, nn

from trainmark.platforms import files
from trainmark.platforms.device_errors import first_line
from trainmark.platforms.platform import Device, Platform
from trainmark.record.event_files import EventWriter
from trainmark.record.events import Alive, StepCompared
from trainmark.record.machine import StepCheck
from trainmark.record.precision import FLOOR, PRECISIONS, Precision, judge, relative, rounding
from trainmark.record.recipe import Recipe
from trainmark.train import loop, meta_model
from trainmark.train.stepper import Stepper
from trainmark.train.transfers import move_to_device
from trainmark.train.walker import Rounding, Walker, fixed_random
from trainmark.workloads.workload import DataSource, Workload

SAMPLES = 2
"""Of the first batch, at least."""
MAX_WEIGHTS = 500_000_000
"""Larger networks are not compared: their step would take a CPU minutes."""
MAX_NUMBERS = 1 << 20
"""Of each tensor, evenly spread."""
LOSS_SCALE = 1024.0
"""Small enough not to overflow at once, as the first of a scaler's usually does."""

Build = Callable[[Precision, Device, int], Stepper]
"""Makes a network for a world of so many ranks, always from the same seed."""
Quantities = dict[str, Tensor]
"""By what they are, in the order in which a step makes them."""


def write_step_check(
    workload: Workload,
    recipe: Recipe,
    precision: Precision,
    device: Device,
    data: DataSource,
    build: Build,
    events: EventWriter,
    rank: int,
) -> None:
    """Writes an event of how the rank's device compares with the CPU; on a CPU there is nothing to compare."""
    if device.is_cpu:
        return
    if (weights := meta_model.count_weights(meta_model.build_network(workload, recipe))) > MAX_WEIGHTS:
        reason = f"the network has {weights:,} weights, more than {MAX_WEIGHTS:,}"
        events.write(StepCompared(rank=rank, unavailable=reason))
        return
    evaluation = loop.choose_evaluation_precision(recipe, precision)
    alive = partial(events.write, Alive(phase="init"))
    found = check(workload, precision, device, data, build=build, evaluation=evaluation, alive=alive)
    events.write(StepCompared(**{**asdict(found), "rank": rank}))


def check(
    workload: Workload,
    precision: Precision,
    device: Device,
    data: DataSource,
    *,
    build: Build,
    evaluation: Precision,
    alive: Callable[[], None] = lambda: None,
) -> StepCheck:
    """What came of it. An error on the device is raised as it would be in the run's first step; where the CPU cannot
    make the step, or the device has no room for it, nothing is compared, and the reason told.

    `evaluation` is the precision it is scored in.
    """
    train = _take_samples(data.train(0, 0))
    if train is None:
        return StepCheck(unavailable="the first batch has no sample on this rank")
    trial = _Trial(workload, build, train, _take_samples(data.evaluation()), evaluation)
    host, fp32 = Platform(files.load("cpu")).open(0), PRECISIONS["fp32"]
    try:
        wanted, gradients = trial.make(host, fp32)
        alive()
        sensitive, _ = trial.make(host, fp32, gradients, Rounding(precision))
        alive()
    except Exception as error:  # a workload's own code, on a device it may not have been written for
        return StepCheck(unavailable=f"the CPU cannot make the step: {type(error).__name__}: {first_line(error)}")
    try:
        found, _ = trial.make(device, precision, gradients)
    except Exception as error:
        if not device.is_out_of_memory(error):
            raise
        return StepCheck(unavailable="the device has no room for the network and two samples")
    finally:
        gc.collect()  # the run is to find the memory as it was
    return compare(found, wanted, sensitive, precision, samples=train.count)


def perturb_weights(stepper: Stepper) -> None:
    """Moves every weight a little, everywhere alike: behind one that begins as zero, no other would have a gradient."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in stepper.bare_model.parameters():
            weight.copy_(weight.float().cpu() + 0.02 * torch.randn(weight.shape, generator=generator))
    stepper.refresh_master_weights()


def compare(
    found: Quantities, wanted: Quantities, sensitive: Quantities, precision: Precision, *, samples: int = 0
) -> StepCheck:
    """Each quantity of the device beside the CPU's; `sensitive` is the CPU's with rounded weights."""
    floor = max(FLOOR, 4 * rounding(precision))
    compared = [
        judge(name, relative_difference(found[name], want), relative_difference(sensitive[name], want), floor)
        for name, want in wanted.items()
        if name in found and name in sensitive and bool(want.isfinite().all())
    ]
    differing = [each for each in compared if not each.is_explained]
    if not differing:
        return StepCheck(samples=samples, quantities=len(compared))
    first = differing[0]
    return StepCheck(
        samples=samples,
        quantities=len(compared),
        differing=len(differing),
        first=first.name,
        difference=None if math.isnan(first.difference) else min(first.difference, 1e9),
        allowed=min(first.allowed, 1e9),
    )


def relative_difference(one: Tensor, other: Tensor) -> float:
    """The length of the difference, as a share of the other's length; not a number where one is not."""
    if one.shape != other.shape:
        return math.inf
    return relative(float((one - other).norm()), float(other.norm()))


def _take_samples(batches: Iterable[Any]) -> Any:
    iterator = iter(batches)
    batch = next(iterator, None)
    part = batch.parts(max(1, batch.count // SAMPLES))[0] if batch is not None and batch.count else None
    own = move_to_device(part, HostCopies())
    if close := getattr(iterator, "close", None):
        close()
    return own


class HostCopies:
    """Takes tensors as a device does, and leaves them where they are: a loader's memory is its own again soon."""

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor.clone()


class _Trial:
    """One step and one evaluation, made alike wherever it is made."""

    def __init__(self, workload: Workload, build: Build, train: Any, evaluation: Any, scored_in: Precision) -> None:
        self._workload, self._build, self._train, self._evaluation = workload, build, train, evaluation
        self._scored_in = scored_in

    def make(
        self,
        device: Device,
        precision: Precision,
        gradients: dict[str, Tensor] | None = None,
        rounding: Rounding | None = None,
    ) -> tuple[Quantities, dict[str, Tensor]]:
        """All that is compared, and the gradients. The update uses the `gradients` given, so that it stands alone."""
        stepper = self._build(precision, device, 1)
        perturb_weights(stepper)
        if precision.scales_loss:
            stepper.scaler = torch.amp.GradScaler(device.torch.type, init_scale=LOSS_SCALE)
        model = stepper.bare_model
        found: Quantities = {}
        model.train()
        if rounding is not None:
            with torch.no_grad():
                for weight in model.parameters():
                    rounding.round_(weight.data)
        batch = self._train if device.is_cpu else move_to_device(self._train, device)
        with _record_layers(model, found), stepper.arithmetic, _walk(rounding), fixed_random():
            loss = stepper.gradients(batch, batch)
        device.synchronize()
        scale = float(stepper.scaler.get_scale()) if stepper.scaler.is_enabled() else 1.0
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                found[f"running statistic {name}"] = _subsample(buffer)
        found["loss"] = _subsample(loss)
        own: dict[str, Tensor] = {}
        for name, weight in reversed(list(model.named_parameters())):
            if weight.grad is not None:
                own[name] = weight.grad.detach().float().cpu() / scale
                found[f"gradient of {name}"] = _subsample(own[name])
        found.update(self._evaluate(stepper, rounding))
        found.update(self._update(stepper, gradients or own))
        return found, own

    def _update(self, stepper: Stepper, gradients: dict[str, Tensor]) -> Quantities:
        """What the optimizer changes, by the same gradients everywhere."""
        names = {id(weight): name for name, weight in stepper.updated_weights()}
        before = {}
        for group in stepper.optimizer.param_groups:
            for weight in group["params"]:
                name = names[id(weight)]
                before[name] = (weight, weight.detach().float().cpu().clone())
                given = gradients.get(name)
                weight.grad = None if given is None else given.to(weight.device, weight.dtype)
        with stepper.arithmetic:
            stepper.optimizer.step()
        stepper.device.synchronize()
        return {
            f"update of {name}": _subsample(weight.detach().float().cpu() - old)
            for name, (weight, old) in before.items()
        }

    @torch.no_grad()
    def _evaluate(self, stepper: Stepper, rounding: Rounding | None) -> Quantities:
        if self._evaluation is None:
            return {}
        device, model = stepper.device, stepper.bare_model
        precision = PRECISIONS["fp32"] if device.is_cpu else self._scored_in
        batch = self._evaluation if device.is_cpu else move_to_device(self._evaluation, device)
        model.eval()
        with device.arithmetic(precision), device.autocast(precision), _walk(rounding), fixed_random():
            scores = self._workload.score(model, batch)
        device.synchronize()
        # what is counted may change by a whole sample where two scores are nearly equal
        return {
            f"evaluation's {name}": _subsample(value) for name, value in scores.items() if value.is_floating_point()
        }


def _walk(rounding: Rounding | None) -> AbstractContextManager[Any]:
    return Walker(rounding.visit) if rounding else nullcontext()


@contextmanager
def _record_layers(model: nn.Module, found: Quantities) -> Iterator[None]:
    """Keeps what each layer gives when it is first called."""

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            # linear layers are called alike however a precision has them compute
            kind = "Linear" if isinstance(module, nn.Linear) else type(module).__name__
            key = f"output of {name} ({kind})"
            tensor = output[0] if isinstance(output, (tuple, list)) and output else output
            if key not in found and isinstance(tensor, Tensor) and tensor.is_floating_point():
                found[key] = _subsample(tensor)

        return hook

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name and not any(True for _ in module.children()):
                hooks.callback(module.register_forward_hook(keep(name)).remove)
        yield


def _subsample(tensor: Tensor) -> Tensor:
    """Numbers of a tensor, evenly spread, on the host and in memory of their own."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // MAX_NUMBERS)].float().cpu().clone()
