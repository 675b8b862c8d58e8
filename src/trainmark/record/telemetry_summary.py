"""Summarises the samplers' files for a record: sums over training, and thinned series."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmark.record.events import AnyEvent, DeviceSamples, HostSample, SamplerBegin, SamplerEnd, Unavailable, Unknown
from trainmark.record.machine import DeviceTelemetry, MachineTelemetry, Sensed, Series, Telemetry
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
_OF_HOST = ("busy_s", "own_s", *HOST_SERIES)
_OF_DEVICE = (*SERIES, "energy_j", "ecc_errors")

Floats = npt.NDArray[np.float64]


class Columns:
    """Samples in columns of eight bytes per value: a week has millions."""

    def __init__(self, names: Sequence[str]) -> None:
        self.at_ns = array("q")
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
    host: Columns = field(default_factory=lambda: Columns(_OF_HOST))
    devices: dict[int, Columns] = field(default_factory=dict)
    throttled: dict[int, list[tuple[str, ...] | None]] = field(default_factory=dict)
    """Throttle reasons per reading of a device; None where unknown."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    end: SamplerEnd | None = None
    idle_until_ns: int | None = None
    """When the first of its ranks opened a device."""
    from_ns: int | None = None
    steady_ns: int | None = None
    """When training became steady."""
    until_ns: int | None = None

    def add(self, event: AnyEvent | Unknown) -> None:
        match event:
            case HostSample():
                self.host.add(event.at_ns, event)
            case DeviceSamples():
                for reading in event.readings:
                    self.devices.setdefault(reading.device, Columns(_OF_DEVICE)).add(event.at_ns, reading)
                    reasons = None if reading.throttled is None else tuple(reading.throttled)
                    self.throttled.setdefault(reading.device, []).append(reasons)
            case Unavailable():
                self.unavailable = event.fields
            case SamplerEnd():
                self.end = event

    @property
    def last_ns(self) -> int:
        return max(columns.at_ns[-1] for columns in (self.host, *self.devices.values()) if columns.at_ns)

    def series(self, device: int, name: str, *, training: bool = False) -> tuple[Floats, Floats]:
        """Seconds since the launch, and values; with `training` only those samples taken in the training part."""
        if device not in self.devices:
            return np.empty(0), np.empty(0)
        at_ns, values = self.devices[device].read_known(name)
        if training and self.from_ns is not None and self.until_ns is not None:
            inside = (self.from_ns <= at_ns) & (at_ns <= self.until_ns)
            at_ns, values = at_ns[inside], values[inside]
        return (at_ns - self.begin.launched_ns) / 1e9, values

    def throttle_reasons(self, device: int) -> Iterator[tuple[str, ...]]:
        """Throttle reasons of each reading during training, where known."""
        if self.from_ns is None or device not in self.devices:
            return
        for at_ns, reasons in zip(self.devices[device].at_ns, self.throttled[device], strict=True):
            if reasons is not None and self.from_ns <= at_ns <= (self.until_ns or at_ns):
                yield reasons

    def seconds(self, at_ns: int) -> float:
        return float(at_ns - self.begin.launched_ns) / 1e9


@dataclass(frozen=True, kw_only=True)
class DeviceSums:
    """Summary of one device; None is unknown."""

    energy_j: float | None
    training_s: float
    peaks: Mapping[str, float | None]
    steady: Mapping[str, float | None]
    """Means over the samples of steady training."""
    throttled_percent: float | None
    idle_power_w: float | None
    """Before any rank of its machine opened a device."""


@dataclass(frozen=True, kw_only=True)
class NodeSums:
    """Summary of one machine."""

    host: str
    devices: Sequence[DeviceSums]
    """Those the run used."""
    foreign_load: float | None
    unavailable: Mapping[str, str]
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
            if isinstance(event, SamplerBegin):
                node = Node(begin=event) if node is None else replace(node, begin=event)
            elif node:
                node.add(event)
        if node and (node.host.at_ns or node.devices):
            node.idle_until_ns = _first_device_use_ns(folder, node.begin)
            log = folder.ranks.get(node.begin.first_rank)
            if log and log.trained_from_ns is not None:
                node.from_ns, node.until_ns = log.trained_from_ns, log.trained_until_ns or node.last_ns
                node.steady_ns = log.trained_from_ns + settling_ns
            found.append(_node_sums(node, max_points(of)))
    return found


