"""Collects what a forecast rests on: sizes of one training that differ in nothing but their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainmark.analysis import scaling
from trainmark.analysis.scaling_published import PublishedScaling
from trainmark.features.forecast import scaling_law
from trainmark.features.forecast.exchange import ExchangeModel, fit_exchange, links_of
from trainmark.features.forecast.scaling_law import Size
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name, number
from trainmark.record.intervals import CONFIDENCE, half_width, quantile, share
from trainmark.record.metrics import Quantity
from trainmark.record.plan import Topology
from trainmark.record.record import Record

MAX_NOISE = 0.05
"""Half of an interval, as a share, beyond which a run carries no forecast."""
MAX_LINK_CHANGE = 3.0
"""Times that links may carry more in one run than in another before they are taken for other links."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Sizes of one training, smallest first, and what was left out of them."""

    subject: tuple[str, ...]
    """Workload, device, precision and the like, for a heading."""
    metric: str
    unit: str
    batch_per_device: int | None
    sizes: tuple[Size, ...]
    exchange: ExchangeModel | None = None
    """None where no run of several ranks measured it."""
    notes: tuple[str, ...] = ()

    @property
    def one_device(self) -> bool:
        """Nothing is known of any link."""
        return self.largest.topology.devices == 1

    @property
    def several(self) -> bool:
        return len({size.topology.devices for size in self.sizes}) > 1

    @property
    def largest(self) -> Size:
        return self.sizes[-1]


def of_records(records: Sequence[Record], metric: str = "p_core") -> Known:
    """Runs that are alike; UsageError says which are not, and what is too noisy to go by."""
    alias = scaling.find_throughput(metric)
    if len({scaling.batch_shape(record) for record in records}) > 1:
        raise UsageError("these runs differ in their batch; a forecast needs runs of one batch_per_device")
    _check_links(records)
    points = scaling.points_by_topology(records, alias)
    first = records[0]
    by_size = sorted(records, key=lambda record: Topology.parse(record.plan.topology).devices, reverse=True)
    return _leave_out_contradictions(
        Known(
            subject=(first.plan.workload, first.plan.recipe_name, first.precision, device_name(first)),
            metric=alias,
            unit=points[0].throughput.unit,
            batch_per_device=int(first.plan.recipe["batch_per_device"]),
            sizes=tuple(
                Size(topology=point.topology, rate=point.throughput.value or 0.0, error=_error(point.throughput))
                for point in points
            ),
            exchange=next(filter(None, map(fit_exchange, by_size)), None),
        )
    )


def of_published(group: PublishedScaling, metric: str, below: int) -> Known | None:
    """The rows of a page that have fewer devices than requested; None where none has."""
    rows = [(Topology.parse(point.row.topology), getattr(point.row, metric)) for point in group.points]
    sizes = tuple(Size(topology=topology, rate=rate) for topology, rate in rows if rate and topology.devices < below)
    if not sizes:
        return None
    base = group.base
    return _leave_out_contradictions(
        Known(
            subject=(base.workload, base.device, f"labelled {base.precision}", base.source.title),
            metric=metric,
            unit=f"{base.item}/s" if base.item else "",
            batch_per_device=base.batch_per_device,
            sizes=sizes,
        )
    )


def _check_links(records: Sequence[Record]) -> None:
    """Raises UsageError where the same links carried much less in one run than in another."""
    seen: dict[tuple[str, str, int], tuple[Record, float]] = {}
    where = {"node": "inside a node", "nodes": "between nodes"}
    for record in records:
        for (level, collective), link in links_of(record).items():
            before, speed = seen.setdefault((level, collective, link.ranks), (record, link.bytes_per_s))
            if max(speed, link.bytes_per_s) > MAX_LINK_CHANGE * min(speed, link.bytes_per_s):
                raise UsageError(
                    f"the links changed between runs {before.run_id} and {record.run_id}: {collective} {where[level]} "
                    f"carried {number(speed / 1e9)} and {number(link.bytes_per_s / 1e9)} GB/s; "
                    "forecast from runs over the same links"
                )


def _leave_out_contradictions(known: Known) -> Known:
    """Without sizes that no cluster's scaling explains: those nearer to the requested sizes are kept."""
    left_out, notes = [], []
    explained = known.exchange.log_kept if known.exchange else scaling_law.explain_nothing
    for small, large in scaling_law.find_contradictions(known.sizes, explained=explained):
        left_out.append(small)
        kept = large.rate / small.rate / (large.topology.devices / small.topology.devices)
        usual = 1 + scaling_law.USUAL_LOSS
        notes.append(
            f"{small.topology} is not believed: a device of {large.topology} does {kept:.2f} of what one does there, "
            f"where published clusters keep {usual:.2f} per doubling; the two hardly measured the same"
        )
    return replace(known, sizes=tuple(size for size in known.sizes if size not in left_out), notes=tuple(notes))


def _error(quantity: Quantity) -> float:
    """Of one run's interval; a run without one is taken to be as exact as runs are."""
    if quantity.interval is None:
        return scaling_law.RUN_ERROR
    if share(quantity.interval) > MAX_NOISE:
        width = f"±{100 * share(quantity.interval):.0f} %"
        raise UsageError(
            f"a run is known to {width} only, and a forecast would carry that on; more steps, repeats or a quieter "
            "machine would help"
        )
    return max(half_width(quantity.interval) / quantile(0.5 + CONFIDENCE / 2, 1e6), scaling_law.RUN_ERROR)
