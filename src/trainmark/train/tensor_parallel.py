"""Tensor parallelism within a node: each device has some of the heads and some of the MLP width of every block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainmark.record.errors import UsageError
from trainmark.train.parallel import Exchange
from trainmark.workloads.tensor_group import local_part


class RankTensorGroup:
    """The ranks of one dimension of a mesh."""

    def __init__(self, mesh: DeviceMesh, exchange: Exchange) -> None:
        self._group, self._rank, self._size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self._exchange = exchange

    def spread(self, x: Tensor) -> Tensor:
        found: Tensor = _Spread.apply(x, self.sum)  # type: ignore[no-untyped-call]
        return found

    def collect(self, x: Tensor) -> Tensor:
        found: Tensor = _Collect.apply(x, self.sum)  # type: ignore[no-untyped-call]
        return found

    def rows(self, count: int) -> slice:
        return slice(count * self._rank // self._size, count * (self._rank + 1) // self._size)

    def sum(self, x: Tensor) -> Tensor:
        found = x.clone(memory_format=torch.contiguous_format)  # inputs kept for recomputation must not change
        with self._exchange(found):
            distributed.all_reduce(found, group=self._group)
        return found


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.total = total
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.total(grads[0]), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
        return total(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def shard(model: Any, mesh: DeviceMesh, exchange: Exchange) -> None:
    """Replaces every weight in the tensor plan of the network by the shard of this rank, on the meta device.

    All others become replicated DTensors, so that gradients of both kinds are clipped together.
    """
    plan = getattr(model, "tensor_plan", None)
    if plan is None:
        raise UsageError("this network has no plan for tensor parallelism; leave out tensor_parallel")
    model.share_among(RankTensorGroup(mesh, exchange))
    made: dict[int, nn.Parameter] = {}
    for name, weight in list(model.named_parameters(remove_duplicate=False)):
        where, _, own_name = name.rpartition(".")
        if id(weight) not in made:
            made[id(weight)] = nn.Parameter(_shard_weight(weight, plan.get(".".join(name.split(".")[-2:])), mesh))
        setattr(model.get_submodule(where), own_name, made[id(weight)])
    for module in model.modules():
        if module._parameters:
            module.register_forward_pre_hook(_bind_local_weights)
            module.register_forward_hook(_unbind_local_weights, always_call=True)


def _bind_local_weights(module: nn.Module, given: Any) -> None:
    """A layer computes with local shards of its weights, and does not see DTensors."""
    module.__dict__.update(
        {name: local_part(weight) for name, weight in module._parameters.items() if weight is not None}
    )


def _unbind_local_weights(module: nn.Module, given: Any, result: Any) -> None:
    for name in module._parameters:
        module.__dict__.pop(name, None)


def _shard_weight(weight: Tensor, cut: int | None, mesh: DeviceMesh) -> DTensor:
    if cut is None:
        return DTensor.from_local(weight.detach(), mesh, [Replicate()], run_check=False)
    local = list(weight.shape)
    local[cut] = math.ceil(local[cut] / mesh.size())
    empty = torch.empty(local, dtype=weight.dtype, device="meta")
    return DTensor.from_local(empty, mesh, [Shard(cut)], run_check=False, shape=weight.shape, stride=weight.stride())
