"""Computes the first steps of a training again and again from the same state, and hashes what each of them makes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from trainmark.features.verify.round_ledger import Hashes
from trainmark.features.verify.tensor_digests import BitHash, SignedSums, bring, tensors_in
from trainmark.record.errors import WorkloadError
from trainmark.record.precision import Sums
from trainmark.record.verify import STAGES, Numbers, StepNumbers
from trainmark.train import transfers
from trainmark.train.loop import Job
from trainmark.train.walker import Rounding, Walker, fixed_random
from trainmark.workloads.workload import Progress

Quantity = tuple[str, str]
"""A stage of a step, and the layer or the tensor of it."""


class StoppedError(Exception):
    """All ranks were asked to end in the middle of a round."""


class HashedSteps:
    """So many steps of a job, which can be computed as often as one likes."""

    def __init__(self, job: Job, steps: int, alive: Callable[[int], bool] = lambda step: False) -> None:
        """`alive` is called before every step and says whether to stop, the same on all ranks."""
        self.job, self.steps, self._alive = job, steps, alive
        self.quantities: list[Quantity] = []
        """What is hashed of a step, in the order in which a step makes it."""
        self.hash = BitHash()
        self.is_random = False
        """Random numbers are made the same everywhere, because the step makes some."""
        self._places: dict[Quantity, int] = {}
        self._initial = _kept_state(job)
        self._sums = SignedSums()

    def round(self) -> list[Hashes]:
        """Every step's hashes."""
        self._restore()
        steps: list[dict[Quantity, int]] = []
        hashes: dict[Quantity, Tensor] = {}
        with self._gradients_hashed(hashes):
            for batch in self._batches():
                found, weights = self._hash_step(batch, hashes)
                if steps:
                    steps[-1] |= weights  # as the step after it finds them
                steps.append(found)
        steps[-1] |= self._brought(self._weights())
        for found in steps:
            for quantity in sorted(found, key=lambda each: STAGES.index(each[0])):
                if quantity not in self._places:
                    self._places[quantity] = len(self.quantities)
                    self.quantities.append(quantity)
        return [tuple(found.get(quantity, 0) for quantity in self.quantities) for found in steps]

    def numbers(self) -> Numbers:
        """Every step in numbers, and once more with every result off by as much as the precision rounds."""
        initial, steps = self._in_numbers(None)
        _, rounded = self._in_numbers(Rounding(self.job.stepper.precision))
        return Numbers(initial=initial, steps=steps, rounded=rounded)

    def first_step(self, watch: AbstractContextManager[Any]) -> None:
        """Makes the first step alone, looked at from inside its arithmetic."""
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
        """The hashes of a step, and those of the weights before it. `found` is filled by the gradients' hooks, too."""
        stepper, exchanges = self.job.stepper, self.job.stepper.parallel.world > 1
        found.clear()
        weights = self._weights()
        with stepper.arithmetic:
            for name, tensor in tensors_in(batch).items():
                found["data", name] = self.hash(tensor)

        def exchanged() -> None:
            for name, weight in stepper.bare_model.named_parameters():
                if weight.grad is not None:
                    found["exchanged gradient", name] = self.hash(weight.grad)

        with self._fixed_random():
            loss = stepper.step(batch, exchanged if exchanges else None)
        with stepper.arithmetic:
            found["loss", ""] = self.hash(loss)
            values = bring([*weights.values(), *found.values()])
        own, told = values[len(weights) :], values[: len(weights)]
        return dict(zip(found, own, strict=True)), dict(zip(weights, told, strict=True))

    def _weights(self) -> dict[Quantity, Tensor]:
        stepper = self.job.stepper
        with stepper.arithmetic:
            found = {("weight", name): self.hash(weight) for name, weight in stepper.updated_weights()}
            found |= {("statistic", name): self.hash(buffer) for name, buffer in stepper.bare_model.named_buffers()}
        return found

    def _brought(self, hashes: dict[Quantity, Tensor]) -> dict[Quantity, int]:
        with self.job.stepper.arithmetic:
            return dict(zip(hashes, bring(hashes.values()), strict=True))

    @contextmanager
    def _gradients_hashed(self, found: dict[Quantity, Tensor]) -> Iterator[None]:
        """Hashes each gradient as soon as backward has it, before any exchange; a sharded network shows none there."""

        def hook(name: str) -> Callable[[Tensor], None]:
            def note(gradient: Tensor) -> None:
                hashed, quantity = self.hash(gradient), ("gradient", name)
                # of several micro-batches, each in its order
                found[quantity] = found[quantity] * 3 + hashed if quantity in found else hashed

            return note

        with ExitStack() as hooks:
            if not self.job.stepper.parallel.together:
                for name, weight in self.job.stepper.bare_model.named_parameters():
                    if weight.requires_grad:
                        hooks.callback(weight.register_hook(hook(name)).remove)  # type: ignore[no-untyped-call]
            yield

    def _in_numbers(self, rounding: Rounding | None) -> tuple[dict[str, Sums], list[StepNumbers]]:
        self._restore()
        job, stepper, steps = self.job, self.job.stepper, []
        first = job.collectives.rank == 0
        initial = self._sums.of_all(dict(stepper.updated_weights())) if first else {}
        for batch in self._batches():
            gradients: dict[str, Sums] = {}

            def between(gradients: dict[str, Sums] = gradients) -> None:
                if rounding is not None:
                    rounding.active = False  # what is computed with the gradients is computed in full
                if first:
                    scale = float(stepper.scaler.get_scale()) if stepper.scaler.is_enabled() else 1.0
                    weights = stepper.bare_model.named_parameters()
                    there = {name: weight.grad for name, weight in weights if weight.grad is not None}
                    with _disable_current_modes():
                        gradients |= self._sums.of_all(there, scale)

            if rounding is not None:
                rounding.active, stepper.watch = True, Walker(rounding.visit)
            with self._fixed_random():
                loss = stepper.step(batch, between)
            stepper.watch = None
            total = job.collectives.reduce_sum({"loss": float(loss)})["loss"] / job.collectives.world
            steps.append(
                StepNumbers(
                    loss=total if abs(total) < 1e100 else None,
                    data=self._sums.of_all(tensors_in(batch)) if first else {},
                    gradients=gradients,
                    weights=self._sums.of_all(dict(stepper.updated_weights())) if first else {},
                )
            )
        return initial, steps

    def _batches(self) -> Iterator[Any]:
        """The first batches on the device, with everything set for the step that is made of each."""
        job, done, epoch = self.job, 0, 0
        per_epoch = job.schedule.steps_per_epoch
        job.stepper.model.train()
        while done < self.steps:
            before = done
            for batch in transfers.move_batches(job.data.train(epoch, 0), job.device):
                if self._alive(done):
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
        return fixed_random() if self.is_random else nullcontext()

    def _restore(self) -> None:
        # an optimizer goes on with the very tensors it is given
        self.job.stepper.load_state({**self._initial, "optimizer": deepcopy(self._initial["optimizer"])})
        self.job.stepper.optimizer.zero_grad(set_to_none=True)


def _kept_state(job: Job) -> dict[str, Any]:
    """The state of the network before its first step, in host memory; of a sharded one all of it, on every rank."""
    state = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu().clone(), job.stepper.state())
    if not job.stepper.parallel.together:
        return dict(state)
    packed = io.BytesIO()
    torch.save(state, packed)
    whole = job.collectives.broadcast(packed.getvalue() if job.collectives.rank == 0 else None)
    return dict(torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True))
