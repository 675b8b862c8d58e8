"""Which way a machine's ranks talk to the others: address, interface, and the port torch's rendezvous gets."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from trainmark.launch.cluster_env import ClusterEnv
from trainmark.spec.errors import NotReadyError


@dataclass(frozen=True, kw_only=True)
class Route:
    """How this launcher's ranks reach the others."""

    rendezvous: str = "localhost:0"
    """Where torch's own rendezvous is, as host:port."""
    local_address: str = "127.0.0.1"
    variables: Mapping[str, str] = field(default_factory=dict)
    """Which interface the collectives use, unless the user has set that already."""


def route(env: ClusterEnv, rendezvous_port: int, interface: str | None) -> Route:
    """The way from here to the leader; an interface named by the site goes before the one the kernel would take."""
    if env.launchers == 1:
        return Route(variables=_variables(interface or _interface_of("127.0.0.1")))
    address = _address_of(interface) if interface else _address_towards(env.leader, env.port)
    return Route(
        rendezvous=f"{env.leader}:{rendezvous_port}",
        local_address=address,
        variables=_variables(interface or _interface_of(address), named=interface is not None),
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _variables(interface: str | None, *, named: bool = False) -> dict[str, str]:
    """gloo picks the interface by the host's name, which on many machines leads to loopback. NCCL and its like choose
    well among several fabrics, so they are told only what the site has told us."""
    if interface is None:
        return {}
    names = ["GLOO_SOCKET_IFNAME", *(["NCCL_SOCKET_IFNAME"] if named else [])]
    return dict.fromkeys(names, interface)


def _address_towards(host: str, port: int) -> str:
    """This machine's address as the leader sees it. Connecting a datagram socket sends nothing."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise NotReadyError(f"there is no way from here to the leader {host}: {error.strerror or error}") from error


def _address_of(interface: str) -> str:
    known = psutil.net_if_addrs()
    for entry in known.get(interface, ()):
        if entry.family in (socket.AF_INET, socket.AF_INET6):
            return str(entry.address)
    raise NotReadyError(f"network interface {interface!r} has no address here; this machine has {', '.join(known)}")


def _interface_of(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return None
