"""Summarises the samplers' files for a record: sums over training, and thinned series."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmark.record.events import AnyEvent, DeviceSamples, HostSample, SamplerBegin, SamplerEnd, Unavailable, Unknown
from trainmark.record.machine import DeviceTelemetry, MachineTelemetry, Sensed, Series
from trainmark.record.run_folder import RunFolder

MAX_POINTS = 1000
"""A longer series is kept as means over neighbours."""
MIN_POINTS = 4
MAX_POINTS_OF_ALL = 2000
"""Points of a series over all machines of a run, with at least MIN_POINTS each."""
LATE_S = 2.0
"""Sampling may miss this much of the training at either end and still count as all of it."""
IDLE_SAMPLES = 2
"""Minimum samples for an idle power."""
NOTHING_SAMPLED = "nothing was sampled during the run"
CUT_SHORT = "the sampler ended before the training did"
TOO_SHORT = "the training was too short for two samples"
NOT_TRAINED = "the training did not begin"

SERIES = ("power_w", "temperature_c", "memory_used_bytes", "utilisation_percent", "clock_mhz")
HOST_SERIES = ("memory_used_bytes", "load", "shm_free_bytes")
COMBINED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "power_w": ("power_w", np.mean),
    "power_peak_w": ("power_w", max),
    "energy_j": ("power_w", sum),
    "temperature_peak_c": ("temperature_c", max),
    "throttled_percent": ("throttled", max),
    "memory_peak_bytes": ("memory_used_bytes", max),
    "steady_power_w": ("power_w", np.mean),
    "steady_memory_bytes": ("memory_used_bytes", np.mean),
}
"""For each field of `Sensed` the sensor it comes from, and how the devices are combined."""

Floats = npt.NDArray[np.float64]


class Columns:
    """Samples in columns of eight bytes per value: a week has millions."""

    def __init__(self, *names: str) -> None:
        self.at_ns = array("q")
        self.throttled: list[tuple[str, ...] | None] = []
        """Throttle reasons of each reading of a device; None where unknown."""
        self._values = {name: array("d") for name in names}

    def add(self, at_ns: int, sample: object) -> None:
        self.at_ns.append(at_ns)
        for name, values in self._values.items():
            value = getattr(sample, name)
            values.append(math.nan if value is None else value)

    def read_known(self, *names: str) -> list[Floats]:
        """Times at which all of these were known, and their values."""
        found = [np.array(self.at_ns, dtype=np.float64), *(np.array(self._values[name]) for name in names)]
        whole = np.logical_and.reduce([~np.isnan(values) for values in found])
        return [values[whole] for values in found]


@dataclass(kw_only=True)
class Node:
    """One machine's samples, and when its first rank trained, by the machine's monotonic clock."""

    begin: SamplerBegin
    host: Columns = field(default_factory=lambda: Columns("busy_s", "own_s", *HOST_SERIES))
    devices: dict[int, Columns] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    end: SamplerEnd | None = None
    idle_until_ns: int | None = None
    """When the first of its ranks opened a device."""
    from_ns: int | None = None
    settling_ns: int = 0
    """Of training, before it became steady."""
    until_ns: int | None = None

    def add(self, event: AnyEvent | Unknown) -> None:
        match event:
            case SamplerBegin():
                self.begin = event
            case HostSample():
                self.host.add(event.at_ns, event)
            case DeviceSamples():
                for reading in event.readings:
                    if reading.device not in self.devices:
                        self.devices[reading.device] = Columns(*SERIES, "energy_j", "ecc_errors")
                    self.devices[reading.device].add(event.at_ns, reading)
                    reasons = None if reading.throttled is None else tuple(reading.throttled)
                    self.devices[reading.device].throttled.append(reasons)
            case Unavailable():
                self.unavailable = event.fields
            case SamplerEnd():
                self.end = event

    @property
    def last_ns(self) -> int:
        return max(columns.at_ns[-1] for columns in (self.host, *self.devices.values()) if columns.at_ns)

    @property
    def late_s(self) -> float:
        return max(LATE_S, 3 * self.begin.every_s)

    @property
    def cut_short(self) -> bool:
        late_ns = 1e9 * self.late_s
        return self.end is None and self.until_ns is not None and self.until_ns - self.last_ns > late_ns

    def seconds(self, at_ns: int) -> float:
        return float(at_ns - self.begin.launched_ns) / 1e9

    def series(self, device: int, name: str, *, training: bool = False) -> tuple[Floats, Floats]:
        """Seconds since the launch, and values; with `training` only those samples taken in the training part."""
        if device not in self.devices:
            return np.empty(0), np.empty(0)
        at_ns, values = self.devices[device].read_known(name)
        if training and self.from_ns is not None and self.until_ns is not None:
            inside = (self.from_ns <= at_ns) & (at_ns <= self.until_ns)
            at_ns, values = at_ns[inside], values[inside]
        return (at_ns - self.begin.launched_ns) / 1e9, values

    def throttle_reasons(self, device: int) -> list[tuple[str, ...]]:
        """Throttle reasons of each reading during training, where known."""
        if self.from_ns is None or device not in self.devices:
            return []
        columns, until_ns = self.devices[device], self.until_ns or math.inf
        readings = zip(columns.at_ns, columns.throttled, strict=True)
        return [given for at_ns, given in readings if given is not None and self.from_ns <= at_ns <= until_ns]


@dataclass(frozen=True, kw_only=True)
class NodeSums:
    devices: Sequence[Mapping[str, float | None]]
    """Of each that the run used, the fields of `Sensed` and `idle_power_w`; None is unknown."""
    foreign_load: float | None
    trained: bool
    cut_short: bool
    telemetry: MachineTelemetry


def summarise_nodes(folder: RunFolder, of: int = 1, settling_ns: int = 0) -> list[NodeSums]:
    """Summaries of the sampled machines of a run; only one machine's samples are in memory at a time.

    `settling_ns` is the time before the first steady step.
    """
    found = []
    for number in folder.list_samplers():
        node: Node | None = None
        for event in folder.sampler_events(number):
            if node is None and isinstance(event, SamplerBegin):
                node = Node(begin=event, settling_ns=settling_ns)
            if node:
                node.add(event)
        if node and (node.host.at_ns or node.devices):
            node.idle_until_ns = _first_device_use_ns(folder, node.begin)
            log = folder.ranks.get(node.begin.first_rank)
            if log and log.trained_from_ns is not None:
                node.from_ns, node.until_ns = log.trained_from_ns, log.trained_until_ns or node.last_ns
            points = min(MAX_POINTS, max(MIN_POINTS, MAX_POINTS_OF_ALL // max(1, of)))  # fewer for more machines
            sums = NodeSums(
                devices=[_sum_device(node, device) for device in node.begin.devices or ()],
                foreign_load=_measure_foreign_load(node),
                trained=node.from_ns is not None,
                cut_short=node.cut_short,
                telemetry=_thin_machine(node, points),
            )
            found.append(sums)
    return found


def _first_device_use_ns(folder: RunFolder, begin: SamplerBegin) -> int | None:
    """When a rank of this machine first opened a device; None for a CPU, which is never idle."""
    facts = folder.ranks[0].environment if 0 in folder.ranks else None
    if facts is None or facts.device.type == "cpu":
        return None
    here = [log for log in folder.ranks.values() if log.host == begin.host]
    return min((log.device_from_ns for log in here if log.device_from_ns is not None), default=None)


def summarise_sensors(machines: Sequence[NodeSums], nodes: int) -> Sensed:
    """Sensors of all devices over training; a field that any device lacks is unavailable."""
    if len(machines) < nodes:
        missing = NOTHING_SAMPLED if not machines else f"of {nodes} machines {len(machines)} sent their samples"
        return Sensed(reasons={field.name: missing for field in fields(Sensed)})
    values: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name, (source, combine) in COMBINED.items():
        known = [device[name] for machine in machines for device in machine.devices]
        if known and None not in known:
            values[name] = float(combine(known))
        else:
            reasons[name] = _explain_missing(machines, source)
    return Sensed(**values, reasons=reasons)


def _explain_missing(machines: Sequence[NodeSums], source: str) -> str:
    for machine in machines:
        on = f" on {machine.telemetry.host}" if len(machines) > 1 else ""
        if source in machine.telemetry.unavailable:
            return machine.telemetry.unavailable[source] + on
        if not machine.trained:
            return NOT_TRAINED + on
        if machine.cut_short:
            return CUT_SHORT + on
    return TOO_SHORT


def foreign_load(machines: Sequence[NodeSums]) -> float | None:
    """Share of the worst machine's cores used by other programs until training ended, stolen time included."""
    return max((machine.foreign_load for machine in machines if machine.foreign_load is not None), default=None)


