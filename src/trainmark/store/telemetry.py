"""Makes out of the samplers' files what a record keeps: sums over the training part, and thinned series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmark.spec.events import DeviceReading, HostSample, SamplerBegin, SamplerEnd
from trainmark.spec.rank_log import RankLog
from trainmark.spec.run_folder import NodeSamples, RunFolder
from trainmark.spec.sensed import Sensed
from trainmark.spec.telemetry import DeviceTelemetry, MachineTelemetry, Series, Telemetry

MOST_POINTS = 1000
"""A series longer than this is kept as means of equally many neighbours."""
LATE_S = 2.0
"""Sampling may begin or end so much inside the training and still be taken for all of it."""
NOTHING_SAMPLED = "nothing was sampled during the run"
CUT_SHORT = "the sampler ended before the training did"
TOO_SHORT = "the training was too short for two samples"
NOT_TRAINED = "the training did not begin"

SERIES = ("power_w", "temperature_c", "memory_used_bytes", "utilisation_percent", "clock_mhz")
HOST_SERIES = ("memory_used_bytes", "load", "shm_free_bytes")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine's samples, and when its first rank trained, by the machine's monotonic clock."""

    begin: SamplerBegin
    host: Sequence[HostSample]
    devices: Mapping[int, Sequence[tuple[int, DeviceReading]]]
    unavailable: Mapping[str, str]
    end: SamplerEnd | None
    from_ns: int | None = None
    until_ns: int | None = None

    @property
    def last_ns(self) -> int:
        return max([sample.at_ns for sample in self.host[-1:]] + [seen[-1][0] for seen in self.devices.values()])

    def series(self, device: int, name: str, *, training: bool = False) -> tuple[Floats, Floats]:
        """Seconds since the launch, and values; with `training` only those samples taken in the training part."""
        found = [(at_ns, getattr(reading, name)) for at_ns, reading in self.of(device)]
        pairs = [(at_ns, value) for at_ns, value in found if value is not None]
        if training and self.from_ns is not None and self.until_ns is not None:
            pairs = [pair for pair in pairs if self.from_ns <= pair[0] <= self.until_ns]
        return np.array([self.seconds(at) for at, _ in pairs]), np.array([value for _, value in pairs], dtype=float)

    def of(self, device: int) -> Sequence[tuple[int, DeviceReading]]:
        return self.devices.get(device, ())

    def seconds(self, at_ns: int) -> float:
        return float(at_ns - self.begin.launched_ns) / 1e9


def nodes(folder: RunFolder) -> list[Node]:
    """The machines of a run that were sampled."""
    return [node for samples in folder.nodes if (node := _node(samples, folder.ranks)) is not None]


def _node(samples: NodeSamples, ranks: Mapping[int, RankLog]) -> Node | None:
    if samples.begin is None or not (samples.host or samples.devices):
        return None
    node = Node(
        begin=samples.begin,
        host=samples.host,
        devices=samples.devices,
        unavailable=samples.unavailable,
        end=samples.end,
    )
    log = ranks.get(samples.begin.first_rank)
    if log is None or log.trained_from_ns is None:
        return node
    return replace(node, from_ns=log.trained_from_ns, until_ns=log.trained_until_ns or node.last_ns)


def summarise_sensors(machines: Sequence[Node], nodes: int) -> Sensed:
    """All devices' sensors over the training part. A field that any device lacks is not known of the run."""
    if len(machines) < nodes:
        missing = NOTHING_SAMPLED if not machines else f"of {nodes} machines {len(machines)} sent their samples"
        return Sensed(reasons={field.name: missing for field in fields(Sensed)})
    reasons: dict[str, str] = {}

    def together(name: str, source: str, values: Iterable[float | None], of_all: Any) -> float | None:
        found = list(values)
        known = [value for value in found if value is not None]
        if found and len(known) == len(found):
            return float(of_all(known))
        reasons[name] = _why_not(machines, source)
        return None

    pairs = [(machine, device) for machine in machines for device in machine.begin.devices or ()]
    energies = [_energy(machine, device) for machine, device in pairs]
    seconds = [_training_s(machine) for machine, _ in pairs]
    powers = [None if energy is None else energy / length for energy, length in zip(energies, seconds, strict=True)]
    return Sensed(
        power_w=together("power_w", "power_w", powers, np.mean),
        power_peak_w=together("power_peak_w", "power_w", _peaks(pairs, "power_w"), max),
        energy_j=together("energy_j", "power_w", energies, sum),
        temperature_peak_c=together("temperature_peak_c", "temperature_c", _peaks(pairs, "temperature_c"), max),
        throttled_percent=together("throttled_percent", "throttled", [_throttled(*pair) for pair in pairs], max),
        memory_peak_bytes=together("memory_peak_bytes", "memory_used_bytes", _peaks(pairs, "memory_used_bytes"), max),
        reasons=reasons,
    )


def foreign_load(machines: Sequence[Node]) -> float | None:
    """Share of the worst machine's cores that went to others until the training ended, stolen time included."""
    shares = []
    for machine in machines:
        at_ns, busy_s, own_s = _cpu_use(machine, machine.until_ns)
        if at_ns.size > 1 and at_ns[-1] > at_ns[0]:
            length_s = (at_ns[-1] - at_ns[0]) / 1e9
            others_s = (busy_s[-1] - busy_s[0]) - (own_s[-1] - own_s[0])
            shares.append(max(0.0, float(others_s / (length_s * machine.begin.cores))))
    return max(shares, default=None)


