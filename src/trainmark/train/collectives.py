"""Joins ranks: the store of their rendezvous, and collectives that make all decide the same at the same step."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

import msgspec
import torch
from torch import distributed
from torch.distributed import (  # type: ignore[attr-defined]
    DistNetworkError,
    DistStoreError,
    FileStore,
    PrefixStore,
    Store,
)

from trainmark.record.errors import WorkloadError
from trainmark.train.ranks import RENDEZVOUS

BROADCAST_BYTES = 64 << 20
"""Per message, below the limit of any transport."""


class Collectives:
    """Of a world of one; where there are more ranks, all must call together, but for `send` and `receive`."""

    rank = 0
    world = 1

    def reduce_max(self, *values: float) -> list[float]:
        """The maximum of each value over ranks."""
        return list(values)

    def reduce_sum(self, values: dict[str, float]) -> dict[str, float]:
        """Sums over ranks, by name."""
        return values

    def broadcast(self, data: bytes | None) -> bytes:
        """The data of rank 0 on every rank; the others pass None."""
        return _require_data(data)

    def gather(self, data: bytes) -> list[bytes]:
        """The data of every rank, in rank order, on all ranks."""
        return [data]

    def send(self, data: bytes | memoryview) -> None:
        """To rank 0, which must `receive` it meanwhile."""
        raise ValueError("a single rank has no peer to send to")

    def receive(self, rank: int) -> bytes:
        raise ValueError("a single rank has no peer to receive from")

    def barrier(self) -> None:
        pass

    def leave(self) -> None:
        """Destroys the process group; no other call may follow."""


class RankGroup(Collectives):
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


WAIT_TIMEOUT_S = 600.0
"""How long a rank waits for a key; its launcher detects a hang sooner."""
REPLY_TIMEOUT_S = 60.0
"""How long the server may take to reply, beyond the requested wait."""
MAX_WAIT_S = 0.5
"""The longest wait per request, so that threads that share a connection take turns."""
MAX_MESSAGE_BYTES = 16 << 20
"""A longer message ends the connection before any of it is read."""
LENGTH_BYTES = 4
"""Each message is preceded by its length."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Keys and values are plain text and bytes: nothing received is ever unpickled."""

    operation: Literal["set", "get", "wait", "add", "compare_set", "delete"]
    key: str
    value: bytes = b""
    expected: bytes = b""
    number: int = 0
    wait_s: float = 0.0
    """How long the key may take to appear."""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    value: bytes = b""
    number: int = 0
    """A sum, or 1 where the key exists."""


class LostStoreError(WorkloadError, DistNetworkError):
    """The server no longer replies: it, or the network, is down."""


@functools.cache  # the C++ of torch keeps using the store unseen by Python, so it lives as long as the process
def open_store(world: int) -> Store:
    """The store of this rank, as set by its launcher: a file, or an open connection and a key prefix."""
    kind, _, place = os.environ[RENDEZVOUS].partition(":")
    if kind == "file":
        store: Store = FileStore(place, world)
        store.set_timeout(timedelta(seconds=WAIT_TIMEOUT_S))
        return store
    number, _, prefix = place.partition(":")
    return PrefixStore(prefix, _open_connection(int(number)))


@functools.cache
def _open_connection(number: int) -> RendezvousStore:
    return RendezvousStore(socket.socket(fileno=number))


class RendezvousStore(Store):
    """A torch Store that talks to the server of the leader; threads may share it."""

    timeout: timedelta
    """How long to wait for a key; torch may change it."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self.reply_timeout_s = REPLY_TIMEOUT_S
        self._connection = connection
        self._lock = threading.Lock()
        self.set_timeout(timedelta(seconds=WAIT_TIMEOUT_S))

    def set(self, key: str, value: bytes | str) -> None:
        self._request(Request("set", key, _to_bytes(value)))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._request(Request("get", key)).value

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._has_key(key, 0.0) for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit_s = (timeout or self.timeout).total_seconds()
        deadline_s = time.monotonic() + limit_s
        for key in keys:
            while not self._has_key(key, min(max(0.0, deadline_s - time.monotonic()), MAX_WAIT_S)):
                if time.monotonic() >= deadline_s:
                    raise DistStoreError(f"wait timeout: nobody set {key} within {limit_s:g} s")

    def add(self, key: str, amount: int) -> int:
        return self._request(Request("add", key, number=amount)).number

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets a key that has the expected value, or is absent where none is expected; returns its new value."""
        return self._request(Request("compare_set", key, _to_bytes(desired), _to_bytes(expected))).value

    def delete_key(self, key: str) -> bool:
        return bool(self._request(Request("delete", key)).number)

    def has_extended_api(self) -> bool:
        return False

    def clone(self) -> RendezvousStore:
        return self

    deleteKey = delete_key  # noqa: N815 - as C++ calls it

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a reply
        self._connection.close()

    def _has_key(self, key: str, wait_s: float) -> bool:
        return bool(self._request(Request("wait", key, wait_s=wait_s)).number)

    def _request(self, request: Request) -> Reply:
        message = encode(request)
        try:
            with self._lock:
                timeout_s = request.wait_s + self.reply_timeout_s
                self._connection.settimeout(timeout_s)
                self._connection.sendall(message)
                return msgspec.msgpack.decode(receive_message(self._connection, timeout_s), type=Reply)
        except (OSError, msgspec.MsgspecError) as error:
            self.close()  # a late reply would be taken for that of the next request
            why = "it does not reply" if isinstance(error, TimeoutError) else error
            raise LostStoreError(f"connection closed: the store of this run is gone ({why})") from error


def encode(message: Request | Reply) -> bytes:
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is longer than {MAX_MESSAGE_BYTES}")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def receive_message(connection: socket.socket, timeout_s: float | None) -> bytes:
    size = int.from_bytes(receive_exactly(connection, LENGTH_BYTES, timeout_s), "big")
    if size > MAX_MESSAGE_BYTES:
        raise ConnectionError(f"the peer announced a message of {size} bytes")
    return receive_exactly(connection, size, timeout_s)


def receive_exactly(connection: socket.socket, count: int, timeout_s: float | None) -> bytes:
    """Exactly `count` bytes within the timeout; ConnectionError where the peer closes before."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    received = bytearray()
    while len(received) < count:
        connection.settimeout(None if deadline_s is None else max(0.001, deadline_s - time.monotonic()))
        part = connection.recv(min(count - len(received), 1 << 20))
        if not part:
            raise ConnectionError("the peer has closed it")
        received += part
    return bytes(received)


def _to_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
