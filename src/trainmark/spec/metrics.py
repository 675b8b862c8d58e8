"""Every number trainmark reports: its formula, its unit and its definition in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainmark.spec import statistics
from trainmark.spec.errors import UsageError, nearest
from trainmark.spec.sensed import Sensed
from trainmark.spec.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All a metric may look at."""

    item: str
    """What throughput counts: images, mel frames."""
    timeline: Timeline
    memory_capacity_bytes: int | None = None
    steps_planned: int | None = None
    target_reached_ns: int | None = None
    """End-to-end time at which the target was first met."""
    flops_per_item: float | None = None
    peak_tflops: float | None = None
    """What one device could reach at most in the precision asked for."""
    peak_source: str | None = None
    """Where that figure is from, or why there is none."""
    sensed: Sensed = field(default_factory=Sensed)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A value with what makes it believable."""

    value: float | None
    unit: str
    interval: tuple[float, float] | None = None
    """95 % confidence, respecting that neighbouring steps are alike."""
    unavailable: str | None = None
    """Why there is no value. A missing number is never 0."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    alias: str
    """The word the published tables use, which is also the record's key."""
    unit: str
    definition: str
    formula: str
    compute: Callable[[Measured], float | None]
    interval: Callable[[Measured], statistics.Interval | None] | None


METRICS: dict[str, Metric] = {}
"""By alias, in the order tables show them."""

Formula = Callable[[Measured], float | None]
Spread = Callable[[Measured], "statistics.Interval | None"]


def metric(unit: str, *, alias: str, formula: str, interval: Spread | None = None) -> Callable[[Formula], Formula]:
    """Registers a function as a metric; its docstring is the public definition."""

    def register(function: Formula) -> Formula:
        METRICS[alias] = Metric(
            name=function.__name__,
            alias=alias,
            unit=unit,
            definition=inspect.cleandoc(function.__doc__ or ""),
            formula=formula,
            compute=function,
            interval=interval,
        )
        return function

    return register


def _training_spread(m: Measured) -> statistics.Interval | None:
    t = m.timeline
    return statistics.mean_interval(t.steady(t.step_s), t.steady(t.step_items))


def _compute_spread(m: Measured) -> statistics.Interval | None:
    t = m.timeline
    return statistics.mean_interval(t.steady(t.compute_s), t.steady(t.step_items))


def _rate(m: Measured, *phases: str) -> float | None:
    seconds = m.timeline.seconds(*phases)
    return m.timeline.items / seconds if m.timeline.items and seconds > 0 else None


@metric("s", alias="e2e_time", formula="sum of all phases")
def end_to_end_time(m: Measured) -> float | None:
    """Wall time from the launcher's start to the end of the slowest rank's last phase."""
    return sum(m.timeline.phases_ns.values()) / 1e9


@metric(
    "{item}/s",
    alias="p_whole",
    formula="items / (data_wait + compute + evaluate + checkpoint + other)",
    interval=_training_spread,
)
def overall_throughput(m: Measured) -> float | None:
    """Items trained per second of everything after set-up: waiting for data, computing, evaluating, saving.

    In a short run one evaluation weighs far more than in a full one, so compare p_whole between full runs only.
    """
    return _rate(m, "data_wait", "compute", "evaluate", "checkpoint", "other")


@metric("{item}/s", alias="p_train", formula="items / (data_wait + compute + other)", interval=_training_spread)
def training_throughput(m: Measured) -> float | None:
    """Items trained per second of training, evaluation and checkpoints left out."""
    return _rate(m, "data_wait", "compute", "other")


@metric("{item}/s", alias="p_core", formula="items / compute", interval=_compute_spread)
def compute_throughput(m: Measured) -> float | None:
    """Items trained per second of forward, backward, gradient exchange and optimizer: the wait for data is left out.

    This is the number for comparing devices: it does not depend on disks and decoders.
    """
    return _rate(m, "compute")


@metric("%", alias="mfu", formula="p_core x FLOPs of an item / (devices x peak)", interval=_compute_spread)
def model_flops_utilisation(m: Measured) -> float | None:
    """How much of what its devices could do at most the training used, in the FLOPs its mathematics needs.

    FLOPs are counted for the recipe's network, forward and backward, a multiply-add as 2; what is computed twice or on
    padding does not count. The peak is the device's by the platform file, dense, in the precision asked for; on a CPU
    it is measured after the run, with large matrix products. Above 100 % the label or the peak is wrong.
    """
    rate = _rate(m, "compute")
    if rate is None or m.flops_per_item is None or m.peak_tflops is None:
        return None
    return 100 * rate * m.flops_per_item / (len(m.timeline.ranks) * m.peak_tflops * 1e12)