def _cpu_use(machine: Node, until_ns: int | None = None) -> tuple[Floats, Floats, Floats]:
    """When the processor was looked at, how long its cores had worked until then, and how long for this run."""
    found = [
        (sample.at_ns, sample.busy_s, sample.own_s)
        for sample in machine.host
        if sample.busy_s is not None and sample.own_s is not None and (until_ns is None or sample.at_ns <= until_ns)
    ]
    at_ns, busy_s, own_s = np.array(found, dtype=float).reshape(-1, 3).T
    return at_ns, busy_s, own_s


def summary(machines: Sequence[Node]) -> Telemetry:
    """What the record keeps of the samples."""
    return Telemetry(machines=[_machine(machine) for machine in machines])


def _machine(machine: Node) -> MachineTelemetry:
    return MachineTelemetry(
        host=machine.begin.host,
        first_rank=machine.begin.first_rank,
        every_s=machine.begin.every_s,
        samples=len(machine.host),
        ended_early=machine.end is None,
        sampler_cpu_s=machine.end.cpu_s if machine.end else None,
        last_s=_short(machine.seconds(machine.last_ns)),
        training_s=[_short(machine.seconds(ns)) for ns in (machine.from_ns, machine.until_ns) if ns is not None],
        unavailable=machine.unavailable,
        host_series=_host_series(machine),
        devices=[_device(machine, device) for device in sorted(machine.devices)],
    )


def _device(machine: Node, device: int) -> DeviceTelemetry:
    kept: dict[str, Series] = {}
    for name in SERIES:
        at_s, values = machine.series(device, name)
        if values.size:
            kept[name] = Series(at_s=_thin(at_s), values=_thin(values))
    reasons: dict[str, int] = {}
    for at_ns, reading in machine.of(device):
        if machine.from_ns is not None and machine.from_ns <= at_ns <= (machine.until_ns or at_ns):
            for reason in reading.throttled or ():
                reasons[reason] = reasons.get(reason, 0) + 1
    errors = machine.series(device, "ecc_errors")[1]
    power_s = machine.series(device, "power_w", training=True)[0]
    return DeviceTelemetry(
        device=device,
        series=kept,
        throttled=reasons,
        ecc_errors_new=float(max(0.0, errors[-1] - errors[0])) if errors.size else None,
        power_samples=int(power_s.size),
        power_gap_s=_short(float(np.diff(power_s).max())) if power_s.size > 1 else None,
    )


def _host_series(machine: Node) -> dict[str, Series]:
    at_s = np.array([machine.seconds(sample.at_ns) for sample in machine.host])
    kept: dict[str, Series] = {}
    for name in HOST_SERIES:
        values = [getattr(sample, name) for sample in machine.host if getattr(sample, name) is not None]
        if len(values) == at_s.size:
            kept[name] = Series(at_s=_thin(at_s), values=_thin(np.array(values, dtype=float)))
    at_ns, busy, own = _cpu_use(machine)
    if at_ns.size > 1:
        times = (at_ns - machine.begin.launched_ns) / 1e9
        passed_s = np.maximum(np.diff(times), 1e-9) * machine.begin.cores
        for name, used in (("cpu_percent", busy), ("foreign_percent", busy - own)):
            shares = np.clip(100 * np.diff(used) / passed_s, 0, 100)
            kept[name] = Series(at_s=_thin(times[1:]), values=_thin(shares))
    return kept


def _energy(machine: Node, device: int) -> float | None:
    """Joules of the training part: from the device's own counter, else from its power between samples."""
    counted_s, counter = machine.series(device, "energy_j")
    if counter.size > 1 and (np.diff(counter) >= 0).all():
        return _over_training(machine, counted_s, counter - counter[0])
    at_s, power = machine.series(device, "power_w")
    if power.size < 2:
        return None
    steps = np.diff(at_s) * (power[1:] + power[:-1]) / 2
    return _over_training(machine, at_s, np.concatenate([[0.0], np.cumsum(steps)]))


def _over_training(machine: Node, at_s: Floats, sums: Floats) -> float | None:
    """How much a growing sum grew in the training part; a little that samples do not cover is taken to be alike."""
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


def _peaks(pairs: Iterable[tuple[Node, int]], name: str) -> list[float | None]:
    found: list[float | None] = []
    for machine, device in pairs:
        values = machine.series(device, name, training=True)[1]
        whole = machine.from_ns is not None and not _cut_short(machine)
        found.append(float(values.max()) if values.size and whole else None)
    return found


def _throttled(machine: Node, device: int) -> float | None:
    if machine.from_ns is None or _cut_short(machine):
        return None
    said = [
        bool(reading.throttled)
        for at_ns, reading in machine.of(device)
        if reading.throttled is not None and machine.from_ns <= at_ns <= (machine.until_ns or at_ns)
    ]
    return 100 * sum(said) / len(said) if said else None


def _cut_short(machine: Node) -> bool:
    late_ns = 1e9 * max(LATE_S, 3 * machine.begin.every_s)
    return machine.end is None and machine.until_ns is not None and machine.until_ns - machine.last_ns > late_ns


def _why_not(machines: Sequence[Node], source: str) -> str:
    for machine in machines:
        on = f" on {machine.begin.host}" if len(machines) > 1 else ""
        if source in machine.unavailable:
            return machine.unavailable[source] + on
        if machine.from_ns is None:
            return NOT_TRAINED + on
        if _cut_short(machine):
            return CUT_SHORT + on
    return TOO_SHORT


def _thin(values: Floats) -> list[float]:
    if values.size > MOST_POINTS:
        values = np.array([part.mean() for part in np.array_split(values, MOST_POINTS)])
    return [_short(float(value)) for value in values]


def _short(value: float) -> float:
    return float(f"{value:.6g}")
