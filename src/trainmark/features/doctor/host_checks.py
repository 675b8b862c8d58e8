"""Checks the host and the site: cores, memory, limits, other load, driver, store, data, network."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from trainmark.data.synthetic import cache_folder
from trainmark.record import site
from trainmark.record.checks import (
    LOG_BYTES,
    CheckResult,
    check,
    doubt,
    failed,
    find_existing_folder,
    format_bytes,
    format_count,
    ok,
    unknown,
)
from trainmark.record.cores import FOREIGN_LOAD, limit_to_quota, read_busy_s, read_cgroup
from trainmark.record.errors import TrainmarkError

MIN_MEMORY_BYTES, WANTED_MEMORY_BYTES = 512 << 20, 4 << 30
"""For the smallest recipe; for a full-size network with a small batch."""
SEMAPHORES_BYTES = 1 << 20
SEGMENT_BYTES, WANTED_SHARED_BYTES = 16 << 20, 1 << 30
"""Collectives create shared memory segments of about 10 MB per pair of devices."""
MIN_ALLOWED, WANTED_ALLOWED, GENEROUS = 64, 1024, 65536
"""Open files and processes."""
WANTED_DISK_BYTES = 4 << 30
"""Three checkpoints of the largest network, and the logs."""
SAMPLE_S = 1.0
LIVELY_GOVERNORS = ("performance", "schedutil", "ondemand")
"""These hold the highest clock under load."""
LIVELY_PREFERENCES = ("performance", "balance_performance")
UNLIMITED = resource.RLIM_INFINITY


def check_host(root: Path, *, accelerators: int) -> Iterator[CheckResult]:
    """Every check of the host; `root` is where /proc, /sys and /dev are."""
    yield check_cores(root, os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    yield check_governor(root)
    yield check_load()
    yield check_memory(root)
    yield check_shared_memory(root / "dev/shm", accelerators=accelerators)
    yield check_limits(root)


def check_site(store: Path) -> Iterator[CheckResult]:
    """Every check of the site."""
    yield check_folder("store", store, "TRAINMARK_STORE")
    yield check_folder("cache", cache_folder(), "TRAINMARK_CACHE")
    try:
        known = site.load()
    except TrainmarkError as error:
        yield replace(failed(str(error)), name="site file", group="Site")
        return
    for name, folder in known.data.items():
        yield check_data(name, Path(folder))


@check("cores", "Host")
def check_cores(root: Path, affinity: Iterable[int], environ: Mapping[str, str] = os.environ) -> CheckResult:
    """Checks usable cores, the quota, and the number of threads of a run."""
    usable, quota = len(list(affinity)), read_cgroup(root).cores
    whole = limit_to_quota(usable, quota)
    sentence = f"{usable} of {format_count(os.cpu_count() or 1, 'core')} usable"
    if quota is not None and quota < usable:
        sentence += f", and a quota of {quota:.3g}, so that a run takes {format_count(whole, 'thread')}"
    asked = environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > whole:
        return doubt(
            f"{sentence}; OMP_NUM_THREADS={asked} is more, and threads are throttled in the middle of a step",
            f"export OMP_NUM_THREADS={whole}",
        )
    if quota is not None and quota < 1:
        return doubt(f"{sentence}, throttled again and again", "request a whole core")
    if usable == 1:
        return doubt(f"{sentence}: training and decoding share it", "taskset -cp $$; nproc --all")
    return ok(sentence)


@check("governor", "Host")
def check_governor(root: Path) -> CheckResult:
    """Checks that clocks rise with the load."""
    found = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    if not found:
        return unknown("no clock governor is visible; in a virtual machine the host decides")
    words = {_read(path) for path in found}
    preference = _read(found[0].with_name("energy_performance_preference"))
    shown = ", ".join(sorted(words)) + (f" ({preference})" if preference else "")
    if words <= {*LIVELY_GOVERNORS} or preference in LIVELY_PREFERENCES:
        return ok(shown)
    return doubt(
        f"{shown}: the cores may not reach their full clock",
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    )


@check("load", "Host")
def check_load(wait: Callable[[float], object] = time.sleep) -> CheckResult:
    """Measures for a second how much other programs use the cores."""
    processes = [process for process in psutil.process_iter(["name"]) if process.pid != os.getpid()]
    _read_use(processes)
    busy_s, own_s, began_s = read_busy_s(), time.process_time(), time.monotonic()
    wait(SAMPLE_S)
    others_s = read_busy_s() - busy_s - (time.process_time() - own_s)
    others = max(0.0, others_s / max(time.monotonic() - began_s, 1e-3) / (os.cpu_count() or 1))
    sentence = f"others use {100 * others:.0f} % of the cores"
    if others <= FOREIGN_LOAD:
        return ok(sentence)
    used = sorted(_read_use(processes), key=lambda pair: -pair[0])
    busiest = [process for percent, process in used if percent > 100 * FOREIGN_LOAD][:3]
    if not busiest:
        return doubt(sentence, "top -b -n 1 -o %CPU | head -15")
    names = ", ".join(f"{process.info['name']} ({process.pid})" for process in busiest)
    pids = ",".join(str(process.pid) for process in busiest)
    return doubt(f"{sentence}: {names}", f"ps -o pid,user,etime,args -p {pids}")


def _read_use(processes: Iterable[psutil.Process]) -> list[tuple[float, psutil.Process]]:
    """Percent of a core since the last call, with the process; those that have ended are left out."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found.append((process.cpu_percent(), process))
    return found


