"""Counts the work of a step, operator by operator: FLOPs, bytes moved, launches, and waits of the host."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import flop_registry

from trainmark.features.flops.step_count import BACKWARD, FORWARD, UPDATE, OperatorLaunch, StepCount
from trainmark.train.walker import Walker, find_tensors, is_view, read_name

ACCELERATOR = torch.device("cpu", 0)
"""Device of the counted tensors; the host's are on `cpu`, another device to torch. A real accelerator's type would need
its library."""


class OperatorCount:
    """Counts the operators inside it, forward and backward.

    An operator that computes is a launch; views, reshapes and allocations are not. It reads each input and writes each
    output once. Launches are counted by layer of `model`: in the backward pass the layer is found by the sequence
    number of the autograd node, which was created in the layer's forward pass.
    """

    def __init__(self, model: nn.Module | None = None, device: torch.device = ACCELERATOR) -> None:
        self._device, self._shapes_alone = device, device == ACCELERATOR
        self._names = {module: name for name, module in model.named_modules()} if model else {}
        self._stack = [""]
        self._began: list[tuple[int, str]] = [(-1, "")]
        self._updating = False
        self._launches: Counter[OperatorLaunch] = Counter()
        self._copied = 0
        self._waits: Counter[str] = Counter()
        self._inside = ExitStack()

    def __enter__(self) -> OperatorCount:
        self._inside.callback(register_module_forward_pre_hook(self._enter).remove)
        self._inside.callback(register_module_forward_hook(self._leave, always_call=True).remove)
        self._inside.enter_context(Walker(self._visit))
        return self

    def __exit__(self, *raised: object) -> None:
        self._inside.close()

    def begin_update(self) -> None:
        """Called when all gradients are computed."""
        self._updating = True

    def result(self) -> StepCount:
        return StepCount(
            launches=tuple(self._launches.items()), copied_bytes=self._copied, waits=tuple(self._waits.items())
        )

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(module)
        self._stack.append(self._stack[-1] if name is None else name)
        self._began.append((torch.autograd._get_sequence_nr(), self._stack[-1]))  # type: ignore[attr-defined]

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()
        self._began.append((torch.autograd._get_sequence_nr(), self._stack[-1]))  # type: ignore[attr-defined]

    def _place(self) -> tuple[str, str]:
        """The layer and the part of the step of the current launch."""
        if self._updating:
            return "", UPDATE
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return self._stack[-1], FORWARD
        if len(self._stack) > 1:  # recomputed forward pass
            return self._stack[-1], BACKWARD
        number = node._sequence_nr()
        return self._began[bisect_right(self._began, number, key=lambda began: began[0]) - 1][1], BACKWARD

    def _visit(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traits = _read_traits(func)
        if traits.free:
            return func(*args, **kwargs)
        given = list(find_tensors((*args, *kwargs.values())))
        here = [tensor for tensor in given if tensor.device == self._device]
        if traits.reads_on_host and here:
            self._waits[traits.name] += 1
        if traits.reads_on_host:
            return _read_on_host(func, args, kwargs)
        # an operator that returns only its own arguments need not be called
        known = traits.returns is not None and self._shapes_alone and len(here) == len(given)
        known = known and all(tensor.numel() for tensor in given)
        out = traits.get_returned(args, kwargs) if known else func(*args, **kwargs)
        made = [tensor for tensor in find_tensors((out,)) if tensor.device == self._device]
        if not made and not here:
            return out
        if traits.copies and given[-1].device != self._device:
            self._copied += _count_bytes(given[-1])
        elif traits.copies and not made:
            self._waits[traits.name] += 1
        elif any(tensor.numel() for tensor in made or here):
            layer, part = self._place()
            flops = traits.flops(*args, **kwargs, out_val=out) if traits.flops else 0
            self._launches[
                OperatorLaunch(
                    layer=layer,
                    part=part,
                    operator=traits.name,
                    type=str(here[0].dtype).removeprefix("torch.") if flops else "",
                    flops=int(flops),
                    bytes=traits.count_moved_bytes(args, kwargs, here, made),
                )
            ] += 1
        return out


class _OperatorTraits(NamedTuple):
    """What is known about an operator, cached."""

    name: str
    free: bool
    """A view, a query or an allocation: the device computes nothing."""
    reads_on_host: bool
    """Its result depends on values, so the host waits for them."""
    copies: bool
    flops: Callable[..., int] | None
    returns: tuple[int | str, ...] | None
    """The arguments it returns, if it returns only what it writes to."""
    written: tuple[int | str, ...]
    """Arguments that are written to: indices or names."""
    overwritten: bool
    """What is written to is not read."""

    def get_returned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = [kwargs[at] if isinstance(at, str) else args[at] for at in self.returns or ()]
        return tuple(found) if len(found) > 1 else found[0] if found else None

    def count_moved_bytes(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], here: Sequence[Tensor], made: Sequence[Tensor]
    ) -> int:
        """Bytes read and written."""
        goes = [
            (kwargs.get(at) if isinstance(at, str) else args[at] if at < len(args) else None) for at in self.written
        ]
        into = {id(tensor) for tensor in find_tensors(goes)}
        written = sum(_count_bytes(tensor) for tensor in here if id(tensor) in into)
        fresh = sum(_count_bytes(tensor) for tensor in made if id(tensor) not in into)
        if self.name in _PICKING:  # only the selected rows of a table
            return 2 * fresh + sum(_count_bytes(tensor) for tensor in here if not tensor.is_floating_point())
        read = sum(_count_bytes(tensor) for tensor in here if id(tensor) not in into)
        if self.name in _ADDING_ROWS:
            return 3 * read
        return read + fresh + written * (1 if self.overwritten else 2)


_FRESH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_SHAPES = {"_unsafe_view", "_reshape_alias", "lift_fresh", "lift", "alias", "detach"}
_SHAPES |= {"is_same_size", "_has_same_storage_numel"}
_WAITS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "unique", "_unique2"}
_COPIES = {"_to_copy", "copy_"}
_OVERWRITES = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
_OVERWRITES |= {"_foreach_copy_", "_foreach_zero_"}
_PICKING = {"embedding", "index", "index_select", "gather"}
_ADDING_ROWS = {"scatter_add_", "scatter_", "index_add_", "index_put_", "_index_put_impl_"}


@cache
def _read_traits(func: Any) -> _OperatorTraits:
    name, schema = read_name(func), func._schema
    alias = [value.alias_info for value in schema.returns]
    places = [(at, each) for at, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write]
    written = tuple(each.name if each.kwarg_only else at for at, each in places)
    only_writes = all(info is not None and info.is_write for info in alias) and torch.Tag.inplace_view not in func.tags
    return _OperatorTraits(
        name=name,
        free=func.namespace in ("prim", "profiler") or is_view(func) or name in _FRESH or name in _SHAPES,
        reads_on_host=name in _WAITS,
        copies=name in _COPIES,
        flops=_find_formula(func, name),
        returns=written[: len(alias)] if places and only_writes else None,
        written=written,
        overwritten=name in _OVERWRITES or all(isinstance(at, str) for at in written),
    )


def _find_formula(func: Any, name: str) -> Callable[..., int] | None:
    """Torch's formula, or ours for CPU and in-place operators without one."""
    if name in _OWN_FORMULAS:
        return _OWN_FORMULAS[name]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if func.namespace == "aten" else None
    return flop_registry.get(func._overloadpacket) or flop_registry.get(packet)


