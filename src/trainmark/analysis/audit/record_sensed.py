"""Checks that the metrics sensors gave follow from the samples on the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.analysis.audit.samples import ROUNDED, THINNED_FROM, Pair, machines_of, pairs_of, points
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.telemetry import MachineTelemetry, Series

ENERGY_APART = 0.25
"""A device's own energy counter and the integral of its power may differ by so much."""
FINE = 1e-3
_GIB = 2.0**30


@check("sensed", "power, energy, temperature and memory follow from the samples")
def sensed(case: RecordCase) -> Iterator[CheckResult]:
    pairs = pairs_of(case)
    if not pairs:
        given = [alias for alias in _PEAKS if case.value(alias) is not None]
        if not given:
            raise CannotCheckError("no device was sampled")
        yield wrong(", ".join(given), "no device was sampled, so nothing is known of them", "the metrics")
        return
    yield from _reasons(case)
    for alias, (name, scale) in _PEAKS.items():
        yield from _peak(case, alias, name, scale, pairs)
    yield from _energy(case, pairs)
    yield from _throttled(case, pairs)


_PEAKS = {
    "mem_device": ("memory_used_bytes", _GIB),
    "power_peak": ("power_w", 1.0),
    "temperature_peak": ("temperature_c", 1.0),
}


_SOURCES = {
    "mem_device": "memory_used_bytes",
    "power": "power_w",
    "power_peak": "power_w",
    "energy": "power_w",
    "energy_per_item": "power_w",
    "temperature_peak": "temperature_c",
    "throttled": "throttled",
}
"""The sensor each metric is made of."""


def _reasons(case: RecordCase) -> Iterator[CheckResult]:
    for alias, source in _SOURCES.items():
        if alias not in case.record.metrics or case.value(alias) is not None:
            continue
        told = [machine.unavailable[source] for machine in case.machines if source in machine.unavailable]
        reason = case.record.metrics[alias].unavailable or ""
        if told and not any(
            reason in (said, f"{said} on {machine.host}") for said in told for machine in case.machines
        ):
            yield wrong(f"{alias}: {reason!r}", f"the sampler said: {told[0]}", "the metric and the telemetry")


def _peak(case: RecordCase, alias: str, name: str, scale: float, pairs: Sequence[Pair]) -> Iterator[CheckResult]:
    found = case.value(alias)
    least: list[float] = []
    most: list[float] = []
    thinned = False
    for machine, device in pairs:
        series = device.series.get(name)
        if series is None or len(machine.training_s) < 2:
            continue
        # a sample at the very edge may have been on either side before it was rounded
        least += [value for _, value in points(machine, series, -ROUNDED)]
        most += [value for _, value in points(machine, series, ROUNDED)]
        thinned = thinned or len(series.at_s) >= THINNED_FROM
    if found is None:
        return
    highest = max(most, default=None)
    if (
        highest is None
        or found * scale < max(least, default=0.0) * (1 - ROUNDED)
        or (not thinned and found * scale > highest * (1 + ROUNDED))
    ):
        yield wrong(
            f"{alias} {found!r}, highest sample {None if highest is None else highest / scale!r}",
            "it is the highest sample taken while it trained",
            "the metric and the samples",
        )


def _energy(case: RecordCase, pairs: Sequence[Pair]) -> Iterator[CheckResult]:
    aliases = ("energy", "power", "energy_per_item")
    if not all(alias in case.record.metrics for alias in aliases):
        return
    energy, power, each = (case.value(alias) for alias in aliases)
    if (energy is None, each is None) not in ((True, True), (False, False)) or (energy is None) != (power is None):
        yield wrong(f"energy {energy!r}, power {power!r}, per item {each!r}", "all are known or none", "the metrics")
    if energy is None or power is None or each is None:
        return
    items = sum(sum(trace.items) for trace in case.ranks)
    if not same(each, energy / items):
        yield wrong(f"{each!r} J an item; {energy!r} J, {items} items", "it is their ratio", "the metrics")
    spans = [machine.training_s[1] - machine.training_s[0] for machine, _ in pairs]
    least, most = len(pairs) * power * min(spans), len(pairs) * power * max(spans)
    # times were rounded, which a short training late in a long run feels most
    fine = ROUNDED * (1 + max(machine.training_s[1] for machine, _ in pairs) / min(spans))
    if not least * (1 - fine) <= energy <= most * (1 + fine):
        yield wrong(
            f"{energy!r} J; {len(pairs)} devices at {power!r} W for {max(spans):.6g} s",
            "energy is power by time",
            "the metrics, and the training span",
        )
    series = [(machine, device.series.get("power_w")) for machine, device in pairs]
    if any(found is None or len(found.at_s) < 2 for _, found in series):
        return
    integral = sum(_integral(machine, found) for machine, found in series if found is not None)
    counted = any("energy_j" not in machine.unavailable for machine, _ in pairs)
    thinned = any(found is not None and len(found.at_s) >= THINNED_FROM for _, found in series)
    apart = abs(energy - integral) / max(energy, integral, 1e-9)
    if apart > (ENERGY_APART if counted or thinned else fine):
        grade: Callable[..., CheckResult] = doubtful if counted else wrong
        yield grade(
            f"{energy!r} J, {integral:.6g} J by the samples of power",
            "power by time is energy, whoever counts it",
            "the metrics and the samples",
        )


