"""`trainmark fleet`: runs one plan on every node separately, and names slow hosts, cables and paths."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from trainmark import __version__
from trainmark.cli.options import add_options, options_from_args
from trainmark.cli.rendering import add_request_options, build_request, pin_options
from trainmark.cli.terminal import mark_result_saved, open_console, print_status, screen_options, show
from trainmark.cli.verdict import parse_threshold
from trainmark.features.fleet import hosts as fleets, verdict, view
from trainmark.features.fleet.hosts import FleetRuns, PairsDone
from trainmark.features.fleet.verdict import Fleet
from trainmark.features.links.rounds import usual_rounds
from trainmark.features.verify import verdict as verification
from trainmark.launch import cluster_job
from trainmark.launch.clusters import slurm
from trainmark.launch.options import PLAN, RunOptions
from trainmark.record import site
from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.language import locale_language
from trainmark.record.plan import Topology
from trainmark.record.store import Store, default_folder, find_records
from trainmark.view.frame import save_page, write_report

MAX_HOSTS = 1_000_000
NAME = "fleet"
GROUP = "Cluster"
HELP = "Run one workload on every node, and name slow hosts and cables."
EXAMPLES = """\
  trainmark fleet resnet50 --hosts a,b,c,d --topology 1x8 --steps 200     all hosts in parallel, then one verdict
  trainmark fleet resnet50 --hosts a,b,c,d --topology 1x8 --steps 200 --links   and the links, pair by pair
  trainmark fleet resnet50 --hosts a,b,c,d --repeat 5 --steps 100         finds smaller differences
  trainmark fleet resnet50 --slurm 100 --topology 1x8 --platform nvidia --store /shared/fleet > fleet.sh
  trainmark fleet /shared/fleet --expect 100                              what its tasks left
  trainmark fleet a1b2 c3d4 e5f6                                          runs started one by one
  trainmark fleet --html fleet.html --junit fleet.xml                     the newest fleet as a page and as tests
  trainmark fleet --verify last --html fleet.html                         including a verify of its hosts

A host is named if it deviates from the median more than good hosts do; at most one in a hundred fleets without a bad
host names any. [[expected]] in trainmark.toml sets what a good node reaches, so that a fleet that is slow as a whole is
found too. Exit codes: 0 accepted, 6 not accepted (a host is slow or failed, a cable is slow), 7 inconclusive (only a
path between two hosts is slow, or the runs are too few or too noisy)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser,
        PLAN,
        metavar="RUN|FOLDER|WORKLOAD",
        workloads="runs, groups or record files, or a folder of them; with --hosts or --slurm the workload to run "
        "(default: the newest fleet again)",
    )
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A,B", help="run on these hosts separately, by ssh")
    where.add_argument("--slurm", type=int, metavar="N", help="print a Slurm array of N nodes, and start nothing")
    add("--jobs", type=int, metavar="N", help="with --hosts: hosts that run in parallel (default: 32)")
    add("--rerun", action="store_true", help="with --hosts: run hosts again that have a result of an unfinished fleet")
    add("--repeat", type=int, default=1, metavar="K", help="run K times on every host, to find smaller differences")
    add("--links", action="store_true", help="with --hosts: measure the links too, pair by pair")
    add("--trust", action="store_true", help="use the ssh settings and programs of trainmark.toml in this folder")
    add(
        "--expect",
        type=_read_expected,
        default=(),
        metavar="N",
        help="with a folder or runs: the hosts expected, as a number, as names a,b, or as a file of names",
    )
    add(
        "--verify",
        action="append",
        default=[],
        metavar="VERIFY",
        help="include this verify of the hosts: 'last', its id or its file; may be repeated",
    )
    add("--metric", default="p_core", metavar="M", help="metric to compare (default: p_core)")
    add("--threshold", default="3%", metavar="P", help="smallest deviation reported (default: 3%%)")
    add("--html", type=Path, metavar="FILE", help="write the page to FILE (default: into the store)")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML to FILE, one test per host")
    add("--store", metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="no progress, only the verdict")
    add_request_options(parser, slurm.REQUEST)


def run(args: argparse.Namespace) -> int:
    threshold = parse_threshold(args.threshold)
    options = replace(options_from_args(args), hosts=None)
    _check(args)
    if args.slurm is not None:
        return _print_array(args, options)
    store = Store(Path(args.store).expanduser() if args.store else default_folder())
    verifies = [verification.load_document(word, store) for word in args.verify]
    runs, code = _run(args, options, store) if args.hosts else (_read(args, store), 0)
    fleet = verdict.judge(
        runs,
        metric=args.metric,
        threshold=threshold,
        expected=site.load().expected,
        wanted=args.expect,
        verifies=verifies,
    )
    _show(args, fleet, store)
    return code or fleet.exit_code