@metric("GiB", alias="mem", formula="max over ranks of the peak, / 2**30")
def peak_device_memory(m: Measured) -> float | None:
    """The most memory the worst rank held at once, by the device's allocator; on a CPU, its resident memory."""
    peaks = [trace.memory_peak_bytes for trace in m.timeline.ranks if trace.memory_peak_bytes is not None]
    return max(peaks) / 2**30 if peaks else None


@metric("GiB", alias="mem_total", formula="bytes / 2**30")
def device_memory_capacity(m: Measured) -> float | None:
    """The memory one device has; on a CPU, the memory of the machine."""
    return m.memory_capacity_bytes / 2**30 if m.memory_capacity_bytes else None


@metric("GiB", alias="mem_device", formula="max over devices and samples of the memory in use, / 2**30")
def peak_memory_in_use(m: Measured) -> float | None:
    """The most memory in use at once on the fullest device while it trained, as the device's own tool sees it.

    It holds what the allocator keeps without using it, the driver's own, and whatever other programs use; on a CPU it
    is the memory in use on the machine. Between two samples a short peak is not seen.
    """
    return None if m.sensed.memory_peak_bytes is None else m.sensed.memory_peak_bytes / 2**30


@metric("W", alias="power", formula="mean over devices of energy / training time")
def mean_power(m: Measured) -> float | None:
    """The power one device drew while it trained, as a mean over time and devices.

    From the first step to the last, evaluations in between included. On a CPU it is the power of all processors of a
    machine together, whoever uses them.
    """
    return m.sensed.power_w


@metric("W", alias="power_peak", formula="max over devices and samples of the power")
def peak_power(m: Measured) -> float | None:
    """The highest power any device reported while it trained; what happens between two samples is not seen."""
    return m.sensed.power_peak_w


@metric("J", alias="energy", formula="sum over devices of their energy counter's growth, or of power x time")
def training_energy(m: Measured) -> float | None:
    """The energy all devices used from the first step to the last, evaluations in between included.

    It is taken from the devices' own counters where they have one, else from the power between samples. The rest of the
    machine (fans, disks, network, the host's processors beside an accelerator) is not in it.
    """
    return m.sensed.energy_j


@metric("J/item", alias="energy_per_item", formula="energy / items of all steps")
def energy_per_item(m: Measured) -> float | None:
    """The energy one trained item took: evaluations are in it, so compare it between full runs only."""
    items = sum(sum(trace.items) for trace in m.timeline.ranks)
    return None if m.sensed.energy_j is None or not items else m.sensed.energy_j / items


@metric("°C", alias="temperature_peak", formula="max over devices and samples of the temperature")
def peak_temperature(m: Measured) -> float | None:
    """How warm the warmest device became while it trained, by its own sensor."""
    return m.sensed.temperature_peak_c


@metric("%", alias="throttled", formula="samples in which the device said it was slowed / samples, of the worst device")
def throttled_share(m: Measured) -> float | None:
    """How often the device that was slowed most said that heat or its power limit slowed it."""
    return m.sensed.throttled_percent


@metric("s", alias="step_time", formula="median over counted steps of data_wait + compute")
def median_step_time(m: Measured) -> float | None:
    """How long the middle step took, its wait for data included."""
    return float(np.median(m.timeline.step_s)) if m.timeline.step_s.size else None


@metric("%", alias="step_spread", formula="(95th - 5th percentile) / median of counted steps")
def step_time_spread(m: Measured) -> float | None:
    """How unlike each other the steps were: small is steady.

    Where steps hold different numbers of items, what one would have taken with the mean number counts.
    """
    if not m.timeline.step_s.size:
        return None
    low, middle, high = np.percentile(statistics.at_mean_items(m.timeline.step_s, m.timeline.step_items), [5, 50, 95])
    return float(100 * (high - low) / middle) if middle else None


@metric("%", alias="exchange", formula="exchange not hidden / compute, of the slowest rank's counted steps")
def exposed_exchange_share(m: Measured) -> float | None:
    """How much of computing was spent only on exchanging gradients: what backward did not hide.

    It is measured in every step, from the last gradient's being ready until backward returned, and holds the wait for
    slower ranks.
    """
    t = m.timeline
    compute_s = float(t.compute_s.sum()) if len(t.ranks) > 1 and t.exchange_known else 0.0
    return float(100 * t.exchange_s.sum() / compute_s) if compute_s else None


