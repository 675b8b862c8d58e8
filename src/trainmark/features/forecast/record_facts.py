"""Compares a run with the forecast that earlier runs of other sizes allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trainmark.features.forecast import inputs, rates
from trainmark.features.forecast.rates import RateForecast
from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.format import NOTHING, device_name, number
from trainmark.record.index import StoreRow
from trainmark.record.language import Say
from trainmark.record.numbers import Bounds
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.store import Store, read_record
from trainmark.view.terminal import FactSection

MAX_RUNS_PER_SIZE = 8
"""Newest earlier runs read per topology: records are long."""


@dataclass(frozen=True, kw_only=True)
class ForecastOutcome:
    """The result of a run, and its forecast."""

    metric: str
    unit: str
    did: float
    known: tuple[Topology, ...]
    """The sizes the forecast is based on."""
    forecast: RateForecast
    interval: Bounds
    """90 %."""

    @property
    def place(self) -> str:
        low, high = self.interval
        return "below the range" if self.did < low else "above the range" if self.did > high else "inside the range"

    @property
    def off(self) -> float | None:
        """Relative deviation from the forecast; None where only a range was known."""
        return None if self.forecast.rate is None else self.did / self.forecast.rate - 1


def find_outcome(record: Record, earlier: Sequence[Record], metric: str = "p_core") -> ForecastOutcome | None:
    """None where the runs before it allow no forecast of its size."""
    quantity = record.metrics.get(metric)
    alike = [other for other in earlier if _same_but_size(record, other)]
    if record.status != "valid" or quantity is None or quantity.value is None or not alike:
        return None
    try:
        known = inputs.read_records(alike, metric)
        found = rates.forecast(known, Topology.parse(record.plan.topology))
    except UsageError:  # too noisy, contradictory, or unlike in something else
        return None
    if found.interval is None:
        return None
    return ForecastOutcome(
        metric=metric,
        unit=quantity.unit,
        did=quantity.value,
        known=tuple(size.topology for size in known.sizes),
        forecast=found,
        interval=found.interval,
    )


def find_outcomes(records: Iterable[Record], store: Store) -> dict[str, ForecastOutcome]:
    """Outcomes by run id, where earlier runs of the store allow a forecast."""
    records = list(records)
    rows = (
        [row for row in store.rows() if row.status == "valid"]
        if any(record.status == "valid" for record in records)
        else []
    )
    read: dict[str, Record | None] = {}
    found = {}
    for record in records:
        names = [row.run_id for row in _find_candidates(record, rows)]
        for name in names:
            if name not in read:
                read[name] = _read(store, name)
        if outcome := find_outcome(record, [other for name in names if (other := read[name])]):
            found[record.run_id] = outcome
    return found


def _find_candidates(record: Record, rows: Sequence[StoreRow]) -> list[StoreRow]:
    """Earlier runs that may be alike by the index, newest first."""
    plan, count, found = record.plan, dict[str, int](), []
    for row in rows:
        alike = (row.workload, row.recipe, row.precision) == (plan.workload, plan.recipe_name, record.precision)
        if alike and row.topology != plan.topology and row.created < record.created:
            count[row.topology] = count.get(row.topology, 0) + 1
            if count[row.topology] <= MAX_RUNS_PER_SIZE:
                found.append(row)
    return found


def _same_but_size(record: Record, other: Record) -> bool:
    size = record.plan.topology
    return (
        other.status == "valid"
        and other.created < record.created
        and other.plan.topology != size
        and replace(other.plan, topology=size).fingerprint == record.plan.fingerprint
        and device_name(other) == device_name(record)
    )


def _read(store: Store, run_id: str) -> Record | None:
    try:
        return read_record(store.path(run_id))
    except TrainmarkError:  # damaged or removed since the index was made
        return None


def sections(records: Sequence[Record], store: Store, say: Say) -> dict[str, FactSection]:
    """Sections by run id, where there is a forecast."""
    return {run_id: _section(found, say) for run_id, found in find_outcomes(records, store).items()}


def _section(found: ForecastOutcome, say: Say) -> FactSection:
    places = {
        "inside the range": say("inside the range"),
        "below the range": say("below the range"),
        "above the range": say("above the range"),
    }
    low, high = (number(end) for end in found.interval)
    middle = NOTHING if found.forecast.rate is None else number(found.forecast.rate)
    off = "" if found.off is None else f"{100 * found.off:+.1f} %"
    return FactSection(
        title=say("Forecast and outcome"),
        remark=say("as earlier runs of {sizes} would have forecast").format(
            sizes=", ".join(str(size) for size in found.known)
        ),
        heads=(found.metric, say("outcome"), say("forecast"), say("90 % range"), say("from its middle"), say("place")),
        rows=[(found.unit, number(found.did), middle, f"{low} – {high}", off, places[found.place])],
        left=frozenset({0, 5}),
    )
