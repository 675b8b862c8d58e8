"""How long a training would take at a size, what energy it would use and what it would cost."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trainmark.analysis.forecast.rates import RateForecast
from trainmark.spec.errors import UsageError
from trainmark.spec.price import HOUR_S, JOULES_A_KWH, Price
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology

DEVICE_HOURS_A_FAILURE = 50_700.0
"""419 unexpected stops of 16,384 cards in 54 days, as the Llama 3 report tells: an assumption one may change."""
FAILURES_FROM = 256
"""Devices from which on failures are reckoned with: below, one in eight days is lost in any interval."""
CHECKPOINT_S = 60.0
"""What saving the state of a large training takes, where nothing is known."""
_AMOUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][0-9]+)?) *(epochs|items|steps)")


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much there is to train, and what goes with it beside the steps."""

    items: float
    why: str
    """Where that number is from."""
    items_per_step: float
    """Of the run it is known from."""
    devices: int
    """Of that run."""
    start_s: float
    """From the command to the first step."""
    evaluation_s: float
    """Of one evaluation."""
    items_between_evaluations: float | None
    train_share: float
    """p_train / p_core: what waiting for data leaves."""
    joules_per_item: float | None
    idle_share: float = 0.0
    """What a device draws before training, over what it draws in it; 0 where nobody measured it."""
    checkpoint_s: float = CHECKPOINT_S
    checkpoint_why: str = "assumed"
    """Where its length is from."""
    restore_s: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ForecastRange:
    """A value with its 90 % interval."""

    value: float | None
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class WholeTraining:
    """What a whole training would take at one size."""

    time_s: ForecastRange
    parts_s: dict[str, float]
    """Of the middle value: start, training, evaluation, failures."""
    energy_kwh: ForecastRange | None
    cost: ForecastRange | None
    availability: float
    """The share of time that is not lost to failures and checkpoints against them."""


def work(records: Sequence[Record], until: str = "target") -> Work:
    """What the largest of some runs tells of a whole training; UsageError where that is not known."""
    record = max(records, key=lambda one: Topology.parse(one.plan.topology).devices)
    timeline = record.timeline
    trained = sum(trace.whole.items for trace in timeline.ranks)
    if not timeline.steps or not trained:
        raise UsageError(f"run {record.run_id} trained no step; a forecast of time needs one")
    per_step = trained / timeline.steps
    history = record.quality.history
    steps_per_epoch = next((each.step / each.epoch for each in reversed(history) if each.epoch), None)
    items, why = _items(record, until, per_step, steps_per_epoch)
    notes = []
    evaluations = len(history)
    evaluate_s = timeline.seconds("evaluate") / evaluations if evaluations else 0.0
    if not evaluations:
        notes.append("the run evaluated nothing, so no evaluation is in the time")
    gaps = [later.step - sooner.step for sooner, later in pairwise(history)]
    between = (min(gaps) if gaps else history[0].step) * per_step if evaluations else None
    core, train = (record.metrics.get(alias) for alias in ("p_core", "p_train"))
    share = train.value / core.value if core and train and core.value and train.value else 1.0
    energy = record.metrics.get("energy_per_item")
    if energy is None or energy.value is None:
        notes.append("the run's energy was not measured, so none is forecast")
    return Work(
        items=items,
        why=why,
        items_per_step=per_step,
        devices=Topology.parse(record.plan.topology).devices,
        start_s=timeline.seconds("startup", "init"),
        evaluation_s=evaluate_s,
        items_between_evaluations=between or None,
        train_share=min(share, 1.0),
        joules_per_item=energy.value if energy else None,
        idle_share=_idle_share(record),
        **_checkpoint(record),
        notes=tuple(notes),
    )


def _idle_share(record: Record) -> float:
    idle, power = record.environment.idle_power_w, record.metrics.get("power")
    return min(1.0, idle / power.value) if idle and power and power.value else 0.0


def _checkpoint(record: Record) -> dict[str, Any]:
    """What the run measured of saving and restoring, if it did."""
    found = record.environment.checkpoint
    if found is None or not found.save_s:
        return {}
    return {"checkpoint_s": found.save_s, "checkpoint_why": "measured", "restore_s": found.restore_s or 0.0}


