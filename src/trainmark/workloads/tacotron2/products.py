"""Products with one weight, many times over: what the recurrences of a decoder are made of.

A CPU's library reads a weight much faster from a layout of its own, and rearranges it on every call unless it is given
one that is arranged already. Elsewhere, and where this torch cannot do so, the plain product is used. The results are
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from trainmark.workloads import onednn
from trainmark.workloads.on_cpu import on_cpu

LEAST_WEIGHTS = 1 << 18
"""Below these the library's call costs more than its layout saves."""

_CPU_HAS_INSTRUCTIONS = {
    torch.bfloat16: "_is_mkldnn_bf16_supported",
    torch.float16: "_is_mkldnn_fp16_supported",
}


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What a loop computes in: the type tensors are held in, and the narrower one they are rounded to, if any.

    The two differ only on a CPU without instructions for the narrow type, where products of rounded numbers are taken
    in float32 and rounded again: what such instructions do, at the speed of float32.
    """

    held: torch.dtype
    rounded: torch.dtype | None = None

    @classmethod
    def of(cls, like: Tensor) -> Arithmetic:
        """What autocast asks for on this tensor's device, else the tensor's own type."""
        kind = like.device.type
        wanted = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
        if on_cpu(like) and wanted in _CPU_HAS_INSTRUCTIONS and not _cpu_multiplies(wanted):
            return cls(held=torch.float32, rounded=wanted)
        return cls(held=wanted)

    def take(self, tensor: Tensor) -> Tensor:
        """The tensor's numbers as this arithmetic sees them."""
        if self.rounded is not None:
            tensor = tensor.to(self.rounded)
        return tensor.to(self.held)

    def round_(self, tensor: Tensor) -> Tensor:
        """Rounds in place what a product left."""
        return tensor if self.rounded is None else tensor.copy_(tensor.to(self.rounded))


class Product:
    """`x @ weight.T` for many x of `rows` rows."""

    def __init__(self, weight: Tensor, rows: int, arithmetic: Arithmetic) -> None:
        self._round = arithmetic.round_ if arithmetic.rounded is not None else None
        self._weight = weight
        arranges = on_cpu(weight) and weight.numel() >= LEAST_WEIGHTS and onednn.multiplies(weight.dtype)
        self._arranged = onednn.arranged(weight, rows) if arranges else None

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self._weight) if self._arranged is None else onednn.product(x, self._arranged)
        return y if self._round is None else self._round(y)


@cache
def _cpu_multiplies(dtype: torch.dtype) -> bool:
    try:
        return bool(getattr(torch.ops.mkldnn, _CPU_HAS_INSTRUCTIONS[dtype])())
    except (AttributeError, RuntimeError):
        return False
