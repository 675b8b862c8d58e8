"""Gathers what a forecast may go by: sizes of one training that differ in nothing but their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainmark.analysis import scaling
from trainmark.analysis.forecast import law
from trainmark.analysis.forecast.computing import BatchLine, batch_line
from trainmark.analysis.forecast.exchange import links_of
from trainmark.analysis.forecast.law import Size
from trainmark.analysis.forecast.physics import StepModel, step_model
from trainmark.analysis.scaling_published import PublishedScaling
from trainmark.spec.errors import UsageError
from trainmark.spec.format import device_name, number
from trainmark.spec.intervals import CONFIDENCE, half_width, quantile, share
from trainmark.spec.metrics import Quantity
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology

NOISY = 0.05
"""Half of an interval, as a share, beyond which a run carries no forecast."""
LINKS_CHANGED = 3.0
"""Times that links may carry more in one run than in another before they are taken for other links."""

Basis = Literal["one device", "one node", "several sizes"]


@dataclass(frozen=True, kw_only=True)
class Known:
    """Sizes of one training, smallest first, and what was left out of them."""

    subject: tuple[str, ...]
    """Workload, device, precision and the like, for a heading."""
    metric: str
    unit: str
    batch_per_device: int | None
    sizes: tuple[Size, ...]
    line: BatchLine | None = None
    """What other batches would take; None where no batch is known."""
    model: StepModel | None = None
    """What a step is made of; None where no run of several ranks measured it."""
    notes: tuple[str, ...] = ()

    @property
    def basis(self) -> Basis:
        """How much is known: nothing of any link, what a node's links cost, or what the next size cost."""
        if len({size.topology.devices for size in self.sizes}) > 1:
            return "several sizes"
        return "one device" if self.sizes[0].topology.devices == 1 else "one node"

    @property
    def several(self) -> bool:
        return self.basis == "several sizes"

    @property
    def largest(self) -> Size:
        return self.sizes[-1]


def of_records(records: Sequence[Record], metric: str = "p_core") -> Known:
    """Runs that are alike; UsageError says which are not, and what is too noisy to go by.

    Runs of another batch than that of the largest size say how a step depends on it.
    """
    alias = scaling.throughput_alias(metric)
    records, others = _by_batch(records)
    _check_links(records)
    first = records[0]
    batch = int(first.plan.recipe["batch_per_device"])
    if len({record.plan.topology for record in records}) > 1:
        found = scaling.scaling(records, metric)
        throughputs = [(point.topology, point.throughput) for point in found.points]
    else:
        if first.status != "valid":
            raise UsageError(f"run {first.run_id} is {first.status} ({first.ended}); a forecast needs valid runs")
        throughputs = [
            (Topology.parse(first.plan.topology), scaling.pooled([_quantity(record, alias) for record in records]))
        ]
    sizes = [
        Size(topology=topology, rate=_rate(quantity), error=_error(quantity)) for topology, quantity in throughputs
    ]
    return _believed(
        Known(
            subject=(first.plan.workload, first.plan.recipe_name, first.precision, device_name(first)),
            metric=alias,
            unit=throughputs[0][1].unit,
            batch_per_device=batch,
            sizes=tuple(sizes),
            line=batch_line(batch, records, others),
            model=next(filter(None, map(step_model, sorted(records, key=_devices, reverse=True))), None),
        )
    )


