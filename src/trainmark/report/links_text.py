"""Draws what the links between ranks carry: a table by message size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmark.spec.format import number
from trainmark.spec.links import AllReduce, size

if TYPE_CHECKING:
    from rich.table import Table

    from trainmark.report.terminal import TerminalWriter


def table(writer: TerminalWriter, measured: Sequence[AllReduce]) -> Table:
    drawn = writer.table()
    for head in ("message", "median ms", "bus GB/s"):
        drawn.add_column(writer.text(head), justify="right", no_wrap=True)
    for row in measured:
        cells = (size(row.size_bytes), number(row.median_s * 1e3), number(row.bus_gigabytes_per_s))
        drawn.add_row(*(writer.text(cell) for cell in cells))
    return drawn
