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
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}


class WideArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, matmuls of narrow tensors are computed in float32 and rounded once to the narrow type."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation not in MATMULS or args[0].dtype not in _NARROW:
            return operation(*args, **kwargs)
        narrow = args[0].dtype
        result = operation(*tree_map(_make_cast(narrow, torch.float32), args), **kwargs)
        if operation is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            return result[0].to(narrow), *result[1:]  # its log-sum-exp is float32 for every type
        return tree_map(_make_cast(torch.float32, narrow), result)


def _make_cast(source: torch.dtype, target: torch.dtype) -> Callable[[Any], Any]:
    def cast(value: Any) -> Any:
        return value.to(target) if isinstance(value, torch.Tensor) and value.dtype == source else value

    return cast