def idle_power(machines: Sequence[NodeSums]) -> float | None:
    """Mean power of a device before the run; None unless all were sampled."""
    found = [device["idle_power_w"] for machine in machines for device in machine.devices]
    known = [power for power in found if power is not None]
    return _round(float(np.mean(known))) if known and len(known) == len(found) else None


def _sum_device(node: Node, device: int) -> dict[str, float | None]:
    energy_j, is_covered = _measure_energy(node, device), node.from_ns is not None and not node.cut_short
    trained_s = ((node.until_ns or 0) - (node.from_ns or 0)) / 1e9
    steady_from_s = node.seconds((node.from_ns or 0) + node.settling_ns)
    found: dict[str, float | None] = {
        "energy_j": energy_j,
        "power_w": None if energy_j is None else energy_j / trained_s,
    }
    for name, peak, steady in (
        ("power_w", "power_peak_w", "steady_power_w"),
        ("memory_used_bytes", "memory_peak_bytes", "steady_memory_bytes"),
        ("temperature_c", "temperature_peak_c", ""),
    ):
        at_s, values = node.series(device, name, training=True)
        settled = values[at_s >= steady_from_s]
        found[peak] = float(values.max()) if values.size and is_covered else None
        found[steady] = float(settled.mean()) if settled.size and is_covered else None
    throttled = [bool(reasons) for reasons in node.throttle_reasons(device)]
    found["throttled_percent"] = 100 * sum(throttled) / len(throttled) if throttled and is_covered else None
    at_s, power = node.series(device, "power_w")
    idle = power[at_s < node.seconds(node.idle_until_ns)] if node.idle_until_ns is not None else power[:0]
    found["idle_power_w"] = _round(float(np.median(idle))) if idle.size >= IDLE_SAMPLES else None
    return found


