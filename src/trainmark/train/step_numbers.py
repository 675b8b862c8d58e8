"""Tells of a step in float64 what can be held against another chip: lengths of tensors, and sums with drawn signs.

Sums with signs tell how far two tensors lie apart, without either being kept: they are linear, and the mean square of
a tensor's sums is about its length squared. They are made on the host, so that no chip needs float64, and by signs that
are the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainmark.spec.compare_numbers import Sums
from trainmark.spec.verify import SUM_COUNT

ROW = 1 << 14
MOST_ROWS = 1 << 12
"""Of which each has signs of its own; they come round in a longer tensor."""


class SignedSums:
    """Makes the sums of tensors."""

    def __init__(self) -> None:
        lot = torch.Generator().manual_seed(21)
        self._signs = _signs((ROW, SUM_COUNT), lot)
        self._row_signs = _signs((MOST_ROWS, SUM_COUNT), lot)

    @torch.no_grad()
    def __call__(self, tensor: Tensor, scale: float = 1.0) -> Sums:
        """Of a tensor's numbers, each divided by `scale`."""
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
        flat = own.cpu().contiguous().view(-1).to(torch.float64)
        sums, squares = torch.zeros(SUM_COUNT, dtype=torch.float64), 0.0
        for at in range(0, flat.numel(), ROW * MOST_ROWS):
            part = flat[at : at + ROW * MOST_ROWS]
            whole = part.numel() // ROW
            rows, rest = part[: whole * ROW].view(whole, ROW), part[whole * ROW :]
            sums += ((rows @ self._signs) * self._row_signs[:whole]).sum(0)
            sums += (rest @ self._signs[: rest.numel()]) * self._row_signs[whole % MOST_ROWS]
            squares += float(part @ part)
        found = [math.sqrt(squares) / scale, *(float(value) / scale for value in sums)]
        return found if all(map(math.isfinite, found)) else []

    def of_all(self, tensors: Mapping[str, Tensor], scale: float = 1.0) -> dict[str, Sums]:
        return {name: self(tensor, scale) for name, tensor in tensors.items()}


def tensors_in(value: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a batch by where they stand in it."""
    if isinstance(value, Tensor):
        return {name or "batch": value}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, dict):
        parts = {str(key): part for key, part in value.items()}
    elif isinstance(value, (tuple, list)) and value and not isinstance(value[0], (int, float, str)):
        parts = {str(place): part for place, part in enumerate(value)}
    else:
        return {}
    found: dict[str, Tensor] = {}
    for key, part in parts.items():
        found |= tensors_in(part, f"{name}.{key}" if name else key)
    return found


def _signs(shape: tuple[int, int], lot: torch.Generator) -> Tensor:
    return torch.randint(0, 2, shape, generator=lot).to(torch.float64) * 2 - 1