@metric("%", alias="rank_skew", formula="(compute - exchange) of the slowest rank / that of the fastest - 1")
def rank_skew(m: Measured) -> float | None:
    """How much longer the slowest rank's own computing took than the fastest's, exchange left out.

    Where the slow rank was given more items, the time for as many counts.
    """
    skew = m.timeline.skew if m.timeline.exchange_known else None
    return None if skew is None else 100 * (skew.factor - 1)


@metric("s", alias="time_to_target", formula="end-to-end time at the first evaluation that met the target")
def time_to_target(m: Measured) -> float | None:
    """Wall time from the launcher's start until an evaluation first met the recipe's target."""
    return None if m.target_reached_ns is None else m.target_reached_ns / 1e9


@metric("%", alias="completed", formula="steps done / steps planned")
def completed_share(m: Measured) -> float | None:
    """How much of the planned training was done; 100 when the target ended it early."""
    return None if not m.steps_planned else min(100.0, 100 * m.timeline.steps / m.steps_planned)


UNAVAILABLE = {
    "p_whole": "no step was counted",
    "p_train": "no step was counted",
    "p_core": "no step was counted",
    "mfu": "FLOPs are counted after the last step, which was not reached",
    "mem": "the platform reports no memory",
    "mem_total": "the platform reports no memory",
    "step_time": "no step was counted",
    "step_spread": "no step was counted",
    "exchange": "no step was counted",
    "rank_skew": "no step was counted",
    "time_to_target": "the target was not reached",
    "completed": "the run's length is open",
}
OF_SEVERAL_RANKS = ("exchange", "rank_skew")
SENSED = {
    "mem_device": "memory_peak_bytes",
    "power": "power_w",
    "power_peak": "power_peak_w",
    "energy": "energy_j",
    "energy_per_item": "energy_j",
    "temperature_peak": "temperature_peak_c",
    "throttled": "throttled_percent",
}
"""Metrics that sensors give, with the field that knows why one could not."""


def measure(m: Measured) -> dict[str, Quantity]:
    """Every metric of a run, by the word the tables use."""
    found: dict[str, Quantity] = {}
    for alias, entry in METRICS.items():
        value = entry.compute(m)
        spread = entry.interval(m) if entry.interval and value is not None else None
        found[alias] = Quantity(
            value=value,
            unit=entry.unit.format(item=m.item),
            # the spread is the series'; the value may also carry time outside of steps, so the share is what is kept
            interval=(value * (1 - spread.relative_half_width), value * (1 + spread.relative_half_width))
            if spread and value is not None
            else None,
            unavailable=None if value is not None else _why_not(alias, m),
        )
    return found


def _why_not(alias: str, m: Measured) -> str:
    if alias in OF_SEVERAL_RANKS and len(m.timeline.ranks) < 2:
        return "the run has one rank"
    if alias in OF_SEVERAL_RANKS and not m.timeline.exchange_known:
        return "the exchange was not measured"
    if alias == "mfu" and m.flops_per_item is not None and m.peak_tflops is None and m.peak_source:
        return m.peak_source
    if alias in SENSED:
        return m.sensed.reasons.get(SENSED[alias], "nothing was sampled during the run")
    return UNAVAILABLE[alias]


def find(word: str) -> Metric:
    """A metric by either of its names."""
    for entry in METRICS.values():
        if word in (entry.alias, entry.name):
            return entry
    names = [name for entry in METRICS.values() for name in (entry.alias, entry.name)]
    raise UsageError(f"metric {word!r} is not known; {nearest(word, names)}")


def quantity_to_json(quantity: Quantity) -> dict[str, Any]:
    document: dict[str, Any] = {"value": quantity.value, "unit": quantity.unit}
    if quantity.interval:
        document["interval"] = list(quantity.interval)
    if quantity.unavailable:
        document["unavailable"] = quantity.unavailable
    return document


def quantity_from_json(document: dict[str, Any]) -> Quantity:
    interval = document.get("interval")
    return Quantity(
        value=document["value"],
        unit=document["unit"],
        interval=(interval[0], interval[1]) if interval else None,
        unavailable=document.get("unavailable"),
    )
