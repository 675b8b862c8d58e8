"""FSDP: each rank holds a shard of every weight, gradient and optimizer state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainmark.platforms.platform import Device
from trainmark.record.errors import UsageError
from trainmark.record.precision import Precision
from trainmark.record.recipe import Recipe
from trainmark.train.clock import Clock
from trainmark.train.parallel import NORMS, Exchange, ExchangeTally, OneDevice
from trainmark.workloads import weights
from trainmark.workloads.pieces import Piece, Region, Stored, full_region, map_leaves
from trainmark.workloads.tensor_group import ShardedInit, local_part
from trainmark.workloads.workload import Workload


class _Counted:
    """A collective of FSDP, counted."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class CountedAllGather(_Counted):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        with self._exchange(output_tensor, gathered=True):
            return distributed.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class CountedReduceScatter(_Counted):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        with self._exchange(input_tensor):
            return distributed.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


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


Fill = Callable[[nn.Module], None]
"""Initializes the weights of a network, by `copy_into` where they are sharded."""


class ShardedParallel(OneDevice):
    """Weights are all-gathered block by block and freed again; gradients are reduce-scattered.

    Master weights are float32: narrower weights are only gathered as such, all but those of norms, and gradients are
    reduced in float32. With
    `by_node` (HSDP), each node holds a whole sharded network, and nodes average gradients. With `tensor` above 1, so
    many ranks of a node compute each block together (`train/py`), and their weights are sharded over
    these groups. Exposed communication is, on a CPU, every exchange; on other devices exchanges within blocks, the wait
    for the weights of a block before its forward pass, and for the last gradients after the backward pass of the first.
    """

    together = True

    def __init__(
        self,
        device: Device,
        precision: Precision,
        fill: Fill,
        timer: Clock | None = None,
        *,
        local_ranks: int,
        by_node: bool = False,
        tensor: int = 1,
        compiled: str = "no",
    ) -> None:
        super().__init__(compiled=compiled)
        if precision.scales_loss:
            raise UsageError(
                f"a sharded network does not train in {precision}: the loss scaler would check one rank only; "
                "use bf16 or amp-bf16"
            )
        if tensor > 1 and precision.scaled:
            raise UsageError(
                f"{precision} does not work with tensor_parallel={tensor}: each shard of a weight would have its own "
                "scale; use bf16"
            )
        self.world = distributed.get_world_size() // tensor
        self._device, self._fill, self._timer, self._tensor = device, fill, timer, tensor
        nodes = distributed.get_world_size() // local_ranks if by_node else 1
        shape = {"replicate": nodes, "shard": self.world // nodes} if nodes > 1 else {"shard": self.world}
        groups, shape = tuple(shape), shape | ({"tensor": tensor} if tensor > 1 else {})
        # explicit, as torch would take any accelerator it finds
        self._all = init_device_mesh(device.torch.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
        self._mesh = self._all[groups] if tensor > 1 else self._all
        narrow = getattr(torch, precision.weights)
        self._policy = (
            MixedPrecisionPolicy()
            if narrow is torch.float32
            else MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32)
        )
        kind, way = "reduce-scatter and all-gather", "hsdp" if by_node else "fsdp"
        if tensor > 1:
            kind, way = f"all-reduce, {kind}", f"{way}+tp{tensor}"
        self.exchanged = self._tally = ExchangeTally(kind, way)
        self._syncs = True

    def narrow_weights(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Weights stay float32; the policy narrows what is gathered."""

    def type_of(self, weight: Tensor) -> torch.dtype:
        """The type that is gathered, in which a step computes."""
        return weight.dtype if id(weight) in self._norm_weights else self._policy.param_dtype or weight.dtype

    def wrap(self, model: nn.Module) -> nn.Module:
        blocks = getattr(model, "blocks", ())
        if not blocks:
            raise UsageError(
                "this network has no `blocks` to shard; leave out --set parallel=..., so that each rank holds it"
            )
        if self._compiled == "yes":
            raise UsageError("compiled=yes does not work with a sharded network; set compiled=blocks")
        if self._tensor > 1:
            if self._compiled != "no":
                raise UsageError(
                    f"compiled={self._compiled} does not work with tensor_parallel; set one to its default"
                )
            shard(model, self._all["tensor"], partial(self._exchange, hidden=False))
        self._compile_blocks(model)
        norms = [module for module in model.modules() if isinstance(module, NORMS) and list(module.parameters())]
        if self._policy.param_dtype is None:
            norms = []  # of the type of all others, so that they need no exchange of their own
        for part in (*norms, *blocks, model):
            policy = MixedPrecisionPolicy() if part in norms else self._policy
            fully_shard(part, mesh=self._mesh, mp_policy=policy)
            self._count_exchanges(cast("FSDPModule", part))
        if self._timer and not self._device.is_cpu:
            self._mark_waits(blocks, self._timer)
        model.to_empty(device=self._device.torch)
        self._fill(model)
        self._norm_weights = {id(weight) for norm in norms for weight in norm.parameters()}
        self._model = cast("FSDPModule", model)
        return model

    @contextmanager
    def no_sync(self) -> Iterator[None]:
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
            self._timer.end_exchange()
        if self._syncs:
            self._tally.end_step()

    def split(self, state: Any) -> tuple[Any, list[Piece] | None]:
        """Of replicas, the first one is written."""
        held: list[Piece] = []

        def bare(path: str, value: Any) -> Any:
            if not isinstance(value, DTensor):
                return value
            own, begins = value.to_local(), tuple(part.start for part in find_local_region(value))
            if own.numel() and _is_first_replica(value):
                held.append(Piece(path, begins, own))
            return torch.empty(value.shape, dtype=value.dtype, device="meta")

        return map_leaves(state, bare), held

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        for name, parameter in model.named_parameters():
            copy_into(parameter, state["model"][name])
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        saved = state["optimizer"]
        parts = {
            number: {
                name: _take_local_part(parameters[number], value)
                if isinstance(value, (Tensor, Stored)) and value.shape
                else value
                for name, value in values.items()
            }
            for number, values in saved["state"].items()
        }
        optimizer.load_state_dict({"state": parts, "param_groups": saved["param_groups"]})

    def _mark_waits(self, blocks: Sequence[nn.Module], timer: Clock) -> None:
        """Marks in the queue of the device around the all-gather before a block's forward pass, and where only the
        exchange of gradients is left of a step."""

        def begin(block: nn.Module, given: Any) -> None:
            if torch.is_grad_enabled():
                timer.begin_exchange()

        def end(block: nn.Module, given: Any) -> None:
            if torch.is_grad_enabled():
                timer.end_exchange()

        def mark_last(block: nn.Module, given: Any) -> None:
            if torch.is_grad_enabled() and given[0].requires_grad:
                given[0].register_hook(lambda gradient: timer.begin_exchange() if self._syncs else None)

        for block in blocks:
            block.register_forward_pre_hook(begin, prepend=True)
            block.register_forward_pre_hook(end)
        blocks[0].register_forward_pre_hook(mark_last)

    def _count_exchanges(self, part: FSDPModule) -> None:
        """Counts every exchange of a module, where this torch supports it."""
        if not hasattr(part, "set_custom_all_gather"):
            return
        part.set_custom_all_gather(CountedAllGather(self._exchange))  # type: ignore[arg-type]
        part.set_custom_reduce_scatter(CountedReduceScatter(self._exchange))  # type: ignore[arg-type]

    def _exchange(
        self, message: Tensor, *, gathered: bool = False, hidden: bool = True
    ) -> AbstractContextManager[None]:
        """Counts an exchange of a training step; times it unless `hidden` behind computation, as never on a CPU."""
        if not cast("nn.Module", self._model).training:
            return nullcontext()
        self._tally.add(message, gathered=gathered)
        if self._timer is None or (hidden and not self._device.is_cpu):
            return nullcontext()
        return self._timer.exchange()


def build(
    workload: Workload,
    recipe: Recipe,
    precision: Precision,
    device: Device,
    initial: Mapping[str, Tensor] | None,
    timer: Clock | None,
    local_ranks: int,
) -> tuple[nn.Module, ShardedParallel]:
    """A model of which no rank ever holds all weights: built on the meta device, then each rank fills its shards."""
    if recipe.average_decay:
        raise UsageError(
            f"average_decay={recipe.average_decay:g} does not work with parallel={recipe.parallel}: no rank holds all "
            "weights to average; set one of them to its default"
        )
    with torch.device("meta"):
        model = workload.build(recipe)
    if initial is not None:
        weights.check_fit(model, initial, "the file of --init-from")
    elif not isinstance(model, ShardedInit):
        raise UsageError(
            f"{workload.name} cannot initialize its weights in shards, so it is not sharded; leave out parallel"
        )

    def fill(empty: Any) -> None:
        if initial is None:
            empty.initialise(copy_into)
        else:
            for name, parameter in empty.named_parameters():
                copy_into(parameter, initial[name])

    by_node = recipe.parallel == "hsdp"
    parallel = ShardedParallel(
        device,
        precision,
        fill,
        timer,
        local_ranks=local_ranks,
        by_node=by_node,
        tensor=recipe.tensor_parallel,
        compiled=recipe.compiled,
    )
    return model, parallel


@torch.no_grad()
def copy_into(parameter: Tensor, whole: Tensor | Stored) -> None:
    """Copies a tensor into a weight, or its local shard into a sharded one."""
    if isinstance(parameter, DTensor):
        parameter.to_local().copy_(whole[find_local_region(parameter)])
    else:
        parameter.copy_(whole[full_region(whole.shape)])


def find_local_region(tensor: DTensor) -> Region:
    """The region of the whole tensor that this rank holds."""
    found = list(full_region(tensor.shape))
    # the last dimension of a mesh shards first, then the one before it
    for dimension, placement in reversed(list(enumerate(tensor.placements))):
        cut = getattr(placement, "dim", None)
        if cut is None:
            if not placement.is_replicate():
                raise ValueError(f"a weight cannot be sharded as {placement}")
            continue
        part = found[cut]
        each = math.ceil((part.stop - part.start) / tensor.device_mesh.size(dimension))
        start = min(part.stop, part.start + each * tensor.device_mesh.get_local_rank(dimension))
        found[cut] = slice(start, min(part.stop, start + each))
    return tuple(found)


def _is_first_replica(tensor: DTensor) -> bool:
    return not any(
        placement.is_replicate() and tensor.device_mesh.get_local_rank(dimension)
        for dimension, placement in enumerate(tensor.placements)
    )


def _take_local_part(like: Tensor, whole: Tensor | Stored) -> Tensor:
    if not isinstance(like, DTensor):
        return whole[full_region(whole.shape)]
    local = whole[find_local_region(like)].to(like.device, copy=True)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
