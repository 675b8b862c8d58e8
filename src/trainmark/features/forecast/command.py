"""`trainmark forecast`: forecasts a training at sizes that were not run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from trainmark import __version__, features
from trainmark.analysis import published_library as library
from trainmark.analysis.clusters import find_chains
from trainmark.analysis.scaling import find_published_scalings, find_throughput
from trainmark.cli.options import add_price_options, read_price
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.features.forecast import page_section, rates
from trainmark.features.forecast.after_sweep import render_backtest, render_forecasts
from trainmark.features.forecast.forecast import Work, derive_work, forecast, measure_work, to_json
from trainmark.features.forecast.rates import Known
from trainmark.features.forecast.scaling_law import backtest
from trainmark.record.errors import UsageError
from trainmark.record.language import current_language
from trainmark.record.plan import Topology
from trainmark.record.recipe import Span
from trainmark.record.store import Store, default_folder, find_records
from trainmark.view.frame import write_report

NAME = "forecast"
GROUP = "Judge"
HELP = "Forecast speed, time and cost at sizes that were not run."
EXAMPLES = """\
  trainmark forecast a1b2 c3d4 --to 2x8,64x8         from runs that differ in their topology alone
  trainmark forecast last --to 2x8 --until '90 epochs' --price 2.10/h --pue 1.3
  trainmark forecast a1b2 c3d4 --to 2x8 --global-batch 4096    one batch, divided over the devices
  trainmark forecast a1b2 c3d4 --to 2x8,64x8 --html forecast.html   the same with a chart
  trainmark forecast --published resnet50 --to 2x8 --until '90 epochs' --price 2.10/h   from published tables
  trainmark forecast --backtest                      the errors of such forecasts for published clusters"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs of one training, by id, part of it, group or file")
    parser.add_argument("--to", metavar="NxM,...", help="the sizes to forecast, like 2x8,64x8")
    parser.add_argument("--metric", default="p_core", metavar="M", help="p_core, p_train or p_whole (default: p_core)")
    parser.add_argument(
        "--until",
        default="target",
        metavar="HOW_MUCH",
        help="length of the training: 'target' (default), 'N epochs', 'N steps' or 'N items'",
    )
    parser.add_argument("--global-batch", type=int, metavar="N", help="one batch, divided over all devices")
    add_price_options(parser)
    parser.add_argument("--published", metavar="WORKLOAD", help="use published rows instead of runs")
    parser.add_argument("--backtest", action="store_true", help="forecast published clusters, and show the errors")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with table and chart to FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    if args.backtest:
        return _backtest(args)
    if not args.to:
        raise UsageError("--to is missing; name the sizes, like --to 2x8,64x8")
    if args.published is not None and args.runs:
        raise UsageError(f"--published uses no runs, but {args.runs[0]!r} was named; leave one of them out")
    topologies = list(dict.fromkeys(Topology.parse(word) for word in args.to.split(",")))
    known = _load_runs(args) if args.published is None else _load_published(args, topologies)
    if args.global_batch is not None and args.global_batch < 1:
        raise UsageError(f"--global-batch {args.global_batch} is not a batch; use a number above 0")
    found = [forecast(one, topologies, work, read_price(args), args.global_batch) for one, work in known]
    if args.html:
        made = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        page = page_section.render(found, language=current_language(), made=made, trainmark=__version__)
        write_report(args.html, page, Store(args.store or default_folder()))
    screen = open_console()
    document = {"forecasts": [to_json(one) for one in found]}
    text = json.dumps(document, indent=2) + "\n" if args.json else render_forecasts(found, **screen_options(screen))
    screen.file.write(text)
    return 0


def _load_runs(args: argparse.Namespace) -> list[tuple[Known, Work | None]]:
    records = find_records(args.runs or ["last"], Store(args.store or default_folder()))
    known = rates.read_records(records, args.metric)
    try:
        offered = (feature.reference(records[0]) for feature in features.offers("samples_to_target"))
        reference = next(filter(None, offered), None)
        work = measure_work(records, args.until, metric=known.metric, reference=reference)
    except UsageError as error:
        if args.until != "target" or args.price:
            raise
        print_status(f"no time is forecast: {error}")
        return [(known, None)]
    return [(known, work)]


def _load_published(args: argparse.Namespace, topologies: Sequence[Topology]) -> list[tuple[Known, Work | None]]:
    metric = find_throughput(args.metric)
    if args.until != "target":
        Span.parse(args.until)  # what is no length is an invalid argument, and no lack of the page
    smallest = min(topology.devices for topology in topologies)
    groups = find_published_scalings(library.load_rows(args.published))
    found: list[tuple[Known, Work | None]] = []
    for group in groups:
        if known := rates.read_published(group, metric, smallest):
            largest = next(point.row for point in group.points if point.row.topology == str(known.largest.topology))
            try:
                found.append((known, derive_work(largest, args.until, metric)))
            except UsageError as error:
                found.append((replace(known, notes=(*known.notes, f"no time is forecast: {error}")), None))
    if not found:
        raise UsageError(
            f"no published table of {args.published} has rows of {metric} smaller than {args.to} with one batch; "
            f"'trainmark published {args.published}' shows what there is"
        )
    return found


def _backtest(args: argparse.Namespace) -> int:
    if args.runs or args.to or args.published:
        raise UsageError("--backtest uses the published clusters alone; leave out runs, --to and --published")
    if args.html:
        raise UsageError("--backtest has no page; leave --html out")
    found = backtest(find_chains())
    screen = open_console()
    if args.json:
        document = {**asdict(found), "coverage": found.coverage}
        screen.file.write(json.dumps(document, indent=2).replace("Infinity", "null") + "\n")
    else:
        screen.file.write(render_backtest(found, **screen_options(screen)))
    return 0