def _by_batch(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Those of the largest size's batch, and those of other batches at sizes that are known with that one, too."""
    batches = {record.run_id: scaling.shared_out(record) for record in records}
    largest = max(records, key=_devices)
    main = [record for record in records if batches[record.run_id] == batches[largest.run_id]]
    others = [record for record in records if record not in main]
    for other in others:
        if said := scaling.unlike(main[0], other):
            raise UsageError(
                f"runs {main[0].run_id} and {other.run_id} are not alike: {said}; only topology and batch may differ"
            )
        if other.status != "valid":
            raise UsageError(f"run {other.run_id} is {other.status} ({other.ended}); a forecast needs valid runs")
    if any(other.plan.topology not in {record.plan.topology for record in main} for other in others):
        raise UsageError(
            "these runs differ in batch and devices together, so that neither can be told from the other; a forecast "
            "needs runs of one batch_per_device, and other batches at a size that was run with it"
        )
    return main, others


def _check_links(records: Sequence[Record]) -> None:
    """Raises UsageError where the same links carried much less in one run than in another."""
    seen: dict[tuple[str, str, int], tuple[Record, float]] = {}
    where = {"node": "inside a node", "nodes": "between nodes"}
    for record in records:
        for (level, collective), link in links_of(record).items():
            before, speed = seen.setdefault((level, collective, link.ranks), (record, link.bytes_per_s))
            if max(speed, link.bytes_per_s) > LINKS_CHANGED * min(speed, link.bytes_per_s):
                raise UsageError(
                    f"the links changed between runs {before.run_id} and {record.run_id}: {collective} {where[level]} "
                    f"carried {number(speed / 1e9)} and {number(link.bytes_per_s / 1e9)} GB/s; "
                    "forecast from runs over the same links"
                )


def _devices(record: Record) -> int:
    return Topology.parse(record.plan.topology).devices


def of_published(group: PublishedScaling, metric: str, below: int) -> Known | None:
    """The rows of a page that have fewer devices than asked for; None where none has."""
    rows = [(Topology.parse(point.row.topology), getattr(point.row, metric)) for point in group.points]
    sizes = [
        Size(topology=topology, rate=rate, error=law.RUN_ERROR)
        for topology, rate in rows
        if rate and topology.devices < below
    ]
    if not sizes:
        return None
    return _believed(
        Known(
            subject=(group.workload, group.device, f"labelled {group.precision}", group.source.title),
            metric=metric,
            unit=f"{group.item}/s" if group.item else "",
            batch_per_device=group.batch_per_device,
            sizes=tuple(sizes),
            line=batch_line(group.batch_per_device, [], []) if group.batch_per_device else None,
        )
    )


def _believed(known: Known) -> Known:
    """Without sizes that no cluster's scaling explains: what lies nearer to the sizes asked for is kept."""
    left_out, notes = [], []
    explained = known.model.log_kept if known.model else lambda size: 0.0
    for small, large in law.contradictory(known.sizes, explained=explained):
        left_out.append(small)
        kept = large.rate / small.rate / (large.topology.devices / small.topology.devices)
        usual = 1 + law.USUAL_LOSS
        notes.append(
            f"{small.topology} is not believed: a device of {large.topology} does {kept:.2f} of what one does there, "
            f"where published clusters keep {usual:.2f} a doubling; the two hardly measured the same"
        )
    sizes = tuple(size for size in known.sizes if size not in left_out)
    return replace(known, sizes=sizes, notes=tuple(notes))


def _quantity(record: Record, alias: str) -> Quantity:
    quantity = record.metrics.get(alias)
    if quantity is None or quantity.value is None:
        reason = (quantity.unavailable if quantity else None) or "it is not on the record"
        raise UsageError(f"run {record.run_id} has no {alias}: {reason}; a forecast needs it")
    return quantity


def _rate(quantity: Quantity) -> float:
    if not quantity.value or quantity.value <= 0:
        raise UsageError(f"a throughput of {quantity.value} {quantity.unit} carries no forecast")
    return quantity.value


def _error(quantity: Quantity) -> float:
    """Of one run's interval; a run without one is taken to be as exact as runs are."""
    if quantity.interval is None:
        return law.RUN_ERROR
    if share(quantity.interval) > NOISY:
        width = f"±{100 * share(quantity.interval):.0f} %"
        raise UsageError(
            f"a run is known to {width} only, and a forecast would carry that on; more steps, repeats or a quieter "
            "machine would help"
        )
    return max(half_width(quantity.interval) / quantile(0.5 + CONFIDENCE / 2, 1e6), law.RUN_ERROR)
