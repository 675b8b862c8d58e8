"""Forecasts a training at several sizes: speed, time, energy and cost, with what the numbers rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainmark.analysis.clusters import Reference, TrainingNeed
from trainmark.analysis.peaks import find_cards
from trainmark.features.forecast import rates, scaling_law
from trainmark.features.forecast.rates import Known, RateForecast
from trainmark.record.errors import UsageError
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.recipe import Limits, Span
from trainmark.record.record import Record
from trainmark.record.site import HOUR_S, JOULES_PER_KWH, Price
from trainmark.record.time_left import count_pauses
from trainmark.workloads import facts

CHECKPOINT_S = 60.0
"""Assumed time to save a training."""
MAX_NODE = 8
"""Devices per node up to which sizes double inside a node."""
NEXT_DOUBLINGS = 3


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
    """Of the middle value: start, training, evaluation, checkpoints."""
    energy_kwh: ForecastRange | None
    cost: ForecastRange | None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One training at every requested size."""

    known: Known
    sizes: tuple[tuple[RateForecast, TrainingCost | None], ...]
    work: Work | None
    price: Price

    @property
    def basis(self) -> str:
        """What it is based on, as a sentence."""
        known = self.known
        *first, last = (str(size.topology) for size in known.sizes)
        sizes = f"{', '.join(first)} and {last}" if first else last
        if known.one_device:
            return f"Known from {sizes} alone: inside a node what published clusters keep, beyond it nothing."
        usual = f"{-100 * scaling_law.USUAL_LOSS:.0f} %"
        loss = round(-100 * rates.find_loss(known, known.sizes[0], known.largest.topology), 1) + 0.0  # not -0.0
        links, lost = "", f"{loss:.1f} % per doubling"
        if known.exchange:
            levels = known.exchange.levels.keys()
            missing = "" if len(levels) == 2 else f", but none {'inside' if 'nodes' in levels else 'between'} nodes"
            links = f" and the links there{missing}"
            lost = f"what its exchange takes, and {lost if known.several else f'in all at least {usual} per doubling'}"
        return f"Known from {sizes}{links}: there a device loses {lost}, published clusters {usual}."

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.known.notes, *_size_notes(self), *(_work_notes(self, self.work) if self.work else ()))


def forecast(
    known: Known, topologies: Sequence[Topology], work: Work | None, price: Price, global_batch: int | None = None
) -> Forecast:
    speeds = [rates.forecast(known, topology, global_batch) for topology in topologies]
    sizes = tuple((rate, forecast_cost(work, rate, price) if work else None) for rate in speeds)
    return Forecast(known=known, sizes=sizes, work=work, price=price)


def forecast_next_sizes(records: Sequence[Record]) -> Forecast:
    """Forecasts the sizes of these runs, and three doublings more; UsageError says why it cannot."""
    known = rates.read_records(records)
    sizes = [size.topology for size in known.sizes]
    nodes, devices = sizes[-1].nodes, sizes[-1].devices_per_node
    for _ in range(NEXT_DOUBLINGS):
        if nodes == 1 and 2 * devices <= MAX_NODE:
            devices *= 2
        else:
            nodes *= 2
        sizes.append(Topology(nodes=nodes, devices_per_node=devices))
    return forecast(known, sizes, None, Price())


def _size_notes(found: Forecast) -> Iterator[str]:
    known, speeds = found.known, [rate for rate, _ in found.sizes]
    for rate in speeds:
        if rate.why:
            yield f"{rate.topology} is refused: {rate.why}"
    if rough := [str(rate.topology) for rate in speeds if rate.kind == rates.ROUGH]:
        far = f"more than {rates.FAR} times {known.largest.topology}"
        yield f"{', '.join(rough)}: {far}, so this is an order of magnitude only"
    own = known.batch_per_device
    if own is not None and all(rate.batch_per_device == own for rate in speeds):
        yield f"every size has batches of {own} per device, so the global batch grows with the devices"
    others = {rate.topology: rate.batch_per_device or own for rate in speeds if rate.interval}
    if own is not None and any(batch != own for batch in others.values()):
        batches = ", ".join(f"{batch} at {topology}" for topology, batch in others.items())
        yield (
            f"batch per device: {own} in the runs, {batches}; {100 * rates.FIXED:.0f} % of a step's compute is assumed "
            "not to depend on it, as in published trainings"
        )
        if (largest := max(batch or own for batch in others.values())) > own:
            yield f"whether batches of {largest} per device fit into memory is unknown"


