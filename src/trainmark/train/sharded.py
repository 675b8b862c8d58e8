"""Shards a network over the ranks: each holds a part of every weight, gradient and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainmark.platforms.platform import Device
from trainmark.spec.errors import UsageError
from trainmark.spec.precision import Precision
from trainmark.train.parallel import ExchangeTally, ExchangeTimer, OneDevice

Fill = Callable[[nn.Module], None]
"""Gives a network its weights, by `place` where they are sharded."""


class ShardedParallel(OneDevice):
    """Weights are gathered block by block where they are needed and dropped again; gradients go to their owners.

    Masters are float32: a precision whose weights are narrower only gathers them in that, and gradients are added up in
    float32. With several nodes and `by_node`, each node holds the whole network in parts, and nodes average gradients.
    What computing did not hide: on a CPU every exchange, as it does one thing at a time; on other devices the wait for
    a block's weights before its forward, and for the last gradients after the first block's backward.
    """

    together = True

    def __init__(
        self,
        device: Device,
        precision: Precision,
        fill: Fill,
        timer: ExchangeTimer | None = None,
        *,
        local_ranks: int,
        by_node: bool = False,
        compiled: str = "no",
    ) -> None:
        super().__init__(compiled=compiled)
        if precision.scales_loss:
            raise UsageError(
                f"a sharded network is not trained in {precision}: its loss scaler would look at one rank's gradients; "
                "take bf16 or amp-bf16"
            )
        self.world = distributed.get_world_size()
        self._device, self._fill, self._timer = device, fill, timer
        nodes = self.world // local_ranks if by_node else 1
        shape = {"replicate": nodes, "shard": self.world // nodes} if nodes > 1 else {"shard": self.world}
        # given, not left to torch, which takes whatever accelerator it finds
        self._mesh = init_device_mesh(device.torch.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
        narrow = getattr(torch, precision.weights)
        self._policy = (
            MixedPrecisionPolicy()
            if narrow is torch.float32
            else MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32)
        )
        self.exchanged = self._tally = ExchangeTally("reduce-scatter and all-gather", "hsdp" if by_node else "fsdp")
        self._syncs = True

    def low_precision(self, model: nn.Module, dtype: torch.dtype) -> None:
        """The weights stay as they are; the policy narrows what is gathered."""

    def type_of(self, weight: Tensor) -> torch.dtype:
        """The master is float32; what is gathered of it is what a step sees."""
        return self._policy.param_dtype or weight.dtype

    def wrap(self, model: nn.Module) -> nn.Module:
        blocks = getattr(model, "blocks", ())
        if not blocks:
            raise UsageError(
                "this network names no blocks to shard it by; leave out --set parallel=..., so that each rank holds it"
            )
        if self._compiled == "yes":
            raise UsageError("compiled=yes does not go with a sharded network; set compiled=blocks")
        self._compile_blocks(model)
        for part in (*blocks, model):
            fully_shard(part, mesh=self._mesh, mp_policy=self._policy)
            self._count(cast("FSDPModule", part))
        if self._timer and not self._device.is_cpu:
            self._mark_waits(blocks, self._timer)
        model.to_empty(device=self._device.torch)
        self._fill(model)
        self._model = cast("FSDPModule", model)
        return model

    def no_sync(self) -> AbstractContextManager[None]:
        return self._kept_here()

    @contextmanager
    def _kept_here(self) -> Iterator[None]:
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(True)

    def _set_sync(self, syncs: bool) -> None:
        self._syncs = syncs
        self._model.set_requires_gradient_sync(syncs)

    def after_backward(self) -> None:
        if self._timer and not self._device.is_cpu:
            self._timer.exchange_ends()
        if self._syncs:
            self._tally.step_ends()

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """All ranks gather one tensor after the other, and rank 0 keeps them."""
        keep = distributed.get_rank() == 0
        return {name: _whole(value, keep=keep) for name, value in super().state(model, optimizer).items()}

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        for name, parameter in model.named_parameters():
            place(parameter, state["model"][name])
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        saved = state["optimizer"]
        parts = {
            number: {
                name: _part(parameters[number], value) if isinstance(value, Tensor) and value.dim() else value
                for name, value in values.items()
            }
            for number, values in saved["state"].items()
        }
        optimizer.load_state_dict({"state": parts, "param_groups": saved["param_groups"]})

    def _mark_waits(self, blocks: Sequence[nn.Module], timer: ExchangeTimer) -> None:
        """Marks in the device's queue around what torch does before a block's forward, and where only the exchange of
        gradients is left of a step."""

        def begins(block: nn.Module, given: Any) -> None:
            if torch.is_grad_enabled():
                timer.exchange_begins()

        def ends(block: nn.Module, given: Any) -> None:
            if torch.is_grad_enabled():
                timer.exchange_ends()

        def announce(block: nn.Module, given: Any) -> None:
            if torch.is_grad_enabled() and given[0].requires_grad:
                given[0].register_hook(lambda gradient: timer.exchange_begins() if self._syncs else None)

        for block in blocks:
            block.register_forward_pre_hook(begins, prepend=True)
            block.register_forward_pre_hook(ends)
        blocks[0].register_forward_pre_hook(announce)

    def _count(self, part: FSDPModule) -> None:
        """Lets every exchange of a part be counted, where this torch offers it; on a CPU, nothing else goes on then."""
        if not hasattr(part, "set_custom_all_gather"):
            return
        from trainmark.train import counted_exchange

        exposed = self._timer.exchange if self._timer and self._device.is_cpu else nullcontext
        part.set_custom_all_gather(counted_exchange.CountedAllGather(self._tally, exposed))
        part.set_custom_reduce_scatter(counted_exchange.CountedReduceScatter(self._tally, exposed))


@torch.no_grad()
def place(parameter: Tensor, whole: Tensor) -> None:
    """Copies a tensor into a weight, or this rank's part of it into a sharded one."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    parameter.to_local().copy_(_local(parameter, whole))


def _local(like: DTensor, whole: Tensor) -> Tensor:
    """What of a whole tensor this rank holds, if it is spread like another."""
    found = whole
    for dimension, placement in enumerate(like.placements):
        if isinstance(placement, Shard):
            parts = torch.chunk(found, like.device_mesh.size(dimension), placement.dim)
            number = like.device_mesh.get_local_rank(dimension)
            found = parts[number] if number < len(parts) else found.narrow(placement.dim, 0, 0)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"a weight cannot be spread as {placement}")
    return found


def _part(like: Tensor, whole: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return whole
    local = _local(like, whole).to(like.device, copy=True)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _whole(value: Any, *, keep: bool) -> Any:
    """A nest of tensors gathered from all ranks, in the same order on each; those that do not keep it hold nothing."""
    if isinstance(value, DTensor):
        whole: Tensor = value.full_tensor()
        return whole.detach().cpu() if keep else torch.empty(0)
    if isinstance(value, Mapping):
        return {name: _whole(inner, keep=keep) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(inner, keep=keep) for inner in value]
    return value
