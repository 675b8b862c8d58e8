"""Reduces a tensor to a few numbers: a hash of its bits, or sums by which another chip's tensor can be compared.

The hash multiplies each number's bits, read as an integer, by an odd number of their place and adds them up, modulo
2**64. An odd factor loses nothing, so a change of any single number, be it one bit or all, always changes the sum.
Numbers that change places, or several that change at once, leave it as it was about once in 2**32 times.

Sums with random signs estimate how far two tensors differ, without keeping either: they are linear, and the mean square
of a tensor's sums is about its squared norm. They are computed on the host, so that no chip needs float64, with signs
that are the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainmark.features.verify.document import SUM_COUNT
from trainmark.platforms import device_errors
from trainmark.record.precision import Sums

ROW = 1 << 16
"""Length of the factors; a longer tensor is cut into rows, whose sums are hashed again."""
ROWS_AT_A_TIME = 256
"""Hashed at once; one on a CPU, which stays in its cache and takes a tenth of the time."""
SIGN_ROW = 1 << 14
MAX_SIGN_ROWS = 1 << 12
"""Rows with signs of their own; in a longer tensor they repeat."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class BitHash:
    """Hashes tensors on their device; on the host where the device lacks an operator."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(20)
        self._factors = torch.randint(-(1 << 63), (1 << 63) - 1, (ROW,), generator=generator, dtype=torch.int64) | 1
        self._on: dict[torch.device, Tensor] = {}
        self.on_host = ""
        """Why hashes are computed on the host, if they are."""

    @torch.no_grad()
    def __call__(self, tensor: Tensor) -> Tensor:
        """One int64, left on the device."""
        tensor = _local(tensor)
        if self.on_host:
            return self._hash(_bits(tensor.cpu()))
        try:
            return self._hash(_bits(tensor))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            if device_errors.find_missing_operator(error) is None and tensor.device.type == "cpu":
                raise
            self.on_host = device_errors.first_line(error)
            return self(tensor)

    def _hash(self, bits: Tensor) -> Tensor:
        factors = self._factors_on(bits.device)
        if bits.numel() <= ROW:
            return (bits * factors[: bits.numel()]).sum()
        whole = bits.numel() // ROW
        rows = bits[: whole * ROW].view(whole, ROW)
        at_a_time = 1 if bits.device.type == "cpu" else ROWS_AT_A_TIME
        sums = [(rows[at : at + at_a_time] * factors).sum(1) for at in range(0, whole, at_a_time)]
        rest = bits[whole * ROW :]
        return self._hash(torch.cat([*sums, (rest * factors[: rest.numel()]).sum().view(1)]))

    def _factors_on(self, device: torch.device) -> Tensor:
        if device not in self._on:
            self._on[device] = self._factors.to(device)
        return self._on[device]


def _bits(tensor: Tensor) -> Tensor:
    """The bits as a flat integer tensor, without a copy for contiguous and channels-last tensors."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if not tensor.is_contiguous() and tensor.dim() == 4:
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.contiguous().view(INTEGERS[tensor.itemsize]).view(-1)


def copy_to_host(hashes: Iterable[Tensor]) -> list[int]:
    """Copies all of them to the host at once."""
    return [int(value) for value in torch.stack([one.to(torch.int64) for one in hashes]).tolist()]


class SignedSums:
    """Computes sums of tensors with random signs."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(21)
        self._signs = _signs((SIGN_ROW, SUM_COUNT), generator)
        self._row_signs = _signs((MAX_SIGN_ROWS, SUM_COUNT), generator)

    @torch.no_grad()
    def __call__(self, tensor: Tensor, scale: float = 1.0) -> Sums:
        """The sums of a tensor divided by `scale`."""
        flat = _local(tensor).cpu().contiguous().view(-1).to(torch.float64)
        sums, squares = torch.zeros(SUM_COUNT, dtype=torch.float64), 0.0
        for at in range(0, flat.numel(), SIGN_ROW * MAX_SIGN_ROWS):
            part = flat[at : at + SIGN_ROW * MAX_SIGN_ROWS]
            whole = part.numel() // SIGN_ROW
            rows, rest = part[: whole * SIGN_ROW].view(whole, SIGN_ROW), part[whole * SIGN_ROW :]
            sums += ((rows @ self._signs) * self._row_signs[:whole]).sum(0)
            sums += (rest @ self._signs[: rest.numel()]) * self._row_signs[whole % MAX_SIGN_ROWS]
            squares += float(part @ part)
        found = [math.sqrt(squares) / scale, *(float(value) / scale for value in sums)]
        return found if all(map(math.isfinite, found)) else []

    def sum_all(self, tensors: Mapping[str, Tensor], scale: float = 1.0) -> dict[str, Sums]:
        return {name: self(tensor, scale) for name, tensor in tensors.items()}


def collect_tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a batch by their path in it."""
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
        found |= collect_tensors(part, f"{name}.{key}" if name else key)
    return found


def _signs(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator).to(torch.float64) * 2 - 1


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, or the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