def _first_device_use_ns(folder: RunFolder, begin: SamplerBegin) -> int | None:
    """When a rank of this machine first opened a device; None for a CPU, which is never idle."""
    facts = folder.ranks[0].environment if 0 in folder.ranks else None
    if facts is None or facts.device.type == "cpu":
        return None
    here = [log for log in folder.ranks.values() if log.host == begin.host]
    return min((log.device_from_ns for log in here if log.device_from_ns is not None), default=None)


def max_points(machines: int) -> int:
    """Points per series on the record, fewer for more machines."""
    return min(MAX_POINTS, max(MIN_POINTS, MAX_POINTS_OF_ALL // max(1, machines)))


def _node_sums(node: Node, points: int) -> NodeSums:
    used = node.begin.devices or ()
    return NodeSums(
        host=node.begin.host,
        devices=[
            DeviceSums(
                energy_j=_energy(node, device),
                training_s=_training_s(node),
                peaks={name: _peak(node, device, name) for name in SERIES},
                steady={name: _steady_mean(node, device, name) for name in ("power_w", "memory_used_bytes")},
                throttled_percent=_throttled_percent(node, device),
                idle_power_w=_idle_power(node, device),
            )
            for device in used
        ],
        foreign_load=_foreign_load(node),
        unavailable=node.unavailable,
        trained=node.from_ns is not None,
        cut_short=_is_cut_short(node),
        telemetry=_machine(node, points),
    )


def summarise_sensors(machines: Sequence[NodeSums], nodes: int) -> Sensed:
    """Sensors of all devices over training; a field that any device lacks is unavailable."""
    if len(machines) < nodes:
        missing = NOTHING_SAMPLED if not machines else f"of {nodes} machines {len(machines)} sent their samples"
        return Sensed(reasons={field.name: missing for field in fields(Sensed)})
    reasons: dict[str, str] = {}

    def combine(name: str, source: str, values: Iterable[float | None], of_all: Any) -> float | None:
        found = list(values)
        known = [value for value in found if value is not None]
        if found and len(known) == len(found):
            return float(of_all(known))
        reasons[name] = _explain_missing(machines, source)
        return None

    devices = [device for machine in machines for device in machine.devices]
    energies = [device.energy_j for device in devices]
    powers = [None if device.energy_j is None else device.energy_j / device.training_s for device in devices]

    def peaks(name: str) -> list[float | None]:
        return [device.peaks[name] for device in devices]

    def steady(name: str) -> list[float | None]:
        return [device.steady[name] for device in devices]

    return Sensed(
        power_w=combine("power_w", "power_w", powers, np.mean),
        power_peak_w=combine("power_peak_w", "power_w", peaks("power_w"), max),
        energy_j=combine("energy_j", "power_w", energies, sum),
        temperature_peak_c=combine("temperature_peak_c", "temperature_c", peaks("temperature_c"), max),
        throttled_percent=combine(
            "throttled_percent", "throttled", [device.throttled_percent for device in devices], max
        ),
        memory_peak_bytes=combine("memory_peak_bytes", "memory_used_bytes", peaks("memory_used_bytes"), max),
        steady_power_w=combine("steady_power_w", "power_w", steady("power_w"), np.mean),
        steady_memory_bytes=combine("steady_memory_bytes", "memory_used_bytes", steady("memory_used_bytes"), np.mean),
        reasons=reasons,
    )


def foreign_load(machines: Sequence[NodeSums]) -> float | None:
    """Share of the worst machine's cores used by other programs until training ended, stolen time included."""
    return max((machine.foreign_load for machine in machines if machine.foreign_load is not None), default=None)


def idle_power(machines: Sequence[NodeSums]) -> float | None:
    """Mean power of a device before the run; None unless all were sampled."""
    found = [device.idle_power_w for machine in machines for device in machine.devices]
    known = [power for power in found if power is not None]
    return _round(float(np.mean(known))) if known and len(known) == len(found) else None


def _foreign_load(machine: Node) -> float | None:
    at_ns, busy_s, own_s = _cpu_use(machine, machine.until_ns)
    if at_ns.size < 2 or at_ns[-1] <= at_ns[0]:
        return None
    length_s = (at_ns[-1] - at_ns[0]) / 1e9
    others_s = (busy_s[-1] - busy_s[0]) - (own_s[-1] - own_s[0])
    return max(0.0, float(others_s / (length_s * machine.begin.cores)))


def _cpu_use(machine: Node, until_ns: int | None = None) -> tuple[Floats, Floats, Floats]:
    """Sample times, busy core-seconds until then, and those of this run."""
    at_ns, busy_s, own_s = machine.host.read_known("busy_s", "own_s")
    before = at_ns <= (math.inf if until_ns is None else until_ns)
    return at_ns[before], busy_s[before], own_s[before]


def collect_telemetry(machines: Sequence[NodeSums]) -> Telemetry:
    """What the record keeps of the samples."""
    return Telemetry(machines=[machine.telemetry for machine in machines])


def _machine(machine: Node, points: int) -> MachineTelemetry:
    return MachineTelemetry(
        host=machine.begin.host,
        first_rank=machine.begin.first_rank,
        every_s=machine.begin.every_s,
        samples=len(machine.host.at_ns),
        ended_early=machine.end is None,
        sampler_cpu_s=machine.end.cpu_s if machine.end else None,
        last_s=_round(machine.seconds(machine.last_ns)),
        training_s=[_round(machine.seconds(ns)) for ns in (machine.from_ns, machine.until_ns) if ns is not None],
        unavailable=machine.unavailable,
        host_series=_host_series(machine, points),
        devices=[_device(machine, device, points) for device in sorted(machine.devices)],
    )


def _device(machine: Node, device: int, points: int) -> DeviceTelemetry:
    kept: dict[str, Series] = {}
    for name in SERIES:
        at_s, values = machine.series(device, name)
        if values.size:
            kept[name] = Series(at_s=_thin(at_s, points), values=_thin(values, points))
    reasons: dict[str, int] = {}
    for given in machine.throttle_reasons(device):
        for reason in given:
            reasons[reason] = reasons.get(reason, 0) + 1
    errors = machine.series(device, "ecc_errors")[1]
    power_s = machine.series(device, "power_w", training=True)[0]
    return DeviceTelemetry(
        device=device,
        series=kept,
        throttled=reasons,
        ecc_errors_new=float(max(0.0, errors[-1] - errors[0])) if errors.size else None,
        power_samples=int(power_s.size),
        power_gap_s=_round(float(np.diff(power_s).max())) if power_s.size > 1 else None,
    )


def _idle_power(machine: Node, device: int) -> float | None:
    if machine.idle_until_ns is None:
        return None
    at_s, power = machine.series(device, "power_w")
    idle = power[at_s < machine.seconds(machine.idle_until_ns)]
    return _round(float(np.median(idle))) if idle.size >= IDLE_SAMPLES else None


def _host_series(machine: Node, points: int) -> dict[str, Series]:
    kept: dict[str, Series] = {}
    for name in HOST_SERIES:
        at_ns, values = machine.host.read_known(name)
        if values.size == len(machine.host.at_ns):
            at_s = (at_ns - machine.begin.launched_ns) / 1e9
            kept[name] = Series(at_s=_thin(at_s, points), values=_thin(values, points))
    at_ns, busy, own = _cpu_use(machine)
    if at_ns.size > 1:
        times = (at_ns - machine.begin.launched_ns) / 1e9
        passed_s = np.maximum(np.diff(times), 1e-9) * machine.begin.cores
        for name, used in (("cpu_percent", busy), ("foreign_percent", busy - own)):
            shares = np.clip(100 * np.diff(used) / passed_s, 0, 100)
            # a share covers the time before its sample, so the first has none; kept while thinning, so that all series
            # of a machine have the same borders
            first = 0 if times.size > points else 1
            kept[name] = Series(
                at_s=_thin(times[first:], points), values=_thin(np.append(np.nan, shares)[first:], points)
            )
    return kept


def _energy(machine: Node, device: int) -> float | None:
    """Joules of the training part: from the device's own counter, else from its power between samples."""
    counted_s, counter = machine.series(device, "energy_j")
    if counter.size > 1 and (np.diff(counter) >= 0).all():
        return _growth_over_training(machine, counted_s, counter - counter[0])
    at_s, power = machine.series(device, "power_w")
    if power.size < 2:
        return None
    steps = np.diff(at_s) * (power[1:] + power[:-1]) / 2
    return _growth_over_training(machine, at_s, np.concatenate([[0.0], np.cumsum(steps)]))


def _growth_over_training(machine: Node, at_s: Floats, sums: Floats) -> float | None:
    """Growth of a cumulative sum over training, extrapolated over short uncovered ends."""
    if machine.from_ns is None or machine.until_ns is None:
        return None
    from_s, until_s = machine.seconds(machine.from_ns), machine.seconds(machine.until_ns)
    first_s, last_s = max(from_s, float(at_s[0])), min(until_s, float(at_s[-1]))
    late_s = max(LATE_S, 3 * machine.begin.every_s)
    if last_s <= first_s or first_s - from_s > late_s or until_s - last_s > late_s:
        return None
    inside = int(np.count_nonzero((at_s >= from_s) & (at_s <= until_s)))
    if inside < 2:
        return None
    grown = float(np.interp(last_s, at_s, sums) - np.interp(first_s, at_s, sums))
    return grown * (until_s - from_s) / (last_s - first_s)


def _training_s(machine: Node) -> float:
    if machine.from_ns is None or machine.until_ns is None:
        return 0.0
    return (machine.until_ns - machine.from_ns) / 1e9


def _peak(machine: Node, device: int, name: str) -> float | None:
    values = machine.series(device, name, training=True)[1]
    return float(values.max()) if values.size and machine.from_ns is not None and not _is_cut_short(machine) else None


def _steady_mean(machine: Node, device: int, name: str) -> float | None:
    at_s, values = machine.series(device, name, training=True)
    if machine.steady_ns is None or _is_cut_short(machine):
        return None
    settled = values[at_s >= machine.seconds(machine.steady_ns)]
    return float(settled.mean()) if settled.size else None


def _throttled_percent(machine: Node, device: int) -> float | None:
    if machine.from_ns is None or _is_cut_short(machine):
        return None
    throttled = [bool(reasons) for reasons in machine.throttle_reasons(device)]
    return 100 * sum(throttled) / len(throttled) if throttled else None


def _is_cut_short(machine: Node) -> bool:
    late_ns = 1e9 * max(LATE_S, 3 * machine.begin.every_s)
    return machine.end is None and machine.until_ns is not None and machine.until_ns - machine.last_ns > late_ns


def _explain_missing(machines: Sequence[NodeSums], source: str) -> str:
    for machine in machines:
        on = f" on {machine.host}" if len(machines) > 1 else ""
        if source in machine.unavailable:
            return machine.unavailable[source] + on
        if not machine.trained:
            return NOT_TRAINED + on
        if machine.cut_short:
            return CUT_SHORT + on
    return TOO_SHORT


def _thin(values: Floats, points: int) -> list[float]:
    if values.size > points:
        # as np.array_split: the first parts may be longer by one
        starts = np.arange(points) * (values.size // points) + np.minimum(np.arange(points), values.size % points)
        there = ~np.isnan(values)
        values = np.add.reduceat(np.where(there, values, 0.0), starts) / np.add.reduceat(there, starts, dtype=np.int64)
    return [_round(float(value)) for value in values]


def _round(value: float) -> float:
    return float(f"{value:.6g}")
