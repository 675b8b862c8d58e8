"""The work between a recurrence's products, as parts of which torch.compile makes a kernel or two each.

By themselves the loops launch every operation of it, and on an accelerator the host needs longer for that than the
device for the products. `compiled=blocks` has these instead. They write where the loops' own operations write.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn


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


class CellBackPart(nn.Module):
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


class FeelPart(nn.Module):
    """What attention feels at each symbol, twice as much of which is given, and the energies of it."""

    def forward(self, felt: Tensor, asked: Tensor, energy: Tensor, hiding: Tensor, stored: Tensor) -> Tensor:
        acted = (felt + asked[:, None]).sigmoid()
        stored.copy_(acted)
        return (acted * energy).sum(2) + hiding


class LookPart(nn.Module):
    """Attention's weights, and where it has looked since."""

    def forward(self, energies: Tensor, weights: Tensor, total: Tensor, last: Tensor, total_after: Tensor) -> None:
        looked = energies.softmax(1)
        weights.copy_(looked)
        last.copy_(looked)
        total_after.copy_(total + looked)


class LookBackPart(nn.Module):
    """The gradient of the energies."""

    def forward(self, carried: Tensor, to_weights: Tensor, weights: Tensor, energies: Tensor) -> None:
        product = (carried + to_weights) * weights
        energies.copy_(product - weights * product.sum(1, keepdim=True))


class SpreadPart(nn.Module):
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
    cell_back: CellBackPart
    feel: FeelPart
    look: LookPart
    look_back: LookBackPart
    spread: SpreadPart

    @classmethod
    def new(cls) -> Fused:
        return cls(CellPart(), CellBackPart(), FeelPart(), LookPart(), LookBackPart(), SpreadPart())

    def parts(self) -> list[nn.Module]:
        return [getattr(self, field.name) for field in fields(self)]

    @property
    def compiled(self) -> bool:
        part: Any = self.cell
        return part._compiled_call_impl is not None
