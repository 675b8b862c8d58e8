"""Forecasts the throughput of a size that was not run, with an interval that holds nine of ten published outcomes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

from trainmark.analysis.forecast import clusters, law
from trainmark.analysis.forecast.computing import FARTHEST
from trainmark.analysis.forecast.law import Reach, Size
from trainmark.analysis.forecast.physics import StepParts
from trainmark.analysis.forecast.sizes import Known
from trainmark.spec.intervals import Bounds
from trainmark.spec.topology import Topology

FAR = 16
"""Times the largest measured size beyond which a forecast is an order of magnitude."""
MEASURED, FORECAST, ROUGH, RANGE, REFUSED = "measured", "forecast", "order of magnitude", "usual range", "refused"


@dataclass(frozen=True, kw_only=True)
class BatchAsked:
    """Another batch than that of the runs: on each device, or of all devices together."""

    per_device: int | None = None
    overall: int | None = None

    def on(self, topology: Topology) -> int | None:
        """Samples on each device of a size; None where they do not share out evenly."""
        if self.overall is None:
            return self.per_device
        return None if self.overall % topology.devices else self.overall // topology.devices


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
    batch_per_device: int | None = None
    parts: StepParts | None = None
    """What a step is made of there, where its links are known; the loss a doubling comes to it."""
    why: str = ""
    """Of what is refused."""


def forecast(known: Known, topology: Topology, asked: BatchAsked | None = None) -> RateForecast:
    batch = asked.on(topology) if asked else known.batch_per_device
    other_batch = batch != known.batch_per_device
    if why := _refusal(known, topology, asked, batch):
        return RateForecast(topology=topology, kind=REFUSED, rate=None, interval=None, efficiency=None, why=why)
    for size in known.sizes:
        if size.topology == topology and not other_batch:
            return _of(known, topology, MEASURED, size.rate, _widened(Reach(0.0, 0.0), size.error), batch)
    base = law.nearest(known.sizes, topology.devices)
    times = known.line.times(batch) if known.line and batch is not None else 1.0
    log_rate = _log_rate(known, topology)
    errors = [base.error]
    if other_batch and batch is not None and known.line is not None:
        log_rate += _log_change(known, topology, batch, times)
        errors.append(known.line.log_error(batch))
    rate = topology.devices * math.exp(log_rate)
    interval = _widened(_reach(known.several).after(_distance(base.topology, topology)), *errors)
    far = topology.devices > FAR * known.largest.topology.devices
    kind = RANGE if known.basis == "one device" and topology.devices > 1 else ROUGH if far else FORECAST
    parts = known.model.parts(topology, times) if known.model else None
    return replace(_of(known, topology, kind, rate, interval, batch), parts=parts)


def _refusal(known: Known, topology: Topology, asked: BatchAsked | None, batch: int | None) -> str:
    """Why the data does not carry a forecast of this; nothing where it does."""
    if known.basis == "one device" and topology.nodes > 1:
        return "from one device nothing is known of what joins nodes; run one whole node as well"
    if asked is None:
        return ""
    if batch is None:
        return f"a global batch of {asked.overall} does not share out evenly over {topology.devices} devices"
    if known.line is None:
        return "the batch of what it would go by is not known, so no other batch can be forecast"
    if batch * FARTHEST < known.line.batches[0]:
        return (
            f"a batch of {batch} a device is more than {FARTHEST:g} times below the smallest known one, "
            f"{known.line.batches[0]}; run one size with a smaller batch as well"
        )
    return ""


def _log_rate(known: Known, topology: Topology) -> float:
    """Of one device with the batch of the runs: what is explained of it, then the loss a doubling."""
    base = law.nearest(known.sizes, topology.devices)
    doublings = math.log2(topology.devices) - base.doublings
    if known.model is None:
        return base.log_rate + loss(known, topology) * doublings
    explained = known.model.log_kept(topology) - known.model.log_kept(base.topology)
    return base.log_rate + explained + loss(known, topology, base) * doublings


def loss(known: Known, topology: Topology, base: Size | None = None) -> float:
    """What a device loses a doubling beyond what is explained, on the way to a size from a known one or the least."""
    base = base or known.sizes[0]
    if known.model is None:
        return law.loss_a_doubling(known.sizes)
    kept = known.model.log_kept
    usual = law.unexplained(kept(topology) - kept(base.topology), math.log2(topology.devices) - base.doublings)
    return law.loss_a_doubling(known.sizes, explained=kept, usual=usual)


def _log_change(known: Known, topology: Topology, batch: int, times: float) -> float:
    """What another batch makes of a device's rate."""
    more = math.log(batch / (known.batch_per_device or batch))
    if known.model is None:
        return more - math.log(times)
    return more + known.model.log_kept(topology, times) - known.model.log_kept(topology)


def _distance(known: Topology, asked: Topology) -> float:
    """Doublings of devices or of nodes, whichever are more: as many devices on more nodes are another size, too."""
    return max(abs(math.log2(asked.devices / known.devices)), abs(math.log2(asked.nodes / known.nodes)))


def alternatives(known: Known, topology: Topology) -> dict[str, float]:
    """What simpler rules would say of the batch of the runs, so that a reader sees how far the rule matters."""
    base = law.nearest(known.sizes, topology.devices)
    times = topology.devices / base.topology.devices
    found = {
        "linear": base.rate * times,
        "usual loss": base.rate * times * math.exp(law.USUAL_LOSS * math.log2(times)),
        "fitted loss": law.law(known.sizes, topology.devices),
        "forecast": topology.devices * math.exp(_log_rate(known, topology)),
    }
    if not known.several or known.model is None:  # the forecast is just that
        del found["fitted loss"]
    return found


def _of(known: Known, topology: Topology, kind: str, rate: float, reach: Reach, batch: int | None) -> RateForecast:
    smallest = known.sizes[0]
    ideal = smallest.rate / smallest.topology.devices * topology.devices
    return RateForecast(
        topology=topology,
        kind=kind,
        rate=None if kind == RANGE else rate,
        interval=(rate * math.exp(reach.low), rate * math.exp(reach.high)),
        efficiency=None if kind == RANGE else rate / ideal,
        batch_per_device=batch,
    )


def _widened(reach: Reach, *errors: float) -> Reach:
    """With the errors of runs and batch, which know nothing of the cluster's."""
    own = math.hypot(*errors) * NormalDist().inv_cdf((1 + law.INSIDE) / 2)
    return Reach(-math.hypot(reach.low, own), math.hypot(reach.high, own))


@cache
def _reach(several: bool) -> Reach:
    return law.reach(clusters.chains(), several=several)
