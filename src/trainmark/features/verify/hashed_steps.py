"""Repeats the first steps of a training from the same state, and hashes the tensors of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from trainmark.features.verify.document import STAGES, SUM_COUNT, Numbers, StepNumbers
from trainmark.platforms import device_errors
from trainmark.record.errors import WorkloadError
from trainmark.record.precision import Sums
from trainmark.train import transfers
from trainmark.train.loop import Job
from trainmark.train.walker import Rounding, Walker, fix_random
from trainmark.workloads.pieces import Stored
from trainmark.workloads.workload import Progress

ROW = 1 << 16
"""Length of the factors; a longer tensor is cut into rows, whose sums are hashed again."""
ROWS_AT_A_TIME = 256
"""Hashed at once; one on a CPU, which stays in its cache and takes a tenth of the time."""
SIGN_ROW = 1 << 14
MAX_SIGN_ROWS = 1 << 12
"""Rows with signs of their own; in a longer tensor they repeat."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class BitHash:
    """Hashes tensors on their device; on the host where the device lacks an operator."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(20)
        self._factors = torch.randint(-(1 << 63), (1 << 63) - 1, (ROW,), generator=generator, dtype=torch.int64) | 1
        self.on_host = ""
        """Why hashes are computed on the host, if they are."""

    @torch.no_grad()
    def __call__(self, tensor: Tensor) -> Tensor:
        """One int64, left on the device."""
        tensor = _local(tensor)
        if self.on_host:
            return self._hash(_bits(tensor.cpu()))
        try:
            return self._hash(_bits(tensor))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            if device_errors.find_missing_operator(error) is None and tensor.device.type == "cpu":
                raise
            self.on_host = device_errors.first_line(error)
            return self(tensor)

    def _hash(self, bits: Tensor) -> Tensor:
        if self._factors.device != bits.device:
            self._factors = self._factors.to(bits.device)
        if bits.numel() <= ROW:
            return (bits * self._factors[: bits.numel()]).sum()
        whole = bits.numel() // ROW
        rows = bits[: whole * ROW].view(whole, ROW)
        at_a_time = 1 if bits.device.type == "cpu" else ROWS_AT_A_TIME
        sums = [(rows[at : at + at_a_time] * self._factors).sum(1) for at in range(0, whole, at_a_time)]
        return self._hash(torch.cat([*sums, self._hash(bits[whole * ROW :]).view(1)]))


def _bits(tensor: Tensor) -> Tensor:
    """The bits as a flat integer tensor, without a copy for contiguous and channels-last tensors."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if not tensor.is_contiguous() and tensor.dim() == 4:
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.contiguous().view(INTEGERS[tensor.itemsize]).view(-1)


def copy_to_host(hashes: Iterable[Tensor]) -> list[int]:
    """Copies all of them to the host at once."""
    return [int(value) for value in torch.stack([one.to(torch.int64) for one in hashes]).tolist()]


class SignedSums:
    """Computes sums of tensors with random signs."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(21)
        self._signs = _signs((SIGN_ROW, SUM_COUNT), generator)
        self._row_signs = _signs((MAX_SIGN_ROWS, SUM_COUNT), generator)

    @torch.no_grad()
    def __call__(self, tensor: Tensor, scale: float = 1.0) -> Sums:
        """The sums of a tensor divided by `scale`; of a sharded one, all ranks call it together."""
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        flat = whole.detach().cpu().contiguous().view(-1).to(torch.float64)
        sums, squares = torch.zeros(SUM_COUNT, dtype=torch.float64), 0.0
        for at in range(0, flat.numel(), SIGN_ROW * MAX_SIGN_ROWS):
            part = flat[at : at + SIGN_ROW * MAX_SIGN_ROWS]
            count = part.numel() // SIGN_ROW
            rows, rest = part[: count * SIGN_ROW].view(count, SIGN_ROW), part[count * SIGN_ROW :]
            sums += ((rows @ self._signs) * self._row_signs[:count]).sum(0)
            sums += (rest @ self._signs[: rest.numel()]) * self._row_signs[count % MAX_SIGN_ROWS]
            squares += float(part @ part)
        found = [math.sqrt(squares) / scale, *(float(value) / scale for value in sums)]
        return found if all(map(math.isfinite, found)) else []

    def sum_all(self, tensors: Mapping[str, Tensor], scale: float = 1.0) -> dict[str, Sums]:
        return {name: self(tensor, scale) for name, tensor in tensors.items()}


def collect_tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a batch by their path in it."""
    if isinstance(value, Tensor):
        return {name or "batch": value}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, dict):
        parts = {str(key): part for key, part in value.items()}
    elif isinstance(value, (tuple, list)) and value and not isinstance(value[0], (int, float, str)):
        parts = {str(place): part for place, part in enumerate(value)}
    else:
        return {}
    found: dict[str, Tensor] = {}
    for key, part in parts.items():
        found |= collect_tensors(part, f"{name}.{key}" if name else key)
    return found