def _items(record: Record, until: str, per_step: float, steps_per_epoch: float | None) -> tuple[float, str]:
    if match := _AMOUNT.fullmatch(until.strip()):
        amount = float(match[1].replace(",", "").replace("_", ""))
        if match[2] == "items":
            return amount, f"{amount:,.0f} items, as asked for"
        if match[2] == "steps":
            return amount * per_step, f"{amount:,.0f} steps of the measured batch, as asked for"
        if steps_per_epoch is None:
            raise UsageError("the run's data has no epochs that are on its record; say --until 'N items'")
        return amount * steps_per_epoch * per_step, f"{amount:g} epochs, as asked for"
    if until != "target":
        raise UsageError(f"--until {until!r} is not 'target', 'N epochs', 'N steps' or 'N items'")
    quality = record.quality
    for each in quality.history:
        value = each.values.get(quality.name)
        if value is not None and (value >= quality.goal if quality.better == "higher" else value <= quality.goal):
            return each.step * per_step, f"step {each.step}, at which run {record.run_id} met its target"
    last = record.plan.last_step(
        first_step=0, steps_per_epoch=round(steps_per_epoch) if steps_per_epoch else None, items_per_step=per_step
    )
    recipe = record.plan.recipe
    if record.plan.limits.full and last:
        return last * per_step, "the length of the recipe: no run here has met its target"
    if steps_per_epoch and (epochs := int(recipe.get("epochs", 0))):
        return epochs * steps_per_epoch * per_step, f"the recipe's {epochs} epochs: no run here has met its target"
    if steps := int(recipe.get("steps", 0)):
        return steps * per_step, f"the recipe's {steps} steps: no run here has met its target"
    raise UsageError(
        "no run here met its target or tells how long an epoch is; say how much to train, like --until '90 epochs' or "
        "--until '1e9 items'"
    )


def outcome(
    known: Work,
    rate: RateForecast,
    price: Price,
    *,
    device_hours_a_failure: float = DEVICE_HOURS_A_FAILURE,
) -> WholeTraining | None:
    """None where no rate is forecast."""
    if rate.interval is None:
        return None
    devices = rate.topology.devices
    evaluations = known.items / known.items_between_evaluations if known.items_between_evaluations else 0.0
    evaluate_s = evaluations * known.evaluation_s * known.devices / devices
    share = _availability(devices, known, device_hours_a_failure)

    def seconds(items_per_s: float) -> float:
        return known.start_s + (known.items / (items_per_s * known.train_share) + evaluate_s) / share

    slow, fast = rate.interval
    time = ForecastRange(value=None if rate.rate is None else seconds(rate.rate), low=seconds(fast), high=seconds(slow))
    middle = rate.rate or math.sqrt(slow * fast)
    train_s = known.items / (middle * known.train_share)
    parts = {
        "start": known.start_s,
        "train": train_s,
        "evaluate": evaluate_s,
        "failures": (train_s + evaluate_s) * (1 / share - 1),
    }
    return WholeTraining(
        time_s=time,
        parts_s=parts,
        energy_kwh=_energy(known, rate, price),
        cost=_cost(time, devices, price),
        availability=share,
    )


def _energy(known: Work, rate: RateForecast, price: Price) -> ForecastRange | None:
    """A waiting device draws between what an idle one does and as much as a working one: both ends are the interval."""
    if known.joules_per_item is None or rate.interval is None:
        return None
    working = known.items * known.joules_per_item * price.pue / JOULES_A_KWH
    ideal = (rate.rate or rate.interval[1]) / (rate.efficiency or 1.0)

    def waits(items_per_s: float) -> float:
        """For each second of work, what all devices of this speed wait."""
        return max(0.0, ideal / items_per_s - 1)

    slow, fast = rate.interval
    low, high = working * (1 + known.idle_share * waits(fast)), working * (1 + waits(slow))
    value = None if rate.rate is None else working * (1 + (1 + known.idle_share) / 2 * waits(rate.rate))
    return ForecastRange(value=value, low=low, high=max(high, value or low))


def _cost(time: ForecastRange, devices: int, price: Price) -> ForecastRange | None:
    if price.device_hour is None:
        return None
    an_hour = devices * price.device_hour
    return ForecastRange(
        value=None if time.value is None else time.value / HOUR_S * an_hour,
        low=time.low / HOUR_S * an_hour,
        high=time.high / HOUR_S * an_hour,
    )


def _availability(devices: int, known: Work, device_hours_a_failure: float) -> float:
    """By Young and Daly: a checkpoint every sqrt(2 d M), with d its seconds and M those between two failures."""
    if devices < FAILURES_FROM:
        return 1.0
    between_s = device_hours_a_failure * HOUR_S / devices
    every_s = math.sqrt(2 * known.checkpoint_s * between_s)
    again_s = known.start_s + known.restore_s
    lost = known.checkpoint_s / every_s + every_s / (2 * between_s) + again_s / between_s
    return max(0.05, 1 - lost)
