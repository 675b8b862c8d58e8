"""Checks on what the samplers left on a record: clock order, gaps and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.analysis.audit.samples import ROUNDED, THINNED_FROM, machines_of, pairs_of, times
from trainmark.spec.audit import Check, check, doubtful, note, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.telemetry import MachineTelemetry, Series

LONG_GAP_S = 2.0
LATE_S = 0.5
"""On a busy machine so much may lie between the end of a phase and the event that tells it."""


def _series(machine: MachineTelemetry) -> Iterator[tuple[str, Series]]:
    for name, series in machine.host_series.items():
        yield f"host {name}", series
    for device in machine.devices:
        for name, series in device.series.items():
            yield f"device {device.device} {name}", series


@check("sample-clock", "samples follow each other in time, one value each")
def sample_clock(case: RecordCase) -> Iterator[CheckResult]:
    for machine in machines_of(case):
        for name, series in _series(machine):
            at_s, values = series.at_s, series.values
            where = f"{machine.host}, {name}"
            if len(at_s) != len(values) or len(at_s) > THINNED_FROM:
                yield wrong(f"{where}: {len(at_s)} times, {len(values)} values", "a sample has both", "the series")
            elif not all(np.diff(np.asarray(at_s, dtype=float)) > 0) or (len(at_s) and at_s[0] < 0):
                yield wrong(where, "its clock goes back or stands still", "the times of the samples")
            elif len(at_s) and at_s[-1] > machine.last_s * (1 + ROUNDED):
                yield wrong(
                    f"{where}: last at {at_s[-1]!r} s, the sampler's last at {machine.last_s!r} s",
                    "no sample is later than the last",
                    "the times of the samples",
                )
            elif any(not np.isfinite(value) or value < 0 for value in values):
                yield wrong(f"{where}: {min(values)!r}", "no such sensor reads below zero", "the samples")
            elif any(float(f"{value:.6g}") != value for value in (*at_s, *values)):
                yield doubtful(where, "a sampler's series have six digits, and this has more", "the samples")


@check("sample-gaps", "samples were taken as often as the sampler says")
def sample_gaps(case: RecordCase) -> Iterator[CheckResult]:
    for machine in machines_of(case):
        lengths = [len(series.at_s) for series in machine.host_series.values()]
        thinned = machine.samples > THINNED_FROM
        if lengths and not thinned and max(lengths) != machine.samples:
            yield wrong(
                f"{machine.host}: {max(lengths)} kept, {machine.samples} taken",
                "so few samples are all kept",
                "the series of the host",
            )
        ends = [series.at_s[-1] for _, series in _series(machine) if series.at_s]
        if ends and not thinned and abs(max(ends) - machine.last_s) > 2 * machine.every_s:
            yield wrong(
                f"{machine.host}: {max(ends)!r} and {machine.last_s!r} s",
                "the last sample kept is near the sampler's last",
                "the times of the samples",
            )
        for name, series in machine.host_series.items():
            gaps = np.diff(np.asarray(series.at_s, dtype=float))
            if thinned or not len(gaps):
                continue
            every_s = machine.every_s
            if not 0 < 0.6 * every_s <= float(np.median(gaps)) <= max(LONG_GAP_S, 3 * every_s):
                yield wrong(
                    f"{machine.host}, {name}: one every {float(np.median(gaps)):.3g} s, {every_s:g} s said",
                    "the samples lie otherwise than the sampler's pace",
                    "the times of the samples",
                )
                break
            if float(gaps.max()) > max(LONG_GAP_S, 4 * every_s):
                yield note(
                    f"{machine.host}: {float(gaps.max()):.1f} s without a sample of the host",
                    "what happened meanwhile is not known",
                    "whether the machine was overloaded",
                )
                break


@check("one-reading", "series of one reading have one clock")
def one_reading(case: RecordCase) -> Iterator[CheckResult]:
    for machine in machines_of(case):
        for series in (machine.host_series, *(device.series for device in machine.devices)):
            by_length: dict[int, Sequence[float]] = {}
            for name, entry in series.items():
                if by_length.setdefault(len(entry.at_s), entry.at_s) != entry.at_s:
                    yield doubtful(f"{machine.host}, {name}", "it was read at other times than the rest", "the samples")
                if name.endswith("_percent") and max(entry.values, default=0) > 100:
                    yield wrong(
                        f"{machine.host}, {name} {max(entry.values)!r} %", "nothing is used more", "the samples"
                    )
        clock, shares = (
            machine.host_series[name].at_s if name in machine.host_series else ()
            for name in ("load", "foreign_percent")
        )
        # a share needs two readings, so that the first has none
        if len(clock) == len(shares) + 1 and clock[1:] != shares:
            yield wrong(f"{machine.host}", "its shares lie at other times than its readings", "the samples")


@check("machines", "the machines sampled are those of the ranks, while they trained")
def machines(case: RecordCase) -> Iterator[CheckResult]:
    hosts = {trace.rank: trace for trace in case.ranks}
    for machine in machines_of(case):
        trace = hosts.get(machine.first_rank)
        alone = sum(other.host == machine.host for other in case.machines) == 1
        if (
            trace is None
            or (trace.host and trace.host != machine.host)
            or (alone and trace.rank != min(other.rank for other in case.ranks if other.host == trace.host))
        ):
            yield wrong(
                f"{machine.host}, first rank {machine.first_rank}",
                "that is not the first rank of that host",
                "the names of hosts, and the ranks",
            )
            continue
        if machine.ended_early != (machine.sampler_cpu_s is None):
            yield wrong(
                f"ended early: {machine.ended_early}, processor time {machine.sampler_cpu_s!r}",
                "a sampler that ended in order says what it used, another cannot",
                "the telemetry",
            )
        if machine.sampler_cpu_s is not None and not 0 <= machine.sampler_cpu_s <= machine.last_s + 10:
            yield wrong(f"sampler used {machine.sampler_cpu_s!r} s", "that is more than there was", "the telemetry")
        if len(machine.training_s) == 2 and case.record.status == "valid":
            begin_s, end_s = machine.training_s
            startup_s = trace.phases_ns.get("startup", 0) / 1e9
            ready_s, total_s = startup_s + trace.phases_ns.get("init", 0) / 1e9, case.total_ns(trace) / 1e9
            late = max(LATE_S, 5e-3 * total_s)
            if not (startup_s - late <= begin_s <= ready_s + late and abs(end_s - total_s) <= late):
                yield wrong(
                    f"{machine.host}: trained from {begin_s:g} to {end_s:g} s; by its rank's clock it was ready at "
                    f"{ready_s:.6g} and over at {total_s:.6g} s",
                    "sampler and rank read one clock",
                    "the training span of the telemetry, and the phases",
                )
        elif case.record.status == "valid":
            yield wrong(f"{machine.training_s}", "a valid run has trained, from one time to another", "the telemetry")


@check("power-samples", "power samples and their gaps are counted right")
def power_samples(case: RecordCase) -> Iterator[CheckResult]:
    for machine, device in pairs_of(case):
        series = device.series.get("power_w")
        if series is None:
            if device.power_samples or device.power_gap_s is not None:
                yield wrong(f"{device.power_samples} samples and no series", "they would be kept", "the telemetry")
            continue
        if len(series.at_s) >= THINNED_FROM or len(machine.training_s) < 2:
            continue
        least, most = (times(machine, series, slack) for slack in (-ROUNDED, ROUNDED))
        gap = float(np.diff(most).max()) if len(most) > 1 else None
        # a sample at the very edge may have been on either side before it was rounded
        if not len(least) <= device.power_samples <= len(most) or (
            len(least) == len(most) and not same(device.power_gap_s, gap, 5e-3)
        ):
            yield wrong(
                f"device {device.device}: {device.power_samples} samples, longest gap {device.power_gap_s!r}; "
                f"counted {len(most)} and {gap!r} s",
                "the series of the record tell another number",
                "the telemetry",
            )
    machines_of(case)


CHECKS: tuple[Check[RecordCase], ...] = (sample_clock, sample_gaps, one_reading, machines, power_samples)