def _signs(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator).to(torch.float64) * 2 - 1


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, or the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


Hashes = tuple[int, ...]
"""Of one step, always in the same order."""

MAX_ROUNDS = 6
"""Rounds without two that agree, after which it gives up."""


@dataclass(frozen=True, kw_only=True)
class OddRound:
    """A round that left the others at a step; what it computed after that is a consequence."""

    round: int
    """Counted from 1."""
    step: int
    """Counted from 0."""
    places: tuple[int, ...]
    """Which of the step's hashes differ."""
    never_alike: bool = False
    """No two rounds agree on the step."""


class RoundLedger:
    """Two equal rounds are right; every other round is odd, at the first step that differs from them."""

    def __init__(self) -> None:
        self.rounds = 0
        self._undecided: list[Sequence[Hashes]] = []
        self._right: Sequence[Hashes] | None = None

    @property
    def settled(self) -> bool:
        return self._right is not None

    @property
    def is_hopeless(self) -> bool:
        return not self.settled and self.rounds >= MAX_ROUNDS

    def add(self, steps: Sequence[Hashes]) -> list[OddRound]:
        """Adds a round, and returns the rounds now known to be odd."""
        self.rounds += 1
        if self._right is not None:
            return [] if steps == self._right else [_find_first(self.rounds, [steps, self._right])]
        self._right = next((each for each in self._undecided if each == steps), None)
        rounds = self._undecided = [*self._undecided, steps]
        if self._right is not None:
            self._undecided = []
            numbered = enumerate(rounds, 1)
            return [_find_first(number, [each, self._right]) for number, each in numbered if each != self._right]
        return [replace(_find_first(self.rounds, rounds), never_alike=True)] if self.is_hopeless else []


def _find_first(number: int, rounds: Sequence[Sequence[Hashes]]) -> OddRound:
    """The first step at which rounds differ, and where in it."""
    for step, hashes in enumerate(zip(*rounds, strict=True)):
        if places := tuple(place for place, values in enumerate(zip(*hashes, strict=True)) if len(set(values)) > 1):
            return OddRound(round=number, step=step, places=places)
    raise ValueError("the rounds are equal")


Quantity = tuple[str, str]
"""A stage of a step, and the layer or the tensor of it."""


class StoppedError(Exception):
    """All ranks are to stop in the middle of a round."""