def _check(args: argparse.Namespace) -> None:
    if args.links and not args.hosts:
        raise UsageError(
            "--links measures the hosts of --hosts; in a job of Slurm run 'trainmark doctor --topology NxM --pairs "
            "--json' on all its nodes, and keep what it prints as links.json in the folder that is judged"
        )
    if args.slurm is not None and (args.html or args.junit or args.json):
        raise UsageError("--slurm prints a script and judges nothing; leave --html, --junit and --json out")


def _read_expected(text: str) -> Sequence[str]:
    """The names of expected hosts, or as many empty ones."""
    path = Path(text).expanduser()
    names = re.split(r"[\s,]+", path.read_text(encoding="utf-8", errors="replace") if path.is_file() else text)
    names = [name for name in names if name]
    if len(names) == 1 and names[0].isdigit():
        names = [""] * min(int(names[0]), MAX_HOSTS)
    if not names:
        raise UsageError(f"--expect {text} names no host; give a number, names with commas, or a file of names")
    return names


def _print_array(args: argparse.Namespace, options: RunOptions) -> int:
    from trainmark.features.fleet import run as fleet

    plan = fleet.make_plan(options)
    shared = cluster_job.make_absolute(options.store or f"fleet-{plan.workload}-{plan.recipe_name}")
    options = replace(options, store=shared)
    job = cluster_job.ClusterJob(options=pin_options(options, [plan]), plans=[plan], as_json=args.json)
    print(slurm.render(build_request(args, slurm.REQUEST, array=args.slurm), job, print_status), end="")
    print_status(f"every node must see the folder {shared}; afterwards: trainmark fleet {shared} --expect {args.slurm}")
    return 0


def _read(args: argparse.Namespace, store: Store) -> FleetRuns:
    """The runs of a folder, those that were named, or the newest fleet."""
    words = args.workloads
    if not words:
        if saved := fleets.find_newest(store):
            return fleets.read_saved_fleet(saved[0], store)
        raise UsageError(
            f"the store {store.folder} holds no fleet yet; name runs or a folder of them, or hosts to run on by --hosts"
        )
    folder = next((Path(word).expanduser() for word in words if Path(word).expanduser().is_dir()), None)
    if folder and len(words) > 1:
        raise UsageError(f"{folder} is a folder, which is judged alone; leave the other arguments out")
    return fleets.read_folder(folder) if folder else FleetRuns(hosts=fleets.group_by_host(find_records(words, store)))


def _run(args: argparse.Namespace, options: RunOptions, store: Store) -> tuple[FleetRuns, int]:
    from trainmark.features.fleet import run as fleet

    jobs = fleet.JOBS if args.jobs is None else args.jobs
    saved, path, code = fleet.run_fleet(options, args.hosts, jobs=jobs, rerun=args.rerun, say=print_status)
    mark_result_saved()
    if args.links and not code:
        # a host that cannot run would block all others
        written = [word.strip() for word in args.hosts.split(",")]
        good = [word for word in written if word.rpartition("@")[2] not in saved.to_do]
        if len(good) < 2:
            print_status("fewer than two hosts have a result, so no link is measured")
        else:
            saved.links = _measure_links(good, options)
            fleets.save_fleet(saved, path)
    return fleets.read_saved_fleet(saved, store), code


def _measure_links(hosts: list[str], options: RunOptions) -> PairsDone:
    from trainmark.features.links import measure as links

    names = tuple(word.rpartition("@")[2] for word in hosts)
    on_each = Topology.parse(options.topology or "1x1").devices_per_node
    rounds = usual_rounds(len(names))
    print_status(f"measuring the links of {len(names)} hosts in {rounds} rounds")
    try:
        result = links.measure(
            Topology(nodes=len(names), devices_per_node=on_each),
            pair_rounds=rounds,
            hosts=",".join(hosts),
            platform=options.platform,
            store=default_folder(),
            say=print_status,
            trust=options.trust,
        )
    except TrainmarkError as error:
        return PairsDone(hosts=names, failed=str(error))
    failed = result.sentence if result.exit_code else ""
    return PairsDone(hosts=names, pairs=tuple(result.facts.get(links.PAIRS, ())), failed=failed)


def _show(args: argparse.Namespace, fleet: Fleet, store: Store) -> None:
    made = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    page = view.render_page(fleet, language=args.lang or locale_language(), trainmark=__version__, made=made)
    if args.html is not None:
        write_report(args.html, page, store)
    if args.junit is not None:
        write_report(args.junit, view.to_junit(fleet), store)
    screen = open_console()
    if args.json:
        screen.file.write(json.dumps(verdict.to_json(fleet), indent=2, ensure_ascii=False) + "\n")
        return
    screen.file.write(view.render(fleet, **screen_options(screen)))
    if args.html is None and fleet.subject:
        created = fleet.created[:19].replace(":", "")
        name = "-".join(("fleet", *fleet.subject[:2], created, str(len(fleet.hosts)), "hosts.html"))
        show(f"page: {save_page(name, page, store)}")