def _measure_energy(node: Node, device: int) -> float | None:
    """Joules of the training part: from the device's own counter, else from its power between samples."""
    at_s, sums = node.series(device, "energy_j")
    if sums.size > 1 and (np.diff(sums) >= 0).all():
        sums = sums - sums[0]
    else:
        at_s, power = node.series(device, "power_w")
        if power.size < 2:
            return None
        sums = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * (power[1:] + power[:-1]) / 2)])
    if node.from_ns is None or node.until_ns is None:
        return None
    from_s, until_s = node.seconds(node.from_ns), node.seconds(node.until_ns)
    first_s, last_s = max(from_s, float(at_s[0])), min(until_s, float(at_s[-1]))
    if last_s <= first_s or first_s - from_s > node.late_s or until_s - last_s > node.late_s:
        return None
    if np.count_nonzero((at_s >= from_s) & (at_s <= until_s)) < 2:
        return None
    grown = float(np.interp(last_s, at_s, sums) - np.interp(first_s, at_s, sums))
    return grown * (until_s - from_s) / (last_s - first_s)  # short ends that were not sampled count alike


def _measure_foreign_load(node: Node) -> float | None:
    at_ns, busy_s, own_s = node.host.read_known("busy_s", "own_s")
    before = at_ns <= (math.inf if node.until_ns is None else node.until_ns)
    at_ns, busy_s, own_s = at_ns[before], busy_s[before], own_s[before]
    if at_ns.size < 2 or at_ns[-1] <= at_ns[0]:
        return None
    length_s = (at_ns[-1] - at_ns[0]) / 1e9
    others_s = (busy_s[-1] - busy_s[0]) - (own_s[-1] - own_s[0])
    return max(0.0, float(others_s / (length_s * node.begin.cores)))


