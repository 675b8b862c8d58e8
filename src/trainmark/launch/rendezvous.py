"""The rendezvous of nodes: where the leader listens, and its key-value store for peers that prove the secret.

Before the handshake succeeds, the leader reads nothing but a proof of fixed length.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
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
import psutil
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

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
    listener = listen(env, interface, 0 if env.has_torchrun_store else env.port)
    host, port = listener.getsockname()[:2]
    address = Address(str(host), int(port), secret)
    server = StoreServer(listener, secret.encode())
    if env.has_torchrun_store:
        _open_torchrun_store(env, timeout_s).set(_make_torchrun_key(os.environ), msgspec.json.encode(address).decode())
    return server, address


def find_leader(env: ClusterEnv, secret: str | None, timeout_s: float) -> Address:
    if not env.has_torchrun_store:
        return Address(choose_leader_host(env), env.port, secret or read_secret(os.environ))
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


LOOPBACK = "127.0.0.1"
_ANYWHERE = ("192.0.2.1", 9)
"""A documentation address: the route to it is the default route, and no packet is sent."""


def make_collective_variables(env: ClusterEnv, interface: str | None) -> dict[str, str]:
    """The interface of collectives: loopback on one machine, else that of the site, or that towards the leader."""
    if env.is_one_machine:
        # by default these libraries listen at an external interface
        return _make_interface_variables(_find_interface(LOOPBACK), named=True)
    address = _find_address(interface) if interface else _find_address_towards(env.leader, env.port)
    return _make_interface_variables(interface or _find_interface(address), named=interface is not None)


def choose_leader_host(env: ClusterEnv) -> str:
    """The host at which launchers connect to their leader."""
    return LOOPBACK if env.is_one_machine else env.leader


def listen(env: ClusterEnv, interface: str | None, port: int) -> socket.socket:
    """The listening socket of the leader, at the address that the others connect to; port 0 takes any free one."""
    address = _choose_address(env, interface)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NotReadyError(
                f"port {port} of this machine is taken; choose another for all nodes (--port N, or port under "
                "[network] in trainmark.toml)"
            ) from error
        raise NotReadyError(f"cannot open {address}:{port} for the other nodes: {error.strerror}") from error


def _choose_address(env: ClusterEnv, interface: str | None) -> str:
    """The address of the leader's name, if it is one of this machine. Many machines resolve their own name to loopback;
    then that of the site's interface, or of the default route."""
    host = choose_leader_host(env)
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    found = [address for address in _resolve(host) if address in own or _is_loopback(address)]
    outer = [address for address in found if not _is_loopback(address)]
    if outer:
        return outer[0]
    if found and (host == "localhost" or _is_loopback(host)):
        return found[0]
    if interface:
        return _find_address(interface)
    try:
        return _find_source_address(socket.AF_INET, _ANYWHERE)
    except OSError as error:
        raise NotReadyError(
            f"the leader's name {host} is no address of this machine, so the other nodes cannot find it; "
            "name its interface under [network] in trainmark.toml"
        ) from error


def _make_interface_variables(interface: str | None, *, named: bool) -> dict[str, str]:
    """gloo picks the interface by host name, which is often loopback. NCCL chooses well among several fabrics, so
    between machines it is only set where the site names an interface."""
    if interface is None:
        return {}
    names = ["GLOO_SOCKET_IFNAME", *(["NCCL_SOCKET_IFNAME"] if named else [])]
    return dict.fromkeys(names, interface)


def _resolve(host: str) -> list[str]:
    try:
        return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None)))
    except OSError:
        return []


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def _find_address_towards(host: str, port: int) -> str:
    """The address of this machine as the leader sees it."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        return _find_source_address(family, target)
    except OSError as error:
        raise NotReadyError(f"no route to the leader {host}: {error.strerror or error}") from error


def _find_source_address(family: int, target: tuple[Any, ...]) -> str:
    """The source address of packets to a target. Connecting a datagram socket sends nothing."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _find_address(interface: str) -> str:
    known = psutil.net_if_addrs()
    for entry in known.get(interface, ()):
        if entry.family in (socket.AF_INET, socket.AF_INET6):
            return str(entry.address)
    raise NotReadyError(f"network interface {interface!r} has no address here; this machine has {', '.join(known)}")


def _find_interface(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return None
