"""Every number trainmark reports: its formula, its unit and its definition in one place."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from trainmark.record import statistics
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
    definition: str
    formula: str
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


METRICS: dict[str, Metric] = {}
"""By alias, in the order tables show them."""
PRICED: dict[str, Metric] = {}
"""The same of those that a reader's own price or building decides: views compute them, and no record holds them."""

PARTS, DROPPED = 5, 1
"""Steady training is cut into so many parts for `p_steady`; so many are dropped at either end of their order."""

THROUGHPUTS = ("p_whole", "p_train", "p_core")
"""The three that published tables give, from all work down to computing alone."""

WITHHELD = "the result is not valid"


def metric(
    unit: str, alias: str = "", formula: str = "", *, priced: bool = False, **about: Any
) -> Callable[[Formula], Formula]:
    """Registers a function as a metric; its docstring is the public definition, `about` are fields of `Metric`, all of
    which have a safe default. One that is `priced` is no part of a record."""

    def register(function: Formula) -> Formula:
        entry = Metric(
            name=function.__name__,
            alias=alias or function.__name__,
            unit=unit,
            definition=inspect.cleandoc(function.__doc__ or ""),
            formula=formula,
            compute=function,
            **about,
        )
        (PRICED if priced else METRICS)[entry.alias] = entry
        return function

    return register


NO_STEP = "no step was counted"
NO_MEMORY = "the platform reports no memory"
NOTHING_SAMPLED = "nothing was sampled during the run"
rate_metric = partial(metric, "{item}/s", better="higher", missing=NO_STEP, withheld=True)


def sensor_metric(unit: str, sensor: str, alias: str, formula: str, **about: Any) -> Callable[[Formula], Formula]:
    """A metric that rests on a field of `Sensed`, which says why a sensor gave nothing; less is better by default."""

    def explain(m: Measured) -> str:
        return m.sensed.reasons.get(sensor, NOTHING_SAMPLED)

    return metric(unit, alias, formula, **{"better": "lower", "missing": explain, "beyond_steps": True, **about})


def _explain_exchange(m: Measured) -> str:
    if len(m.timeline.ranks) < 2:
        return "the run has one rank"
    return NO_STEP if m.timeline.exchange_known else "the exchange was not measured"


def _explain_utilisation(m: Measured) -> str:
    if m.is_disturbed:
        return "others used the processors that trained, and what these could have reached meanwhile is not known"
    if m.flops and m.flops.peak_tflops is None and m.flops.peak_source:
        return m.flops.peak_source
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


@metric("s", "e2e_time", "sum of all phases", better="lower")
def end_to_end_time(m: Measured) -> float | None:
    """Wall time from the launcher's start to the end of the slowest rank's last phase."""
    return sum(m.timeline.phases_ns.values()) / 1e9


@rate_metric("p_whole", "items / (data_wait + compute + evaluate + checkpoint + other)", interval=_training_spread)
def overall_throughput(m: Measured) -> float | None:
    """Items trained per second of everything after set-up: waiting for data, computing, evaluating, saving.

    In a short run one evaluation weighs far more than in a full one, so compare p_whole between full runs only.
    """
    return _rate(m, "data_wait", "compute", "evaluate", "checkpoint", "other")


@rate_metric("p_train", "items / (data_wait + compute + other)", interval=_training_spread, any_length=True)
def training_throughput(m: Measured) -> float | None:
    """Items trained per second of training, evaluation and checkpoints left out."""
    return _rate(m, "data_wait", "compute", "other")


@rate_metric("p_core", "items / compute", interval=_compute_spread, any_length=True)
def compute_throughput(m: Measured) -> float | None:
    """Items trained per second of forward, backward, gradient exchange and optimizer: the wait for data is left out.

    This is the number for comparing devices: it does not depend on disks and decoders.
    """
    return _rate(m, "compute")