def _work_notes(found: Forecast, work: Work) -> Iterator[str]:
    if work.reference is None:
        yield f"time is that of {work.items:,.0f} items: {work.why}; a larger global batch may need more of them"
    else:
        batch = f"{work.global_batch:,.0f}"
        yield f"time is that of as many items {work.why}: {work.items:,.0f} at a global batch of {batch}"
        if beyond := [str(rate.topology) for rate, cost in found.sizes if rate.interval and not cost]:
            yield (
                f"{', '.join(beyond)}: no reference run has so large a global batch, so the items it needs are "
                "unknown and no time is forecast"
            )
    yield from work.notes


def to_json(found: Forecast) -> dict[str, Any]:
    """For programs; intervals are 90 %."""
    known = found.known
    return {
        "subject": list(known.subject),
        "metric": known.metric,
        "unit": known.unit,
        "batch_per_device": known.batch_per_device,
        "basis": found.basis,
        "known": [{"topology": str(size.topology), "rate": size.rate, "error": size.error} for size in known.sizes],
        "items": found.work.items if found.work else None,
        "sizes": [
            {
                "topology": str(rate.topology),
                "devices": rate.topology.devices,
                "kind": rate.kind,
                "rate": rate.rate,
                "rate_interval": rate.interval,
                "efficiency": rate.efficiency,
                "batch_per_device": rate.batch_per_device,
                **(asdict(cost) if cost else dict.fromkeys(("time_s", "energy_kwh", "cost"))),
            }
            for rate, cost in found.sizes
        ],
        "currency": found.price.currency,
        "notes": list(found.notes),
    }


