"""Compares one training step and one evaluation on the device with the same on the CPU.

It runs before the model of the run is built, on a second network with a few samples of the first batches, so that
weights, random numbers and the order of the data are as without it, and once more after the clock has stopped: a driver
may change its kernels when it is warm or has tuned itself. The tolerance is measured: the CPU repeats the step with
every weight and every result perturbed by the rounding of the precision, and the difference is what rounding can do to
this network.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import torch
from msgspec.structs import asdict, replace
from torch import Tensor, nn

from trainmark.platforms import files
from trainmark.platforms.device_errors import first_line
from trainmark.platforms.platform import Device, Platform
from trainmark.record.events import Alive, EventWriter, StepCompared
from trainmark.record.machine import StepCheck
from trainmark.record.precision import FLOOR, PRECISIONS, Precision, judge, relative, rounding
from trainmark.record.recipe import Recipe
from trainmark.train import loop
from trainmark.train.schedule import Position
from trainmark.train.stepper import Stepper
from trainmark.train.transfers import map_tensors
from trainmark.train.walker import Rounding, Walker, fix_random
from trainmark.workloads import weights
from trainmark.workloads.workload import DataSource, Workload

SAMPLES = 2
"""Of the first batch, at least so many."""
UPDATES = 12
"""Enough to see one that is left out now and then."""
PROBE_NUMBERS, MEMORY = 1 << 20, "memory that a tensor takes"
CPU_BUDGET_S, MAX_CPU_S = 2.0, 20.0
"""For the CPU's step after training; where the one before took longer than the second, it is not repeated."""
MAX_WEIGHTS = 500_000_000
"""Larger networks are not compared: a step would take minutes on a CPU."""
MAX_NUMBERS = 1 << 20
"""Compared per tensor, evenly spaced."""
SCALE_FLOOR = 0.08
"""Share by which the scale of a gradient may always be off: in narrow types its norm may differ by far more."""
FEW_NUMBERS = 256
"""In fewer, rounding may cancel by chance: the median effect on quantities of the kind counts, and no scale does."""
MAX_BY_CHANCE = 0.05
"""Share of the scales that may be off in a narrow type."""
LOSS_SCALE = 1024.0
"""Small enough not to overflow, as the initial scale of a scaler usually does."""

Build = Callable[[Precision, Device, int], Stepper]
"""Builds a network for a world size, always from the same seed."""
Quantities = dict[str, Tensor]
"""By name, in the order in which a step computes them."""


@dataclass(frozen=True, kw_only=True)
class StepComparison:
    """Compares this rank's device with the CPU: before training, and again after the last step."""

    workload: Workload
    recipe: Recipe
    precision: Precision
    device: Device
    data: DataSource
    build: Build
    events: EventWriter
    rank: int

    def write_before(self) -> StepCompared | None:
        """With initial weights and the first batch; None on a CPU, where there is nothing to compare."""
        if self.device.is_cpu:
            return None
        if (count := weights.count_weights(weights.build_network(self.workload, self.recipe))) > MAX_WEIGHTS:
            found = StepCheck(unavailable=f"the network has {count:,} weights, more than {MAX_WEIGHTS:,}")
        else:
            found = self._check(Position(), SAMPLES, {})
        return self._write(found)

    def write_again(self, before: StepCompared, at: Position, trained: Mapping[str, Tensor]) -> None:
        """With trained weights and the next batch, of which as many samples as the CPU computes in time."""
        if before.unavailable or before.differing:
            return
        reason = f"one step takes the CPU {before.cpu_s:.0f} s" if before.cpu_s > MAX_CPU_S else None
        if reason is None:
            found = self._check(at, SAMPLES * max(1, int(CPU_BUDGET_S / max(before.cpu_s, 1e-3))), trained)
            reason = found.unavailable
        self._write(replace(before, not_repeated=reason) if reason else replace(found, after_step=at.step))

    def _write(self, found: StepCheck) -> StepCompared:
        event = StepCompared(**{**asdict(found), "rank": self.rank})
        self.events.write(event)
        return event

    def _check(self, at: Position, samples: int, trained: Mapping[str, Tensor]) -> StepCheck:
        """The result. An error on the device is raised, as it would be in a step of the run; where the CPU cannot run
        the step, or the device is out of memory, nothing is compared, for the given reason."""
        device, precision = self.device, self.precision
        train = _take_samples(_read_batches(self.data, at), samples)
        if train is None:
            return StepCheck(unavailable="the batch has no sample on this rank")
        trial = _Trial(
            self.workload,
            self.build,
            train,
            _take_samples(self.data.evaluation(), samples),
            loop.choose_evaluation_precision(self.recipe, precision),
            trained,
        )
        alive = partial(self.events.write, Alive(phase="sample" if at.step else "init"))
        host, fp32 = Platform(files.load("cpu")).open(0), PRECISIONS["fp32"]
        alive()
        try:
            began_s = time.perf_counter()
            wanted, gradients = trial.run(host, fp32)
            cpu_s = time.perf_counter() - began_s
            alive()
            sensitive, _ = trial.run(host, fp32, gradients, Rounding(precision))
            alive()
        except Exception as error:  # code of a workload, on a device it may not have been written for
            return StepCheck(unavailable=f"the CPU cannot run the step: {type(error).__name__}: {first_line(error)}")
        try:
            found, _ = trial.run(device, precision, gradients)
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            return StepCheck(unavailable="the device has no room for the network and two samples")
        finally:
            gc.collect()  # frees the memory for the run
        return replace(compare(found, wanted, sensitive, precision), samples=train.count, cpu_s=cpu_s)


