"""The store through which ranks find each other: torch's interface to a connection that their launcher opened."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

from trainmark.train.ranks import CONNECTION
from trainmark.train.store_client import LostStoreError, StoreClient

WAIT_LIMIT_S = 600.0
"""How long a rank waits for the word of another one; its launcher notices sooner where nothing moves."""


@functools.cache  # torch's C++ goes on using the store without Python knowing of it, so it lives as long as the process
def inherited() -> RankStore:
    """The store of this rank, by what its launcher left it."""
    number, _, prefix = os.environ[CONNECTION].partition(":")
    return RankStore(StoreClient(socket.socket(fileno=int(number))), prefix)


class RankStore(Store):
    """Every method torch asks for, by the names its C++ looks up."""

    timeout: timedelta
    """How long to wait for a key; torch's own, and its to change."""

    def __init__(self, client: StoreClient, prefix: str = "") -> None:
        super().__init__()
        self._client, self._prefix = client, prefix
        self.set_timeout(timedelta(seconds=WAIT_LIMIT_S))

    def set(self, key: str, value: bytes | str) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        with _in_words_of_torch():
            self._client.set_many(self._own(keys), values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with _in_words_of_torch():
            return self._client.get_many(self._own(keys), self.timeout.total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        with _in_words_of_torch():
            return self._client.check(self._own(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit_s = (timeout or self.timeout).total_seconds()
        with _in_words_of_torch():
            if not self._client.wait(self._own(keys), limit_s):
                raise TimeoutError(f"nobody set {', '.join(keys)} within {limit_s:g} s")

    def add(self, key: str, amount: int) -> int:
        with _in_words_of_torch():
            return self._client.add(self._prefix + key, amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        with _in_words_of_torch():
            return self._client.compare_set(self._prefix + key, expected, desired)

    def append(self, key: str, value: bytes | str) -> None:
        with _in_words_of_torch():
            self._client.append(self._prefix + key, value)

    def delete_key(self, key: str) -> bool:
        with _in_words_of_torch():
            return self._client.delete(self._prefix + key)

    def list_keys(self) -> list[str]:
        with _in_words_of_torch():
            found = self._client.keys()
        return [key.removeprefix(self._prefix) for key in found if key.startswith(self._prefix)]

    def num_keys(self) -> int:
        return len(self.list_keys())

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> RankStore:
        """The same: threads may share a connection."""
        return self

    deleteKey, listKeys, getNumKeys = delete_key, list_keys, num_keys  # noqa: N815 - as C++ calls them

    def _own(self, keys: Sequence[str]) -> list[str]:
        return [self._prefix + key for key in keys]


@contextmanager
def _in_words_of_torch() -> Iterator[None]:
    """What its callers expect a store to raise."""
    try:
        yield
    except LostStoreError as error:
        raise DistNetworkError(str(error)) from error
    except TimeoutError as error:
        raise DistStoreError(f"wait timeout: {error}") from error
