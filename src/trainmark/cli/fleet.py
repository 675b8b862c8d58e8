"""`trainmark fleet`: one plan on every node by itself, and one judgement: who is slow, and is the cluster accepted."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.options import add_plan_options, from_args
from trainmark.cli.rendering import add_request_options, request_of, settled
from trainmark.cli.terminal import console, look, result_is_kept, say, show
from trainmark.cli.verdict import parse_threshold
from trainmark.spec.errors import TrainmarkError, UsageError

if TYPE_CHECKING:
    from trainmark.analysis.fleet.hosts import HostRuns
    from trainmark.analysis.fleet.verdict import Fleet
    from trainmark.launch.options import RunOptions
    from trainmark.spec.verify import VerifyDocument
    from trainmark.store.fleets import FleetLog, PairsDone
    from trainmark.store.store import Store

HELP = "Run one workload on every node by itself, and name the slow host and the slow cable."
EXAMPLES = """\
  trainmark fleet resnet50 --hosts a,b,c,d --topology 1x8 --steps 200     every host at once, then one judgement
  trainmark fleet resnet50 --hosts a,b,c,d --topology 1x8 --steps 200 --links   and their links, two by two
  trainmark fleet resnet50 --hosts a,b,c,d --repeat 5 --steps 100         smaller differences are found
  trainmark fleet resnet50 --slurm 100 --topology 1x8 --platform nvidia --store /shared/fleet > fleet.sh
  trainmark fleet /shared/fleet --expect 100                              what its tasks left
  trainmark fleet a1b2 c3d4 e5f6                                          runs that were made one by one
  trainmark fleet --html fleet.html --junit fleet.xml                     the newest fleet again, as a page and as tests
  trainmark fleet --verify last --html fleet.html                         with what a verify of its hosts found

