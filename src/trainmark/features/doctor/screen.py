"""How the doctor's findings are drawn: a machine on one screen, or the links between its ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from trainmark.record import escape
from trainmark.record.checks import CheckResult
from trainmark.record.language import ENGLISH
from trainmark.view import facts
from trainmark.view.terminal import TerminalWriter

STYLES = {"ok": "green", "doubt": "bold yellow", "failed": "bold red", "unknown": "cyan"}

_INDENT = 2
_VERDICT_COLUMNS = max(map(len, STYLES))
_BAR_COLUMNS = 20


def machine(writer: TerminalWriter, results: Sequence[CheckResult], summary: str) -> str:
    """Every result in a line or two, below the heading of its group; the summary comes last, where eyes are."""
    names = max((writer.length(result.name) for result in results), default=0)
    for group, members in itertools.groupby(results, key=lambda result: result.group):
        writer.put(writer.text(group, "bold"))
        for result in members:
            _draw(writer, result, names)
        writer.put("")
    worst = next((word for word in ("failed", "doubt") if any(one.verdict == word for one in results)), "ok")
    writer.put(writer.text(summary, "bold green" if worst == "ok" else STYLES[worst]))
    return writer.getvalue()


def links_screen(writer: TerminalWriter, results: Sequence[CheckResult]) -> str:
    for result in results:
        writer.put(writer.text(f"{result.name}: {result.verdict}", f"bold {STYLES[result.verdict]}"))
        writer.put(*filter(None, (result.sentence, result.remedy)), indent=_INDENT)
        if measured := result.facts.get("results"):
            writer.put("")
            table = facts.link_table(measured, ENGLISH)
            writer.put(writer.grid(table.heads, table.rows), indent=_INDENT)
        if pairs := result.facts.get("pairs"):
            table = facts.pair_table(pairs, ENGLISH)
            writer.put("", writer.grid(table.heads, table.rows), indent=_INDENT)
    return writer.getvalue()


def _draw(writer: TerminalWriter, result: CheckResult, name_columns: int) -> None:
    row = writer.table(heads=False)
    row.add_column(width=_VERDICT_COLUMNS)
    row.add_column(width=name_columns)
    row.add_column(overflow="fold")
    row.add_row(
        writer.text(result.verdict, STYLES[result.verdict]), writer.text(result.name), writer.text(result.sentence)
    )
    writer.put(row, indent=_INDENT)
    text_column = _INDENT + _VERDICT_COLUMNS + name_columns + 4
    if (share := result.facts.get("share_of_peak")) is not None:
        writer.put(writer.text(_bar(writer, share), STYLES[result.verdict]), indent=text_column)
    if result.remedy:
        _draw_remedy(writer, result.remedy, text_column)


def _draw_remedy(writer: TerminalWriter, remedy: str, column: int) -> None:
    line = f"→ {remedy}"
    if column + writer.length(line) <= writer.width:
        writer.put(writer.text(line, "bold"), indent=column)
    else:  # a line that is to be pasted must not be broken by us; the terminal folds it without a line's end
        writer.put_unbroken(f"{' ' * _INDENT}{line}")


def _bar(writer: TerminalWriter, share: float) -> str:
    full, empty = ("█", "░") if escape.can_encode(writer.encoding, "█░") else ("#", ".")
    filled = round(_BAR_COLUMNS * min(1.0, max(0.0, share)))
    return full * filled + empty * (_BAR_COLUMNS - filled)
