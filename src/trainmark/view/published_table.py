"""Draws published rows as the tables they come from, with their pages below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainmark.analysis.peaks import estimate_mfu
from trainmark.analysis.price_list import PriceList, RowCost
from trainmark.record.format import NOTHING, number
from trainmark.record.published_row import PREFIX, PublishedRow
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table
from trainmark.workloads import quality_word

NOT_PUBLISHED = f"{NOTHING} not published."


def render(
    rows: Sequence[PublishedRow],
    *,
    prices: PriceList | None = None,
    width: int = 100,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """A table for each workload, then the pages the rows were read from."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    sources = list(dict.fromkeys(row.source for row in rows))
    remarks = dict.fromkeys((sources.index(row.source) + 1, row.remark) for row in rows if row.remark)
    for workload in dict.fromkeys(row.workload for row in rows):
        members = [row for row in rows if row.workload == workload]
        writer.put(writer.text(workload, "bold"))
        draw_table(writer, build_table(members, [str(sources.index(row.source) + 1) for row in members], prices))
        writer.put("")
    writer.put(f"{NOT_PUBLISHED} The full name of a row is '{PREFIX}' and the name shown.")
    if prices:
        writer.put(
            "Cost is at the prices of your file: of a million items at p_train, or p_whole or p_core where a page "
            "gives no p_train; to target where the published time ended there. Failed tries are not in it."
        )
    if any((estimate_mfu(row) or 0) > 100 for row in rows):
        writer.put("An mfu above 100 % says that what ran is not what the label says: more than the peak it names.")
    writer.put(*(f"Page {page}: {remark}." for page, remark in remarks))
    writer.put("", writer.text("Pages", "bold"))
    for index, source in enumerate(sources, 1):
        writer.put_unbroken(f"{index:3}  {source.title} ({source.date or 'undated'})")
        writer.put_unbroken(f"     {source.address}")
    return writer.getvalue()


def build_table(rows: Sequence[PublishedRow], pages: Sequence[str] = (), prices: PriceList | None = None) -> TableModel:
    """Rows of one workload; `pages` are the numbers of those they were read from, where these are listed."""
    unit = next((f"{row.item}/s" for row in rows if row.item), "")
    longest = max(len(row.name) for row in rows) - len(PREFIX)
    shown: list[tuple[Column, Callable[[PublishedRow], tuple[str, ...]]]] = [
        (Column(title="name", right=False, label=True, least=longest), lambda row: (row.name.removeprefix(PREFIX),)),
        (Column(title="configuration", right=False, label=True), lambda row: (row.device, row.topology)),
        (Column(title="precision", right=False, label=True), lambda row: (row.precision,)),
        (Column(title="fix_hp", right=False, label=True), _fix_hp),
        (Column(title="e2e_time", unit=("s",)), lambda row: (format_figure(row.e2e_time_s),)),
        (Column(title="p_whole", unit=tuple(unit.split())), lambda row: (format_figure(row.p_whole),)),
        (Column(title="p_train", unit=tuple(unit.split())), lambda row: (format_figure(row.p_train),)),
        (Column(title="p_core", unit=tuple(unit.split())), lambda row: (format_figure(row.p_core),)),
        (Column(title="mfu", unit=("%",), spare=True), lambda row: (format_figure(estimate_mfu(row)),)),
        (Column(title="quality"), _quality),
        (Column(title="mem", unit=("GiB",)), lambda row: (f"{_plain(row.mem_used_gib)}/{_plain(row.mem_total_gib)}",)),
    ]
    if prices:
        costs = {row.name: prices.cost(row) for row in rows}
        shown += [
            (
                Column(title="cost", unit=(*prices.currency.split(), "per", "million")),
                lambda row: _cost(costs[row.name], costs[row.name].per_million),
            ),
            (
                Column(title="cost to target", unit=tuple(prices.currency.split())),
                lambda row: _cost(costs[row.name], costs[row.name].to_target),
            ),
        ]
    if any(row.details for row in rows):
        shown.append((Column(title="also", right=False), _list_details))
    if pages:
        numbers = dict(zip([row.name for row in rows], pages, strict=True))
        shown.append((Column(title="page"), lambda row: (numbers[row.name],)))
    return TableModel(
        columns=[column for column, _ in shown],
        rows=[[Cell(pieces=pieces(row)) for _, pieces in shown] for row in rows],
    )


def _list_details(row: PublishedRow) -> tuple[str, ...]:
    """What the row measured beside the columns, under its page's own words."""
    measured = [detail for detail in row.details if detail.value is not None]
    return tuple(f"{detail.name} {detail.value:.10g}{f' {detail.unit}' if detail.unit else ''}" for detail in measured)


def format_figure(value: float | None) -> str:
    """A published throughput or time, or the sign for what is not published."""
    return NOTHING if value is None else number(value)


def _cost(cost: RowCost, value: float | None) -> tuple[str, ...]:
    return ("no", "price") if cost.device_hour is None else (format_figure(value),)


def _plain(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.1f}" if value >= 1 else f"{value:.3g}"


def _fix_hp(row: PublishedRow) -> tuple[str, ...]:
    return (NOTHING,) if row.fix_hp is None else tuple(row.fix_hp.replace(",", ", ").split())


def _quality(row: PublishedRow) -> tuple[str, ...]:
    """To the digit as published, with the target beside it."""
    if row.quality is None or row.quality_name is None:
        return (NOTHING,)
    unit = " %" if row.quality_unit == "%" else ""
    aim = f"({'≥' if row.better == 'higher' else '≤'} {row.target:g})" if row.target is not None else ""
    return (f"{quality_word(row.quality_name)} {row.quality:g}{unit}", *([aim] if aim else []))
