"""Calls every operator of a step a second time with the same numbers, and names those that give other bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from trainmark.features.verify.tensor_digests import INTEGERS
from trainmark.train.walker import copy_arguments, is_random, is_uninitialized, is_view, read_name

LINE_BYTES = 64


class RepeatedOperators:
    """A visitor that calls every operator twice; the step goes on with the result of the first call."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.differing: set[str] = set()
        self.is_random = False
        """An operator generates random numbers."""

    def visit(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = read_name(operator)
        self.seen.add(name)
        self.is_random |= is_random(operator)
        if is_random(operator) or operator.namespace == "c10d" or is_uninitialized(operator) or is_view(operator):
            return operator(*args, **kwargs)
        again_args, again_kwargs = args, kwargs
        if operator._schema.is_mutable:
            with _disable_current_modes():
                again_args, again_kwargs = copy_arguments((args, kwargs), _copy_with_layout)
        result = operator(*args, **kwargs)
        again = operator(*again_args, **again_kwargs)
        with _disable_current_modes():
            if not _same_bits((result, args, kwargs), (again, again_args, again_kwargs)):
                self.differing.add(name)
        return result


@contextmanager
def deterministic_mode(wanted: bool) -> Iterator[None]:
    """Switches torch's deterministic implementations on or off; torch warns where it has none."""
    settings: Any = torch.utils.deterministic
    fill = settings.fill_uninitialized_memory
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(wanted, warn_only=True)
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        settings.fill_uninitialized_memory = fill


def _copy_with_layout(tensor: Tensor) -> Tensor:
    """A copy with the same memory layout: another layout may change the order of summation."""
    if tensor.layout != torch.strided or not tensor.numel():
        return tensor.clone()
    lead = tensor.storage_offset() % (LINE_BYTES // tensor.itemsize)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    whole = tensor.as_strided((lead + extent,), (1,), tensor.storage_offset() - lead).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), lead)


def _same_bits(one: Any, other: Any) -> bool:
    """Compares floating tensors; integers of some operators are seeds, sizes or uninitialized memory."""
    for mine, theirs in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if isinstance(mine, Tensor) and mine.is_floating_point() and mine.layout == torch.strided:
            bits = INTEGERS[mine.itemsize]
            if mine.shape != theirs.shape or not torch.equal(mine.detach().view(bits), theirs.detach().view(bits)):
                return False
    return True
