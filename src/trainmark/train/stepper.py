"""One training step in any precision: forward pass, backward pass, gradient exchange, update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from trainmark.platforms import scaled_matmul
from trainmark.platforms.platform import Device
from trainmark.record.errors import WorkloadError
from trainmark.record.precision import Precision
from trainmark.train.parallel import OneDevice, convert_master_weights


class WeightAverage:
    """An exponential moving average (EMA) of the weights, in float32."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], decay: float) -> None:
        self._names = [name for name, _ in named]
        self._weights = [weight.detach() for _, weight in named]
        self._averages = [weight.clone() for weight in self._weights]
        self._decay, self._steps = decay, 0

    @torch.no_grad()
    def update(self) -> None:
        """Called after every step."""
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(self._averages, self._weights, 1 - decay)
        self._steps += 1

    @contextmanager
    def swap_into(self, model: torch.nn.Module) -> Iterator[None]:
        """The model computes with the averages inside, and has its own weights again afterwards, bit for bit."""
        parameters = dict(model.named_parameters())
        held: list[Tensor] = [parameters[name] for name in self._names]
        own = [weight.detach().clone() for weight in held]
        try:
            with torch.no_grad():
                torch._foreach_copy_(held, self._averages)
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(held, own)

    def state(self) -> dict[str, Any]:
        """The averages by the names of the weights, and the number of steps."""
        return {"average": dict(zip(self._names, self._averages, strict=True)), "averaged_steps": self._steps}

    def load_state(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, average in zip(self._names, self._averages, strict=True):
                average.copy_(state["average"][name])
        self._steps = state["averaged_steps"]


class Stepper:
    """Owns the weights of the model on a device, their float32 master weights where narrower, and the optimizer."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        loss: Callable[[nn.Module, Any], Tensor],
        precision: Precision,
        device: Device,
        parallel: OneDevice | None = None,
        clip_gradient_norm: float = 0.0,
        accumulate: int = 1,
        average_decay: float = 0.0,
    ) -> None:
        """Without `parallel`, on a single device."""
        self.device = device
        self.precision = precision
        self.bare_model = model
        self.parallel = parallel or OneDevice()
        if precision.weights != "float32":
            self.parallel.narrow_weights(model, getattr(torch, precision.weights))
        if precision.scaled:
            scaled_matmul.replace_linears(model)
        self.model = self.parallel.wrap(model)
        self._loss = loss
        self._world = self.parallel.world
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._low_precision_weights: list[Tensor] = [p for p in parameters if p.dtype != torch.float32]
        self._master_weights = [p.detach().float().clone() for p in self._low_precision_weights]
        master = {id(p): w for p, w in zip(self._low_precision_weights, self._master_weights, strict=True)}
        self.optimizer = optimizer([master.get(id(p), p) for p in parameters])
        self.scaler = torch.amp.GradScaler(device.torch.type, enabled=precision.scales_loss)
        self.arithmetic = device.arithmetic(precision)
        # made once, as this takes longer than entering it
        self._autocast = device.autocast(precision) if precision.autocast else None
        self.watch: AbstractContextManager[object] | None = None
        """A context around the next step, inside its arithmetic, until it removes itself."""
        self._learning_rate: float | None = None
        self._clip_gradient_norm = clip_gradient_norm
        self._accumulate = accumulate
        self._average = WeightAverage(self.updated_weights(), average_decay) if average_decay else None

    def set_learning_rate(self, value: float) -> None:
        if value != self._learning_rate:
            self._learning_rate = value
            for group in self.optimizer.param_groups:
                group["lr"] = value

    def step(self, batch: Any, between: Callable[[], None] | None = None) -> Tensor:
        """Trains on one batch and returns its loss, still on the device.

        With several ranks it is weighted by the share of this rank, so that the mean over ranks is the loss.
        `between` is called between the exchange of gradients and the update.
        """
        if self.watch is None and isinstance(self.arithmetic, nullcontext):  # entering one costs a microsecond
            loss = self._step(batch, between)
        else:
            with self.arithmetic, self.watch or nullcontext():
                loss = self._step(batch, between)
        if self._average:
            self._average.update()
        return loss

    def _step(self, batch: Any, between: Callable[[], None] | None) -> Tensor:
        loss = self.gradients(batch, batch) if self._accumulate == 1 else self._gradients_in_parts(batch)
        if between is not None:
            between()
        if self._low_precision_weights:
            self._gradients_to_master()
        if self._clip_gradient_norm:
            self.scaler.unscale_(self.optimizer)  # the limit is for unscaled gradients
            updated = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
            self.parallel.clip_gradients(updated, self._clip_gradient_norm)
        if self.precision.scales_loss:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self._low_precision_weights:
            with torch.no_grad():
                torch._foreach_copy_(self._low_precision_weights, self._master_weights)
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _gradients_in_parts(self, batch: Any) -> Tensor:
        """Accumulates the gradients of micro-batches, exchanged with the last one; returns the loss of the batch."""
        *parts, last = batch.parts(self._accumulate)
        losses = []
        for part in parts:
            with self.parallel.no_sync():
                losses.append(self.gradients(part, batch))
        losses.append(self.gradients(last, batch))
        return torch.stack(losses).sum()

    def gradients(self, part: Any, batch: Any) -> Tensor:
        """Adds the gradients of a part of the batch and returns its part of the loss."""
        if self._autocast is None:
            loss = self._loss(self.model, part)
        else:
            with self._autocast:
                loss = self._loss(self.model, part)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise WorkloadError(
                f"the workload's loss is of {what}; return the mean of the batch, one number in a tensor"
            )
        weight = 1.0 if part is batch and self._world == 1 else self._weight(part, batch)
        weighted = loss if weight == 1 else loss * weight
        self.parallel.before_backward()
        scaled = self.scaler.scale(weighted) if self.precision.scales_loss else weighted
        scaled.backward()  # type: ignore[no-untyped-call]
        self.parallel.after_backward()
        return weighted.detach()

    def updated_weights(self) -> list[tuple[str, Tensor]]:
        """What the optimizer updates, by parameter name: the parameters, or their float32 master weights."""
        low = {id(w): master for w, master in zip(self._low_precision_weights, self._master_weights, strict=True)}
        return [(name, low.get(id(weight), weight)) for name, weight in self.bare_model.named_parameters()]

    def refresh_master_weights(self) -> None:
        """Copies the weights of the model to their master weights, after a change from outside."""
        with torch.no_grad():
            for low, master in zip(self._low_precision_weights, self._master_weights, strict=True):
                master.copy_(low)

    def use_evaluation_weights(self) -> AbstractContextManager[None]:
        """Inside, the bare model has the weights to evaluate: its own, or their EMA."""
        return self._average.swap_into(self.bare_model) if self._average else nullcontext()

    def state(self) -> dict[str, Any]:
        """What a checkpoint restores, as this rank holds it."""
        shared = self.parallel.state(self.bare_model, self.optimizer) | (self._average.state() if self._average else {})
        return {**shared, "master_weights": self._master_weights, "scaler": self.scaler.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        narrow = {id(weight) for weight in self._low_precision_weights}
        state = convert_master_weights(
            state, {name: id(weight) in narrow for name, weight in self.bare_model.named_parameters()}
        )
        self.parallel.load_state(self.bare_model, self.optimizer, state)
        with torch.no_grad():
            for weight, saved in zip(self._master_weights, state["master_weights"], strict=True):
                weight.copy_(saved)
        self.scaler.load_state_dict(state["scaler"])
        self._learning_rate = None  # the optimizer has that of the state now
        if self._average:
            self._average.load_state(state)

    def _gradients_to_master(self) -> None:
        """Moves the gradients to the master weights, where unscaling and updates happen."""
        for low, master in zip(self._low_precision_weights, self._master_weights, strict=True):
            master.grad = None if low.grad is None else low.grad.float()
            low.grad = None

    def _weight(self, part: Any, batch: Any) -> float:
        # gradients are averaged over ranks as if all had equal shares, and micro-batches may differ in length: each is
        # weighted by its samples
        return float(part.count * self._world / (batch.count if self._world == 1 else batch.global_count))
