"""How ranks share a training step: a single device, or replicas that average gradients (DDP).

For networks too large for one device there is FSDP: `features/sharding`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from trainmark.platforms.platform import Device, Marks
from trainmark.record.errors import UsageError
from trainmark.record.machine import ExchangeShape
from trainmark.train.clock import Clock
from trainmark.workloads.pieces import Piece

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers that keep float32 weights in every precision."""
TIMED_BACKWARDS = 12
"""About as many steps as warm-up has, so that the marks change no result."""


class Exchange(Protocol):
    """A context around the exchange of a message; `gathered` for an all-gather of weights."""

    def __call__(self, message: Tensor, *, gathered: bool = False) -> AbstractContextManager[None]: ...


class ExchangeTally:
    """Counts the messages of a step and their bytes, as one rank sees them."""

    def __init__(self, kind: str, parallel: str) -> None:
        self.kind, self.parallel = kind, parallel
        self.messages: list[tuple[int, torch.dtype, bool]] = []
        """Of the last finished step: bytes, type, and whether weights were gathered."""
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
    """Times the backward pass in a few of the first steps, and then costs nothing."""

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
        """Without the first two, which warm up; called when all work is done."""
        times = [self._marks.between_ns(*pair) for pair in self._taken[2:]]
        return median(times) / 1e9 if times else None


