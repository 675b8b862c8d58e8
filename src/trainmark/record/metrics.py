"""Every number trainmark reports: metrics.toml defines them, and the functions here compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trainmark.record import statistics, tables
from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.errors import UsageError, nearest
from trainmark.record.machine import FlopsFacts, Sensed
from trainmark.record.numbers import WIDEST, Finite, around, quantile
from trainmark.record.site import HOUR_S, JOULES_PER_KWH, Price
from trainmark.record.timeline import Timeline

MEASURED = "measured: "
"""Begins where a peak is from that no data sheet gives."""


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
    flops: FlopsFacts | None = None
    """What an item needs, and what one device could reach at most in the precision asked for."""
    others: float | None = None
    """The share that others used of the processors that trained; None where these are not what trained."""
    sensed: Sensed = field(default_factory=Sensed)
    price: Price = field(default_factory=Price)
    """The reader's own; no record holds one."""

    @property
    def is_disturbed(self) -> bool:
        """More than is worth a word of the processors that trained was used by others."""
        return self.others is not None and self.others > FOREIGN_LOAD


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A value with what makes it believable."""

    value: Finite | None
    unit: str
    interval: tuple[Finite, Finite] | None = None
    """95 % confidence, on the logarithm, respecting that neighbouring steps are alike."""
    unavailable: str | None = None
    """Why there is no value. A missing number is never 0."""

    def __post_init__(self) -> None:
        if self.interval and self.interval[0] > self.interval[1]:
            raise ValueError("the interval ends before it begins")


Better = Literal["higher", "lower"]
Formula = Callable[[Measured], float | None]
Spread = Callable[[Measured], "statistics.Interval | None"]
Missing = str | Callable[[Measured], str]


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    alias: str
    """The word the published tables use, which is also the record's key."""
    unit: str
    definition: str = ""
    formula: str = ""
    compute: Formula
    better: Better | None = None
    """Which way a result is better; None for a fact that no two results are compared by."""
    missing: Missing = "it was not measured"
    """Why there is no value where there is none."""
    beyond_steps: bool = False
    """It rests on more than the timeline, so that a record's series alone do not give it."""
    any_length: bool = False
    """A longer run of the same kind does not change it, so that 60 steps may stand beside 200."""
    withheld: bool = False
    """Not given where the result is invalid: no speed is published from a run whose loss was not finite."""
    interval: Spread | None = None
    priced: bool = False

    @property
    def general_unit(self) -> str:
        """Of no workload and no currency in particular."""
        return self.unit.format(item="items", currency="currency")

    @property
    def is_rate(self) -> bool:
        """Items a second: what is better of it is called faster."""
        return self.unit == "{item}/s"

    def reason(self, m: Measured) -> str:
        """Why there is no value of this run."""
        return self.missing if isinstance(self.missing, str) else self.missing(m)


PARTS, DROPPED = 5, 1
"""Steady training is cut into so many parts for `p_steady`; so many are dropped at either end of their order."""

THROUGHPUTS = ("p_whole", "p_train", "p_core")
"""The three that published tables give, from all work down to computing alone."""

WITHHELD = "the result is not valid"
NO_STEP = "no step was counted"
NOTHING_SAMPLED = "nothing was sampled during the run"
NO_PRICE = "no price is known; give --price 2.10/h, or [price] in trainmark.toml"


def _explain_exchange(m: Measured) -> str:
    if len(m.timeline.ranks) < 2:
        return "the run has one rank"
    return NO_STEP if m.timeline.exchange_known else "the exchange was not measured"


def _explain_utilisation(m: Measured) -> str:
    if m.is_disturbed:
        return "others used the processors that trained, and what these could have reached meanwhile is not known"
    if m.flops and m.flops.peak_tflops is None and m.flops.peak_source:
        return m.flops.peak_source
    if m.flops and not m.flops.per_item:
        return "the workload states no FLOPs per item, and its first step has no matmul to count"
    if m.flops and m.flops.is_misstated:
        return "the FLOPs that the workload states are not those of its first step"
    if (_utilisation(m) or 0) > 100:
        return "the run itself was faster than the matmuls that were measured beside it"
    return "FLOPs are counted after the last step, which was not reached"


def _training_spread(m: Measured) -> statistics.Interval | None:
    t = m.timeline
    return statistics.mean_interval(t.steady(t.step_s), t.steady(t.step_items))


def _compute_spread(m: Measured) -> statistics.Interval | None:
    t = m.timeline
    return statistics.mean_interval(t.steady(t.compute_s), t.steady(t.step_items))


