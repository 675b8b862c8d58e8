"""The rendezvous of nodes: a key-value store of the leader, for peers that prove the secret of the run.

Before the handshake succeeds, the leader reads nothing but a proof of fixed length.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from trainmark.launch import network
from trainmark.launch.cluster_env import SECRET, ClusterEnv, make_secret, read_secret
from trainmark.platforms.device_errors import first_line
from trainmark.record.errors import HangError, NotReadyError
from trainmark.train.collectives import MAX_WAIT_S, Reply, Request, encode, receive_exactly, receive_message

GREETING = b"trainmark store 2"
"""Sent by the server before a nonce: a client that receives anything else has reached another service."""
NONCE_BYTES = 32
PROOF_BYTES = 32
HANDSHAKE_TIMEOUT_S = 10.0
MAX_PENDING_HANDSHAKES = 256
"""Unauthenticated peers at a time; more are rejected."""
RETRY_S = 0.2
"""Between two attempts to reach a leader that does not listen yet."""


class WrongSecretError(Exception):
    """The two sides of a connection do not have the same secret."""


class Address(NamedTuple):
    """Where a leader listens, and the secret to prove there."""

    host: str
    port: int
    secret: str


class StoreServer:
    """One thread per connection, until it is closed."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self.rejected: list[str] = []
        """Addresses of peers that could not prove the secret, each once."""
        self._listener, self._secret = listener, secret
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._arrivals: dict[str, threading.Condition] = {}
        """Notified when an awaited key is set."""
        self._pending = 0
        self._connections: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="store", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            for each in (self._listener, *self._connections):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if full := self._pending >= MAX_PENDING_HANDSHAKES:
                    connection.close()
                else:
                    self._pending += 1
                    self._connections.add(connection)
            if not full:
                threading.Thread(
                    target=self._handle_connection, args=(connection, str(address[0])), daemon=True
                ).start()

    def _handle_connection(self, connection: socket.socket, host: str) -> None:
        with connection:
            try:
                authenticated = self._authenticate(connection)
            finally:
                with self._lock:
                    self._pending -= 1
            if authenticated:
                self._serve(connection)
            elif host not in self.rejected and len(self.rejected) < MAX_PENDING_HANDSHAKES:
                self.rejected.append(host)
            with self._lock:
                self._connections.discard(connection)

    def _authenticate(self, connection: socket.socket) -> bool:
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            connection.sendall(GREETING + nonce)
            answer = receive_exactly(connection, NONCE_BYTES + PROOF_BYTES, HANDSHAKE_TIMEOUT_S)
            client_nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
            if not hmac.compare_digest(proof, prove(self._secret, b"client", nonce, client_nonce)):
                return False
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(prove(self._secret, b"server", nonce, client_nonce))
        except OSError:
            return False
        return True

    def _serve(self, connection: socket.socket) -> None:
        """Replies until the peer disconnects; an invalid or too long request ends the connection."""
        with suppress(OSError, ValueError, msgspec.MsgspecError):  # other connections are not affected
            while True:
                request = msgspec.msgpack.decode(receive_message(connection, None), type=Request)
                with self._lock:
                    reply = self._reply(request)
                connection.sendall(encode(reply))

    def _reply(self, request: Request) -> Reply:
        key, value, held = request.key, request.value, self._values.get(request.key)
        match request.operation:
            case "get":
                return Reply(value=held or b"")
            case "wait":
                return Reply(number=int(self._wait(key, request.wait_s)))
            case "delete":
                return Reply(number=int(self._values.pop(key, None) is not None))
            case "set":
                reply = Reply()
            case "add":
                reply = Reply(number=int(held or b"0") + request.number)
                value = str(reply.number).encode()
            case "compare_set":
                if held != request.expected and (held is not None or request.expected):
                    return Reply(value=request.expected if held is None else held)
                reply = Reply(value=value)
        self._values[key] = value
        if arrival := self._arrivals.pop(key, None):
            arrival.notify_all()
        return reply

    def _wait(self, key: str, limit_s: float) -> bool:
        if key not in self._values and limit_s > 0:
            self._arrivals.setdefault(key, threading.Condition(self._lock)).wait(min(limit_s, MAX_WAIT_S))
        return key in self._values


