"""Checks the site: store, data, rendezvous port, network, and programs that start runs on other machines."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from trainmark import data as datasets
from trainmark.data import MANIFEST, synthetic
from trainmark.record import site
from trainmark.record.checks import LOG_BYTES, CheckResult, check, doubt, failed, find_existing_folder, format_bytes, ok
from trainmark.record.errors import TrainmarkError, UsageError

WANTED_DISK_BYTES = 4 << 30
"""Three checkpoints of the largest network, and the logs."""
SYNTHETIC_BYTES = 256 << 20

PROGRAMS = ("ssh", "srun", "kubectl")
COMPILERS = ("c++", "g++", "clang++")

Which = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface."""

    name: str
    up: bool
    addresses: tuple[str, ...] = ()
    speed_mbit: int = 0
    """0 where the driver does not report it."""


@check("store", "Site")
def check_store(folder: Path, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage) -> CheckResult:
    """Checks that records and checkpoints can be written, and fit."""
    remedy = "export TRAINMARK_STORE=/a/folder/with/room"
    there = find_existing_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return failed(f"{_shorten(folder)} cannot be written: {error.strerror}", remedy, folder=str(folder))
    free = usage(there)[2]
    sentence = f"{format_bytes(free)} free in {_shorten(folder)}"
    facts: dict[str, Any] = {"folder": str(folder), "free_bytes": free}
    if free < LOG_BYTES:
        return failed(f"{sentence}: not even the logs of a run fit", remedy, **facts)
    if free < WANTED_DISK_BYTES:
        return doubt(f"{sentence}: the checkpoints of a large network may not fit", remedy, **facts)
    return ok(sentence, **facts)


@check("site file", "Site")
def check_site_file(environ: Mapping[str, str], cwd: Path) -> CheckResult:
    try:
        found = site.load(environ, cwd=cwd)
    except UsageError as error:
        return failed(str(error))
    if found == site.Site():
        return ok(f"no {site.FILE}: all settings are defaults", found=False)
    says = [f"data of {name}" for name in found.data]
    says += [f"interface {found.network.interface}"] if found.network.interface else []
    says += [f"port {found.network.port}"] if found.network.port else []
    says += ["how other hosts are entered"] if found.remote != site.Remote() else []
    return ok(f"{site.FILE} is valid and gives {', '.join(says)}", found=True, gives=says)


def check_data_set(name: str, given: str | None, made_in: Callable[[str], Path] = synthetic.folder) -> CheckResult:
    """Checks one data set: the folder that the site gives, or the synthetic one."""

    @check(f"data {name}", "Site")
    def result() -> CheckResult:
        return _check_given(name, Path(given)) if given else _check_synthetic(made_in(name))

    return result()


@check("ports", "Site")
def check_ports(meeting_port: int) -> CheckResult:
    """Checks that this machine can host the rendezvous."""
    try:
        with socket.socket() as listener:
            listener.bind(("", 0))
            free = int(listener.getsockname()[1])
    except OSError as error:
        return failed(f"no port can be opened, so there is no rendezvous: {error.strerror}")
    facts: dict[str, Any] = {"meeting_port": meeting_port, "free_port": free}
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", meeting_port))
    except OSError as error:
        return doubt(
            f"rendezvous port {meeting_port} cannot be opened: {error.strerror}",
            f"printf '[network]\\nport = {free}\\n' >> {site.FILE}   # on every node",
            **facts,
        )
    return ok(f"rendezvous port {meeting_port} is free", **facts)


@check("programs", "Software")
def check_programs(which: Which = shutil.which) -> CheckResult:
    """Lists programs that start runs on other machines, and compilers for torch.compile; none is required."""
    found = {name: which(name) for name in PROGRAMS}
    compiler = next((name for name in COMPILERS if which(name)), None)
    there = [name for name, path in found.items() if path] + ([compiler] if compiler else [])
    lacking = [name for name, path in found.items() if not path] + ([] if compiler else ["C++ compiler"])
    sentence = ", ".join(there) or "none"
    if lacking:
        sentence += f"; no {', '.join(lacking)}"
    return ok(sentence, programs={name: path is not None for name, path in found.items()}, compiler=compiler)


@check("network", "Site")
def check_network(interfaces: Sequence[Interface], wanted: str | None) -> CheckResult:
    """Checks the interfaces that ranks of several machines could use."""
    facts: dict[str, Any] = {"interfaces": [vars(interface) for interface in interfaces], "wanted": wanted}
    usable = [interface for interface in interfaces if interface.up and interface.addresses]
    shown = ", ".join(
        interface.name + (f" ({interface.speed_mbit / 1000:g} Gbit/s)" if interface.speed_mbit > 0 else "")
        for interface in usable
    )
    if wanted is not None and wanted not in [interface.name for interface in usable]:
        return failed(
            f"{site.FILE} names interface {wanted!r}, which is not up with an address; there are {shown or 'none'}",
            "ip -brief address",
            **facts,
        )
    if not usable:
        return doubt("no interface is up with an address, not even loopback", "sudo ip link set lo up", **facts)
    chosen = f"; {wanted} is used, as set in {site.FILE}" if wanted else ""
    return ok(f"{shown}{chosen}", **facts)


def list_interfaces() -> list[Interface]:
    states = psutil.net_if_stats()
    return [
        Interface(
            name=name,
            up=name in states and bool(states[name].isup),
            addresses=tuple(
                str(entry.address) for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)
            ),
            speed_mbit=int(states[name].speed) if name in states and 0 < states[name].speed < 65535 * 1000 else 0,
        )
        for name, entries in psutil.net_if_addrs().items()
    ]


def _check_synthetic(folder: Path) -> CheckResult:
    facts: dict[str, Any] = {"folder": str(folder), "synthetic": True}
    if (folder / MANIFEST).is_file():
        return ok("the synthetic set exists", made=True, **facts)
    cache = folder.parent
    there, remedy = find_existing_folder(cache), "export TRAINMARK_CACHE=/a/folder/with/room"
    facts["made"] = False
    if not os.access(there, os.W_OK):
        return failed(f"the synthetic set does not exist, and {_shorten(cache)} cannot be written", remedy, **facts)
    if shutil.disk_usage(there).free < SYNTHETIC_BYTES:
        return failed(f"the synthetic set does not exist, and {_shorten(cache)} has no room for it", remedy, **facts)
    return ok("the first run creates the synthetic set, in seconds", **facts)


def _check_given(name: str, folder: Path) -> CheckResult:
    facts: dict[str, Any] = {"folder": str(folder), "synthetic": False}
    remedy = f"trainmark data verify {name} {folder}"
    try:
        found, complaint = datasets.find(name).inspect(folder)
    except OSError as error:
        return failed(f"{_shorten(folder)} cannot be read: {error.strerror}", f"ls -ld {folder}", **facts)
    except TrainmarkError as error:
        return failed(str(error), remedy, **facts)
    if complaint:
        return doubt(f"{found} in {_shorten(folder)}; {complaint}", remedy, **facts)
    return ok(f"{found} in {_shorten(folder)}, as expected", **facts)


def _shorten(path: Path) -> str:
    """The path with `~` for the home folder."""
    try:
        return f"~/{path.absolute().relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