def _thin_machine(node: Node, points: int) -> MachineTelemetry:
    return MachineTelemetry(
        host=node.begin.host,
        first_rank=node.begin.first_rank,
        every_s=node.begin.every_s,
        samples=len(node.host.at_ns),
        ended_early=node.end is None,
        sampler_cpu_s=node.end.cpu_s if node.end else None,
        last_s=_round(node.seconds(node.last_ns)),
        training_s=[_round(node.seconds(ns)) for ns in (node.from_ns, node.until_ns) if ns is not None],
        unavailable=node.unavailable,
        host_series=_thin_host(node, points),
        devices=[_thin_device(node, device, points) for device in sorted(node.devices)],
    )


def _thin_device(node: Node, device: int, points: int) -> DeviceTelemetry:
    series = {name: node.series(device, name) for name in SERIES}
    errors = node.series(device, "ecc_errors")[1]
    power_s = node.series(device, "power_w", training=True)[0]
    return DeviceTelemetry(
        device=device,
        series={name: _thin_series(at_s, values, points) for name, (at_s, values) in series.items() if values.size},
        throttled=dict(Counter(reason for given in node.throttle_reasons(device) for reason in given)),
        ecc_errors_new=float(max(0.0, errors[-1] - errors[0])) if errors.size else None,
        power_samples=int(power_s.size),
        power_gap_s=_round(float(np.diff(power_s).max())) if power_s.size > 1 else None,
    )


def _thin_host(node: Node, points: int) -> dict[str, Series]:
    kept: dict[str, Series] = {}
    for name in HOST_SERIES:
        at_ns, values = node.host.read_known(name)
        if values.size == len(node.host.at_ns):
            kept[name] = _thin_series((at_ns - node.begin.launched_ns) / 1e9, values, points)
    at_ns, busy, own = node.host.read_known("busy_s", "own_s")
    if at_ns.size > 1:
        times = (at_ns - node.begin.launched_ns) / 1e9
        passed_s = np.maximum(np.diff(times), 1e-9) * node.begin.cores
        for name, used in (("cpu_percent", busy), ("foreign_percent", busy - own)):
            shares = np.append(np.nan, np.clip(100 * np.diff(used) / passed_s, 0, 100))
            # a share covers the time before its sample, so the first has none; kept while thinning, so that all series
            # of a machine have the same borders
            first = 0 if times.size > points else 1
            kept[name] = _thin_series(times[first:], shares[first:], points)
    return kept


def _thin_series(at_s: Floats, values: Floats, points: int) -> Series:
    return Series(at_s=_thin(at_s, points), values=_thin(values, points))


def _thin(values: Floats, points: int) -> list[float]:
    if values.size > points:
        # as np.array_split: the first parts may be longer by one
        starts = np.arange(points) * (values.size // points) + np.minimum(np.arange(points), values.size % points)
        there = ~np.isnan(values)
        values = np.add.reduceat(np.where(there, values, 0.0), starts) / np.add.reduceat(there, starts, dtype=np.int64)
    return [_round(float(value)) for value in values]


def _round(value: float) -> float:
    return float(f"{value:.6g}")
