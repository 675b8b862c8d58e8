"""How the ranks of a run share the work of a step: one device alone, or replicas that average their gradients.

A network too large for one device is sharded: `train/sharded.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any, Protocol, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from trainmark.platforms.platform import Device, Marks
from trainmark.record.errors import UsageError
from trainmark.record.machine import ExchangeShape
from trainmark.workloads.pieces import Piece

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers whose statistics need float32 whatever the rest computes in."""
TIMED_BACKWARDS = 12
"""Warm-up has as many steps, or nearly: two marks more in each of them change no result."""


class Exchange(Protocol):
    """Is entered around an exchange of a message, which may be one of weights that are gathered."""

    def __call__(self, message: Tensor, *, gathered: bool = False) -> AbstractContextManager[None]: ...


class ExchangeTimer(Protocol):
    """Is told when a step has nothing left to do but to exchange with other ranks; the run's clock is one."""

    def begin_exchange(self) -> None: ...

    def end_exchange(self) -> None: ...

    def exchange(self) -> AbstractContextManager[None]: ...


class ExchangeTally:
    """Counts what a step exchanges, as one rank sees it: messages and the bytes that all of them hold together."""

    def __init__(self, kind: str, parallel: str) -> None:
        self.kind, self.parallel = kind, parallel
        self.messages: list[tuple[int, torch.dtype, bool]] = []
        """Of the last step that ended: bytes, type, and whether weights were gathered."""
        self._messages: list[tuple[int, torch.dtype, bool]] = []

    def add(self, message: Tensor, *, gathered: bool = False) -> None:
        self._messages.append((message.nbytes, message.dtype, gathered))

    def end_step(self) -> None:
        if self._messages:
            self.messages, self._messages = self._messages, []

    def shape(self, parameters: int, backward_s: float | None) -> ExchangeShape | None:
        """None where nothing was exchanged."""
        if not self.messages:
            return None
        dtypes: dict[str, int] = {}
        for size, dtype, _ in self.messages:
            word = str(dtype).removeprefix("torch.")
            dtypes[word] = dtypes.get(word, 0) + size
        return ExchangeShape(
            kind=self.kind,
            parallel=self.parallel,
            messages=len(self.messages),
            size_bytes=sum(dtypes.values()),
            gathered_bytes=sum(size for size, _, gathered in self.messages if gathered),
            last_bytes=self.messages[-1][0],
            dtypes=dtypes,
            parameters=parameters,
            backward_s=backward_s,
        )


class BackwardTimer:
    """Takes the time from a step's loss to its last gradient in a few of the first steps, and then costs nothing."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._from: Any = None
        self._taken: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        if len(self._taken) < TIMED_BACKWARDS:
            self._from = self._marks.mark()

    def end(self) -> None:
        if self._from is not None:
            self._taken.append((self._from, self._marks.mark()))
            self._from = None

    def median_s(self) -> float | None:
        """Of all but the first two, in which devices still prepare themselves; called when all work is done."""
        times = [self._marks.between_ns(*pair) for pair in self._taken[2:]]
        return median(times) / 1e9 if times else None


class Parallel(Protocol):
    """What the stepper asks of a way to share the work; all ranks call all of it together.

    Nothing here takes every rank to hold all weights: a way that shards them may replace the parameters in `wrap`,
    which comes before the optimizer is made; its `state` holds parts, and `load_state` reads only those it needs.
    """

    world: int
    """How many batches make a step: one of each rank, or of each group of ranks that compute one together."""
    together: bool
    """True where no rank can compute without the others, not even forward."""
    exchanged: ExchangeTally | None
    """What a step exchanges; None where there is nobody to exchange with."""
    backward: BackwardTimer | None
    """What an exchange of gradients may hide behind; None where it is not timed."""

    def low_precision(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Holds the weights of all layers but norms in a narrower type; called before `wrap`, unless it is float32."""

    def type_of(self, weight: Tensor) -> torch.dtype:
        """What a weight of the model is computed with."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """What the model is trained through: compiled where that is asked for, its gradients exchanged."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch whose gradients stay here, because more are added to them."""

    def before_backward(self) -> None:
        """Called when a loss is computed."""

    def after_backward(self) -> None:
        """Called when a backward has returned, and work launched from now on finds its gradients."""

    def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Brings the norm of all gradients of the model down to this, and no host waits for it."""

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Gives every rank rank 0's running statistics. Where batch norm is per device they differ, and a score would
        then depend on which rank took which sample."""

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Of both, as this rank holds them; a later run may share the work among other ranks and in another way."""

    def split(self, state: Any) -> tuple[Any, list[Piece] | None]:
        """A state without the tensors that ranks hold in parts, and which parts this rank is to write down; None where
        every rank holds all of it."""

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None: ...


class OneDevice:
    """Nothing is shared."""

    world = 1
    together = False
    exchanged: ExchangeTally | None = None
    backward: BackwardTimer | None = None

    def __init__(self, *, compiled: str = "no") -> None:
        self._compiled = compiled

    def low_precision(self, model: nn.Module, dtype: torch.dtype) -> None:
        for module in model.modules():
            if not isinstance(module, _NORMS):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)

    def type_of(self, weight: Tensor) -> torch.dtype:
        return weight.dtype

    def wrap(self, model: nn.Module) -> nn.Module:
        self._compile_blocks(model)
        return cast("nn.Module", torch.compile(model)) if self._compiled == "yes" else model

    def _compile_blocks(self, model: nn.Module) -> None:
        """Blocks that are alike are compiled once, and a network of many takes no longer than one of few."""
        if self._compiled != "blocks":
            return
        if not (blocks := getattr(model, "blocks", ())):
            raise UsageError("compiled=blocks needs a network that names its blocks, and this does not; set it to yes")
        for block in blocks:
            block.compile()

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def before_backward(self) -> None:
        pass

    def after_backward(self) -> None:
        pass

    def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
        # the norm stays on the device: asking for its value would make the host wait every step
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    def broadcast_buffers(self, model: nn.Module) -> None:
        pass

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def split(self, state: Any) -> tuple[Any, list[Piece] | None]:
        return state, None

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


class DataParallel(OneDevice):
    """Every rank holds all weights, and the gradients of all ranks are averaged while backward still computes."""

    def __init__(self, device: Device, timer: ExchangeTimer | None = None, *, compiled: str = "no") -> None:
        super().__init__(compiled=compiled)
        self.exchanged = self._tally = ExchangeTally("all-reduce", "ddp")
        self.backward = self._backward = BackwardTimer(device.marks)
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

    def before_backward(self) -> None:
        self._backward.begin()

    def after_backward(self) -> None:
        if self._timer:
            self._timer.end_exchange()
        self._tally.end_step()

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
        self._tally.add(bucket.buffer())
        if bucket.is_last():
            self._backward.end()
            if self._timer:
                self._timer.begin_exchange()
        return bucket


def convert_master_weights(state: dict[str, Any], parameters: Mapping[str, bool]) -> dict[str, Any]:
    """A state whose master weights stand where they are wanted, wherever they stood when it was saved: apart from the
    weights, where `parameters` says so of their names, or, as in a sharded network, in their place."""
    weights, masters = state["model"], state["master_weights"]
    apart = [name for name, is_apart in parameters.items() if is_apart]
    if bool(masters) == bool(apart):
        return state
    if apart:
        return {**state, "master_weights": [weights[name] for name in apart]}
    narrow = [name for name in parameters if weights[name].dtype != torch.float32]
    return {**state, "model": {**weights, **dict(zip(narrow, masters, strict=True))}, "master_weights": []}
