"""Calls every operator of a step a second time with the same numbers, and names those that give other bits."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

UNDEFINED = ("empty", "new_empty", "resize_", "set_", "_reshape_alias")
"""Beginnings of names of operators that give memory as it lies."""
LINE_BYTES = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class RepeatedOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operator is called twice; the step goes on with what came of the first call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()
        self.differing: Counter[str] = Counter()
        """How many of an operator's calls gave other bits the second time."""
        self.draws = False
        """An operator draws random numbers."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = operation.name().partition("::")[2].partition(".")[0]
        self.seen.add(name)
        if torch.Tag.nondeterministic_seeded in operation.tags:
            self.draws = True
            return operation(*args, **kwargs)
        if operation.namespace == "c10d" or name.startswith(UNDEFINED) or _is_view(operation):
            return operation(*args, **kwargs)
        again_args, again_kwargs = args, kwargs
        if operation._schema.is_mutable:
            with _disable_current_modes():
                again_args, again_kwargs = tree_map(_Copies(), (args, kwargs))
        result = operation(*args, **kwargs)
        again = operation(*again_args, **again_kwargs)
        with _disable_current_modes():
            if not _same_bits((result, args, kwargs), (again, again_args, again_kwargs)):
                self.differing[name] += 1
        return result


class deterministic(AbstractContextManager[None]):  # noqa: N801 - used as a function is
    """Meanwhile torch takes deterministic implementations, or not, and warns where one is wanted and it has none."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def __enter__(self) -> None:
        self._before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        )
        torch.use_deterministic_algorithms(self._wanted, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def __exit__(self, *error: object) -> None:
        wanted, warn_only, fill = self._before
        torch.use_deterministic_algorithms(wanted, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


class _Copies:
    """Clones an operator's arguments. One that is given twice, to be read and to be written, stays one."""

    def __init__(self) -> None:
        self._copies: dict[int, Tensor] = {}

    def __call__(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._copies:
            self._copies[id(leaf)] = _alike(leaf.detach())
        return self._copies[id(leaf)]


def _alike(tensor: Tensor) -> Tensor:
    """A copy that lies in memory as the tensor does: numbers in another order may be added up in another one."""
    if tensor.layout != torch.strided or not tensor.numel():
        return tensor.clone()
    lead = tensor.storage_offset() % (LINE_BYTES // tensor.itemsize)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    whole = tensor.as_strided((lead + extent,), (1,), tensor.storage_offset() - lead).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), lead)


def _is_view(operation: Any) -> bool:
    aliases = [returned.alias_info for returned in operation._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _same_bits(one: Any, other: Any) -> bool:
    """Of floating tensors; integers of some operators are seeds, sizes or memory that nobody wrote."""
    for mine, theirs in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if isinstance(mine, Tensor) and mine.is_floating_point() and mine.layout == torch.strided:
            bits = _INTEGERS[mine.itemsize]
            if mine.shape != theirs.shape or not torch.equal(mine.detach().view(bits), theirs.detach().view(bits)):
                return False
    return True