@rate_metric(
    "p_steady",
    "mean of the middle 3 of 5 equal parts of the steady steps, each items / (data_wait + compute)",
    interval=_training_spread,
    missing="fewer than 5 steps were steady",
    any_length=True,
)
def steady_throughput(m: Measured) -> float | None:
    """Items trained per second of steady training by all devices together: what DeepSpark calls Performance.

    Of five parts the fastest and the slowest are dropped. DeepSpark's parts are epochs, such as 6 to 10; these are
    equally many steps each, so that a run of less than an epoch has one, too. Waiting for data is in it, as in
    p_train, but not in p_core; evaluations, checkpoints and the steps before the series was steady are not.
    """
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


@metric(
    "%",
    "mfu",
    "p_core x FLOPs of an item / (devices x peak)",
    interval=_utilisation_spread,
    better="higher",
    missing=_explain_utilisation,
    any_length=True,
    beyond_steps=True,
    withheld=True,
)
def model_flops_utilisation(m: Measured) -> float | None:
    """How much of what its devices could do at most the training used, in the FLOPs its mathematics needs.

    FLOPs are counted for the recipe's network, forward and backward, a multiply-add as 2; what is computed twice or on
    padding does not count. The peak is the device's by the platform file, dense, in the precision asked for. On a CPU
    it is the best that large matmuls reached after this run or an earlier one, and the interval holds how far
    these measurements lay apart; where others used more than 10 % of the CPU meanwhile, or where the run itself was
    faster than those matmuls, there is no figure. Above 100 % of a sheet's peak the label or the peak is wrong.

    Of language models, every weight that multiplies counts and attention over the whole window, as in PaLM's and
    torchtitan's tables. FlagPerf's count 6 for each parameter and no attention; flash kernels compute attention over
    the half of the window that a token can see. The record holds all three counts, and `trainmark show --all` all three
    shares.
    """
    used = _utilisation(m)
    if m.is_disturbed or used is None or not m.flops:
        return None
    # a peak that was measured and lies below what the run reached was disturbed
    return None if used > 100 and (m.flops.peak_source or "").startswith(MEASURED) else used


def _utilisation(m: Measured) -> float | None:
    rate = _rate(m, "compute")
    if rate is None or m.flops is None or m.flops.peak_tflops is None:
        return None
    return 100 * rate * m.flops.per_item / (len(m.timeline.ranks) * m.flops.peak_tflops * 1e12)


@metric("GiB", "mem", "max over ranks of the peak, / 2**30", better="lower", missing=NO_MEMORY, any_length=True)
def peak_device_memory(m: Measured) -> float | None:
    """The most memory the worst rank held at once, by the device's allocator; on a CPU, its resident memory."""
    peaks = [trace.memory_peak_bytes for trace in m.timeline.ranks if trace.memory_peak_bytes is not None]
    return max(peaks) / 2**30 if peaks else None


@metric("GiB", "mem_total", "bytes / 2**30", missing=NO_MEMORY, beyond_steps=True)
def device_memory_capacity(m: Measured) -> float | None:
    """The memory one device has; on a CPU, the memory of the machine."""
    return m.memory_capacity_bytes / 2**30 if m.memory_capacity_bytes else None


@sensor_metric("GiB", "memory_peak_bytes", "mem_device", "max over devices and samples of the memory in use, / 2**30")
def peak_memory_in_use(m: Measured) -> float | None:
    """The most memory in use at once on the fullest device while it trained, as the device's own tool sees it.

    It holds what the allocator keeps without using it, the driver's own, and whatever other programs use; on a CPU it
    is the memory in use on the machine. Between two samples a short peak is not seen.
    """
    return None if m.sensed.memory_peak_bytes is None else m.sensed.memory_peak_bytes / 2**30


@sensor_metric(
    "GiB",
    "steady_memory_bytes",
    "mem_steady",
    "mean over devices and samples of steady training of the memory in use, / 2**30",
    any_length=True,
)
def steady_memory(m: Measured) -> float | None:
    """The memory in use on one device in steady training, as the device's own tool sees it: DeepSpark's Memory.

    A mean over samples and devices, where DeepSpark reads the first card. mem is the allocator's highest, without what
    the driver and the allocator's cache hold; mem_device is the highest sample.
    """
    return None if m.sensed.steady_memory_bytes is None else m.sensed.steady_memory_bytes / 2**30


