"""Shows results of checks in a terminal and as JSON."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trainmark.cli.terminal import open_console, screen_options
from trainmark.record.checks import VERDICTS, CheckResult, format_count
from trainmark.record.language import ENGLISH
from trainmark.view import facts
from trainmark.view.terminal import TerminalWriter

STYLES = {"ok": "green", "doubt": "bold yellow", "failed": "bold red", "unknown": "cyan"}
_INDENT = 2
_VERDICT_COLUMNS = max(map(len, STYLES))


def summarize(results: Sequence[CheckResult]) -> str:
    """`ready; 2 doubts, 1 unknown`."""
    numbers = {verdict: sum(result.verdict == verdict for result in results) for verdict in VERDICTS}
    parts = [f"{numbers['failed']} failed"] if numbers["failed"] else []
    parts += [format_count(numbers["doubt"], "doubt")] if numbers["doubt"] else []
    parts += [f"{numbers['unknown']} unknown"] if numbers["unknown"] else []
    return "; ".join(filter(None, ("not ready" if numbers["failed"] else "ready", ", ".join(parts))))


def make_document(result: CheckResult) -> dict[str, Any]:
    """Measured links are top-level keys, where the doctor of another machine reads them."""
    facts = dict(result.facts)
    measured = {name: facts.pop(name, []) for name in ("results", "pairs", "hosts")}
    keys = ("name", "group", "verdict", "sentence", "remedy", "exit_code")
    return {**{key: getattr(result, key) for key in keys}, "facts": facts, **msgspec.to_builtins(measured)}


def dump(document: Mapping[str, Any]) -> None:
    json.dump(document, sys.stdout, ensure_ascii=False)
    print()


def make_writer() -> TerminalWriter:
    return TerminalWriter(**screen_options(open_console()))


def render_machine(writer: TerminalWriter, results: Sequence[CheckResult], summary: str) -> str:
    """Every result in a line or two, below the heading of its group; the summary comes last."""
    names = max((writer.length(result.name) for result in results), default=0)
    for group, members in itertools.groupby(results, key=lambda result: result.group):
        writer.put(writer.text(group, "bold"))
        for result in members:
            put_result(writer, result, names)
        writer.put("")
    worst = next((word for word in ("failed", "doubt") if any(one.verdict == word for one in results)), "ok")
    writer.put(writer.text(summary, "bold green" if worst == "ok" else STYLES[worst]))
    return writer.getvalue()


def put_result(writer: TerminalWriter, result: CheckResult, name_columns: int) -> None:
    """One result in a line or two."""
    row = writer.table(heads=False)
    row.add_column(width=_VERDICT_COLUMNS)
    row.add_column(width=name_columns, overflow="fold")
    row.add_column(overflow="fold")
    row.add_row(
        writer.text(result.verdict, STYLES[result.verdict]), writer.text(result.name), writer.text(result.sentence)
    )
    writer.put(row, indent=_INDENT)
    if result.remedy:
        line, column = f"→ {result.remedy}", _INDENT + _VERDICT_COLUMNS + name_columns + 4
        if column + writer.length(line) <= writer.width:
            writer.put(writer.text(line, "bold"), indent=column)
        else:  # a line to paste must not be broken: the terminal folds it without a newline
            writer.put_unbroken(f"{' ' * _INDENT}{line}")


def render_links(writer: TerminalWriter, results: Sequence[CheckResult]) -> str:
    for result in results:
        writer.put(writer.text(f"{result.name}: {result.verdict}", f"bold {STYLES[result.verdict]}"))
        writer.put(*filter(None, (result.sentence, result.remedy)), indent=_INDENT)
        for name, make_table in (("results", facts.link_table), ("pairs", facts.pair_table)):
            if measured := result.facts.get(name):
                table = make_table(measured, ENGLISH)
                writer.put("", writer.grid(table.heads, table.rows), indent=_INDENT)
    return writer.getvalue()
