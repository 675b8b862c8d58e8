"""Shows every operator of a step to a visitor, below autograd and autocast, in the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

Visit = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Is given an operator and its arguments, calls it, and returns the result that the step goes on with."""

_UNINITIALIZED = ("empty", "new_empty", "resize_", "set_", "_reshape_alias")


class Walker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operator goes through `visit`; what the visitor calls itself is not shown to it again."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._visit = visit

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._visit(operator, args, kwargs or {})


def name_of(operator: Any) -> str:
    """`addmm` of `aten::addmm.out`."""
    return str(operator._schema.name).partition("::")[2]


@cache
def is_view(operator: Any) -> bool:
    """Its result has no numbers of its own."""
    aliases = [returned.alias_info for returned in operator._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def is_random(operator: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


def is_uninitialized(operator: Any) -> bool:
    """Its result is memory that nobody has written yet."""
    return name_of(operator).startswith(_UNINITIALIZED)


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments or results, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


def copy_arguments(values: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """Arguments with every tensor copied. One that is passed twice, to be read and to be written, stays one."""
    copies: dict[Any, Tensor] = {}

    def copy_once(tensor: Tensor) -> Tensor:
        key: Any = id(tensor)
        if tensor.layout == torch.strided:
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in copies:
            copies[key] = copy(tensor.detach())
        return copies[key]

    return tree_map_only(Tensor, copy_once, values)