@sensor_metric("W", "power_w", "power", "mean over devices of energy / training time", any_length=True)
def mean_power(m: Measured) -> float | None:
    """The power one device drew while it trained, as a mean over time and devices.

    From the first step to the last, evaluations in between included. On a CPU it is the power of all processors of a
    machine together, whoever uses them.
    """
    return m.sensed.power_w


@sensor_metric(
    "W",
    "steady_power_w",
    "power_steady",
    "mean over devices and samples of steady training of the power",
    any_length=True,
)
def steady_power(m: Measured) -> float | None:
    """The power one device reported in steady training, as a mean over samples and devices: DeepSpark's Power.

    DeepSpark reads the first card. Unlike power it begins with the first steady step, and takes what the tool says
    rather than a device's counter of energy.
    """
    return m.sensed.steady_power_w


@sensor_metric("W", "power_peak_w", "power_peak", "max over devices and samples of the power")
def peak_power(m: Measured) -> float | None:
    """The highest power any device reported while it trained; what happens between two samples is not seen."""
    return m.sensed.power_peak_w


@sensor_metric("J", "energy_j", "energy", "sum over devices of their energy counter's growth, or of power x time")
def training_energy(m: Measured) -> float | None:
    """The energy all devices used from the first step to the last, evaluations in between included.

    It is taken from the devices' own counters where they have one, else from the power between samples. The rest of the
    machine (fans, disks, network, the host's processors beside an accelerator) is not in it.
    """
    return m.sensed.energy_j


@sensor_metric("J/item", "energy_j", "energy_per_item", "energy / items of all steps")
def energy_per_item(m: Measured) -> float | None:
    """The energy one trained item took: evaluations are in it, so compare it between full runs only."""
    items = sum(trace.whole.items for trace in m.timeline.ranks)
    return None if m.sensed.energy_j is None or not items else m.sensed.energy_j / items


@sensor_metric("{item}/J", "energy_j", "items_per_joule", "items of all steps / energy", better="higher")
def items_per_joule(m: Measured) -> float | None:
    """What one joule of the devices trained: 1 / energy_per_item.

    As there, evaluations are in it and the rest of the machine is not.
    """
    one = energy_per_item(m)
    return 1 / one if one else None


@sensor_metric("°C", "temperature_peak_c", "temperature_peak", "max over devices and samples of the temperature")
def peak_temperature(m: Measured) -> float | None:
    """How warm the warmest device became while it trained, by its own sensor."""
    return m.sensed.temperature_peak_c


@sensor_metric(
    "%",
    "throttled_percent",
    "throttled",
    "samples in which the device said it was slowed / samples, of the worst device",
)
def throttled_share(m: Measured) -> float | None:
    """How often the device that was slowed most said that heat or its power limit slowed it."""
    return m.sensed.throttled_percent


@metric(
    "s",
    "step_time",
    "median over counted steps of data_wait + compute",
    better="lower",
    missing=NO_STEP,
    any_length=True,
)
def median_step_time(m: Measured) -> float | None:
    """How long the middle step took, its wait for data included."""
    return float(np.median(m.timeline.step_s)) if m.timeline.step_s.size else None


@metric(
    "%",
    "step_spread",
    "(95th - 5th percentile) / median of counted steps",
    better="lower",
    missing=NO_STEP,
    any_length=True,
)
def step_time_spread(m: Measured) -> float | None:
    """How unlike each other the steps were: small is steady.

    Where steps hold different numbers of items, what one would have taken with the mean number counts.
    """
    if not m.timeline.step_s.size:
        return None
    low, middle, high = np.percentile(
        statistics.scale_to_mean_items(m.timeline.step_s, m.timeline.step_items), [5, 50, 95]
    )
    return float(100 * (high - low) / middle) if middle else None


