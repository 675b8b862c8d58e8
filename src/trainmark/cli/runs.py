"""`trainmark runs`: what the store holds, newest first."""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.liveness import is_running, read_run_folder
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.record import escape
from trainmark.record.errors import UsageError
from trainmark.record.format import NOTHING, number, short_device, with_unit
from trainmark.record.index import RunFilter, StoreRow, format_tags, parse_tags, sort_newest_first
from trainmark.record.numbers import parse_seconds
from trainmark.record.store import Store, default_folder
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, plain_table
from trainmark.workloads import quality_word

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_RECORD = "no record"
NAME = "runs"
GROUP = "Read"
HELP = "List the runs in the store, newest first."
EXAMPLES = """\
  trainmark runs                          the newest 20 runs
  trainmark runs --workload resnet50 --limit 5
  trainmark runs --since 2d --tag driver=550.54
  trainmark runs --json                   for programs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--workload", metavar="W", help="only runs of this workload")
    parser.add_argument("--since", metavar="WHEN", help="only runs since a date (UTC), or so long ago: 2d, 36h")
    parser.add_argument("--group", metavar="G", help="only repeats of this group, by its id or how that begins")
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="key=value",
        dest="tags",
        help="only runs with this tag; of several, runs with all of them",
    )
    parser.add_argument(
        "--limit", type=_parse_count, default=20, metavar="N", help="at most N runs, 0 for all (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    wanted = _parse_filter(args)
    contents = store.contents(wanted, limit=args.limit or None)
    shown = [
        _update_status(row, store)
        for row in sort_newest_first([*contents.rows, *contents.unrecorded])[: args.limit or None]
    ]
    count = contents.count + len(contents.unrecorded)

    screen = open_console()
    if args.json:
        damaged = [{"file": str(entry.path), "reason": entry.reason} for entry in contents.damaged]
        document = {"store": str(store.folder), "runs": [row._asdict() for row in shown], "damaged": damaged}
        screen.file.write(json.dumps(document, indent=2) + "\n")
    elif shown:
        writer = TerminalWriter(**screen_options(screen))
        _draw_runs(writer, shown, contents.names)
        screen.file.write(writer.getvalue())

    for entry in contents.damaged:
        print_status(str(entry))
    if count > len(shown):
        print_status(f"{count - len(shown)} older runs are not shown; --limit 0 shows all")
    elif not count:
        print_status(_explain_none(store, wanted))
    if any(row.status == NO_RECORD for row in shown):
        where = escape.terminal(str(store.runs))
        print_status(f"'{NO_RECORD}': the run ended before a record could be written; see {where}")
    return 0


def _update_status(row: StoreRow, store: Store) -> StoreRow:
    """A run that left no record may still be running."""
    if row.status != NO_RECORD:
        return row
    return row._replace(status="running") if is_running(read_run_folder(store.runs / row.run_id)) else row


def _parse_filter(args: argparse.Namespace) -> RunFilter:
    now = datetime.now(timezone.utc)
    return RunFilter(
        workload=args.workload,
        group=args.group,
        tags=format_tags(parse_tags(args.tags)),
        since=parse_since(args.since, option="--since", now=now) if args.since is not None else None,
    )


def _explain_none(store: Store, wanted: RunFilter) -> str:
    contents = store.contents()
    found = [*contents.rows, *contents.unrecorded]
    known = sorted({row.workload for row in found if row.workload})
    if not found:
        return f"the store {store.folder} holds no runs yet; 'trainmark run' makes one"
    if wanted.workload is not None and wanted.workload not in known:
        return f"no run of {wanted.workload!r} in the store {store.folder}; it holds {', '.join(known)}"
    return f"none of the {len(found)} runs in the store {store.folder} matches; loosen the filter"


def _draw_runs(writer: TerminalWriter, rows: list[StoreRow], names: Mapping[str, str]) -> None:
    """All columns, or without the least important ones where they do not fit."""
    numbers = ("p_core", "quality", "doubts")
    styles = {"valid": "", "incomplete": "yellow", NO_RECORD: "dim", "running": "cyan"}
    cells = [({"run": (names[row.run_id],), **_cells(row)}, styles.get(row.status, "red")) for row in rows]
    drawn = None
    without = [head for head in ("group", "tags") if not any(getattr(row, head) for row in rows)]
    if len({row.host for row in rows}) < 2:  # all on one host
        without.append("host")
    narrower = ("tags", "group", "created", "quality", "precision", "host", "configuration")
    for left_out in ((), *(narrower[:count] for count in (1, 2, 3, 4, 6, 7))):
        heads = [head for head in cells[0][0] if head not in (*left_out, *without)]
        table = TableModel(
            columns=[Column(title=head, right=head in numbers) for head in heads],
            rows=[[Cell(pieces=texts[head], style=style) for head in heads] for texts, style in cells],
        )
        drawn = plain_table(writer, table)
        if drawn:
            break
    writer.put(drawn or "\n".join(names[row.run_id] for row in rows))


def _cells(row: StoreRow) -> dict[str, tuple[str, ...]]:
    p_core = NOTHING if row.p_core is None else f"{number(row.p_core)}"
    return {
        "created": tuple(row.created[:16].split("T")),
        "workload": (row.workload, row.recipe),
        "configuration": (*(short_device(row.device) or row.platform).split(), row.topology),
        "host": tuple(row.host.split()) or ("",),
        "precision": tuple(row.precision.split()) or ("",),
        "status": ("interrupted",) if row.interrupted else tuple(row.status.split()),
        "p_core": (p_core, *(row.unit.split() if row.p_core is not None else ())),
        "quality": (NOTHING,)
        if row.quality is None
        else (quality_word(row.quality_name), with_unit(row.quality, row.quality_unit, 4)),
        "doubts": (NOTHING if row.status in (NO_RECORD, "running") else str(row.doubts),),
        "group": (row.group or "",),
        "tags": row.tags or ("",),
    }


def _parse_count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; try 20")
    return int(text)


def parse_since(text: str, *, option: str, now: datetime) -> datetime:
    """The time of a date, or so long ago; without a zone it is UTC. UsageError names the option."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        try:
            return now - timedelta(seconds=parse_seconds(text, option=option))
        except UsageError:
            raise UsageError(
                f"{option} {text[:40]!r} is neither a date nor a duration; try '2d', '36h' or '2026-11-15'"
            ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
