"""Forecasts how long a training would take at a size, what energy it would use and what it would cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmark.analysis.clusters import Reference, TrainingNeed
from trainmark.features.forecast.rates import RateForecast
from trainmark.record.errors import UsageError
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.site import HOUR_S, JOULES_PER_KWH, Price
from trainmark.record.time_left import count_pauses

MTBF_DEVICE_HOURS = 50_700.0
"""419 unexpected interruptions of 16,384 cards in 54 days, by the Llama 3 report; --mtbf changes it."""
FAILURES_FROM = 256
"""Devices from which failures count: below, one in eight days is within any interval."""
CHECKPOINT_S = 60.0
"""Assumed time to save a large training."""
_AMOUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][0-9]+)?) *(epochs|items|steps)")


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much to train, and the overhead besides steps."""

    items: float
    """At the batch of the measured run."""
    why: str
    """The source of that number."""
    items_per_step: float
    """Of that run."""
    devices: int
    batch_per_device: int
    global_batch: float
    """Of that run, in samples."""
    reference: Reference | None = None
    """Items needed by global batch, where that is known."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Its evaluation and checkpoint intervals."""
    items_per_epoch: float | None = None
    start_s: float
    """From command to first step."""
    evaluation_s: float
    """Of one evaluation."""
    save_s: float = 0.0
    """Of one checkpoint as the recipe requests them."""
    train_share: float
    """p_train over the throughput that is forecast: what waiting for data leaves."""
    joules_per_item: float | None
    idle_share: float = 0.0
    """Idle power over training power; 0 where it was not measured."""
    checkpoint_s: float = CHECKPOINT_S
    checkpoint_why: str = "assumed"
    """The source of its length."""
    restore_s: float = 0.0
    notes: tuple[str, ...] = ()

    def batch_ratio(self, rate: RateForecast) -> float:
        """A size's global batch over that of the run."""
        batch = rate.batch_per_device or self.batch_per_device
        return rate.topology.devices * batch / (self.devices * self.batch_per_device)

    def needed(self, rate: RateForecast) -> TrainingNeed | None:
        """Items to train at a size; None where its global batch exceeds all that are known to converge."""
        if self.reference is None:
            return TrainingNeed(self.items, self.items, self.items)
        return self.reference(self.global_batch * self.batch_ratio(rate))


