"""Forecasts the throughput of a size that was not run, with an interval that holds nine of ten published outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from trainmark.analysis.forecast import clusters, law
from trainmark.analysis.forecast.law import Reach
from trainmark.analysis.forecast.sizes import Known
from trainmark.spec.intervals import Bounds
from trainmark.spec.topology import Topology

FAR = 16
"""Times the largest measured size beyond which a forecast is an order of magnitude."""
MEASURED, FORECAST, ROUGH, RANGE, REFUSED = "measured", "forecast", "order of magnitude", "usual range", "refused"


@dataclass(frozen=True, kw_only=True)
class RateForecast:
    """What one size would do."""

    topology: Topology
    kind: str
    rate: float | None
    """None where only a range is known, or nothing."""
    interval: Bounds | None
    """90 %."""
    efficiency: float | None
    """Of a device, against one of the smallest known size."""
    why: str = ""
    """Of what is refused."""


def forecast(known: Known, topology: Topology) -> RateForecast:
    devices = topology.devices
    for size in known.sizes:
        if size.topology == topology:
            return _of(known, topology, MEASURED, size.rate, _widened(Reach(0.0, 0.0), size.error))
    base = law.nearest(known.sizes, devices)
    doublings = abs(math.log2(devices) - base.doublings)
    if known.basis == "one device" and topology.nodes > 1:
        return RateForecast(
            topology=topology,
            kind=REFUSED,
            rate=None,
            interval=None,
            efficiency=None,
            why="from one device nothing is known of what joins nodes; run one whole node as well",
        )
    rate = law.law(known.sizes, devices)
    interval = _widened(_reach(known.several).after(doublings), base.error)
    if known.basis == "one device":
        return _of(known, topology, RANGE, rate, interval)
    return _of(known, topology, ROUGH if devices > FAR * known.largest.topology.devices else FORECAST, rate, interval)


def alternatives(known: Known, topology: Topology) -> dict[str, float]:
    """What simpler rules would say, so that a reader sees how far the rule matters."""
    base = law.nearest(known.sizes, topology.devices)
    times = topology.devices / base.topology.devices
    return {
        "linear": base.rate * times,
        "usual loss": base.rate * times * math.exp(law.USUAL_LOSS * math.log2(times)),
        "forecast": law.law(known.sizes, topology.devices),
    }


def _of(known: Known, topology: Topology, kind: str, rate: float, reach: Reach) -> RateForecast:
    smallest = known.sizes[0]
    ideal = smallest.rate / smallest.topology.devices * topology.devices
    return RateForecast(
        topology=topology,
        kind=kind,
        rate=None if kind == RANGE else rate,
        interval=(rate * math.exp(reach.low), rate * math.exp(reach.high)),
        efficiency=None if kind == RANGE else rate / ideal,
    )


def _widened(reach: Reach, error: float) -> Reach:
    """With the runs' own error, which knows nothing of the cluster's."""
    own = error * NormalDist().inv_cdf((1 + law.INSIDE) / 2)
    return Reach(-math.hypot(reach.low, own), math.hypot(reach.high, own))


@cache
def _reach(several: bool) -> Reach:
    return law.reach(clusters.chains(), several=several)


def all_forecasts(known: Known, topologies: Sequence[Topology]) -> list[RateForecast]:
    return [forecast(known, topology) for topology in topologies]
