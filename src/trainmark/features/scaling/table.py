"""Renders scaling efficiency: one table per group of runs or of published rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainmark.analysis.scaling import EXPLAINING, Point, PublishedPoint, PublishedScaling, Scaling
from trainmark.record.format import NOTHING, drop_noisy, number, with_unit
from trainmark.record.metrics import THROUGHPUTS
from trainmark.view.published_table import NOT_PUBLISHED, format_figure
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table, interval_pieces


def render(found: Sequence[Scaling], *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    """One table per group of like runs, with notes."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    for index, group in enumerate(found):
        facts = (group.workload, group.recipe_name, group.precision, group.device, f"{group.data} data")
        writer.put(*([""] if index else []), writer.text(" · ".join(facts), "bold"))
        draw_table(writer, _table_model(group))
        kept = "batch per device" if group.kind == "weak" else "global batch"
        base = group.points[0].topology
        writer.put(f"{group.kind.capitalize()} scaling by {group.metric}: the same {kept}; {base} is the base.")
        if group.notes:
            writer.put("", writer.numbered_list(group.notes))
    return writer.getvalue()


def render_published(
    found: Sequence[PublishedScaling],
    *,
    metric: str | None = None,
    width: int = 100,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """One table per group of published rows, by every throughput or one of them."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    for group in found:
        base = group.base
        batch = "batch not published" if base.batch_per_device is None else f"batch {base.batch_per_device} per device"
        facts = (base.workload, base.device, f"labelled {base.precision}", batch)
        writer.put(writer.text(" · ".join(facts), "bold"))
        draw_table(writer, _published_table_model(group, THROUGHPUTS if metric is None else (metric,)))
        writer.put_unbroken(f"{base.source.title} ({base.source.date or 'undated'}): {base.source.address}")
        if group.notes:
            writer.put("", writer.numbered_list(group.notes))
        writer.put("")
    writer.put(f"{NOT_PUBLISHED} Published rows have no intervals, so none can be given here.")
    return writer.getvalue()


def _table_model(group: Scaling) -> TableModel:
    unit = tuple(group.points[0].throughput.unit.split())
    shown: list[tuple[Column, Callable[[Point], tuple[str, ...]]]] = [
        (Column(title="topology", right=False, label=True), _topology),
        (Column(title="devices"), lambda point: (str(point.topology.devices),)),
        (Column(title="global", unit=("batch",)), lambda point: (str(point.global_batch),)),
        (Column(title=group.metric, unit=unit), _throughput),
        (Column(title="speed-up"), lambda point: (number(point.speed_up),)),
        (Column(title="efficiency", unit=("95 % interval",)), _efficiency),
        *((Column(title=alias), _explaining(alias)) for alias in EXPLAINING),
    ]
    return TableModel(
        columns=[column for column, _ in shown],
        rows=[[Cell(pieces=pieces(point)) for _, pieces in shown] for point in group.points],
    )


def _topology(point: Point) -> tuple[str, ...]:
    return (str(point.topology), *([f"({len(point.runs)} runs)"] if len(point.runs) > 1 else []))


def _throughput(point: Point) -> tuple[str, ...]:
    return (format_figure(point.throughput.value), *interval_pieces(point.throughput.interval))


def _efficiency(point: Point) -> tuple[str, ...]:
    value = f"{point.efficiency.value:.3f}"
    if point.efficiency.interval is None:
        return (value,)
    if drop_noisy(point.efficiency.interval) is None:
        return (value, *interval_pieces(point.efficiency.interval))
    low, high = point.efficiency.interval
    return (value, f"[{low:.3f}, {high:.3f}]")


def _explaining(alias: str) -> Callable[[Point], tuple[str, ...]]:
    def pieces(point: Point) -> tuple[str, ...]:
        quantity = point.explaining.get(alias)
        if quantity is None or quantity.value is None:
            return (NOTHING,)
        return (with_unit(quantity.value, quantity.unit, 2),)

    return pieces


def _published_table_model(group: PublishedScaling, aliases: Sequence[str]) -> TableModel:
    unit = tuple(f"{group.base.item}/s".split()) if group.base.item else ()
    return TableModel(
        columns=[
            Column(title="topology", right=False, label=True),
            Column(title="devices"),
            *(Column(title=alias, unit=unit) for alias in aliases),
            *(Column(title="efficiency", unit=(f"by {alias}",)) for alias in aliases),
        ],
        rows=[[Cell(pieces=(text,)) for text in _published_row(point, aliases)] for point in group.points],
    )


def _published_row(point: PublishedPoint, aliases: Sequence[str]) -> list[str]:
    return [
        point.row.topology,
        str(point.devices),
        *(format_figure(getattr(point.row, alias)) for alias in aliases),
        *(NOTHING if value is None else f"{value:.3f}" for value in (point.efficiency[alias] for alias in aliases)),
    ]