@dataclass(frozen=True, kw_only=True)
class ForecastRange:
    """A value with its 90 % interval."""

    value: float | None
    low: float
    high: float

    def scale(self, factor: float) -> ForecastRange:
        middle = None if self.value is None else self.value * factor
        return ForecastRange(value=middle, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Time, energy and cost of a whole training at one size."""

    items: float
    """To be trained."""
    time_s: ForecastRange
    parts_s: dict[str, float]
    """Of the middle value: start, training, evaluation, checkpoints, failures."""
    energy_kwh: ForecastRange | None
    cost: ForecastRange | None
    availability: float
    """Share of time not lost to failures and checkpoints against them."""


def measure_work(
    records: Sequence[Record], until: str = "target", *, metric: str = "p_core", reference: Reference | None = None
) -> Work:
    """Derives a whole training from the largest of some runs; UsageError where it does not show it.

    `metric` is the forecast throughput; `reference` gives the items that training by the same recipe needs."""
    record = max(records, key=lambda one: Topology.parse(one.plan.topology).devices)
    timeline, recipe, history = record.timeline, record.plan.recipe, record.quality.history
    trained = sum(trace.whole.items for trace in timeline.ranks)
    if not timeline.steps or not trained:
        raise UsageError(f"run {record.run_id} trained no step; a forecast of time needs one")
    per_step = trained / timeline.steps
    steps_per_epoch = next((each.step / each.epoch for each in reversed(history) if each.epoch), None)
    devices, batch = Topology.parse(record.plan.topology).devices, int(recipe["batch_per_device"])
    global_batch = float(devices * batch * int(recipe.get("accumulate", 1)))
    met = next((found for one in [record, *records] if (found := _count_items_to_target(one))), None)
    needed = reference(global_batch) if reference and until == "target" and not met else None
    if needed:
        items, why = needed.items, "as MLPerf's reference needs at the global batch of each size"
    else:
        items, why = met if met and until == "target" else _count_items(record, until, per_step, steps_per_epoch)
    evaluations, saves = (
        count_pauses(recipe, name, 0, timeline.steps, steps_per_epoch=steps_per_epoch, items_per_step=per_step)
        for name in ("evaluate_every", "checkpoint_every")
    )
    base, train = (record.metrics.get(alias) for alias in (metric, "p_train"))
    energy, power = record.metrics.get("energy_per_item"), record.metrics.get("power")
    idle_w = record.environment.idle_power_w
    saved = _read_checkpoint(record)
    save_s = float(saved.get("checkpoint_s", timeline.seconds("checkpoint") / saves if saves else 0.0))
    unknown = {
        "the run evaluated nothing, so no evaluation is in the time": not history,
        "its evaluation interval is not known in steps, so no evaluation is in the time": history
        and evaluations is None,
        "the run's energy was not measured, so none is forecast": energy is None or energy.value is None,
        "the run saved no checkpoint, so none is in the time": saves and not save_s,
    }
    return Work(
        items=items,
        why=why,
        items_per_step=per_step,
        devices=devices,
        batch_per_device=batch,
        global_batch=global_batch,
        reference=reference if needed else None,
        recipe=recipe,
        items_per_epoch=steps_per_epoch * per_step if steps_per_epoch else None,
        start_s=timeline.seconds("startup", "init"),
        evaluation_s=timeline.seconds("evaluate") / len(history) if history else 0.0,
        save_s=save_s,
        train_share=train.value / base.value if base and train and base.value and train.value else 1.0,
        joules_per_item=energy.value if energy else None,
        idle_share=min(1.0, idle_w / power.value) if idle_w and power and power.value else 0.0,
        **saved,
        notes=tuple(note for note, holds in unknown.items() if holds),
    )


def _count_items_to_target(record: Record) -> tuple[float, str] | None:
    """How many items a run had trained when it met its target."""
    quality, timeline = record.quality, record.timeline
    for each in quality.history:
        value = each.values.get(quality.name)
        if value is not None and (value >= quality.goal if quality.better == "higher" else value <= quality.goal):
            items = sum(trace.whole.items for trace in timeline.ranks) / max(1, timeline.steps) * each.step
            return items, f"step {each.step}, at which run {record.run_id} met its target"
    return None


def _read_checkpoint(record: Record) -> dict[str, Any]:
    """The measured times to save and restore, if any."""
    found = record.environment.checkpoint
    if found is None or not found.save_s:
        return {}
    return {"checkpoint_s": found.save_s, "checkpoint_why": "measured", "restore_s": found.restore_s or 0.0}


def _count_items(record: Record, until: str, per_step: float, steps_per_epoch: float | None) -> tuple[float, str]:
    if match := _AMOUNT.fullmatch(until.strip()):
        amount = float(match[1].replace(",", "").replace("_", ""))
        if match[2] == "items":
            return amount, f"{amount:,.0f} items, as requested"
        if match[2] == "steps":
            return amount * per_step, f"{amount:,.0f} steps of the measured batch, as requested"
        if steps_per_epoch is None:
            raise UsageError("the run's record does not say how long an epoch is; use --until 'N items'")
        return amount * steps_per_epoch * per_step, f"{amount:g} epochs, as requested"
    if until != "target":
        raise UsageError(f"--until {until!r} is not 'target', 'N epochs', 'N steps' or 'N items'")
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
        "no run here met its target or shows the length of an epoch; set the length, like --until '90 epochs' or "
        "--until '1e9 items'"
    )


def forecast_cost(
    work: Work, rate: RateForecast, price: Price, *, mtbf_device_hours: float = MTBF_DEVICE_HOURS
) -> TrainingCost | None:
    """None where no rate is forecast, or where the items needed at such a batch are unknown."""
    needed = work.needed(rate)
    if rate.interval is None or needed is None:
        return None
    devices = rate.topology.devices
    share = _availability(devices, work, mtbf_device_hours)

    def phases(items: float, items_per_s: float) -> dict[str, float]:
        found = _forecast_phases(work, rate, items, items_per_s)
        # the availability includes the checkpoints against failures
        return found if share == 1 else {**found, "checkpoint": 0.0}

    def seconds(items: float, items_per_s: float) -> float:
        return work.start_s + sum(phases(items, items_per_s).values()) / share

    slow, fast = rate.interval
    time = ForecastRange(
        value=None if rate.rate is None else seconds(needed.items, rate.rate),
        low=seconds(needed.fewest, fast),
        high=seconds(needed.most, slow),
    )
    middle = phases(needed.items, rate.rate or math.sqrt(slow * fast))
    return TrainingCost(
        items=needed.items,
        time_s=time,
        parts_s={"start": work.start_s, **middle, "failures": sum(middle.values()) * (1 / share - 1)},
        energy_kwh=_forecast_energy(work, needed, rate, price),
        cost=None if price.device_hour is None else time.scale(devices * price.device_hour / HOUR_S),
        availability=share,
    )


def _forecast_phases(work: Work, rate: RateForecast, items: float, items_per_s: float) -> dict[str, float]:
    """Seconds of training and its pauses at a size: all devices share an evaluation, and one saves."""
    per_step = work.items_per_step * work.batch_ratio(rate)
    per_epoch = work.items_per_epoch / per_step if work.items_per_epoch else None
    evaluations, saves = (
        count_pauses(work.recipe, name, 0, items / per_step, steps_per_epoch=per_epoch, items_per_step=per_step) or 0
        for name in ("evaluate_every", "checkpoint_every")
    )
    return {
        "train": items / (items_per_s * work.train_share),
        "evaluate": evaluations * work.evaluation_s * work.devices / rate.topology.devices,
        "checkpoint": saves * work.save_s,
    }


def _forecast_energy(work: Work, needed: TrainingNeed, rate: RateForecast, price: Price) -> ForecastRange | None:
    """A waiting device draws between idle and full power: both ends are the interval."""
    if work.joules_per_item is None or rate.interval is None:
        return None
    working = work.joules_per_item * price.pue / JOULES_PER_KWH
    ideal = (rate.rate or rate.interval[1]) / (rate.efficiency or 1.0)

    def waits(items_per_s: float) -> float:
        """Seconds of waiting per second of work at this speed."""
        return max(0.0, ideal / items_per_s - 1)

    slow, fast = rate.interval
    low = needed.fewest * working * (1 + work.idle_share * waits(fast))
    high = needed.most * working * (1 + waits(slow))
    between = (1 + work.idle_share) / 2
    value = None if rate.rate is None else needed.items * working * (1 + between * waits(rate.rate))
    return ForecastRange(value=value, low=low, high=max(high, value or low))


def _availability(devices: int, work: Work, mtbf_device_hours: float) -> float:
    """By Young and Daly: a checkpoint every sqrt(2 d M), with d its seconds and M those between two failures."""
    if devices < FAILURES_FROM:
        return 1.0
    between_s = mtbf_device_hours * HOUR_S / devices
    every_s = math.sqrt(2 * work.checkpoint_s * between_s)
    again_s = work.start_s + work.restore_s
    lost = work.checkpoint_s / every_s + every_s / (2 * between_s) + again_s / between_s
    return max(0.05, 1 - lost)
