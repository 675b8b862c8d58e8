"""Emulates bfloat16 and float16 on a CPU without instructions for them: float32 matmuls, rounded where hardware would.

Hardware multiplies narrow numbers and accumulates in float32. Without it, torch falls back to loops ten times slower
than its float32 kernels; this uses the float32 kernels instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_NARROW = (torch.bfloat16, torch.float16)
MATMULS = {
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
"""Its log-sum-exp is float32 for every input type, and its backward pass expects that."""


class WideArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, matmuls of narrow tensors are computed in float32 and rounded once to the narrow type."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (operation not in MATMULS and operation is not _ATTENTION) or args[0].dtype not in _NARROW:
            return operation(*args, **kwargs)
        narrow = args[0].dtype
        result = operation(*tree_map(_make_cast(narrow, torch.float32), args), **kwargs)
        if operation is _ATTENTION:
            return result[0].to(narrow), *result[1:]
        return tree_map(_make_cast(torch.float32, narrow), result)


class RoundedOperands(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, float32 operands of matmuls are rounded first, as some hardware does without being asked."""

    def __init__(self, type_: str) -> None:
        """`type_` is the name of a torch type, or `tf32`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._round = _ROUND[type_]

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return operation(*self.round_operands(operation, args), **(kwargs or {}))

    def round_operands(self, operation: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of an operation, unchanged where it is no matmul."""
        if operation not in MATMULS and operation is not _ATTENTION:
            return args
        return tuple(
            self._round(value) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value
            for value in args
        )


def _round_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """To the 10-bit mantissa of TF32, ties to even."""
    bits = tensor.contiguous().view(torch.int32)
    even = (bits >> 13) & 1
    return ((bits + 0xFFF + even) & ~0x1FFF).view(torch.float32).view_as(tensor)


_ROUND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tf32": _round_to_tf32,
    "float16": lambda tensor: tensor.half().float(),
    "bfloat16": lambda tensor: tensor.bfloat16().float(),
}


def _make_cast(source: torch.dtype, target: torch.dtype) -> Callable[[Any], Any]:
    def cast(value: Any) -> Any:
        return value.to(target) if isinstance(value, torch.Tensor) and value.dtype == source else value

    return cast
