"""Chooses the network of a run: the interface of collectives, and the address of the leader."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

import psutil

from trainmark.launch.cluster_env import ClusterEnv
from trainmark.record.errors import NotReadyError

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
