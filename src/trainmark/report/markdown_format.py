"""The report as Markdown: the table of the runs, published rows below it, and what to doubt."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.report import table
from trainmark.report.published_table import NOT_PUBLISHED, figure
from trainmark.spec import escape
from trainmark.spec.format import NOTHING, quality_word
from trainmark.spec.published_row import PREFIX, PublishedRow, mfu
from trainmark.spec.record import Record

HEADS = (
    "published row", "configuration", "precision", "fix_hp", "e2e_time (s)", "p_whole", "p_train", "p_core", "mfu (%)",
    "quality", "mem (GiB)",
)  # fmt: skip
NUMERIC = 4
"""The first column of numbers."""


def render(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    blocks = [table.markdown(records)] if records else []
    if rows:
        sides = ["---" if index < NUMERIC else "---:" for index in range(len(HEADS))]
        lines = [_line(HEADS), "| " + " | ".join(sides) + " |", *(_line(_cells(row)) for row in rows)]
        units = ", ".join(dict.fromkeys(f"{row.item}/s" for row in rows if row.item))
        blocks.append("\n".join(lines) + f"\n\n{NOT_PUBLISHED} Throughputs in {escape.markdown_cell(units)}.\n")
    return "\n".join(blocks)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape.markdown_cell(cell) for cell in cells) + " |"


def _cells(row: PublishedRow) -> list[str]:
    quality = NOTHING if row.quality is None else f"{quality_word(row.quality_name or '')} {row.quality:g}".strip()
    return [
        row.name.removeprefix(PREFIX),
        f"{row.device} {row.topology}",
        row.precision,
        row.fix_hp or NOTHING,
        *(figure(value) for value in (row.e2e_time_s, row.p_whole, row.p_train, row.p_core, mfu(row))),
        quality,
        f"{figure(row.mem_used_gib)}/{figure(row.mem_total_gib)}",
    ]
