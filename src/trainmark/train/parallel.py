"""How the ranks of a run share the work of a step: one device alone, or replicas that average their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from trainmark.platforms.platform import Device


class ExchangeTimer(Protocol):
    """Is told when a step has nothing left to do but to exchange with other ranks; the run's clock is one."""

    def exchange_begins(self) -> None: ...

    def exchange_ends(self) -> None: ...


class Parallel(Protocol):
    """What the stepper asks of a way to share the work; all ranks call all of it together.

    Nothing here takes every rank to hold all weights: a way that shards them may replace the parameters in `wrap`,
    which comes before the optimizer is made, and gathers and spreads them in `state` and `load_state`.
    """

    world: int

    def wrap(self, model: nn.Module) -> nn.Module:
        """What the model is trained through: compiled where that is asked for, its gradients exchanged."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch whose gradients stay here, because more are added to them."""

    def after_backward(self) -> None:
        """Called when a backward has returned, and work launched from now on finds its gradients."""

    def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Brings the norm of all gradients of the model down to this, and no host waits for it."""

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Gives every rank rank 0's running statistics. Where batch norm is per device they differ, and a score would
        then depend on which rank took which sample."""

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Both whole, so that a later run may share the work among other ranks and in another way."""

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None: ...


class OneDevice:
    """Nothing is shared."""

    world = 1

    def __init__(self, *, compiled: bool = False) -> None:
        self._compiled = compiled

    def wrap(self, model: nn.Module) -> nn.Module:
        return cast("nn.Module", torch.compile(model)) if self._compiled else model

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def after_backward(self) -> None:
        pass

    def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
        # the norm stays on the device: asking for its value would make the host wait every step
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    def broadcast_buffers(self, model: nn.Module) -> None:
        pass

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


class DataParallel(OneDevice):
    """Every rank holds all weights, and the gradients of all ranks are averaged while backward still computes."""

    def __init__(self, device: Device, timer: ExchangeTimer | None = None, *, compiled: bool = False) -> None:
        super().__init__(compiled=compiled)
        self.world = distributed.get_world_size()
        self._device, self._timer = device, timer

    def wrap(self, model: nn.Module) -> nn.Module:
        """Exchanges each bucket of gradients as soon as it is full.

        Buckets go out in a fixed order, so the last one goes when all gradients are computed: the time from there to
        the end of backward is what computing did not hide.
        """
        indices = None if self._device.torch.type == "cpu" else [self._device.torch.index]
        ready = super().wrap(model)
        self._replica = DistributedDataParallel(ready, device_ids=indices, gradient_as_bucket_view=True)
        # a lambda: torch compares a hook's annotations with types, and ours are strings
        self._replica.register_comm_hook(
            distributed.group.WORLD, lambda group, bucket: allreduce_hook(group, self._announce(bucket))
        )
        return self._replica

    def no_sync(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()

    def after_backward(self) -> None:
        if self._timer:
            self._timer.exchange_ends()

    def broadcast_buffers(self, model: nn.Module) -> None:
        floating = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if not floating:
            return
        together = torch.cat([buffer.flatten() for buffer in floating])
        distributed.broadcast(together, 0)
        for buffer, values in zip(
            floating, torch.split(together, [buffer.numel() for buffer in floating]), strict=True
        ):
            buffer.copy_(values.view_as(buffer))

    def _announce(self, bucket: Any) -> Any:
        if self._timer and bucket.is_last():
            self._timer.exchange_begins()
        return bucket