# How much there is to train


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
    checkpoint_s: float
    """Of one checkpoint."""
    train_share: float
    """p_train over the throughput that is forecast: what waiting for data leaves."""
    joules_per_item: float | None
    power_w: tuple[float, float] | None = None
    """Of one device, least and most, where no energy was measured."""
    notes: tuple[str, ...] = ()

    def batch_ratio(self, rate: RateForecast) -> float:
        """A size's global batch over that of the run."""
        batch = rate.batch_per_device or self.batch_per_device
        return rate.topology.devices * batch / (self.devices * self.batch_per_device)

    def count_needed(self, rate: RateForecast) -> TrainingNeed | None:
        """Items to train at a size; None where its global batch exceeds all that are known to converge."""
        if self.reference is None:
            return TrainingNeed(self.items, self.items, self.items)
        return self.reference(self.global_batch * self.batch_ratio(rate))


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
    base, train = (record.metrics.get(alias) for alias in (metric, "p_train"))
    energy, saved = record.metrics.get("energy_per_item"), record.environment.checkpoint
    measured = saved.save_s if saved else None
    unknown = {
        "the run evaluated nothing, so no evaluation is in the time": not history,
        "the run's energy was not measured, so none is forecast": energy is None or energy.value is None,
        f"the run saved no checkpoint, so {CHECKPOINT_S:.0f} s are assumed for each": not measured,
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
        checkpoint_s=measured or CHECKPOINT_S,
        train_share=train.value / base.value if base and train and base.value and train.value else 1.0,
        joules_per_item=energy.value if energy else None,
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


def _count_items(record: Record, until: str, per_step: float, steps_per_epoch: float | None) -> tuple[float, str]:
    if until != "target":
        span = Span.parse(until)
        per_epoch = steps_per_epoch * per_step if steps_per_epoch else None
        per_unit = {"items": 1.0, "steps": per_step, "epochs": per_epoch}[span.unit]
        if per_unit is None:
            raise UsageError("the run's record does not say how long an epoch is; use --until 'N items'")
        return span.count * per_unit, f"{span.count:,.0f} {span.unit}, as requested"
    last = replace(record.plan, limits=Limits()).last_step(
        first_step=0, steps_per_epoch=round(steps_per_epoch) if steps_per_epoch else None, items_per_step=per_step
    )
    if last:
        return last * per_step, "the length of the recipe, as no run here has met its target"
    raise UsageError(
        "no run here met its target or shows the length of an epoch; set the length, like --until '90 epochs' or "
        "--until '1e9 items'"
    )


def derive_work(row: PublishedRow, until: str, metric: str) -> Work:
    """Derives a whole training from a published row; UsageError where the row does not show it."""
    devices, batch, known = row.devices or 1, row.batch_per_device or 1, facts(row.workload)
    per_sample = 1.0 if row.item == "samples" else known.items_per_sample if known else None
    per_step = devices * batch * per_sample if per_sample and row.batch_per_device else None
    per_epoch = 1.0 if row.item == "epochs" else known.items_per_epoch if known else None
    if until == "target":
        if not (row.took_to_target_s and row.p_whole):
            raise UsageError(f"{row.name} gives no time to its target; set the length, like --until '90 epochs'")
        items, why = row.took_to_target_s * row.p_whole, f"{row.name} until it met its target"
    else:
        span = Span.parse(until)
        per_unit = {"items": 1.0, "steps": per_step, "epochs": per_epoch}[span.unit]
        if per_unit is None:
            raise UsageError(f"the items per {span.unit[:-1]} of {row.workload} are not known; use --until 'N items'")
        items, why = span.count * per_unit, f"{span.count:,.0f} {span.unit}, as requested"
    name = next((name for name in ("p_whole", "p_train", metric) if getattr(row, name)), metric)
    pauses = "what is not computing takes the same share of the time as at "
    pauses = (
        f"{pauses}{row.topology}" if name == "p_whole" else "the page gives no p_whole: time is without evaluations"
    )
    watts = [sheet.power_w for sheet in find_cards(row.device)]
    stated = [each.value for each in row.details if each.unit == "W" and each.value]
    power, source = None, "and no energy is forecast: the page gives no power, no platform file one of such a device"
    if stated:
        power, source = (stated[0], stated[0]), f"and energy is by the page's {stated[0]:g} W per device"
    elif watts and None not in watts:
        low, high = (bound(watt for watt in watts if watt) for bound in (min, max))
        limit = f"{low:g} W" if low == high else f"{low:g} to {high:g} W"
        power, source = (low / 2, high), f"and energy is between half and all of the data sheet's {limit} per device"
    return Work(
        items=items,
        why=why,
        items_per_step=per_step or items,
        devices=devices,
        batch_per_device=batch,
        global_batch=float(devices * batch),
        start_s=0.0,
        evaluation_s=0.0,
        checkpoint_s=0.0,
        train_share=getattr(row, name) / getattr(row, metric),
        joules_per_item=None,
        power_w=power,
        notes=(f"{pauses}, {source}",),
    )


# What that takes


def forecast_cost(work: Work, rate: RateForecast, price: Price) -> TrainingCost | None:
    """None where no rate is forecast, or where the items needed at such a batch are unknown."""
    needed = work.count_needed(rate)
    if rate.interval is None or needed is None:
        return None
    devices = rate.topology.devices

    def parts_s(items: float, items_per_s: float) -> dict[str, float]:
        """All devices share an evaluation, and one saves."""
        per_step = work.items_per_step * work.batch_ratio(rate)
        per_epoch = work.items_per_epoch / per_step if work.items_per_epoch else None
        evaluations, saves = (
            count_pauses(work.recipe, name, 0, items / per_step, steps_per_epoch=per_epoch, items_per_step=per_step)
            for name in ("evaluate_every", "checkpoint_every")
        )
        return {
            "start": work.start_s,
            "train": items / (items_per_s * work.train_share),
            "evaluate": (evaluations or 0) * work.evaluation_s * work.devices / devices,
            "checkpoint": (saves or 0) * work.checkpoint_s,
        }

    slow, fast = rate.interval
    middle = parts_s(needed.items, rate.rate or math.sqrt(slow * fast))
    time = ForecastRange(
        value=None if rate.rate is None else sum(middle.values()),
        low=sum(parts_s(needed.fewest, fast).values()),
        high=sum(parts_s(needed.most, slow).values()),
    )
    return TrainingCost(
        items=needed.items,
        time_s=time,
        parts_s=middle,
        energy_kwh=_forecast_energy(work, needed, rate, price, time),
        cost=None if price.device_hour is None else time.scale(devices * price.device_hour / HOUR_S),
    )


def _forecast_energy(
    work: Work, needed: TrainingNeed, rate: RateForecast, price: Price, time: ForecastRange
) -> ForecastRange | None:
    """A waiting device draws between nothing and full power: both ends are the interval."""
    if work.power_w:
        low, high = (rate.topology.devices * watt * price.pue / JOULES_PER_KWH for watt in work.power_w)
        value = None if low < high or time.value is None else time.value * high
        return ForecastRange(value=value, low=time.low * low, high=time.high * high)
    if work.joules_per_item is None or rate.interval is None:
        return None
    working = work.joules_per_item * price.pue / JOULES_PER_KWH
    ideal = (rate.rate or rate.interval[1]) / (rate.efficiency or 1.0)
    high = needed.most * working * max(1.0, ideal / rate.interval[0])
    value = None if rate.rate is None else needed.items * working * (1 + max(1.0, ideal / rate.rate)) / 2
    return ForecastRange(value=value, low=needed.fewest * working, high=max(high, value or 0.0))