@check("memory", "Host")
def check_memory(root: Path) -> CheckResult:
    """Checks free memory and the control group's limit."""
    memory, limit = psutil.virtual_memory(), read_cgroup(root).memory_bytes
    free, remedy = memory.available, "ps aux --sort=-rss | head"
    sentence = f"{format_bytes(free)} of {format_bytes(memory.total)} free"
    if limit is not None and limit < memory.total:
        sentence += f", {format_bytes(limit)} allowed by the control group"
        free = min(free, limit)
    if free < MIN_MEMORY_BYTES:
        return failed(f"{sentence}: too little for any recipe", remedy)
    if free < WANTED_MEMORY_BYTES:
        return doubt(f"{sentence}: little for a full-size network", remedy)
    return ok(sentence)


@check("/dev/shm", "Host")  # noqa: S108 - looked at, not written to
def check_shared_memory(folder: Path, *, accelerators: int) -> CheckResult:
    """Checks the space for named shared memory: semaphores, and collectives of several accelerators.

    Decoded images are shared anonymously and take no space here.
    """
    size, _, free = shutil.disk_usage(folder)
    sentence = f"{format_bytes(free)} of {format_bytes(size)} free"
    remedy = f"sudo mount -o remount,size={'8G' if accelerators > 1 else '1G'} /dev/shm   # docker run --shm-size=8g"
    if free < (SEGMENT_BYTES if accelerators > 1 else SEMAPHORES_BYTES):
        return failed(f"{sentence}: processes cannot share what they need to", remedy)
    if accelerators > 1 and free < WANTED_SHARED_BYTES:
        return doubt(f"{sentence}: little for the collectives of {accelerators} devices", remedy)
    return ok(sentence)


@check("limits", "Host")
def check_limits(root: Path) -> CheckResult:
    """Checks the limits of shell and control group: open files, processes, locked memory."""
    files, processes, locked = (
        resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK)
    )
    group = read_cgroup(root).processes
    if group is not None:
        processes = group if processes == UNLIMITED else min(processes, group)
    remedies = {}
    if files != UNLIMITED and files < WANTED_ALLOWED:
        remedies["files"] = f"ulimit -n {GENEROUS} || sudo prlimit -p $$ -n{GENEROUS}"
    if processes != UNLIMITED and processes < WANTED_ALLOWED:
        remedies["processes"] = f"ulimit -u {GENEROUS}"
    if locked != UNLIMITED and any((root / "sys/class/infiniband").glob("*")):
        remedies["locked memory for InfiniBand"] = "ulimit -l unlimited"
    shown = {"files": files, "processes": processes, "bytes of locked memory": locked}
    sentence = ", ".join(
        f"{name} unlimited" if limit == UNLIMITED else f"{limit:,} {name}".replace(",", " ")
        for name, limit in shown.items()
    )
    if any(limit != UNLIMITED and limit < MIN_ALLOWED for limit in (files, processes)):
        return failed(f"{sentence}: no run can start with so few", " && ".join(remedies.values()))
    if remedies:
        return doubt(f"{sentence}: few {' and '.join(remedies)}", " && ".join(remedies.values()))
    return ok(sentence)