def _throttled(case: RecordCase, pairs: Sequence[Pair]) -> Iterator[CheckResult]:
    found = case.value("throttled")
    if found is None:
        return
    shares = []
    for machine, device in pairs:
        counts = list(device.throttled.values())
        taken = max((len(points(machine, series, ROUNDED)) for series in device.series.values()), default=0)
        thinned = any(len(series.at_s) >= THINNED_FROM for series in device.series.values())
        if any(not isinstance(count, int) or count < 1 for count in counts):
            yield wrong(f"{device.throttled}", "samples are counted whole", "the telemetry")
            return
        if thinned:
            shares.append((0, taken, max(1, taken)))
            continue
        shares.append((max(counts, default=0), min(sum(counts), taken), max(1, taken)))
    # one sample may have been on the other side of an edge, or have had nothing to say
    least = max(100 * low / (taken + 1) for low, _, taken in shares)
    most = max(100 * high / max(1, taken - 1) for _, high, taken in shares)
    if not least <= found <= min(100.0, most):
        yield wrong(
            f"{found!r} %, by the reasons counted {least:.3g} to {most:.3g} %",
            "it is the share of samples in which a device said that it was slowed",
            "the metric and the telemetry",
        )


@check("foreign-load", "the load of others is that of the host's samples")
def foreign_load(case: RecordCase) -> Iterator[CheckResult]:
    said = case.record.environment.foreign_load
    if said is None:
        raise CannotCheckError("the record does not say it")
    if not 0 <= said <= 1.5:
        yield wrong(f"{said!r}", "it is a share of the machine", "the environment")
        return
    least, most = [], []
    for machine in machines_of(case):
        series, clock = machine.host_series.get("foreign_percent"), machine.host_series.get("load")
        if series is None or clock is None or len(clock.at_s) != len(series.at_s) + 1:
            raise CannotCheckError("the host's samples are not all kept")
        end_s = machine.training_s[1] if len(machine.training_s) == 2 else machine.last_s
        at_s, values = np.asarray(clock.at_s, dtype=float), np.asarray(series.values, dtype=float)
        kept = at_s[1:] <= end_s * (1 + ROUNDED)
        lengths = np.diff(at_s)[kept]
        if not lengths.sum():
            raise CannotCheckError("the training was too short for two samples")
        share = float(lengths @ values[kept]) / float(lengths.sum()) / 100
        # what was cut off at 0 or at 100 % may have been beyond it
        least.append(0.0 if (values[kept] <= 0).any() else share)
        most.append(1.5 if (values[kept] >= 100).any() else share)
    if not max(least) * (1 - FINE) - 1e-5 <= said <= max(most) * (1 + FINE) + 1e-5:
        yield wrong(
            f"{said!r}, by the samples {max(least):.4g} to {max(most):.4g}",
            "the share of others is the mean of the samples until the training ended",
            "the environment and the telemetry",
        )


def _integral(machine: MachineTelemetry, series: Series) -> float:
    """Joules of the training part by the samples of power; a little they do not cover is taken to be alike."""
    at_s, power = (np.asarray(numbers, dtype=float) for numbers in (series.at_s, series.values))
    sums = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * (power[1:] + power[:-1]) / 2)])
    begin_s, end_s = machine.training_s
    first_s, last_s = max(begin_s, float(at_s[0])), min(end_s, float(at_s[-1]))
    grown = float(np.interp(last_s, at_s, sums) - np.interp(first_s, at_s, sums))
    return grown * (end_s - begin_s) / (last_s - first_s) if last_s > first_s else 0.0


CHECKS: tuple[Check[RecordCase], ...] = (sensed, foreign_load)