@metric(
    "%",
    "exchange",
    "exchange not hidden / compute, of the slowest rank's counted steps",
    better="lower",
    missing=_explain_exchange,
    any_length=True,
)
def exposed_exchange_share(m: Measured) -> float | None:
    """How much of computing was spent only on exchanging gradients: what backward did not hide.

    It is measured in every step, from the last gradient's being ready until backward returned, and holds the wait for
    slower ranks.
    """
    t = m.timeline
    compute_s = float(t.compute_s.sum()) if len(t.ranks) > 1 and t.exchange_known else 0.0
    return float(100 * t.exchange_s.sum() / compute_s) if compute_s else None


@metric(
    "%",
    "rank_skew",
    "(compute - exchange) of the slowest rank / that of the fastest - 1",
    better="lower",
    missing=_explain_exchange,
    any_length=True,
)
def rank_skew(m: Measured) -> float | None:
    """How much longer the slowest rank's own computing took than the fastest's, exchange left out.

    Where the slow rank was given more items, the time for as many counts.
    """
    skew = m.timeline.skew if m.timeline.exchange_known else None
    return None if skew is None else 100 * (skew.factor - 1)


@metric(
    "s",
    "time_to_target",
    "end-to-end time at the first evaluation that met the target",
    better="lower",
    missing="the target was not reached",
    beyond_steps=True,
)
def time_to_target(m: Measured) -> float | None:
    """Wall time from the launcher's start until an evaluation first met the recipe's target."""
    return None if m.target_reached_ns is None else m.target_reached_ns / 1e9


@metric(
    "%",
    "completed",
    "steps done / steps planned",
    better="higher",
    missing="the run's length is open",
    beyond_steps=True,
)
def completed_share(m: Measured) -> float | None:
    """How much of the planned training was done; 100 when the target ended it early."""
    return None if not m.steps_planned else min(100.0, 100 * m.timeline.steps / m.steps_planned)


NO_PRICE = "no price is known; give --price 2.10/h, or [price] in trainmark.toml"


@sensor_metric("kWh", "energy_j", "energy_kwh", "energy x PUE / 3,600,000", priced=True)
def building_energy(m: Measured) -> float | None:
    """The devices' energy as a bill counts it, times what the building uses for each watt of its machines (PUE).

    What was measured is the devices alone, from the first step to the last: hosts, switches and disks are not in it.
    The PUE is the reader's own, `pue` of [price] in trainmark.toml or --pue; without one it is 1.
    """
    return None if m.sensed.energy_j is None else m.sensed.energy_j * m.price.pue / JOULES_PER_KWH


@metric(
    "{currency}",
    "cost",
    "devices x e2e_time / 3600 x price of a device-hour",
    better="lower",
    missing=NO_PRICE,
    beyond_steps=True,
    priced=True,
)
def run_cost(m: Measured) -> float | None:
    """What the run cost, start and evaluation included: all its devices for all of its time.

    The time was measured; the price is the reader's own, by --price or `device_hour` of [price] in trainmark.toml. It
    is on no record, so that the same run can be asked for at another price.
    """
    hour, seconds = _cost_per_hour(m), end_to_end_time(m)
    return None if hour is None or seconds is None else hour * seconds / HOUR_S


@metric(
    "{currency}/million {item}",
    "cost_per_million",
    "devices x price of a device-hour / (3600 x p_train) x 1,000,000",
    interval=_training_spread,
    better="lower",
    missing=NO_PRICE,
    any_length=True,
    beyond_steps=True,
    withheld=True,
    priced=True,
)
def cost_per_million_items(m: Measured) -> float | None:
    """What a million trained items cost at the speed of p_train: start, evaluation and checkpoints are left out.

    So short runs compare with long ones, and machines of different prices with each other: give `compare` both prices,
    like --price 2.10/h,3.40/h. The interval is that of p_train; a price has none.
    """
    hour, rate = _cost_per_hour(m), training_throughput(m)
    return None if hour is None or rate is None else 1e6 * hour / (HOUR_S * rate)


def _cost_per_hour(m: Measured) -> float | None:
    """What all devices cost."""
    return None if m.price.device_hour is None else len(m.timeline.ranks) * m.price.device_hour


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
    """A metric by either of its names."""
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
