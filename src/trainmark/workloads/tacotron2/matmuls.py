"""What the decoder's loops compute: repeated matmuls with one weight, and the pointwise work between them.

oneDNN is much faster with weights in its blocked layout, and repacks them on every call unless they are prepacked.
Elsewhere, and if this torch cannot prepack, F.linear is used. The results are the same.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_WEIGHTS = 1 << 18
"""Below this the call costs more than the layout saves."""


def widen(dtype: torch.dtype) -> torch.dtype:
    """The type of sums and states of tensors of a type: at least float32."""
    return torch.promote_types(dtype, torch.float32)


class Matmul:
    """`x @ weight.T` for many x of `rows` rows."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        self._weight = weight
        packs = is_on_cpu(weight) and weight.numel() >= MIN_WEIGHTS and can_prepack(weight.dtype)
        self._packed = _prepack(weight, rows) if packs else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight) if self._packed is None else _matmul(x, self._packed)


def _prepack(weight: Tensor, rows: int) -> Tensor:
    """The weight in oneDNN's blocked layout, for many matmuls with this many rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return packed


def _matmul(x: Tensor, packed: Tensor) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return output


@cache
def can_prepack(dtype: torch.dtype) -> bool:
    """True if this torch has the operators for this type, and their results are correct."""
    rows, picks = torch.arange(128).view(2, 64).to(dtype), torch.eye(64, dtype=dtype)[:32]
    try:
        return torch.equal(_matmul(rows, _prepack(picks, 2)), rows[:, :32])
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def is_on_cpu(tensor: Tensor) -> bool:
    """False also for fake tensors, which lie on a numbered CPU."""
    return tensor.is_cpu and tensor.device.index is None


class CellPart(nn.Module):
    """An LSTM step: gates, cell and hidden state from the two summands of the gates."""

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
        i, f, g, o = (known + fed_back).to(before.dtype).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        after = f * before + i * g
        hidden = o * after.tanh()
        gates.copy_(torch.cat((i, f, g, o), 1))
        cell.copy_(after)
        state.copy_(hidden if kept is None else hidden * kept)


class CellGradientPart(nn.Module):
    """Backward pass of the LSTM step: from the hidden state's gradients to those of the gates."""

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
    """Attention energies, from twice the features at each symbol."""

    def forward(self, felt: Tensor, asked: Tensor, energy: Tensor, hiding: Tensor, stored: Tensor) -> Tensor:
        acted = (felt + asked[:, None]).sigmoid()
        stored.copy_(acted)
        return (acted * energy).sum(2) + hiding


class WeightsPart(nn.Module):
    """Attention weights, and their running sum."""

    def forward(self, energies: Tensor, weights: Tensor, total: Tensor, last: Tensor, total_after: Tensor) -> None:
        current = energies.softmax(1)
        weights.copy_(current)
        last.copy_(current)
        total_after.copy_(total + current)


class EnergyGradientPart(nn.Module):
    """The gradient of the energies."""

    def forward(self, carried: Tensor, to_weights: Tensor, weights: Tensor, energies: Tensor) -> None:
        product = (carried + to_weights) * weights
        energies.copy_(product - weights * product.sum(1, keepdim=True))


class QueryGradientPart(nn.Module):
    """Gradients of the query and of the previous attention weights."""

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


class Pointwise:
    """The work of the loops between their matmuls; `compiled=blocks` compiles the parts one by one."""

    def __init__(self) -> None:
        self.cell, self.cell_gradient = CellPart(), CellGradientPart()
        self.energies, self.weights = EnergyPart(), WeightsPart()
        self.energy_gradient, self.query_gradient = EnergyGradientPart(), QueryGradientPart()

    def parts(self) -> list[nn.Module]:
        return list(vars(self).values())
