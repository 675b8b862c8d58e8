"""What two results can be compared by: metrics and quality, with the direction that is better; and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainmark.record import metrics
from trainmark.record.errors import UsageError, nearest
from trainmark.record.machine import Sensed
from trainmark.record.metrics import THROUGHPUTS, Better
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.site import Price
from trainmark.record.store import Subject
from trainmark.workloads import quality_word

IN_ROWS = {"e2e_time": "e2e_time_s", "mem": "mem_used_gib", **{alias: alias for alias in THROUGHPUTS}}
"""Where a published row keeps what a record calls by these words."""


PREDICTED = ("predicted_mos", "wer")
"""Scores of speech by networks of others, which stand in a sample's document."""
OPINION = "MOS"
"""What published pages call the mean of listeners' opinions."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One number that both sides have."""

    name: str
    """The word the tables use."""
    better: Better
    metric: metrics.Metric | None = None
    """Its definition; None where it is the quality that the runs were trained for."""

    @property
    def is_quality(self) -> bool:
        return self.metric is None

    @property
    def words(self) -> tuple[str, str]:
        """What B is called if it is better than A, and if it is worse."""
        return ("faster", "slower") if self.metric and self.metric.is_rate else ("better", "worse")

    @property
    def same_at_any_length(self) -> bool:
        return self.metric is not None and self.metric.any_length


def find_compared(word: str, sides: Sequence[Subject]) -> Compared:
    """What is meant by the name of a metric, or of the quality that the runs were trained for."""
    if word in PREDICTED:
        raise UsageError(
            f"{word} is what a network makes of speech and no listening test, so it is compared with no run and no "
            "published MOS; `trainmark sample RUN --score` holds it against recordings of the same sentences"
        )
    for side in sides:
        quality = _quality_of(side)
        if quality and word in ("quality", quality[0], quality_word(quality[0])):
            return Compared(name=quality_word(quality[0]), better=quality[1])
    entries = (*metrics.METRICS.values(), *metrics.PRICED.values())
    names = [name for entry in entries for name in (entry.alias, entry.name)]
    if word not in names:
        if any(word in record.metrics for side in sides for record in side.records):
            raise UsageError(
                f"metric {word!r} is on the record and this version of trainmark does not know whether more or less of "
                "it is better; compare with the version that measured it"
            )
        raise UsageError(f"metric {word!r} is not known; {nearest(word, [*names, 'quality'])}")
    metric = metrics.find_metric(word)
    if metric.better is None:
        raise UsageError(f"metric {word!r} is a fact and not a result; compare by p_core, mem or another")
    return Compared(name=metric.alias, better=metric.better, metric=metric)


def value_of_record(record: Record, compared: Compared) -> tuple[float, str]:
    """The value and its unit; a sentence where there is none that a ratio can be made of."""
    if compared.is_quality:
        quality = record.quality
        value, unit, reason = quality.value, quality.unit, "the model was not evaluated"
        if quality_word(quality.name) != compared.name:
            value, reason = None, f"its quality is {quality_word(quality.name)}"
            if OPINION in compared.name.upper():
                reason += ", and no listener has heard it; a predicted MOS is not one"
    else:
        found = record.metrics.get(compared.name)
        value, unit = (found.value, found.unit) if found else (None, "")
        unpriced = metrics.NO_PRICE if compared.name in metrics.PRICED else "it is not on the record"
        reason = (found.unavailable if found else None) or unpriced
    if value is None:
        raise UsageError(f"run {record.run_id} has no {compared.name}: {reason}; choose another run or --metric")
    return _require_positive(value, f"run {record.run_id}", compared), unit


def value_of_row(row: PublishedRow, compared: Compared) -> tuple[float, str]:
    """The same of a published row."""
    if compared.metric is None:
        same = row.quality_name is not None and quality_word(row.quality_name) == compared.name
        value, unit = (row.quality, row.quality_unit or "") if same else (None, "")
    else:
        value = getattr(row, IN_ROWS[compared.name]) if compared.name in IN_ROWS else None
        unit = compared.metric.unit.format(item=row.item)
    if value is None:
        there = [alias for alias, field in IN_ROWS.items() if getattr(row, field) is not None]
        raise UsageError(
            f"{row.name} has no {compared.name}: not published; its page gives {', '.join(there) or 'no metric'}, "
            "choose one with --metric"
        )
    return _require_positive(value, row.name, compared), unit


def _require_positive(value: float, whose: str, compared: Compared) -> float:
    if not 0 < value < float("inf"):
        raise UsageError(f"{whose} has a {compared.name} of {value:g}, and no ratio can be made of that; try --metric")
    return value


def _quality_of(side: Subject) -> tuple[str, Better] | None:
    if side.row is not None:
        name, better = side.row.quality_name, side.row.better
    else:
        name, better = side.records[0].quality.name, side.records[0].quality.better
    return (name, "lower" if better == "lower" else "higher") if name else None


def add_cost(record: Record, price: Price) -> Record:
    """The record with kWh where energy was measured, and cost where there is a price; for views only."""
    energy = record.metrics.get("energy")
    reasons = {"energy_j": energy.unavailable} if energy and energy.unavailable else {}
    sensed = Sensed(energy_j=energy.value if energy else None, reasons=reasons)
    found = metrics.measure_priced(
        metrics.Measured(item=record.item, timeline=record.timeline, sensed=sensed, price=price)
    )
    if record.status == "invalid":
        found = metrics.withhold(found)
    asked = price.device_hour is not None
    shown = {alias: quantity for alias, quantity in found.items() if quantity.value is not None or asked}
    return replace(record, metrics={**record.metrics, **shown})
