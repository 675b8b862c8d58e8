"""Asks the key-value store at which the processes of a run meet, over a connection that was opened for the asker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from trainmark.spec.errors import WorkloadError

MOST_BYTES = 16 << 20
"""The longest message either side reads; a longer one ends the connection before anything of it is read."""
SIZE_BYTES = 4
"""Before each message stands its length."""
ANSWER_LIMIT_S = 60.0
"""How long the store may take to answer, beyond what it was asked to wait."""
SLICE_S = 0.5
"""The longest wait asked of the store at a time, so that threads that share a connection get their turn."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One question. Keys and values are plain text and bytes: nothing that comes over a connection is ever executed."""

    do: Literal["set", "get", "wait", "add", "compare_set", "append", "delete", "list"]
    keys: list[str]
    values: list[bytes] = []
    number: int = 0
    wait_s: float = 0.0
    """How long the keys may take to appear."""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    values: list[bytes] = []
    keys: list[str] = []
    number: int = 0
    """A sum or a count; 0 where keys did not appear or were not there."""


class LostStoreError(WorkloadError):
    """The store does not answer any more: whoever kept it, or the way there, is gone."""


def frame(message: Request | Reply) -> bytes:
    body = msgspec.msgpack.encode(message)
    if len(body) > MOST_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is longer than the {MOST_BYTES} that are read")
    return len(body).to_bytes(SIZE_BYTES, "big") + body


class StoreClient:
    """One connection; several threads may use it, one question at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self.answer_limit_s = ANSWER_LIMIT_S
        self._connection = connection
        self._turn = threading.Lock()

    def set(self, key: str, value: bytes | str) -> None:
        self.set_many([key], [value])

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self._ask(Request("set", list(keys), [_bytes(value) for value in values]))

    def get(self, key: str, limit_s: float = 0.0) -> bytes:
        return self.get_many([key], limit_s)[0]

    def get_many(self, keys: Sequence[str], limit_s: float = 0.0) -> list[bytes]:
        """TimeoutError where they do not appear in time."""
        if not self.wait(keys, limit_s):
            raise TimeoutError(f"nobody set {', '.join(keys)} within {limit_s:g} s")
        return self._ask(Request("get", list(keys))).values

    def check(self, keys: Sequence[str]) -> bool:
        return self.wait(keys, 0.0)

    def wait(self, keys: Sequence[str], limit_s: float) -> bool:
        """True once all keys are there; False where they do not appear in time."""
        deadline_s = time.monotonic() + limit_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            if self._ask(Request("wait", list(keys), wait_s=min(left_s, SLICE_S))).number:
                return True
            if left_s <= SLICE_S:
                return False

    def add(self, key: str, amount: int) -> int:
        return self._ask(Request("add", [key], number=amount)).number

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets a key that has the expected value, or has none where none is expected; what it then holds."""
        reply = self._ask(Request("compare_set", [key], [_bytes(expected), _bytes(desired)]))
        return reply.values[0]

    def append(self, key: str, value: bytes | str) -> None:
        self._ask(Request("append", [key], [_bytes(value)]))

    def delete(self, key: str) -> bool:
        return bool(self._ask(Request("delete", [key])).number)

    def keys(self) -> list[str]:
        return self._ask(Request("list", [])).keys

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # a thread that waits for an answer wakes up
        self._connection.close()

    def _ask(self, request: Request) -> Reply:
        message = frame(request)
        try:
            with self._turn:
                self._connection.settimeout(request.wait_s + self.answer_limit_s)
                self._connection.sendall(message)
                size = int.from_bytes(receive(self._connection, SIZE_BYTES), "big")
                if size > MOST_BYTES:
                    raise ConnectionError(f"an answer of {size} bytes was announced")
                return msgspec.msgpack.decode(receive(self._connection, size), type=Reply)
        except (OSError, msgspec.MsgspecError) as error:
            self.close()  # an answer that comes late would be taken for that to the next question
            why = "it does not answer" if isinstance(error, TimeoutError) else error
            raise LostStoreError(f"connection closed: the store of this run is gone ({why})") from error


def receive(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes; ConnectionError where the other side goes before."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("the other side has closed it")
        parts += part
    return bytes(parts)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