A host is named where it lies further from the median than good hosts do; of fleets without a bad host at most one in
a hundred names any. trainmark.toml may say what a good node reaches ([[expected]]), so that a fleet that is slow as a
whole is found too. Exit codes: 0 accepted, 6 not accepted (a host is slow or failed, a cable is slow), 7 nothing can be
said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trainmark.launch.clusters import slurm

    add_plan_options(
        parser,
        metavar="RUN|FOLDER|WORKLOAD",
        words="runs, groups or record files, or a folder of them; with --hosts or --slurm the workload to run "
        "(default: the newest fleet again)",
    )
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A,B", help="run on these hosts, reached by ssh, each by itself")
    where.add_argument("--slurm", type=int, metavar="N", help="print a Slurm array of N nodes, and start nothing")
    add("--at-once", type=int, metavar="N", help="of --hosts: so many at a time (default: 32)")
    add("--anew", action="store_true", help="of --hosts: run those again that have a result from a fleet cut short")
    add("--repeat", type=int, default=1, metavar="K", help="run K times on every host: smaller differences are found")
    add("--links", action="store_true", help="of --hosts: measure the links too, two hosts by two")
    add("--rounds", type=int, metavar="N", help="of --links: so many rounds (default: all of few hosts, else 2 log2 n)")
    add("--trust", action="store_true", help="follow what trainmark.toml in this folder says of ssh and programs")
    add("--expect", type=int, metavar="N", help="of a folder or runs: how many hosts there are to be")
    add(
        "--verify",
        action="append",
        default=[],
        metavar="VERIFY",
        help="judge by this verify of the hosts too: 'last', its id or its file; may be said several times",
    )
    add("--metric", default="p_core", metavar="M", help="what to judge by (default: p_core)")
    add("--threshold", default="3%", metavar="P", help="nobody is named who lies nearer to the median (default: 3%%)")
    add("--html", type=Path, metavar="FILE", help="write the page to FILE (default: into the store)")
    add("--junit", type=Path, metavar="FILE", help="write the hosts as tests of a build server to FILE")
    add("--all", action="store_true", dest="everything", help="show every host, however many are ok")
    add("--store", metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="no word as each host ends, only the judgement")
    add_request_options(parser, slurm.REQUEST)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What is to be judged."""

    hosts: Sequence[HostRuns]
    links: PairsDone | None = None
    exit_code: int = 0
    """Of a signal that ended the fleet early."""


def run(args: argparse.Namespace) -> int:
    from trainmark.analysis import verification
    from trainmark.store.store import Store, default_folder

    parse_threshold(args.threshold)
    options = replace(from_args(args), hosts=None)
    _check(args)
    if args.slurm is not None:
        return _print_array(args, options)
    store = Store(Path(args.store).expanduser() if args.store else default_folder())
    proved = [verification.named(word, store) for word in args.verify]
    if args.hosts:
        found = _run(args, options, store)
    elif args.workloads:
        found = _of_words(args.workloads, store)
    else:
        found = _newest(store)
    fleet = _with_proofs(_judged(args, found), found, proved)
    _tell(args, fleet, store)
    return found.exit_code or fleet.exit_code


def _check(args: argparse.Namespace) -> None:
    if args.links and not args.hosts:
        raise UsageError(
            "--links measures the hosts of --hosts; in a job of Slurm run 'trainmark doctor --topology NxM --pairs "
            "--json' on all its nodes, and keep what it prints as links.json in the folder that is judged"
        )
    if args.rounds is not None and (not args.links or args.rounds < 1):
        raise UsageError("--rounds says in how many rounds --links are measured, at least 1; say both, or neither")
    if args.expect is not None and args.expect < 1:
        raise UsageError(f"--expect must be at least 1, not {args.expect}")
    if args.slurm is not None and (args.html or args.junit or args.json):
        raise UsageError("--slurm prints a script and judges nothing; leave --html, --junit and --json out")


# Where runs come from


def _print_array(args: argparse.Namespace, options: RunOptions) -> int:
    from trainmark.launch import cluster_job, fleet
    from trainmark.launch.cluster_env import RenderedRun
    from trainmark.launch.clusters import slurm

    plan = fleet.plan_of(options)
    shared = cluster_job.absolute(options.store or f"fleet-{plan.workload}-{plan.recipe_name}")
    options = replace(options, store=shared)
    run = RenderedRun(options=settled(options, [plan]), plans=[plan], as_json=args.json)
    print(slurm.render(request_of(args, slurm.REQUEST, array=args.slurm), run, say), end="")
    say(f"every node must see the folder {shared}; afterwards: trainmark fleet {shared} --expect {args.slurm}")
    return 0


def _run(args: argparse.Namespace, options: RunOptions, store: Store) -> _Found:
    from trainmark.launch import fleet
    from trainmark.launch.ssh_fleet import AT_ONCE

    at_once = AT_ONCE if args.at_once is None else args.at_once
    log, code = fleet.run(options, args.hosts, at_once=at_once, anew=args.anew, say=say)
    result_is_kept()
    if args.links and not code:
        _measure_links(args, options, log)
    return replace(_of_log(log, store), exit_code=code)


def _measure_links(args: argparse.Namespace, options: RunOptions, log: FleetLog) -> None:
    """Between the hosts that have a result: one that cannot run would keep all others waiting."""
    from trainmark.doctor import links
    from trainmark.spec.topology import Topology
    from trainmark.spec.tournament import all_rounds, usual_rounds
    from trainmark.store.fleets import PairsDone
    from trainmark.store.store import default_folder

    written = [word.strip() for word in args.hosts.split(",")]
    good = [word for word in written if word.rpartition("@")[2] not in log.to_do]
    hosts = tuple(word.rpartition("@")[2] for word in good)
    if len(hosts) < 2:
        say("fewer than two hosts have a result, so no link is measured")
        return
    on_each = Topology.parse(options.topology or "1x1").devices_per_node
    topology = Topology(nodes=len(hosts), devices_per_node=on_each)
    rounds = min(args.rounds or usual_rounds(len(hosts)), all_rounds(len(hosts)))
    say(f"measuring the links of {len(hosts)} hosts in {rounds} rounds")
    try:
        result = links.measure_pairs(
            topology,
            rounds,
            hosts=",".join(good),
            platform=options.platform,
            store=default_folder(),
            say=say,
            trust=args.trust,
        )
        failed, pairs = result.sentence if result.exit_code else "", result.facts.get(links.PAIRS, ())
    except TrainmarkError as error:
        failed, pairs = str(error), ()
    log.add(PairsDone(hosts=hosts, pairs=tuple(pairs), failed=failed))


def _of_log(log: FleetLog, store: Store) -> _Found:
    from trainmark.analysis.fleet.hosts import HostRuns
    from trainmark.store.store import read_record

    hosts = []
    for host in log.begun.hosts:
        done = log.hosts.get(host)
        if done is None or done.failed:
            failed = done.failed if done else "it has not been run yet; the same command again goes on"
            hosts.append(HostRuns(host=host, failed=failed))
        else:
            records = tuple(read_record(store.path(run_id)) for run_id in done.run_ids)
            hosts.append(HostRuns(host=host, records=records))
    return _Found(hosts=hosts, links=log.links)


def _newest(store: Store) -> _Found:
    from trainmark.store import fleets

    log = fleets.newest(store)
    if log is None:
        raise UsageError(
            f"the store {store.folder} holds no fleet yet; name runs or a folder of them, or hosts to run on by --hosts"
        )
    return _of_log(log, store)


def _of_words(words: Sequence[str], store: Store) -> _Found:
    from trainmark.analysis.fleet.hosts import HostRuns, by_host
    from trainmark.published.lookup import subject
    from trainmark.store import fleet_folder

    folders = [word for word in words if Path(word).expanduser().is_dir()]
    if folders and len(words) > 1:
        raise UsageError(f"{folders[0]} is a folder, which is judged by itself; leave the other words out")
    if not folders:
        found = [subject(word, store) for word in words]
        for one in found:
            if one.row is not None:
                raise UsageError(f"{one.row.name} is published, and no host of a fleet; name runs")
        return _Found(hosts=by_host([record for one in found for record in one.records]))
    folder = fleet_folder.read(Path(folders[0]).expanduser())
    hosts = by_host(folder.records)
    known = {one.host for one in hosts}
    hosts += [HostRuns(host=host, failed=why) for host, why in folder.unrecorded.items() if host not in known]
    return _Found(hosts=hosts, links=folder.links)


# The judgement


def _judged(args: argparse.Namespace, found: _Found) -> Fleet:
    from trainmark.analysis.fleet import links, verdict
    from trainmark.spec import site

    measured = found.links
    judged = links.judge(measured.hosts, measured.pairs) if measured and measured.pairs else None
    fleet = verdict.judge(
        found.hosts,
        metric=args.metric,
        threshold=parse_threshold(args.threshold),
        expected=site.load().expected,
        links=judged,
        wanted=args.expect,
    )
    if measured and measured.failed:
        fleet = replace(fleet, faults=(*fleet.faults, f"the links could not be measured: {measured.failed}"))
    return fleet


def _with_proofs(fleet: Fleet, found: _Found, told: Sequence[VerifyDocument]) -> Fleet:
    """With what verifies say of its hosts, which may be known there by what they call themselves."""
    from trainmark.analysis.fleet import proofs

    names = {one.host: (one.host, *(record.hosts[0] for record in one.records[-1:])) for one in found.hosts}
    fleet = replace(fleet, proofs=tuple(proofs.of_hosts(told, names)))
    for one in told:
        if not any(proof.verify_id == one.verify_id for proof in fleet.proofs):
            raise UsageError(f"verify {one.verify_id} was on {', '.join(one.hosts)}, and none of them is of this fleet")
    return fleet


def _tell(args: argparse.Namespace, fleet: Fleet, store: Store) -> None:
    from trainmark.report import output

    page = _page(fleet, args.lang)
    if args.html is not None:
        output.write(args.html, page, store)
    if args.junit is not None:
        from trainmark.report.fleet_junit import to_junit

        output.write(args.junit, to_junit(fleet), store)
    screen = console()
    if args.json:
        from trainmark.analysis.fleet.verdict import to_json

        screen.file.write(json.dumps(to_json(fleet), indent=2, ensure_ascii=False) + "\n")
        return
    from trainmark.report.fleet_table import render

    screen.file.write(render(fleet, everything=args.everything, **look(screen)))
    if args.html is None and fleet.workload:
        created = fleet.created[:19].replace(":", "")
        name = f"fleet-{fleet.workload}-{fleet.recipe_name}-{created}-{len(fleet.hosts)}-hosts.html"
        show(f"page: {output.keep_page(name, page, store)}")


def _page(fleet: Fleet, language: str | None) -> str:
    from datetime import datetime, timezone

    from trainmark import __version__
    from trainmark.report.html.fleet_page import render
    from trainmark.spec.language import by_locale

    made = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return render(fleet, language=language or by_locale(), trainmark=__version__, made=made)
