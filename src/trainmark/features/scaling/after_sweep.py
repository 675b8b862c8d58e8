"""Renders scaling efficiency as tables: of the topologies of a sweep, and of groups of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainmark.analysis.scaling import EXPLAINING, Point, Scaling, compute_scaling
from trainmark.record.format import NOTHING, drop_noisy, number, with_unit
from trainmark.record.language import Say, translator
from trainmark.record.metrics import Quantity
from trainmark.record.record import Record
from trainmark.view.published_table import format_figure
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table, interval_pieces

NAME, ORDER = "scaling", 1


def render(records: Sequence[Record], *, width: int, color: bool, encoding: str) -> str:
    return render_scalings([compute_scaling(records)], width=width, color=color, encoding=encoding)


def render_scalings(found: Sequence[Scaling], *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    """One table per group of like runs, with notes."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    for index, group in enumerate(found):
        facts = (group.workload, group.recipe_name, group.precision, group.device, f"{group.data} data")
        writer.put(*([""] if index else []), writer.text(" · ".join(facts), "bold"))
        draw_table(writer, make_table(group, translator("en")))
        kept = "batch per device" if group.kind == "weak" else "global batch"
        base = group.points[0].topology
        writer.put(f"{group.kind.capitalize()} scaling by {group.metric}: the same {kept}; {base} is the base.")
        if group.notes:
            writer.put("", writer.numbered_list(group.notes))
    return writer.getvalue()


def make_table(group: Scaling, say: Say) -> TableModel:
    unit = tuple(group.points[0].throughput.unit.split())
    shown: list[tuple[Column, Callable[[Point], tuple[str, ...]]]] = [
        (Column(title=say("topology"), right=False, label=True), _topology),
        (Column(title=say("devices")), lambda point: (str(point.topology.devices),)),
        (Column(title=say("global batch")), lambda point: (str(point.global_batch),)),
        (Column(title=group.metric, unit=unit), _throughput),
        (Column(title=say("speed-up")), lambda point: (number(point.speed_up),)),
        (Column(title=say("efficiency"), unit=("95 % interval",)), _efficiency),
    ]
    rows = []
    for point in group.points:
        explaining = [(_quantity(point.explaining.get(alias)),) for alias in EXPLAINING]
        rows.append([Cell(pieces=pieces) for pieces in (*(shows(point) for _, shows in shown), *explaining)])
    return TableModel(columns=[*(column for column, _ in shown), *(Column(title=one) for one in EXPLAINING)], rows=rows)


def _topology(point: Point) -> tuple[str, ...]:
    return (str(point.topology), *([f"({len(point.runs)} runs)"] if len(point.runs) > 1 else []))


def _throughput(point: Point) -> tuple[str, ...]:
    return (format_figure(point.throughput.value), *interval_pieces(point.throughput.interval))


def _efficiency(point: Point) -> tuple[str, ...]:
    value, interval = f"{point.efficiency.value:.3f}", point.efficiency.interval
    if interval is None or drop_noisy(interval) is None:
        return (value, *interval_pieces(interval))
    return (value, f"[{interval[0]:.3f}, {interval[1]:.3f}]")


def _quantity(quantity: Quantity | None) -> str:
    if quantity is None or quantity.value is None:
        return NOTHING
    return with_unit(quantity.value, quantity.unit, 2)
