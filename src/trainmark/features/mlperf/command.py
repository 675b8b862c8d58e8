"""`trainmark package`: writes runs as an MLPerf submission folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainmark.cli.terminal import mark_result_saved, open_console, print_status, screen_options
from trainmark.features.mlperf.audit_source import audit_results
from trainmark.features.mlperf.log import find_result_folders
from trainmark.features.mlperf.package import write_package
from trainmark.features.mlperf.report_format import open_run
from trainmark.record import escape
from trainmark.record.audit import is_wrong
from trainmark.record.store import Store, default_folder, find_records
from trainmark.view.audit_screen import render
from trainmark.view.publish import make_publishable

NAME = "package"
HELP = "Write runs as an MLPerf Training submission folder: logs, system description, how to run it again."
EXAMPLES = """\
  trainmark package mlperf a1 b2 c3 d4 e5 --org Lumen --out lumen-4.0    five runs of one plan, five seeds
  trainmark package mlperf a1 b2 c3 d4 e5 --org Lumen --out lumen-4.0 --division open --status onprem
  python -m mlperf_logging.package_checker lumen-4.0 training 4.0.0      mlcommons' own check

exit code: 5 where the audit of what was written finds something wrong"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("form", choices=("mlperf",), metavar="FORM", help="mlperf: MLPerf Training, for workloads that are benchmarks")
    add("runs", nargs="+", metavar="RUN", help="run ids, groups or record files whose events are in the store")
    add("--out", type=Path, required=True, metavar="DIR", help="the folder to write, which must not exist yet")
    add("--org", required=True, metavar="NAME", help="who submits the result")
    add("--system", default="", metavar="NAME", help="the system's name (default: by its devices)")
    add("--division", choices=("closed", "open"), metavar="D", help="closed or open (default: closed where it may be)")
    add(
        "--status",
        choices=("research", "onprem", "cloud", "preview"),
        default="research",
        metavar="S",
        help="of the system: research, onprem, cloud or preview (default: research)",
    )
    add("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    safe = make_publishable(find_records(args.runs, store)).records  # a doubt may name a host
    runs = [open_run(record, store.runs / record.run_id) for record in safe]
    found = write_package(runs, args.out, org=args.org, status=args.status, system=args.system, division=args.division)
    mark_result_saved()
    for reason in found.why_open if found.division == "open" else ():
        print_status(escape.terminal(f"open division: {reason}"))
    audits = [audit for _, results in audit_results(find_result_folders(found.results)) for audit in results]
    screen = open_console()
    screen.file.write(render(audits, everything=False, **screen_options(screen)))
    screen.file.write(escape.terminal(f"{found.results}: {len(runs)} runs, {found.division} division") + "\n")
    print_status(f"check it with: python -m mlperf_logging.package_checker {args.out} training {found.round}.0")
    return 5 if is_wrong(audits) else 0
