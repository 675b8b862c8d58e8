"""Keeps the key-value store at which the processes of a run meet; who comes through the network proves a secret first.

Ranks of this machine get one end of a pair of sockets, which nobody else can reach. Only where there are other machines
does the store listen, at one address, and there it reads a proof of fixed length and nothing else until that is right.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from trainmark.train.store_client import MOST_BYTES, SIZE_BYTES, Reply, Request, frame, receive

GREETING = b"trainmark store 1"
"""What the store says first, with a random number; who hears something else is not where it wanted to be."""
NONCE_BYTES = 32
PROOF_BYTES = 32
STRANGER_LIMIT_S = 10.0
"""How long somebody may take to prove the secret."""
MOST_STRANGERS = 256
"""How many may be at it at once; more are sent away."""


class WrongSecretError(Exception):
    """The two sides of a connection do not have the same secret."""


class StoreServer:
    """Lives in a thread of its own until it is closed."""

    def __init__(self, listener: socket.socket | None = None, secret: bytes = b"") -> None:
        """Without a listener only `connect` leads here."""
        self.refused: list[str] = []
        """Addresses from which somebody came who could not prove the secret, each once."""
        self._values: dict[str, bytes] = {}
        self._secret = secret
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._arrive, sock=listener)) if listener else None

    def connect(self) -> socket.socket:
        """A connection for this process, or for one that inherits it."""
        ours, theirs = socket.socketpair()

        async def take() -> None:
            self._attend(self._serve(*await asyncio.open_connection(sock=ours)))

        self._call(take())
        return theirs

    def close(self) -> None:
        if self._loop.is_closed():
            return

        async def end() -> None:
            if self._server:
                self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _attend(self, conversation: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(conversation)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._attend(self._meet(reader, writer))

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection through the network: one chance to prove the secret, in a message of fixed length."""
        self._strangers += 1
        known = False
        try:
            known = self._strangers <= MOST_STRANGERS and await self._is_proven(reader, writer)
        finally:
            self._strangers -= 1
            if not known:
                writer.close()
        if known:
            await self._serve(reader, writer)

    async def _is_proven(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        ours = secrets.token_bytes(NONCE_BYTES)
        writer.write(GREETING + ours)
        try:
            said = await asyncio.wait_for(reader.readexactly(NONCE_BYTES + PROOF_BYTES), STRANGER_LIMIT_S)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            said = bytes(NONCE_BYTES + PROOF_BYTES)
        theirs, proof = said[:NONCE_BYTES], said[NONCE_BYTES:]
        if hmac.compare_digest(proof, _proof(self._secret, b"asker", ours, theirs)):
            writer.write(_proof(self._secret, b"store", ours, theirs))
            return True
        address = str((writer.get_extra_info("peername") or ("?",))[0])
        if address not in self.refused and len(self.refused) < MOST_STRANGERS:
            self.refused.append(address)
        return False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers until the other side goes; what is no request, or too long for one, ends the connection."""
        try:
            while (size := int.from_bytes(await reader.readexactly(SIZE_BYTES), "big")) <= MOST_BYTES:
                request = msgspec.msgpack.decode(await reader.readexactly(size), type=Request)
                writer.write(frame(await self._answer(request)))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, ValueError, IndexError):
            pass  # the others go on
        finally:
            writer.close()

    async def _answer(self, request: Request) -> Reply:
        keys, values = request.keys, request.values
        match request.do:
            case "get":
                return Reply(values=[self._values.get(key, b"") for key in keys])
            case "wait":
                return Reply(number=int(await self._appear(keys, request.wait_s)))
            case "list":
                return Reply(keys=list(self._values))
            case "delete":
                return Reply(number=sum(self._values.pop(key, None) is not None for key in keys))
            case "set":
                self._values.update(zip(keys, values, strict=True))
                reply = Reply()
            case "append":
                self._values[keys[0]] = self._values.get(keys[0], b"") + values[0]
                reply = Reply()
            case "add":
                reply = Reply(number=int(self._values.get(keys[0], b"0")) + request.number)
                self._values[keys[0]] = str(reply.number).encode()
            case "compare_set":
                expected, desired = values
                held = self._values.get(keys[0])
                if held == expected or (held is None and not expected):
                    self._values[keys[0]] = held = desired
                reply = Reply(values=[expected if held is None else held])
        async with self._changed:
            self._changed.notify_all()
        return reply

    async def _appear(self, keys: Sequence[str], limit_s: float) -> bool:
        def are_there() -> bool:
            return all(key in self._values for key in keys)

        if are_there() or limit_s <= 0:
            return are_there()
        with suppress(asyncio.TimeoutError):
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(are_there), limit_s)
        return are_there()


def prove(connection: socket.socket, secret: bytes) -> None:
    """The other side of a store's first words: proves the secret to it, and has it prove the same."""
    connection.settimeout(STRANGER_LIMIT_S)
    said = receive(connection, len(GREETING) + NONCE_BYTES)
    if not said.startswith(GREETING):
        raise ConnectionError("something else than a launcher of trainmark listens there")
    theirs, ours = said[len(GREETING) :], secrets.token_bytes(NONCE_BYTES)
    connection.sendall(ours + _proof(secret, b"asker", theirs, ours))
    try:
        proof = receive(connection, PROOF_BYTES)
    except ConnectionError as error:
        raise WrongSecretError from error
    if not hmac.compare_digest(proof, _proof(secret, b"store", theirs, ours)):
        raise WrongSecretError


def _proof(secret: bytes, who: bytes, of_store: bytes, of_asker: bytes) -> bytes:
    return hmac.digest(secret, who + of_store + of_asker, "sha256")
