"""Forecasts the throughput of a size that was not run, with a 90 % interval from published clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from trainmark.analysis import clusters
from trainmark.features.forecast import scaling_law
from trainmark.features.forecast.inputs import Known
from trainmark.features.forecast.scaling_law import Reach, Size
from trainmark.record.numbers import Bounds
from trainmark.record.plan import Topology

FAR = 16
"""Times the largest measured size, beyond which a forecast is an order of magnitude."""
MAX_BATCH_CUT = 2.0
"""Largest ratio of the runs' batch to a smaller one."""
FIXED, FIXED_ERROR = 0.03, 0.06
"""Share of compute per step that does not depend on the batch, and its standard deviation, by published sizes."""
MEASURED, FORECAST, ROUGH, RANGE, REFUSED = "measured", "forecast", "order of magnitude", "usual range", "refused"


@dataclass(frozen=True, kw_only=True)
class OtherBatch:
    """Another batch than that of the runs: on each device, or of all devices together."""

    per_device: int | None = None
    overall: int | None = None

    def on(self, topology: Topology) -> int | None:
        """Batch per device at a size; None where it does not divide evenly."""
        if self.overall is None:
            return self.per_device
        return None if self.overall % topology.devices else self.overall // topology.devices


@dataclass(frozen=True, kw_only=True)
class RateForecast:
    """The forecast of one size."""

    topology: Topology
    kind: str
    rate: float | None = None
    """None where only a range is known, or nothing."""
    interval: Bounds | None = None
    """90 %."""
    efficiency: float | None = None
    """Per device, relative to the smallest known size."""
    batch_per_device: int | None = None
    why: str = ""
    """Why it is refused."""


def forecast(known: Known, topology: Topology, other: OtherBatch | None = None) -> RateForecast:
    batch = other.on(topology) if other else known.batch_per_device
    if why := _refusal(known, topology, other, batch):
        return RateForecast(topology=topology, kind=REFUSED, why=why)
    base = scaling_law.nearest(known.sizes, topology.devices)
    log_rate = base.log_rate + _log_change(known, base, topology)
    reach, errors = _reach(known.several).after(_distance(base.topology, topology)), [base.error]
    far = topology.devices > FAR * known.largest.topology.devices
    kind = RANGE if known.one_device and topology.devices > 1 else ROUGH if far else FORECAST
    measured = next((size for size in known.sizes if size.topology == topology), None)
    if batch and known.batch_per_device and batch != known.batch_per_device:
        times = batch / known.batch_per_device
        computing = FIXED + (1 - FIXED) * times
        kept = known.exchange.log_kept if known.exchange else None
        longer = kept(topology) - kept(topology, computing) if kept else math.log(computing)
        log_rate += math.log(times) - longer
        errors.append(abs(1 - times) * FIXED_ERROR / computing)
    elif measured:
        kind, log_rate, reach, errors = MEASURED, measured.log_rate, Reach(0.0, 0.0), [measured.error]
    rate = measured.rate if kind == MEASURED and measured else topology.devices * math.exp(log_rate)
    # errors of runs and batch are independent of those between clusters
    own = math.hypot(*errors) * NormalDist().inv_cdf((1 + scaling_law.COVERAGE) / 2)
    smallest = known.sizes[0]
    return RateForecast(
        topology=topology,
        kind=kind,
        rate=None if kind == RANGE else rate,
        interval=(rate * math.exp(-math.hypot(reach.low, own)), rate * math.exp(math.hypot(reach.high, own))),
        efficiency=None if kind == RANGE else math.exp(log_rate - smallest.log_rate),
        batch_per_device=batch,
    )


def loss(known: Known, base: Size, topology: Topology) -> float:
    """The loss per doubling from a known size to another, beyond what the exchange explains.

    No loss is counted twice, and none is smaller than usual because a part of it is explained.
    """
    if known.exchange is None:
        return scaling_law.fit_loss(known.sizes)
    kept = known.exchange.log_kept
    doublings = math.log2(topology.devices) - base.doublings
    explained = (kept(topology) - kept(base.topology)) / doublings if doublings else 0.0
    usual = min(0.0, scaling_law.USUAL_LOSS - min(0.0, explained))
    return scaling_law.fit_loss(known.sizes, explained=kept, usual=usual)


def _log_change(known: Known, base: Size, topology: Topology) -> float:
    """Change of the logarithm of a device's rate from a known size to another."""
    kept = known.exchange.log_kept if known.exchange else scaling_law.explain_nothing
    doublings = math.log2(topology.devices) - base.doublings
    return kept(topology) - kept(base.topology) + loss(known, base, topology) * doublings


def _refusal(known: Known, topology: Topology, other: OtherBatch | None, batch: int | None) -> str:
    """Why the data allows no forecast; empty where it does."""
    if known.one_device and topology.nodes > 1:
        return "one device shows nothing about links between nodes; run one whole node as well"
    if other is None:
        return ""
    if batch is None:
        return f"a global batch of {other.overall} does not divide evenly over {topology.devices} devices"
    if known.batch_per_device is None:
        return "the batch of the known sizes is not known, so no other batch can be forecast"
    if batch * MAX_BATCH_CUT < known.batch_per_device:
        return (
            f"a batch of {batch} per device is more than {MAX_BATCH_CUT:g} times below that of the runs, "
            f"{known.batch_per_device}; run one size with a smaller batch"
        )
    return ""


def _distance(known: Topology, wanted: Topology) -> float:
    """Doublings of devices or of nodes, whichever is more: the same devices on more nodes are another size."""
    return max(abs(math.log2(wanted.devices / known.devices)), abs(math.log2(wanted.nodes / known.nodes)))


@cache
def _reach(several: bool) -> Reach:
    return scaling_law.measure_reach(clusters.find_chains(), several=several)
