"""Makes all ranks decide the same thing at the same step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import distributed

BROADCAST_BYTES = 64 << 20
"""Per message, below the limit of any transport."""


class Collectives(Protocol):
    rank: int
    world: int

    def reduce_max(self, *values: float) -> list[float]:
        """The maximum of each value over ranks; all ranks must call together."""

    def reduce_sum(self, values: dict[str, float]) -> dict[str, float]:
        """Sums over ranks, by name; all ranks must call together."""

    def broadcast(self, data: bytes | None) -> bytes:
        """The data of rank 0 on every rank; the others pass None. All ranks must call together."""

    def gather(self, data: bytes) -> list[bytes]:
        """The data of every rank, in rank order, on all ranks. All ranks must call together."""

    def send(self, data: bytes | memoryview) -> None:
        """To rank 0, which must `receive` it meanwhile."""

    def receive(self, rank: int) -> bytes: ...

    def barrier(self) -> None: ...

    def leave(self) -> None:
        """Destroys the process group; no other call may follow."""


class SingleRank:
    """A world of one."""

    rank = 0
    world = 1

    def reduce_max(self, *values: float) -> list[float]:
        return list(values)

    def reduce_sum(self, values: dict[str, float]) -> dict[str, float]:
        return values

    def broadcast(self, data: bytes | None) -> bytes:
        return _require_data(data)

    def gather(self, data: bytes) -> list[bytes]:
        return [data]

    def send(self, data: bytes | memoryview) -> None:
        raise ValueError("a single rank has no peer to send to")

    def receive(self, rank: int) -> bytes:
        raise ValueError("a single rank has no peer to receive from")

    def barrier(self) -> None:
        pass

    def leave(self) -> None:
        pass


class RankGroup:
    """Ranks joined by torch.distributed over gloo, through host memory, so that no device waits."""

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        """Of all ranks, or of some; then only they call this, and are numbered in the given order."""
        self._part = ranks is not None
        self._group: Any = distributed.new_group(ranks, backend="gloo", use_local_synchronization=self._part)
        self.rank = distributed.get_rank(self._group)
        self.world = distributed.get_world_size(self._group)

    def reduce_max(self, *values: float) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=self._group)
        return [float(value) for value in tensor]

    def reduce_sum(self, values: dict[str, float]) -> dict[str, float]:
        names = sorted(values)
        tensor = torch.tensor([values[name] for name in names], dtype=torch.float64)
        distributed.all_reduce(tensor, group=self._group)
        return dict(zip(names, tensor.tolist(), strict=True))

    def broadcast(self, data: bytes | None) -> bytes:
        given = _require_data(data) if self.rank == 0 else b""
        size = torch.tensor([len(given)])
        distributed.broadcast(size, src=0, group=self._group)
        whole = bytearray(given) if self.rank == 0 else bytearray(int(size))
        if whole:  # torch makes no tensor of an empty buffer
            for part in torch.split(torch.frombuffer(whole, dtype=torch.uint8), BROADCAST_BYTES):
                distributed.broadcast(part, src=0, group=self._group)
        return bytes(whole)

    def gather(self, data: bytes) -> list[bytes]:
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        distributed.all_gather(lengths, torch.tensor([len(data)]), group=self._group)
        most = int(max(lengths))
        if not most:
            return [b""] * self.world
        padded = torch.frombuffer(bytearray(data).ljust(most), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in range(self.world)]
        distributed.all_gather(found, padded, group=self._group)
        return [one.numpy().tobytes()[: int(length)] for one, length in zip(found, lengths, strict=True)]

    def send(self, data: bytes | memoryview) -> None:
        distributed.send(torch.tensor([len(data)]), dst=0, group=self._group)
        if len(data):
            distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), dst=0, group=self._group)

    def receive(self, rank: int) -> bytes:
        length = torch.zeros(1, dtype=torch.int64)
        distributed.recv(length, src=rank, group=self._group)
        data = torch.empty(int(length), dtype=torch.uint8)
        if len(data):
            distributed.recv(data, src=rank, group=self._group)
        return data.numpy().tobytes()

    def barrier(self) -> None:
        distributed.barrier(group=self._group)

    def leave(self) -> None:
        distributed.destroy_process_group(self._group if self._part else None)


def _require_data(data: bytes | None) -> bytes:
    if data is None:
        raise ValueError("rank 0 must pass the bytes to broadcast")
    return data