def _utilisation_spread(m: Measured) -> statistics.Interval | None:
    """That of p_core, and of a peak that was measured."""
    found = _compute_spread(m)
    if found is None or not m.flops or not m.flops.peak_error:
        return found
    half_width = math.hypot(found.half_width, quantile(0.975, math.inf) * m.flops.peak_error)
    return replace(found, error=math.hypot(found.error, m.flops.peak_error), half_width=min(half_width, WIDEST))


def _rate(m: Measured, *phases: str) -> float | None:
    seconds = m.timeline.seconds(*phases)
    return m.timeline.items / seconds if m.timeline.items and seconds > 0 else None


def _steady_throughput(m: Measured) -> float | None:
    t = m.timeline
    seconds, items = t.steady(t.step_s), t.steady(t.step_items)
    if seconds.size < PARTS:
        return None
    cuts = zip(np.array_split(items, PARTS), np.array_split(seconds, PARTS), strict=True)
    taken = [(part_items.sum(), part_s.sum()) for part_items, part_s in cuts]
    if any(part_s <= 0 for _, part_s in taken):
        return None
    rates = sorted(float(part_items / part_s) for part_items, part_s in taken)
    return float(np.mean(rates[DROPPED:-DROPPED]))


def _utilisation(m: Measured) -> float | None:
    rate = _rate(m, "compute")
    if rate is None or m.flops is None or m.flops.peak_tflops is None:
        return None
    return 100 * rate * m.flops.per_item / (len(m.timeline.ranks) * m.flops.peak_tflops * 1e12)


def _sure_utilisation(m: Measured) -> float | None:
    used = _utilisation(m)
    if m.is_disturbed or not used or not m.flops or m.flops.is_misstated:
        return None
    # a peak that was measured and lies below what the run reached was disturbed
    return None if used > 100 and (m.flops.peak_source or "").startswith(MEASURED) else used


def _peak_memory(m: Measured) -> float | None:
    peaks = [trace.memory_peak_bytes for trace in m.timeline.ranks if trace.memory_peak_bytes is not None]
    return max(peaks) / 2**30 if peaks else None


def _energy_per_item(m: Measured) -> float | None:
    items = sum(trace.whole.items for trace in m.timeline.ranks)
    return None if m.sensed.energy_j is None or not items else m.sensed.energy_j / items


def _items_per_joule(m: Measured) -> float | None:
    one = _energy_per_item(m)
    return 1 / one if one else None


def _step_time_spread(m: Measured) -> float | None:
    if not m.timeline.step_s.size:
        return None
    low, middle, high = np.percentile(
        statistics.scale_to_mean_items(m.timeline.step_s, m.timeline.step_items), [5, 50, 95]
    )
    return float(100 * (high - low) / middle) if middle else None


def _exposed_exchange(m: Measured) -> float | None:
    t = m.timeline
    compute_s = float(t.compute_s.sum()) if len(t.ranks) > 1 and t.exchange_known else 0.0
    return float(100 * t.exchange_s.sum() / compute_s) if compute_s else None


def _rank_skew(m: Measured) -> float | None:
    skew = m.timeline.skew if m.timeline.exchange_known else None
    return None if skew is None else 100 * (skew.factor - 1)


def _end_to_end_time(m: Measured) -> float:
    return sum(m.timeline.phases_ns.values()) / 1e9


def _cost_per_hour(m: Measured) -> float | None:
    """What all devices cost."""
    return None if m.price.device_hour is None else len(m.timeline.ranks) * m.price.device_hour


def _cost(m: Measured) -> float | None:
    hour = _cost_per_hour(m)
    return None if hour is None else hour * _end_to_end_time(m) / HOUR_S


def _cost_per_million(m: Measured) -> float | None:
    hour, rate = _cost_per_hour(m), _rate(m, "data_wait", "compute", "other")
    return None if hour is None or rate is None else 1e6 * hour / (HOUR_S * rate)


