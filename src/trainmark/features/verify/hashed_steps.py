"""Repeats the first steps of a training from the same state, and hashes the tensors of each step."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from trainmark.features.verify.document import STAGES, Numbers, StepNumbers
from trainmark.features.verify.tensor_digests import BitHash, SignedSums, collect_tensors, copy_to_host
from trainmark.record.errors import WorkloadError
from trainmark.record.precision import Sums
from trainmark.train import transfers
from trainmark.train.loop import Job
from trainmark.train.walker import Rounding, Walker, fix_random
from trainmark.workloads.workload import Progress

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
    """Two rounds that agree on a step settle it. A round that leaves the others is odd, and counts no further."""

    def __init__(self) -> None:
        self.rounds = 0
        self.settled = False
        self._kept: dict[int, Sequence[Hashes]] = {}
        """Rounds by their numbers: all until the steps are settled, then one that is right."""

    @property
    def is_hopeless(self) -> bool:
        return not self.settled and self.rounds >= MAX_ROUNDS

    def add(self, steps: Sequence[Hashes]) -> list[OddRound]:
        """Adds a round, and returns the rounds now known to be odd."""
        self.rounds += 1
        if self.settled:
            [right] = self._kept.values()
            step = next((at for at, pair in enumerate(zip(steps, right, strict=True)) if pair[0] != pair[1]), None)
            return [] if step is None else [self._odd(self.rounds, step, steps[step], right[step])]
        self._kept[self.rounds] = steps
        return self._settle()

    def _settle(self) -> list[OddRound]:
        """Follows the majority through the steps; no round is odd until every step is settled."""
        odd: list[OddRound] = []
        alike = dict(self._kept)
        for step in range(len(next(iter(alike.values())))):
            votes = Counter(steps[step] for steps in alike.values())
            [(right, count), *others] = votes.most_common()
            if count < 2 or (others and others[0][1] == count):
                return self._never_alike(step, alike, odd) if self.is_hopeless else []
            odd += [
                self._odd(number, step, steps[step], right) for number, steps in alike.items() if steps[step] != right
            ]
            alike = {number: steps for number, steps in alike.items() if steps[step] == right}
        self.settled = True
        self._kept = dict([next(iter(alike.items()))])
        return odd

    def _never_alike(self, step: int, alike: dict[int, Sequence[Hashes]], odd: list[OddRound]) -> list[OddRound]:
        if len(alike) == 1:
            return odd  # all others are odd before, and nothing is left to compare with
        seen = [steps[step] for steps in alike.values()]
        places = tuple(place for place, values in enumerate(zip(*seen, strict=True)) if len(set(values)) > 1)
        return [*odd, OddRound(round=self.rounds, step=step, places=places, never_alike=True)]

    @staticmethod
    def _odd(number: int, step: int, found: Hashes, right: Hashes) -> OddRound:
        places = tuple(place for place, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1])
        return OddRound(round=number, step=step, places=places)


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
        self._places: dict[Quantity, int] = {}
        self._initial = _copy_state(job)
        self._sums = SignedSums()

    def round(self) -> list[Hashes]:
        """Runs a round, and returns the hashes of every step."""
        self._restore()
        steps: list[dict[Quantity, int]] = []
        hashes: dict[Quantity, Tensor] = {}
        with self._hashing_gradients(hashes):
            for batch in self._batches():
                found, weights = self._hash_step(batch, hashes)
                if steps:
                    steps[-1] |= weights  # as the next step finds them
                steps.append(found)
        steps[-1] |= self._copy_hashes(self._weights())
        for found in steps:
            for quantity in sorted(found, key=lambda each: STAGES.index(each[0])):
                if quantity not in self._places:
                    self._places[quantity] = len(self.quantities)
                    self.quantities.append(quantity)
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

    def _hash_step(self, batch: Any, found: dict[Quantity, Tensor]) -> tuple[dict[Quantity, int], dict[Quantity, int]]:
        """The hashes of a step, and those of the weights before it. `found` is also filled by the gradients' hooks."""
        stepper, exchanges = self.job.stepper, self.job.stepper.parallel.world > 1
        found.clear()
        weights = self._weights()
        with stepper.arithmetic:
            for name, tensor in collect_tensors(batch).items():
                found["data", name] = self.hash(tensor)

        def hash_exchanged() -> None:
            for name, weight in stepper.bare_model.named_parameters():
                if weight.grad is not None:
                    found["exchanged gradient", name] = self.hash(weight.grad)

        with self._fixed_random():
            loss = stepper.step(batch, hash_exchanged if exchanges else None)
        with stepper.arithmetic:
            found["loss", ""] = self.hash(loss)
            values = copy_to_host([*weights.values(), *found.values()])
        own, before = values[len(weights) :], values[: len(weights)]
        return dict(zip(found, own, strict=True)), dict(zip(weights, before, strict=True))

    def _weights(self) -> dict[Quantity, Tensor]:
        stepper = self.job.stepper
        with stepper.arithmetic:
            found = {("weight", name): self.hash(weight) for name, weight in stepper.updated_weights()}
            found |= {("statistic", name): self.hash(buffer) for name, buffer in stepper.bare_model.named_buffers()}
        return found

    def _copy_hashes(self, hashes: dict[Quantity, Tensor]) -> dict[Quantity, int]:
        with self.job.stepper.arithmetic:
            return dict(zip(hashes, copy_to_host(hashes.values()), strict=True))

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
        first = job.collectives.rank == 0
        initial = self._sums.sum_all(dict(stepper.updated_weights())) if first else {}
        for batch in self._batches():
            gradients: dict[str, Sums] = {}

            def between(gradients: dict[str, Sums] = gradients) -> None:
                if rounding is not None:
                    rounding.active = False  # no rounding in what is computed from the gradients
                if first:
                    scale = float(stepper.scaler.get_scale()) if stepper.scaler.is_enabled() else 1.0
                    weights = stepper.bare_model.named_parameters()
                    there = {name: weight.grad for name, weight in weights if weight.grad is not None}
                    with _disable_current_modes():
                        gradients |= self._sums.sum_all(there, scale)

            if rounding is not None:
                rounding.active, stepper.watch = True, Walker(rounding.visit)
            with self._fixed_random():
                loss = stepper.step(batch, between)
            stepper.watch = None
            total = job.collectives.reduce_sum({"loss": float(loss)})["loss"] / job.collectives.world
            steps.append(
                StepNumbers(
                    loss=total if abs(total) < 1e100 else None,
                    data=self._sums.sum_all(collect_tensors(batch)) if first else {},
                    gradients=gradients,
                    weights=self._sums.sum_all(dict(stepper.updated_weights())) if first else {},
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
    """The state before the first step, in host memory; of a sharded network all of it, on every rank."""
    state = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu().clone(), job.stepper.state())
    if not job.stepper.parallel.together:
        return dict(state)
    packed = io.BytesIO()
    torch.save(state, packed)
    whole = job.collectives.broadcast(packed.getvalue() if job.collectives.rank == 0 else None)
    return dict(torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True))