def _matrix_vector(*args: Any, out_val: Any, **kwargs: Any) -> int:
    return int(2 * args[-2].numel())


def _attention(query: Tensor, key: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """Both matmuls over the whole window, also where half of it is masked."""
    batch, heads, length, width = query.shape
    return 4 * batch * heads * length * key.shape[-2] * width


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """Two matmuls for each of the forward pass; recomputed scores are not counted."""
    return 2 * _attention(query, key, out_val=None)


def _recurrence(x: Tensor, weight: Tensor, hidden_weight: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return 2 * math.prod(x.shape[:2]) * (weight.numel() + hidden_weight.numel())


def _recurrence_backward(x: Tensor, weight: Tensor, hidden_weight: Tensor, *_: Any, out_val: Any, **__: Any) -> int:
    return 2 * _recurrence(x, weight, hidden_weight, out_val=None)


_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
_OWN_FORMULAS: dict[str, Callable[..., int]] = {
    "mv": _matrix_vector,
    "addmv": _matrix_vector,
    "addmv_": _matrix_vector,
    **dict.fromkeys(_ATTENTION, _attention),
    **{f"{name}_backward": _attention_backward for name in _ATTENTION},
    "mkldnn_rnn_layer": _recurrence,
    "mkldnn_rnn_layer_backward": _recurrence_backward,
}


def _count_bytes(tensor: Tensor) -> int:
    """Bytes in memory: expanded dimensions (stride 0) count once."""
    count = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return count * tensor.element_size() if tensor.numel() else 0


def _read_on_host(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The value that the host reads; 0 for a fake tensor."""
    try:
        return func(*args, **kwargs)
    except DataDependentOutputException:
        return {torch.bool: False}.get(args[0].dtype, 0.0 if args[0].is_floating_point() else 0)
