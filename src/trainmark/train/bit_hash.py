"""Hashes the bits of tensors where they lie, exactly and cheaply: equal hashes, equal tensors, as good as surely.

Each number's bits, read as an integer, are multiplied by an odd number of their place and added up, modulo 2**64.
An odd factor loses nothing, so a change of any single number, be it one bit or all, always changes the sum. Numbers
that change places, or several that change at once, leave it as it was about once in 2**32 times.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainmark.platforms import device_errors

ROW = 1 << 16
"""Numbers that have factors of their own; a longer tensor is cut into rows, whose sums are hashed once more."""
ROWS_AT_A_TIME = 256
"""Hashed at once; on a CPU one, which stays in its cache and takes a tenth of the time."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class BitHash:
    """Hashes tensors on the device they are on; on the host where a device lacks an operator for it."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(20)
        self._factors = torch.randint(-(1 << 63), (1 << 63) - 1, (ROW,), generator=generator, dtype=torch.int64) | 1
        self._on: dict[torch.device, Tensor] = {}
        self.on_host = ""
        """Why hashes are made on the host, where they are."""

    @torch.no_grad()
    def __call__(self, tensor: Tensor) -> Tensor:
        """One int64, not brought to the host."""
        tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
        if self.on_host:
            return self._of(_bits(tensor.cpu()))
        try:
            return self._of(_bits(tensor))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            if device_errors.missing_operator(error) is None and tensor.device.type == "cpu":
                raise
            self.on_host = device_errors.first_line(error)
            return self(tensor)

    def _of(self, bits: Tensor) -> Tensor:
        factors = self._factors_on(bits.device)
        if bits.numel() <= ROW:
            return (bits * factors[: bits.numel()]).sum()
        whole = bits.numel() // ROW
        rows = bits[: whole * ROW].view(whole, ROW)
        at_a_time = 1 if bits.device.type == "cpu" else ROWS_AT_A_TIME
        sums = [(rows[at : at + at_a_time] * factors).sum(1) for at in range(0, whole, at_a_time)]
        rest = bits[whole * ROW :]
        return self._of(torch.cat([*sums, (rest * factors[: rest.numel()]).sum().view(1)]))

    def _factors_on(self, device: torch.device) -> Tensor:
        if device not in self._on:
            self._on[device] = self._factors.to(device)
        return self._on[device]


def _bits(tensor: Tensor) -> Tensor:
    """The numbers as integers in one row, in the order they lie in memory where that is one of the usual two."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if not tensor.is_contiguous() and tensor.dim() == 4:
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.contiguous().view(INTEGERS[tensor.itemsize]).view(-1)


def bring(hashes: Iterable[Tensor]) -> list[int]:
    """All of them in one copy to the host."""
    return [int(value) for value in torch.stack([one.to(torch.int64) for one in hashes]).tolist()]