def _read_batches(data: DataSource, at: Position) -> Iterator[Any]:
    yield from data.train(at.epoch, at.step_in_epoch)
    yield from data.train(at.epoch + 1, 0)


def perturb_weights(stepper: Stepper) -> None:
    """Perturbs every weight, equally on all devices: a weight that is zero would block the gradients behind it."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in stepper.bare_model.parameters():
            weight.copy_(weight.float().cpu() + 0.02 * torch.randn(weight.shape, generator=generator))
    stepper.refresh_master_weights()


def _load_trained(stepper: Stepper, trained: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in chain(stepper.bare_model.named_parameters(), stepper.bare_model.named_buffers()):
            tensor.copy_(trained[name])
    stepper.refresh_master_weights()


def _probe_habits(device: Device) -> Quantities:
    """What no step with fixed random numbers shows: dropout, numbers that are not finite, the count of memory."""
    gc.collect()
    before_bytes = device.allocated_memory_bytes()
    with device.arithmetic(PRECISIONS["fp32"]), torch.no_grad():
        ones = torch.ones(PROBE_NUMBERS, device=device.torch)
        held_bytes = device.allocated_memory_bytes()
        masks = [nn.functional.dropout(ones, 0.5) == 0 for _ in range(2)]
        masks.append(torch.empty_like(ones).bernoulli_(0.5) == 0)
        shares = [mask.float().mean() for mask in (*masks, masks[0] & masks[1] | masks[2])]
        odd = torch.tensor([1.0, math.nan, math.inf, -math.inf], device=device.torch)
        results = (odd + 1, odd * 2, torch.mm(odd.view(2, 2), odd.view(2, 2)), odd.softmax(0))
        lost = [result.isfinite().sum() for result in results]
    device.synchronize()
    found = {
        "share of zeros after dropout": torch.tensor([round(8 * float(share)) / 8 for share in shares]),
        "count of results that are finite": torch.tensor([float(count) for count in lost]),
    }
    size_bytes = ones.numel() * ones.itemsize
    if device.is_cpu:
        found[MEMORY] = torch.ones(1)
    elif before_bytes is not None and held_bytes is not None:
        found[MEMORY] = torch.tensor([round(4 * (held_bytes - before_bytes) / size_bytes) / 4])
    return found


def compare(found: Quantities, wanted: Quantities, sensitive: Quantities, precision: Precision) -> StepCheck:
    """Compares each quantity of the device with that of the CPU; `sensitive` is the CPU with perturbed weights."""
    floor = max(FLOOR, 4 * rounding(precision))
    finite = {
        name: want
        for name, want in wanted.items()
        if name in found and name in sensitive and bool(want.isfinite().all())
    }
    by_rounding = {name: relative_difference(sensitive[name], want) for name, want in finite.items()}
    by_kind: dict[str, list[float]] = {}
    for name, effect in by_rounding.items():
        by_kind.setdefault(name.partition(" ")[0], []).append(effect)
    compared, scales = [], []
    for name, want in finite.items():
        effect, few = by_rounding[name], want.numel() < FEW_NUMBERS
        allowed = max(effect, median(by_kind[name.partition(" ")[0]])) if few else effect
        compared.append(judge(name, relative_difference(found[name], want), allowed, floor))
        if name.startswith("gradient") and not few:
            # the projection of as much noise as rounding makes, in a random direction
            by_scale = max(scale_error(sensitive[name], want), effect / math.sqrt(want.numel()))
            scales.append(judge(f"scale of the {name}", scale_error(found[name], want), by_scale, SCALE_FLOOR))
    # a factor reaches all gradients before it, chance a few
    if sum(not each.is_explained for each in scales) > MAX_BY_CHANCE * len(scales):
        compared += scales
    differing = [each for each in compared if not each.is_explained]
    if not differing:
        return StepCheck(quantities=len(compared))
    first = differing[0]
    return StepCheck(
        quantities=len(compared),
        differing=len(differing),
        first=first.name,
        difference=None if math.isnan(first.difference) else min(first.difference, 1e9),
        allowed=min(first.allowed, 1e9),
    )


def scale_error(one: Tensor, other: Tensor) -> float:
    """How far the projection of one on the other is from its length: rounding has no direction, a wrong factor has."""
    if one.shape != other.shape:
        return math.inf
    return relative(abs(float((one * other).sum()) - float((other * other).sum())), float((other * other).sum()))


def relative_difference(one: Tensor, other: Tensor) -> float:
    """The norm of the difference relative to the norm of the other; NaN where one is."""
    if one.shape != other.shape:
        return math.inf
    return relative(float((one - other).norm()), float(other.norm()))


def _take_samples(batches: Iterable[Any], samples: int) -> Any:
    iterator = iter(batches)
    batch = next(iterator, None)
    part = batch.parts(max(1, batch.count // samples))[0] if batch is not None and batch.count else None
    own = map_tensors(part, Tensor.clone)  # a loader reuses its memory soon
    if close := getattr(iterator, "close", None):
        close()
    return own


@dataclass(frozen=True)
class _Trial:
    """One step and one evaluation, the same on every device."""

    workload: Workload
    build: Build
    train: Any
    evaluation: Any
    scored_in: Precision
    trained: Mapping[str, Tensor]

    def run(
        self,
        device: Device,
        precision: Precision,
        gradients: dict[str, Tensor] | None = None,
        rounding: Rounding | None = None,
    ) -> tuple[Quantities, dict[str, Tensor]]:
        """All quantities to compare, and the gradients. The update uses the given `gradients`, to be independent."""
        stepper = self.build(precision, device, 1)
        if self.trained:
            _load_trained(stepper, self.trained)
        else:
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
        batch = self.train if device.is_cpu else map_tensors(self.train, device.to_device)
        with _record_layers(model, found), stepper.arithmetic, _walk(rounding), fix_random():
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
        found.update(_probe_habits(device))
        return found, own

    def _update(self, stepper: Stepper, gradients: dict[str, Tensor]) -> Quantities:
        """What the optimizer changes in several updates, given the same gradients everywhere."""
        names = {id(weight): name for name, weight in stepper.updated_weights()}
        before = {}
        for group in stepper.optimizer.param_groups:
            for weight in group["params"]:
                name = names[id(weight)]
                before[name] = (weight, weight.detach().float().cpu().clone())
                given = gradients.get(name)
                weight.grad = None if given is None else given.to(weight.device, weight.dtype)
        with stepper.arithmetic:
            for _ in range(UPDATES):
                stepper.optimizer.step()
        stepper.device.synchronize()
        return {
            f"update of {name}": _subsample(weight.detach().float().cpu() - old)
            for name, (weight, old) in before.items()
        }

    @torch.no_grad()
    def _evaluate(self, stepper: Stepper, rounding: Rounding | None) -> Quantities:
        if self.evaluation is None:
            return {}
        device, model = stepper.device, stepper.bare_model
        precision = PRECISIONS["fp32"] if device.is_cpu else self.scored_in
        batch = self.evaluation if device.is_cpu else map_tensors(self.evaluation, device.to_device)
        model.eval()
        with device.arithmetic(precision), device.autocast(precision), _walk(rounding), fix_random():
            scores = self.workload.score(model, batch)
        device.synchronize()
        # counts may change by a whole sample where two scores are nearly equal
        return {
            f"evaluation's {name}": _subsample(value) for name, value in scores.items() if value.is_floating_point()
        }


def _walk(rounding: Rounding | None) -> AbstractContextManager[Any]:
    return Walker(rounding.visit) if rounding else nullcontext()


@contextmanager
def _record_layers(model: nn.Module, found: Quantities) -> Iterator[None]:
    """Records the output of the first call of each layer."""

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            # the same name for all kinds of linear layers, which depend on the precision
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
    """A copy of evenly spaced numbers of a tensor, on the host."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // MAX_NUMBERS)].float().cpu().clone()
