"""Asks a device, and the links between devices, for answers known exactly: matmuls and sums of small integers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, distributed

from trainmark.platforms.platform import Device
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.record.verify import BitDifference, Kind
from trainmark.train.collectives import Collectives

SIDE, INNER = 512, 256
"""Of the matmul whose answer is known. No sum of so many numbers from -1 to 1 is rounded in any type there is."""
TILES = 8
"""How often an accelerator's matmul repeats it, in both directions, so that all of its parts have something to do."""
LENGTH = 1 << 16
MAX_PLACES = 3


class KnownAnswers:
    """A device's matmuls and collectives, each time with the numbers in other places."""

    def __init__(self, device: Device, precision: Precision, collectives: Collectives) -> None:
        self._device, self._collectives = device, collectives
        generator = torch.Generator().manual_seed(22)
        self._left = torch.randint(-1, 2, (SIDE, INNER), generator=generator)
        self._right = torch.randint(-1, 2, (INNER, SIDE), generator=generator)
        self._answer = self._left @ self._right
        self._tiles = 1 if device.torch.type == "cpu" else TILES
        own = PRECISIONS[precision.name]
        lowered = own.autocast or own.weights
        self._types = {torch.float32: PRECISIONS["fp32"], getattr(torch, lowered): own}

    def check(self, round_: int) -> Iterator[BitDifference]:
        """What is wrong, asked for the so manieth time; all ranks must call together."""
        for dtype, precision in self._types.items():
            wrong = self._wrong_matmuls(round_, dtype, precision)
            if len(wrong):
                places = [f"row {a * SIDE + b}, column {c * SIDE + d}" for a, b, c, d in wrong[:MAX_PLACES].tolist()]
                yield self._difference("product", round_, str(dtype).removeprefix("torch."), places, len(wrong))
        if self._collectives.world > 1:
            yield from self._wrong_exchanges(round_)

    def _wrong_matmuls(self, round_: int, dtype: torch.dtype, precision: Precision) -> Tensor:
        tiles, device = self._tiles, self._device
        left = self._left.roll(round_, 0).to(device.torch, dtype).repeat(tiles, 1)
        right = self._right.roll(round_, 1).to(device.torch, dtype).repeat(1, tiles)
        wanted = self._answer.roll((round_, round_), (0, 1)).to(device.torch, dtype)
        with device.arithmetic(precision):
            found = left @ right
        device.synchronize()
        wrong = found.view(tiles, SIDE, tiles, SIDE) != wanted.view(1, SIDE, 1, SIDE)
        return wrong.nonzero()

    def _wrong_exchanges(self, round_: int) -> Iterator[BitDifference]:
        """A sum over all ranks, then what each rank gave: that tells whose way to this rank is wrong."""
        rank, world = self._collectives.rank, self._collectives.world
        numbers = torch.arange(LENGTH).roll(round_) % 997
        given = (numbers * (rank + 1)).to(self._device.torch, torch.float32)
        with self._device.arithmetic(PRECISIONS["fp32"]):
            summed = given.clone()
            distributed.all_reduce(summed)
            parts = [torch.empty_like(given) for _ in range(world)]
            distributed.all_gather(parts, given)
        self._device.synchronize()
        exchanged = {"sum over all ranks": (summed, world * (world + 1) // 2)}
        exchanged |= {f"what rank {other} gave": (part, other + 1) for other, part in enumerate(parts)}
        for name, (found, times) in exchanged.items():
            wrong = (found.cpu() != (numbers * times).to(torch.float32)).nonzero().flatten()
            if len(wrong):
                places = [f"number {place}" for place in wrong[:MAX_PLACES].tolist()]
                yield self._difference("link", round_, name, places, len(wrong))

    def _difference(self, kind: Kind, round_: int, stage: str, places: list[str], count: int) -> BitDifference:
        rank = self._collectives.rank
        return BitDifference(kind=kind, round=round_, rank=rank, stage=stage, layers=places, count=count)