class OneDevice:
    """A single device, and the base of all ways to share the work of a step; all ranks call its methods together.

    No rank needs to hold all weights: `wrap`, which is called before the optimizer is made, may replace parameters by
    shards; then `state` holds shards, and `load_state` reads only what this rank needs.
    """

    world = 1
    """How many batches make a step: one per rank, or per tensor-parallel group."""
    together = False
    """True where no rank can compute without the others, not even a forward pass."""
    exchanged: ExchangeTally | None = None
    """What a step exchanges; None on a single device."""
    backward: BackwardTimer | None = None
    """The time that may hide the exchange of gradients; None where it is not measured."""

    def __init__(self, *, compiled: str = "no") -> None:
        self._compiled = compiled

    def narrow_weights(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Casts the weights of all layers but norms to a narrower type; called before `wrap`, unless it is float32."""
        for module in model.modules():
            if not isinstance(module, NORMS):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)

    def type_of(self, weight: Tensor) -> torch.dtype:
        """The type that a weight has in computation."""
        return weight.dtype

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to train: compiled where requested, with its gradients exchanged."""
        self._compile_blocks(model)
        return cast("nn.Module", torch.compile(model)) if self._compiled == "yes" else model

    def _compile_blocks(self, model: nn.Module) -> None:
        """Equal blocks are compiled once, so compile time does not grow with depth."""
        if self._compiled != "blocks":
            return
        if not (blocks := getattr(model, "blocks", ())):
            raise UsageError("compiled=blocks needs a network with `blocks`, and this has none; set compiled=yes")
        for block in blocks:
            block.compile()

    def no_sync(self) -> AbstractContextManager[None]:
        """Around forward and backward pass of a micro-batch whose gradients are only accumulated."""
        return nullcontext()

    def before_backward(self) -> None:
        """Called when a loss is computed."""

    def after_backward(self) -> None:
        """Called when a backward pass has returned; work launched from now on sees its gradients."""

    def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Clips the norm of all gradients; it stays on the device, as reading it would sync every step."""
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Broadcasts the running statistics of rank 0. With batch norm per device they differ, and a score would
        depend on which rank took which sample."""

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The state of both on this rank; a later run may load it with another topology or another way to share."""
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def split(self, state: Any) -> tuple[Any, list[Piece] | None]:
        """A state without its sharded tensors, and the shards to write here; None where every rank holds all."""
        return state, None

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


class DataParallel(OneDevice):
    """Every rank holds all weights; gradients are averaged while the backward pass still runs."""

    def __init__(self, device: Device, timer: Clock | None = None, *, compiled: str = "no") -> None:
        super().__init__(compiled=compiled)
        self.exchanged = self._tally = ExchangeTally("all-reduce", "ddp")
        self.backward = self._backward = BackwardTimer(device.marks)
        self.world = distributed.get_world_size()
        self._device, self._timer = device, timer

    def wrap(self, model: nn.Module) -> nn.Module:
        """Exchanges each bucket of gradients as soon as it is full.

        Buckets go out in a fixed order, the last one when all gradients are computed: from there to the end of the
        backward pass, communication is exposed.
        """
        indices = None if self._device.torch.type == "cpu" else [self._device.torch.index]
        ready = super().wrap(model)
        self._replica = DistributedDataParallel(ready, device_ids=indices, gradient_as_bucket_view=True)
        # a lambda: torch compares the annotations of a hook with types, and ours are strings
        self._replica.register_comm_hook(
            distributed.group.WORLD, lambda group, bucket: allreduce_hook(group, self._note_bucket(bucket))
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

    def _note_bucket(self, bucket: Any) -> Any:
        self._tally.add(bucket.buffer())
        if bucket.is_last():
            self._backward.end()
            if self._timer:
                self._timer.begin_exchange()
        return bucket


def convert_master_weights(state: dict[str, Any], parameters: Mapping[str, bool]) -> dict[str, Any]:
    """A state with its master weights where this run keeps them, wherever the saved run did: beside the weights, where
    `parameters` says so by name, or, as in a sharded network, in their place."""
    weights, masters = state["model"], state["master_weights"]
    apart = [name for name, is_apart in parameters.items() if is_apart]
    if bool(masters) == bool(apart):
        return state
    if apart:
        return {**state, "master_weights": [weights[name] for name in apart]}
    narrow = [name for name in parameters if weights[name].dtype != torch.float32]
    return {**state, "model": {**weights, **dict(zip(narrow, masters, strict=True))}, "master_weights": []}


MakeExchange = Callable[[], AbstractContextManager[None]]
"""Makes a context around a wait for the other ranks, which the clock charges to communication."""


def convert_batch_norms(model: nn.Module, on_cpu: bool, exchange: MakeExchange) -> nn.Module:
    """The model with its batch norms synchronized over all ranks; its state keeps names and values.

    Accelerators use nn.SyncBatchNorm, which refuses CPU tensors. Ours waits for the other ranks inside `exchange`.
    """
    if not on_cpu:
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = GlobalBatchNorm
            module._exchange = exchange  # type: ignore[assignment]
    return model


class GlobalBatchNorm(_BatchNorm):
    """Trains as one batch norm on the concatenated batches of all ranks, which must all call it; evaluates as usual."""

    _exchange: MakeExchange

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training:
            return super().forward(x)
        with torch.no_grad():  # the backward pass below differentiates through these
            mean, variance, count = _gather_statistics(x, self._exchange)
            self._track(mean, variance * (count / (count - 1)))
        return _normalise(x, self.weight, self.bias, mean, variance, count, self.eps, self._exchange)

    def _track(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        part = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, part)
        self.running_var.lerp_(unbiased_variance, part)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"a batch norm needs (samples, channels, ...), not a tensor of {x.dim()} dimensions")


class _Normalise(torch.autograd.Function):
    """Normalises with the statistics of all ranks, and differentiates through them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: int,
        eps: float,
        exchange: MakeExchange,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.count, ctx.eps, ctx.exchange = count, eps, exchange
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            of_y, x, weight, mean, variance, None, None, False, ctx.eps, (False, True, True)
        )
        # x takes the sums over all ranks; weight and bias keep those of this rank, as gradients of parameters are
        # averaged later with all the others
        sums = torch.stack((of_weight, of_bias))
        with ctx.exchange():
            distributed.all_reduce(sums)
        by_spread, by_mean = sums / ctx.count
        inverse = (variance + ctx.eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        of_x = torch.addcmul(
            _view_per_channel(-scale * by_mean, x),
            x - _view_per_channel(mean, x),
            _view_per_channel(-scale * inverse * by_spread, x),
        )
        of_x.addcmul_(of_y.to(of_x.dtype), _view_per_channel(scale, x))
        _, weight_wants, bias_wants, *_ = ctx.needs_input_grad
        return of_x.to(x.dtype), of_weight if weight_wants else None, of_bias if bias_wants else None, *[None] * 5


_normalise: Callable[..., Tensor] = _Normalise.apply


def _gather_statistics(x: Tensor, exchange: MakeExchange) -> tuple[Tensor, Tensor, int]:
    """Mean, biased variance and count of values per channel, over all ranks."""
    channels = x.shape[1]
    # the kernel of batch norm: torch.var_mean takes twenty times as long with channels last. The running statistics
    # are not wanted, but their type is the type of its result
    unwanted = torch.zeros(2, channels, dtype=torch.promote_types(x.dtype, torch.float32))
    mean, variance = torch.batch_norm_update_stats(x, unwanted[0], unwanted[1], momentum=0.0)
    count = torch.tensor([x.numel() // channels], dtype=torch.float64)  # float32 could not count exactly
    mine = torch.cat((mean, variance, count))
    all_ranks = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    with exchange():
        distributed.all_gather(all_ranks, mine)
    means, variances, counts = torch.split(torch.stack(all_ranks), [channels, channels, 1], dim=1)
    # variance within ranks plus variance between their means: all terms are positive, while a mean of squares minus a
    # squared mean would cancel the digits of a small variance
    shares = counts / counts.sum()
    together = (shares * means).sum(0)
    spread = (shares * (variances + (means - together).square())).sum(0)
    return together.to(mean.dtype), spread.to(mean.dtype), int(counts.sum())


def _view_per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 2))
