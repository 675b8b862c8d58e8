"""How samples on a record are read: the pairs of machine and device, and the samples of the training part."""

from __future__ import annotations

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec.audit import CannotCheckError
from trainmark.spec.telemetry import DeviceTelemetry, MachineTelemetry, Series
from trainmark.store.telemetry import MOST_POINTS

THINNED_FROM = MOST_POINTS
"""A series this long may be one of means, whose peaks are lost."""
ROUNDED = 2e-5
"""Samples are kept with six digits, and differences of them with fewer."""

Pair = tuple[MachineTelemetry, DeviceTelemetry]


def machines_of(case: RecordCase) -> list[MachineTelemetry]:
    if not case.machines:
        raise CannotCheckError("nothing was sampled during the run")
    return case.machines


def pairs_of(case: RecordCase) -> list[Pair]:
    return [(machine, device) for machine in case.machines for device in machine.devices]


def points(machine: MachineTelemetry, series: Series, slack: float) -> list[tuple[float, float]]:
    """Samples of the training part; its edges were rounded."""
    if len(machine.training_s) < 2:
        return []
    begin_s, end_s = machine.training_s
    pairs = zip(series.at_s, series.values, strict=True)
    return [(at, value) for at, value in pairs if begin_s * (1 - slack) <= at <= end_s * (1 + slack)]


def times(machine: MachineTelemetry, series: Series, slack: float) -> list[float]:
    return [at for at, _ in points(machine, series, slack)]