def _divide(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


FORMULAS: dict[str, Formula] = {
    "e2e_time": _end_to_end_time,
    "p_whole": lambda m: _rate(m, "data_wait", "compute", "evaluate", "checkpoint", "other"),
    "p_train": lambda m: _rate(m, "data_wait", "compute", "other"),
    "p_core": lambda m: _rate(m, "compute"),
    "p_steady": _steady_throughput,
    "mfu": _sure_utilisation,
    "mem": _peak_memory,
    "mem_total": lambda m: m.memory_capacity_bytes / 2**30 if m.memory_capacity_bytes else None,
    "mem_device": lambda m: _divide(m.sensed.memory_peak_bytes, 2**30),
    "mem_steady": lambda m: _divide(m.sensed.steady_memory_bytes, 2**30),
    "power": lambda m: m.sensed.power_w,
    "power_steady": lambda m: m.sensed.steady_power_w,
    "power_peak": lambda m: m.sensed.power_peak_w,
    "energy": lambda m: m.sensed.energy_j,
    "energy_per_item": _energy_per_item,
    "items_per_joule": _items_per_joule,
    "temperature_peak": lambda m: m.sensed.temperature_peak_c,
    "throttled": lambda m: m.sensed.throttled_percent,
    "step_time": lambda m: float(np.median(m.timeline.step_s)) if m.timeline.step_s.size else None,
    "step_spread": _step_time_spread,
    "exchange": _exposed_exchange,
    "rank_skew": _rank_skew,
    "time_to_target": lambda m: _divide(m.target_reached_ns, 1e9),
    "completed": lambda m: min(100.0, 100 * m.timeline.steps / m.steps_planned) if m.steps_planned else None,
    "energy_kwh": lambda m: None if m.sensed.energy_j is None else m.sensed.energy_j * m.price.pue / JOULES_PER_KWH,
    "cost": _cost,
    "cost_per_million": _cost_per_million,
}
MISSING: dict[str, Callable[[Measured], str]] = {
    "mfu": _explain_utilisation,
    "exchange": _explain_exchange,
    "rank_skew": _explain_exchange,
}
"""Why there is no value, where that depends on the run."""
SPREADS = {"training": _training_spread, "compute": _compute_spread, "utilisation": _utilisation_spread}


def _make_metric(alias: str, about: dict[str, Any]) -> Metric:
    sensor = about.pop("sensor", None)
    if sensor:
        about |= {"missing": lambda m: m.sensed.reasons.get(sensor, NOTHING_SAMPLED), "beyond_steps": True}
    if alias in MISSING:
        about["missing"] = MISSING[alias]
    about["interval"] = SPREADS.get(about.get("interval", ""))
    return Metric(alias=alias, compute=FORMULAS[alias], **about)


_ALL = [_make_metric(*entry) for entry in tables.load_toml(Path(__file__).with_suffix(".toml")).items()]
METRICS = {metric.alias: metric for metric in _ALL if not metric.priced}
"""By alias, in the order tables show them."""
PRICED = {metric.alias: metric for metric in _ALL if metric.priced}
"""The same of those that a reader's own price or building decides: views compute them, and no record holds them."""


def measure(m: Measured) -> dict[str, Quantity]:
    """Every metric of a run, by the word the tables use."""
    return {alias: _quantity(entry, m) for alias, entry in METRICS.items()}


def measure_priced(m: Measured) -> dict[str, Quantity]:
    """What a reader's price and building make of a run."""
    return {alias: _quantity(entry, m) for alias, entry in PRICED.items()}


def get_metric(alias: str) -> Metric | None:
    """A metric by the word the tables use; None where this version has no such one."""
    return METRICS.get(alias) or PRICED.get(alias)


def _quantity(entry: Metric, m: Measured) -> Quantity:
    unit = entry.unit.format(item=m.item, currency=m.price.currency).strip()
    value = entry.compute(m)
    if value is None:
        return Quantity(value=None, unit=unit, unavailable=entry.reason(m))
    spread = entry.interval(m) if entry.interval else None
    # the spread is the series'; the value may also carry time outside of steps, so the width is what is kept
    return Quantity(value=value, unit=unit, interval=around(value, spread.half_width) if spread else None)


def withhold(found: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """The same for an invalid result: what may not be published from one is unavailable."""
    return {
        alias: Quantity(value=None, unit=quantity.unit, unavailable=WITHHELD)
        if (entry := get_metric(alias)) and entry.withheld
        else quantity
        for alias, quantity in found.items()
    }


def find_metric(word: str) -> Metric:
    entries = [*METRICS.values(), *PRICED.values()]
    for entry in entries:
        if word in (entry.alias, entry.name):
            return entry
    names = [name for entry in entries for name in (entry.alias, entry.name)]
    raise UsageError(f"metric {word!r} is not known; {nearest(word, names)}")


def quantity_to_json(quantity: Quantity) -> dict[str, Any]:
    document = {"interval": quantity.interval and list(quantity.interval), "unavailable": quantity.unavailable}
    known = {name: value for name, value in document.items() if value}
    return {"value": quantity.value, "unit": quantity.unit, **known}