def serve(env: ClusterEnv, secret: str | None, interface: str | None, timeout_s: float) -> tuple[StoreServer, Address]:
    """Starts the server of the leader. Where torchrun has a store, it publishes address and secret there."""
    secret = make_secret() if env.has_torchrun_store else secret or read_secret(os.environ)
    listener = network.listen(env, interface, 0 if env.has_torchrun_store else env.port)
    host, port = listener.getsockname()[:2]
    address = Address(str(host), int(port), secret)
    server = StoreServer(listener, secret.encode())
    if env.has_torchrun_store:
        _open_torchrun_store(env, timeout_s).set(_make_torchrun_key(os.environ), msgspec.json.encode(address).decode())
    return server, address


def find_leader(env: ClusterEnv, secret: str | None, timeout_s: float) -> Address:
    if not env.has_torchrun_store:
        return Address(network.choose_leader_host(env), env.port, secret or read_secret(os.environ))
    try:
        found = _open_torchrun_store(env, timeout_s).get(_make_torchrun_key(os.environ))
        return msgspec.json.decode(found, type=Address)
    except (DistError, ValueError) as error:
        raise HangError(f"rank 0 did not publish its address in torchrun's store: {first_line(error)}") from error


def connect(address: Address, timeout_s: float) -> socket.socket:
    """An authenticated connection to the leader, once it listens."""
    where = f"{address.host}:{address.port}"
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return _connect_once(address, max(0.1, deadline_s - time.monotonic()))
        except WrongSecretError:
            raise NotReadyError(
                f"rejected by the leader at {where}: {SECRET} does not match; give all nodes the same one"
            ) from None
        except OSError as error:
            if time.monotonic() + RETRY_S > deadline_s:
                raise HangError(
                    f"the leader did not answer at {where} within {timeout_s:.0f} s: {first_line(error)}"
                ) from error
        time.sleep(RETRY_S)


def _connect_once(address: Address, timeout_s: float) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shake_hands(connection, address.secret.encode())
    except BaseException:
        connection.close()
        raise
    return connection


def shake_hands(connection: socket.socket, secret: bytes) -> None:
    """The client side of the handshake: both sides prove that they know the secret."""
    connection.settimeout(HANDSHAKE_TIMEOUT_S)
    greeting = receive_exactly(connection, len(GREETING) + NONCE_BYTES, HANDSHAKE_TIMEOUT_S)
    if not greeting.startswith(GREETING):
        raise ConnectionError("the service there is no launcher of trainmark")
    server_nonce, nonce = greeting[len(GREETING) :], secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce + prove(secret, b"client", server_nonce, nonce))
    try:
        proof = receive_exactly(connection, PROOF_BYTES, HANDSHAKE_TIMEOUT_S)
    except ConnectionError as error:
        raise WrongSecretError from error
    if not hmac.compare_digest(proof, prove(secret, b"server", server_nonce, nonce)):
        raise WrongSecretError


def prove(secret: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.digest(secret, role + server_nonce + client_nonce, "sha256")


def _open_torchrun_store(env: ClusterEnv, timeout_s: float) -> Any:
    timeout = timedelta(seconds=timeout_s)
    try:
        return TCPStore(env.leader, env.port, is_master=False, wait_for_workers=False, timeout=timeout)
    except DistError as error:
        raise HangError(
            f"torchrun's store did not answer at {env.leader}:{env.port} within {timeout_s:.0f} s: {first_line(error)}"
        ) from error


def _make_torchrun_key(environ: Mapping[str, str]) -> str:
    """A new key for each restart by torchrun, as addresses of earlier ranks are stale."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return "/".join(["trainmark", *(environ.get(name, "") for name in names)])