class HashedSteps:
    """The first steps of a job, which can be repeated."""

    def __init__(self, job: Job, steps: int, should_stop: Callable[[int], bool] = lambda step: False) -> None:
        """`should_stop` is called before every step, and returns the same on all ranks."""
        self.job, self.steps, self._should_stop = job, steps, should_stop
        self.quantities: list[Quantity] = []
        """What is hashed in a step, in the order of computation."""
        self.hash = BitHash()
        self.is_random = False
        """Random numbers are replaced by fixed ones, because the step uses some."""
        self._initial = _copy_state(job)
        self._sums = SignedSums()

    def round(self) -> list[Hashes]:
        """Runs a round, and returns the hashes of every step."""
        self._restore()
        stepper, steps = self.job.stepper, []
        found: dict[Quantity, Tensor] = {}
        with self._hashing_gradients(found):
            for batch in self._batches():
                found.clear()
                with stepper.arithmetic:
                    self._hash_all(found, "data", collect_tensors(batch))
                with self._fixed_random():
                    loss = stepper.step(batch, lambda: self._hash_exchanged(found))
                with stepper.arithmetic:
                    found["loss", ""] = self.hash(loss)
                    self._hash_all(found, "weight", dict(stepper.updated_weights()))
                    self._hash_all(found, "statistic", dict(stepper.bare_model.named_buffers()))
                    steps.append(dict(zip(found, copy_to_host(found.values()), strict=True)))
        new = {quantity: None for found in steps for quantity in found if quantity not in self.quantities}
        self.quantities += sorted(new, key=lambda quantity: STAGES.index(quantity[0]))
        return [tuple(found.get(quantity, 0) for quantity in self.quantities) for found in steps]

    def numbers(self) -> Numbers:
        """The numbers of every step, and again with every result perturbed by the precision's rounding."""
        initial, steps = self._run_steps(None)
        _, rounded = self._run_steps(Rounding(self.job.stepper.precision))
        return Numbers(initial=initial, steps=steps, rounded=rounded)

    def first_step(self, watch: AbstractContextManager[Any]) -> None:
        """Runs the first step alone, with `watch` inside its arithmetic."""
        self._restore()
        stepper = self.job.stepper
        stepper.watch = watch
        try:
            for batch in self._batches():
                stepper.step(batch)
                self.job.device.synchronize()
                break
        finally:
            stepper.watch = None

    def _hash_all(self, found: dict[Quantity, Tensor], stage: str, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            found[stage, name] = self.hash(tensor)

    def _hash_exchanged(self, found: dict[Quantity, Tensor]) -> None:
        if self.job.stepper.parallel.world > 1:
            self._hash_all(found, "exchanged gradient", self._gradients())

    def _gradients(self) -> dict[str, Tensor]:
        weights = self.job.stepper.bare_model.named_parameters()
        return {name: weight.grad for name, weight in weights if weight.grad is not None}

    @contextmanager
    def _hashing_gradients(self, found: dict[Quantity, Tensor]) -> Iterator[None]:
        """Hashes each gradient when backward computes it, before any exchange; not for sharded networks."""

        def hook(name: str) -> Callable[[Tensor], None]:
            def note(gradient: Tensor) -> None:
                hashed, quantity = self.hash(gradient), ("gradient", name)
                # micro-batches count in their order
                found[quantity] = found[quantity] * 3 + hashed if quantity in found else hashed

            return note

        with ExitStack() as hooks:
            if not self.job.stepper.parallel.together:
                for name, weight in self.job.stepper.bare_model.named_parameters():
                    if weight.requires_grad:
                        hooks.callback(weight.register_hook(hook(name)).remove)  # type: ignore[no-untyped-call]
            yield

    def _run_steps(self, rounding: Rounding | None) -> tuple[dict[str, Sums], list[StepNumbers]]:
        self._restore()
        job, stepper, steps = self.job, self.job.stepper, []
        sums = job.collectives.rank == 0 or stepper.parallel.together
        initial = self._sums.sum_all(dict(stepper.updated_weights())) if sums else {}
        for batch in self._batches():
            gradients: dict[str, Sums] = {}

            def between(gradients: dict[str, Sums] = gradients) -> None:
                if rounding is not None:
                    rounding.active = False  # no rounding in what is computed from the gradients
                if sums:
                    scale = float(stepper.scaler.get_scale()) if stepper.scaler.is_enabled() else 1.0
                    with _disable_current_modes():
                        gradients |= self._sums.sum_all(self._gradients(), scale)

            if rounding is not None:
                rounding.active, stepper.watch = True, Walker(rounding.visit)
            with self._fixed_random():
                loss = stepper.step(batch, between)
            stepper.watch = None
            total = job.collectives.reduce_sum({"loss": float(loss)})["loss"] / job.collectives.world
            steps.append(
                StepNumbers(
                    loss=total if abs(total) < 1e100 else None,
                    data=self._sums.sum_all(collect_tensors(batch)) if sums else {},
                    gradients=gradients,
                    weights=self._sums.sum_all(dict(stepper.updated_weights())) if sums else {},
                )
            )
        return initial, steps

    def _batches(self) -> Iterator[Any]:
        """The first batches on the device, with learning rate and seed set for the step of each."""
        job, done, epoch = self.job, 0, 0
        per_epoch = job.schedule.steps_per_epoch
        job.stepper.model.train()
        while done < self.steps:
            before = done
            for batch in transfers.move_batches(job.data.train(epoch, 0), job.device):
                if self._should_stop(done):
                    raise StoppedError
                at = done / per_epoch if per_epoch else 0.0
                progress = Progress(done, at, job.schedule.planned_steps, job.schedule.items_per_step)
                job.stepper.set_learning_rate(job.workload.learning_rate(job.recipe, progress))
                torch.manual_seed(job.recipe.seed + done)
                yield batch
                done += 1
                if done == self.steps:
                    return
            epoch += 1
            if done == before:
                raise WorkloadError("the data has no batch to train on")

    def _fixed_random(self) -> AbstractContextManager[Any]:
        return fix_random() if self.is_random else nullcontext()

    def _restore(self) -> None:
        # an optimizer updates the tensors it is given in place
        self.job.stepper.load_state({**self._initial, "optimizer": deepcopy(self._initial["optimizer"])})
        self.job.stepper.optimizer.zero_grad(set_to_none=True)


def _copy_state(job: Job) -> dict[str, Any]:
    """The state before the first step, in host memory; of a sharded tensor the part that this rank holds."""

    def copy(tensor: Tensor) -> Tensor | Stored:
        held = _local(tensor).to("cpu", copy=True)
        return Stored(tensor.shape, tensor.dtype, lambda region: held) if isinstance(tensor, DTensor) else held

    return dict(tree_map_only(Tensor, copy, job.stepper.state()))
