"""The sampler process of a machine: writes sensor readings of devices and host during a run, at low priority."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import psutil

from trainmark.platforms import files, sensors
from trainmark.record.cores import end_with_parent, read_busy_s
from trainmark.record.errors import TrainmarkError
from trainmark.record.events import (
    DeviceReading,
    DeviceSamples,
    EventWriter,
    HostSample,
    SamplerBegin,
    SamplerEnd,
    Unavailable,
)
from trainmark.train.ranks import PARENT, read_host_name

EVERY_S = 0.5
"""Twice as often as MLPerf requires, so that a late sample leaves no gap."""
EVERY_WITH_PROGRAM_S = 0.9
NICENESS = 10
MAX_SCAN_SHARE = 0.0025
"""Of one core, for scanning all processes of the machine."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - never written to


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where samples are written, one per line")
    parser.add_argument("platform", help="whose devices are read: a name, or the path of a platform file")
    parser.add_argument("devices", type=int, help="how many of them the run uses here")
    parser.add_argument("--first-rank", type=int, default=0, help="the first rank of this machine")
    parser.add_argument("--tree", type=int, default=os.getppid(), help="the root process of the run")
    parser.add_argument("--launched-ns", type=int, default=time.perf_counter_ns(), help="when the run began")
    args = parser.parse_args(words)
    over = threading.Event()
    _stop_on_sigterm(over)
    launcher = os.environ.get(PARENT)
    end_with_parent(int(launcher) if launcher else None)
    os.nice(NICENESS)
    try:
        _sample(args, over)
    except TrainmarkError as error:  # a full disk, an invalid platform file: the run itself reports it
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _sample(args: argparse.Namespace, over: threading.Event) -> None:
    file = files.load(args.platform)
    reader = sensors.open_reader(file.sensors, in_child=end_with_parent)
    every_s = EVERY_WITH_PROGRAM_S if reader.slow else EVERY_S
    visible = os.environ.get(file.visible_devices or "", "")
    is_cpu = file.device_type == "cpu"
    used = [0] if is_cpu else sensors.find_used_devices(reader, args.devices, visible)
    events = EventWriter(args.file)
    events.write(
        SamplerBegin(
            host=read_host_name(os.environ),
            pid=os.getpid(),
            first_rank=args.first_rank,
            launched_ns=args.launched_ns,
            at_ns=time.perf_counter_ns(),
            every_s=every_s,
            devices=used,
            cores=os.cpu_count() or 1,
        )
    )
    # a tool of the vendor may hang, so devices have their own thread
    watch = threading.Thread(target=_watch_devices, args=(reader, used, every_s, events, over), daemon=True)
    watch.start()
    _watch_host(ProcessTree(args.tree), every_s, events, over)
    watch.join(timeout=0.2)  # the current reading, if it is quick
    used_s = os.times()
    events.write(SamplerEnd(at_ns=time.perf_counter_ns(), cpu_s=round(sum(used_s[:4]), 3)))


def _watch_devices(
    reader: sensors.Reader, used: list[int] | None, every_s: float, events: EventWriter, over: threading.Event
) -> None:
    known: dict[str, str] | None = None
    next_s = time.monotonic()
    while True:
        before_ns = time.perf_counter_ns()
        readings = [reading for reading in reader.read() if used is None or reading.device in used]
        at_ns = (before_ns + time.perf_counter_ns()) // 2
        if used is None:
            readings, missing = [], "the variable of visible devices does not tell which devices the run uses"
            reader.unavailable = dict.fromkeys(sensors.FIELDS, missing)
        if reader.unavailable != known:
            known = dict(reader.unavailable)
            events.write(Unavailable(at_ns=at_ns, fields=known))
        if readings:
            found = msgspec.convert(readings, list[DeviceReading], from_attributes=True)
            events.write(DeviceSamples(at_ns=at_ns, readings=found))
        next_s = max(next_s + every_s, time.monotonic())
        if over.wait(next_s - time.monotonic()):
            return


def _watch_host(tree: ProcessTree, every_s: float, events: EventWriter, over: threading.Event) -> None:
    next_s = time.monotonic()
    while True:
        at_ns = time.perf_counter_ns()
        events.write(HostSample(at_ns=at_ns, busy_s=read_busy_s(), own_s=tree.read_used_s(), **_read_host()))
        next_s = max(next_s + every_s, time.monotonic())
        if over.wait(next_s - time.monotonic()):
            return


def _read_host() -> dict[str, Any]:
    """Cheap facts about the host; values of missing files are left out."""
    memory = psutil.virtual_memory()
    found: dict[str, Any] = {"memory_used_bytes": memory.total - memory.available}
    try:
        space = os.statvfs(SHARED_MEMORY)
        found["shm_free_bytes"] = space.f_bavail * space.f_frsize
    except OSError:
        pass
    found["load"] = os.getloadavg()[0]
    return found


class ProcessTree:
    """A process with all its descendants. New ones are found by scanning all processes, as often as is cheap."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._members: list[psutil.Process] = []
        self._next_scan_s = 0.0

    def read_used_s(self) -> float | None:
        """CPU seconds of the tree so far, of live processes and of ended ones that were waited for.

        Only differences are meaningful. A new process counts from the scan that finds it, with all it has used.
        """
        now_s = time.monotonic()
        try:
            if now_s >= self._next_scan_s:
                root = psutil.Process(self._root)
                self._members = [root, *root.children(recursive=True)]
                self._next_scan_s = now_s + (time.monotonic() - now_s) / MAX_SCAN_SHARE
            used_s = sum(self._members[0].cpu_times()[:4])
        except psutil.Error:
            return None
        for member in self._members[1:]:
            with suppress(psutil.Error):
                used_s += sum(member.cpu_times()[:4])
        return float(used_s)


def _stop_on_sigterm(over: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C


if __name__ == "__main__":
    sys.exit(main())
