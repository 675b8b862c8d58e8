"""Processes of one machine talk over loopback; a leader of several listens at one address, where the others look."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from trainmark.launch import rendezvous
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.record.errors import NotReadyError

ONE = ClusterEnv(ranks=2, local_ranks=2)
STARTED_ONE_BY_ONE = ClusterEnv(launchers=2, local_ranks=2, is_rank=True, leader="node1")
NODES = ClusterEnv(launchers=2, ranks=2, local_ranks=2, leader="node1")
DEFAULT_ROUTE = "192.0.2.77"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with two networks and a default route."""

    def interface(address: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(family=socket.AF_INET, address=address)]

    known = {"lo": interface("127.0.0.1"), "eth0": interface("10.0.0.1"), "ib0": interface("10.1.0.1")}
    monkeypatch.setattr(rendezvous.psutil, "net_if_addrs", lambda: known)
    monkeypatch.setattr(rendezvous, "_find_source_address", lambda family, target: DEFAULT_ROUTE)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("env", [ONE, STARTED_ONE_BY_ONE], ids=["ours", "somebody else's"])
@pytest.mark.parametrize("interface", [None, "ib0"])
def test_ranks_of_one_machine_use_loopback_whoever_started_them(env: ClusterEnv, interface: str | None) -> None:
    assert rendezvous.make_collective_variables(env, interface) == {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    assert rendezvous.choose_leader_host(env) == "127.0.0.1"


@pytest.mark.usefixtures("machine")
def test_between_machines_the_site_s_interface_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(rendezvous.make_collective_variables(NODES, "ib0").values()) == {"ib0"}
    monkeypatch.setattr(rendezvous, "_find_source_address", lambda family, target: "10.0.0.1")
    monkeypatch.setattr(rendezvous.socket, "getaddrinfo", lambda *words, **named: [(2, 2, 0, "", ("10.0.0.9", 1))])
    assert rendezvous.make_collective_variables(NODES, None) == {"GLOO_SOCKET_IFNAME": "eth0"}, "NCCL chooses better"
    with pytest.raises(NotReadyError, match="'ib7' has no address here; this machine has lo, eth0, ib0"):
        rendezvous.make_collective_variables(NODES, "ib7")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("leader", "addresses", "interface", "bound"),
    [
        ("node1", ["10.0.0.1"], None, "10.0.0.1"),
        ("node1", ["10.0.0.1"], "ib0", "10.0.0.1"),  # where the others were told to look
        ("node1", ["127.0.1.1", "10.1.0.1"], None, "10.1.0.1"),
        ("node1", ["127.0.1.1"], "ib0", "10.1.0.1"),  # a machine that knows itself as loopback only
        ("node1", ["127.0.1.1"], None, DEFAULT_ROUTE),
        ("node1", ["203.0.113.5"], None, DEFAULT_ROUTE),  # somebody else's, translated on the way
        ("node1", [], None, DEFAULT_ROUTE),
        ("localhost", ["127.0.0.1"], None, "127.0.0.1"),
        ("127.0.0.1", ["127.0.0.1"], "ib0", "127.0.0.1"),
    ],
)
def test_a_leader_listens_where_its_name_leads_and_never_everywhere(
    leader: str, addresses: list[str], interface: str | None, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(rendezvous, "_resolve", lambda host: addresses)
    monkeypatch.setattr(rendezvous.socket, "create_server", lambda address, **named: found.append(address))
    rendezvous.listen(ClusterEnv(launchers=2, leader=leader), interface, 29400)
    assert found == [(bound, 29400)]


@pytest.mark.usefixtures("machine")
def test_a_machine_without_a_default_route_asks_for_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_route(family: int, target: Any) -> str:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(rendezvous, "_resolve", lambda host: ["127.0.1.1"])
    monkeypatch.setattr(rendezvous, "_find_source_address", no_route)
    with pytest.raises(
        NotReadyError, match=r"the leader's name node1 is no address of this machine.* interface under \[network\]"
    ):
        rendezvous.listen(NODES, None, 29400)


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotReadyError, match=f"port {port} of this machine is taken; choose another"):
            rendezvous.listen(STARTED_ONE_BY_ONE, None, port)