_ACCELERATOR_CLASSES = ("0x0302", "0x0380", "0x1200")
"""3D controllers, displays without a screen, processing accelerators."""


@check("driver", "Device")
def check_driver(root: Path, *, is_cpu: bool) -> CheckResult:
    """Checks the drivers of accelerators on the PCI bus, whether or not torch can use them."""
    cards = [
        folder
        for folder in sorted((root / "sys/bus/pci/devices").glob("*"))
        if _read(folder / "class").startswith(_ACCELERATOR_CLASSES)
    ]
    names = sorted({(card / "driver").resolve().name for card in cards if (card / "driver").exists()})
    shown = ", ".join(f"{name} {_read(root / 'sys/module' / name / 'version')}".strip() for name in names)
    if bare := sum(not (card / "driver").exists() for card in cards):
        return doubt(
            f"{format_count(bare, 'accelerator')} on the PCI bus without a driver" + (f"; {shown}" if shown else ""),
            "lspci -k | grep -iA3 -E 'accelerator|3d controller|display'",
        )
    if cards and is_cpu:
        return doubt(
            f"{format_count(len(cards), 'accelerator')} on the PCI bus (driver {shown}), and a CPU is used",
            "trainmark list; trainmark doctor --platform NAME",
        )
    if shown or is_cpu:
        return ok(shown or "no accelerator on the PCI bus, and none needed")
    return unknown("no accelerator is shown on the PCI bus")


def check_folder(name: str, folder: Path, variable: str) -> CheckResult:
    """Checks that the store or the cache of synthetic data can be written, and has room."""

    @check(name, "Site")
    def result() -> CheckResult:
        remedy = f"export {variable}=/a/folder/with/room"
        there = find_existing_folder(folder)
        try:
            with tempfile.TemporaryFile(dir=there) as probe:
                probe.write(b"\0" * 4096)
        except OSError as error:
            return failed(f"{folder} cannot be written: {error.strerror}", remedy)
        free = shutil.disk_usage(there).free
        sentence = f"{format_bytes(free)} free in {folder}"
        if free < LOG_BYTES:
            return failed(f"{sentence}: not even the logs of a run fit", remedy)
        if free < WANTED_DISK_BYTES:
            return doubt(f"{sentence}: the checkpoints of a large network may not fit", remedy)
        return ok(sentence)

    return result()


def check_data(name: str, folder: Path) -> CheckResult:
    """Checks that a data set is where the site file says; `trainmark data verify` looks into it."""

    @check(f"data {name}", "Site")
    def result() -> CheckResult:
        try:
            is_empty = not any(folder.iterdir())
        except OSError as error:
            return failed(f"{folder} cannot be listed: {error.strerror}", f"ls {folder}")
        return doubt(f"{folder} is empty", f"trainmark data prepare {name} --help") if is_empty else ok(str(folder))

    return result()


@check("network", "Site")
def check_network(wanted: str | None) -> CheckResult:
    """Checks the interfaces that ranks of several machines could use."""
    states, families = psutil.net_if_stats(), (socket.AF_INET, socket.AF_INET6)
    usable = [
        name
        for name, entries in psutil.net_if_addrs().items()
        if name in states and states[name].isup and any(entry.family in families for entry in entries)
    ]
    speeds = {name: states[name].speed / 1000 for name in usable if 0 < states[name].speed < 65535}
    shown = ", ".join(name + (f" ({speeds[name]:g} Gbit/s)" if name in speeds else "") for name in usable)
    if wanted is not None and wanted not in usable:
        return failed(
            f"{site.FILE} names interface {wanted!r}, which is not up with an address; there are {shown or 'none'}",
            "ip -brief address",
        )
    if not usable:
        return doubt("no interface is up with an address, not even loopback", "sudo ip link set lo up")
    return ok(f"{shown}; {wanted} is used, as set in {site.FILE}" if wanted else shown)


def _read(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
