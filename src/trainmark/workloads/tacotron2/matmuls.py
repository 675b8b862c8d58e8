"""Products with one weight, many times over: what the recurrences of a decoder are made of.

A CPU's library reads a weight much faster from a layout of its own, and rearranges it on every call unless it is given
one that is arranged already. Elsewhere, and where this torch cannot do so, the plain product is used. The results are
the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.workloads import cpu_ops
from trainmark.workloads.cpu_ops import is_on_cpu

MIN_WEIGHTS = 1 << 18
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
        if is_on_cpu(like) and wanted in _CPU_HAS_INSTRUCTIONS and not _has_cpu_matmul(wanted):
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


class Matmul:
    """`x @ weight.T` for many x of `rows` rows."""

    def __init__(self, weight: Tensor, rows: int, arithmetic: Arithmetic) -> None:
        self._round = arithmetic.round_ if arithmetic.rounded is not None else None
        self._weight = weight
        packs = is_on_cpu(weight) and weight.numel() >= MIN_WEIGHTS and cpu_ops.has_matmul(weight.dtype)
        self._packed = cpu_ops.prepack(weight, rows) if packs else None

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self._weight) if self._packed is None else cpu_ops.matmul(x, self._packed)
        return y if self._round is None else self._round(y)


@cache
def _has_cpu_matmul(dtype: torch.dtype) -> bool:
    try:
        return bool(getattr(torch.ops.mkldnn, _CPU_HAS_INSTRUCTIONS[dtype])())
    except (AttributeError, RuntimeError):
        return False


_LEVELS = 1 << 16


def dropout(x: Tensor, share: float, training: bool = True) -> Tensor:
    """`x` with this share of its numbers set to zero and the others made up for it."""
    return x * dropout_mask(x.shape, share, x) if training and share else x


def dropout_mask(shape: Sequence[int], share: float, like: Tensor) -> Tensor:
    """What dropout multiplies by: zero, or what makes up for the zeros.

    On a CPU a number costs 16 random bits instead of a draw of its own, so the share is met to one part in 65,536; what
    makes up for the zeros goes by the share that was met.
    """
    if not is_on_cpu(like):
        return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(1 - share).div_(1 - share)
    count, level = math.prod(shape), round(share * _LEVELS)
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    drawn = words.view(torch.int16)[:count].view(*shape)
    return (drawn >= level - _LEVELS // 2).to(like.dtype).div_(1 - level / _LEVELS)


class CellPart(nn.Module):
    """A step of an LSTM: gates, cell and hidden state from the two parts of the gates' sums."""

    def forward(
        self,
        known: Tensor,
        fed_back: Tensor,
        before: Tensor,
        kept: Tensor | None,
        gates: Tensor,
        cell: Tensor,
        state: Tensor,
    ) -> None:
        i, f, g, o = (known + fed_back).float().chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        after = f * before + i * g
        hidden = o * after.tanh()
        gates.copy_(torch.cat((i, f, g, o), 1))
        cell.copy_(after)
        state.copy_(hidden if kept is None else hidden * kept)


class CellGradientPart(nn.Module):
    """The way back through it: from the parts of the hidden state's gradient, and what is known of the gates', to
    those of the gates."""

    def forward(
        self,
        arriving: Tensor,
        back: Tensor,
        asked: Tensor | None,
        to_cell: Tensor,
        forget: Tensor,
        carried: Tensor,
        known: Tensor,
        gates: Tensor,
    ) -> None:
        hidden = arriving + back
        if asked is not None:
            hidden = hidden + asked
        cell = carried + hidden * to_cell
        found = torch.cat((known[:, :3] * cell[:, None], (known[:, 3] * hidden)[:, None]), 1)
        carried.copy_(cell * forget)
        gates.copy_(found.flatten(1))


class EnergyPart(nn.Module):
    """What attention feels at each symbol, twice as much of which is given, and the energies of it."""

    def forward(self, felt: Tensor, asked: Tensor, energy: Tensor, hiding: Tensor, stored: Tensor) -> Tensor:
        acted = (felt + asked[:, None]).sigmoid()
        stored.copy_(acted)
        return (acted * energy).sum(2) + hiding


class WeightsPart(nn.Module):
    """Attention's weights, and where it has looked since."""

    def forward(self, energies: Tensor, weights: Tensor, total: Tensor, last: Tensor, total_after: Tensor) -> None:
        looked = energies.softmax(1)
        weights.copy_(looked)
        last.copy_(looked)
        total_after.copy_(total + looked)


class EnergyGradientPart(nn.Module):
    """The gradient of the energies."""

    def forward(self, carried: Tensor, to_weights: Tensor, weights: Tensor, energies: Tensor) -> None:
        product = (carried + to_weights) * weights
        energies.copy_(product - weights * product.sum(1, keepdim=True))


class QueryGradientPart(nn.Module):
    """What of it goes to the query, and to where attention looked before."""

    def forward(
        self,
        asked: Tensor,
        factor: Tensor,
        before: Tensor,
        total: Tensor,
        to_sum: Tensor,
        carried: Tensor,
        to_query: Tensor,
    ) -> None:
        summed = to_sum + total
        to_sum.copy_(summed)
        carried.copy_(before + summed)
        to_query.copy_(asked * factor)


@dataclass(frozen=True)
class Fused:
    """All parts; they are compiled one by one, as blocks of a network are."""

    cell: CellPart
    cell_back: CellGradientPart
    feel: EnergyPart
    look: WeightsPart
    look_back: EnergyGradientPart
    spread: QueryGradientPart

    @classmethod
    def new(cls) -> Fused:
        return cls(
            CellPart(), CellGradientPart(), EnergyPart(), WeightsPart(), EnergyGradientPart(), QueryGradientPart()
        )

    def parts(self) -> list[nn.Module]:
        return [getattr(self, field.name) for field in fields(self)]

    @property
    def compiled(self) -> bool:
        part: Any = self.cell
        return part._compiled_call_impl is not None
