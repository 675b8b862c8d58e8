"""`trainmark run`: trains, and ends with the table, the doubts and the path of the record."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.terminal import console, say
from trainmark.cli.words import add_plan_words, plans, spelt, spoken
from trainmark.launch import lifeline_stdin
from trainmark.spec import site
from trainmark.spec.topology import Topology

if TYPE_CHECKING:
    from trainmark.launch.coordinator import Coordinator
    from trainmark.launch.fill import Found
    from trainmark.spec.plan import Plan
    from trainmark.spec.record import Record
    from trainmark.spec.site import Site
    from trainmark.store.store import Store

HELP = "Train workloads and record how fast, how well and how steadily."
EXAMPLES = """\
  trainmark run                                  all workloads, full-size models, a few minutes
  trainmark run resnet50 --recipe smoke --json   a small network to > 90 %, the record on stdout
  trainmark run tacotron2 --recipe smoke         learns to read made speech; leaves a sample to listen to
  trainmark run vit --recipe smoke               a small transformer to > 60 % in about a minute
  trainmark run resnet50 --recipe quick --precision amp-bf16 --repeat 3
  trainmark run resnet50 --recipe fill --steps 200   finds the largest useful batch first
  trainmark run resnet50 --recipe fill --set batch_per_device=128 --steps 200
  trainmark run resnet50 --recipe reference --topology 1x8 --data /data/imagenet
  trainmark run tacotron2 --recipe reference --topology 1x8 --data /data/ljspeech --set target=0.5 --strict
  trainmark run resnet50 --recipe reference --topology 2x8 --hosts a,b --data /data/imagenet
  trainmark run resnet50 --recipe reference --topology 2x8   inside a Slurm job or a Kubernetes pod
  trainmark run tacotron2 --init-from public.pt  start from published weights
  trainmark run --resume resnet50-reference-1x8  go on from that run's last checkpoint"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_words(parser)
    add = parser.add_argument
    add("--repeat", type=int, default=1, metavar="K", help="run K times and report the spread")
    add("--store", metavar="DIR", help="where records are kept (default: $TRAINMARK_STORE or the user's data folder)")
    add("--resume", metavar="RUN", help="go on with an earlier run from its last checkpoint")
    add("--hosts", metavar="A,B", help="the nodes of a topology such as 2x8, reached by ssh")
    add("--port", type=int, metavar="N", help="where the first of several nodes listens for the others")
    add(
        "--join-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds the nodes wait for each other (default: 60)",
    )
    add(
        "--strict",
        action="store_true",
        help="exit 5 if the target is missed, the result too noisy, or the precision another",
    )
    add("--json", action="store_true", help="one JSON document on stdout: a record, or a list of them")
    add("--quiet", action="store_true", help="no progress, only the result")


def run(args: argparse.Namespace) -> int:
    from trainmark.launch import cluster_env, fill
    from trainmark.launch.coordinator import Coordinator
    from trainmark.spec.errors import UsageError
    from trainmark.store.store import Store, default_folder

    if args.repeat < 1:
        raise UsageError(f"--repeat must be at least 1, not {args.repeat}")
    store = Store(Path(args.store).expanduser() if args.store else default_folder())
    store.check_writable()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns of every host without a reverse name
    facts = site.load()
    if args.hosts:
        return _report(*_over_ssh(args, store, facts), store, args)
    decided = [_resumed(args, store)] if args.resume else plans(args)
    here = cluster_env.find(Topology.parse(decided[0].topology), os.environ, args.port or facts.network.port)
    if here.kind == "slurm-batch":
        os.execvp("srun", cluster_env.own_srun(Topology.parse(decided[0].topology), os.environ, _this_command()))  # noqa: S606
    if lifeline_stdin.asked():
        lifeline_stdin.end_with_stdin()
    if here.first_local_rank:
        args.quiet = True

    if here.launchers == 1:
        get_ready(decided, store, quiet=args.quiet)
        filled = [_filled(plan, args) for plan in decided]
        return _report(*run_all(filled, store, args, facts, None), store, args)
    if not args.resume:
        fill.refuse_several_launchers(decided, args.settings)
    coordinator = Coordinator(here, args.join_timeout)
    try:
        _get_ready_together(decided, store, coordinator, quiet=args.quiet)
        records, code = run_all([(plan, None) for plan in decided], store, args, facts, coordinator)
    finally:
        coordinator.leave()
    return _report(records, code, store, args) if here.leads else code


def run_all(
    decided: list[tuple[Plan, Found | None]],
    store: Store,
    args: argparse.Namespace,
    facts: Site,
    coordinator: Coordinator | None,
) -> tuple[list[Record], int]:
    """Runs every plan as often as asked, until one fails."""
    records: list[Record] = []
    for plan, found in decided:
        group = secrets.token_hex(4) if args.repeat > 1 else None
        for number in range(args.repeat):
            if args.repeat > 1 and not args.quiet:
                say(f"{plan.workload}: run {number + 1} of {args.repeat}")
            record, code = _one(plan, found, store, group, args, facts, coordinator)
            records += [record] if record else []
            if code:
                return records, code
    return records, 0


def _one(
    plan: Plan,
    found: Found | None,
    store: Store,
    group: str | None,
    args: argparse.Namespace,
    facts: Site,
    coordinator: Coordinator | None,
) -> tuple[Record | None, int]:
    from trainmark import workloads
    from trainmark.cli.progress import Progress
    from trainmark.launch import launcher

    workload = workloads.load(plan.workload)
    quiet = args.quiet or (coordinator is not None and not coordinator.env.leads)
    with Progress(plan, workload.item, workload.target.name, quiet=quiet) as progress:
        outcome = launcher.run(
            plan,
            store.folder,
            group=group,
            watch=progress.show,
            coordinator=coordinator,
            interface=facts.network.interface,
            fill=found.to_json() if found else None,
        )
    code = outcome.exit_code
    if outcome.record is None:
        if outcome.sentence:
            say(f"trainmark: {outcome.sentence}")
        return None, code
    store.add(outcome.record)
    if code:
        say(f"trainmark: {outcome.sentence}")
        say(f"trainmark: what was measured is kept in {outcome.folder}")
    elif args.strict:
        code = _strict(outcome.record)
    if coordinator:
        coordinator.finish(code)
    if lifeline_stdin.asked():
        say(f"trainmark: run folder {outcome.folder}")
    return outcome.record, code


def _over_ssh(args: argparse.Namespace, store: Store, facts: Site) -> tuple[list[Record], int]:
    """The same command on every host, for one run after the other; their records come back from the first host."""
    from trainmark import workloads
    from trainmark.launch import fill, ssh_run
    from trainmark.spec.errors import UsageError

    if args.resume:
        raise UsageError("--resume goes on where the checkpoints lie: run it on the first host, not with --hosts")
    topology = Topology.parse(args.topology or "1x1")
    decided = plans(args)  # a wrong word ends here and not on every host
    if topology.nodes > 1:
        fill.refuse_several_launchers(decided, args.settings)
    options = ["--join-timeout", str(args.join_timeout), *(["--strict"] if args.strict else [])]
    options += ["--port", str(args.port)] if args.port else []
    records: list[Record] = []
    for name in args.workloads or workloads.NAMES:
        for _ in range(args.repeat):
            words = [name, *(word for words in spelt(args, add_plan_words) for word in words), *options]
            record, code = ssh_run.run_on_hosts(args.hosts, words, topology, facts, store.folder, quiet=args.quiet)
            if record:
                if not store.path(record.run_id).exists():  # the first host may share this store
                    store.add(record)
                records.append(record)
            if code:
                return records, code
    return records, 0


def _report(records: list[Record], code: int, store: Store, args: argparse.Namespace) -> int:
    from trainmark.cli.report import leave_page
    from trainmark.report import table

    if args.json:
        documents = [record.to_json() for record in records]
        json.dump(documents[0] if len(documents) == 1 else documents, sys.stdout, ensure_ascii=False)
        print()
    elif records:
        out = console()
        sys.stdout.write(
            table.render(records, width=out.width, color=out.is_terminal and not out.no_color, encoding=out.encoding)
        )
        for record in records:
            print(f"record: {store.path(record.run_id)}")
            for artifact in record.artifacts:
                print(f"sample: {store.runs / record.run_id / artifact.file}  {artifact.caption}")
    if records and (page := leave_page(records, store)):
        (say if args.json else print)(f"page: {page}")
    return code


def _this_command() -> list[str]:
    return [sys.executable, "-m", "trainmark", *sys.argv[1:]]


def _strict(record: Record) -> int:
    """Under --strict a doubt about the target, the noise or the precision makes the result unusable."""
    refused = [
        doubt.text
        for doubt in record.doubts
        if doubt.code in ("target-missed", "few-steps", "drifting", "precision-differs")
    ]
    for text in refused:
        say(f"trainmark: not valid under --strict: {text}")
    return 5 if refused else 0


def _resumed(args: argparse.Namespace, store: Store) -> Plan:
    from trainmark.launch import planning
    from trainmark.spec.errors import UsageError
    from trainmark.spec.plan import Plan

    if args.workloads:
        raise UsageError("--resume takes the workload of the run it resumes; leave the workload's name out")
    folder = store.run_folder(args.resume)
    plan = Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    return planning.resumed(plan, folder, spoken(args))


def get_ready(decided: list[Plan], store: Store, *, quiet: bool) -> None:
    """Makes the embedded data where it is missing, and looks the machine over before the first run starts."""
    from trainmark.datasets import synthetic
    from trainmark.launch import preflight

    for plan in decided:
        if plan.data.generated and Path(plan.data.folder) == synthetic.folder(plan.data.name):
            synthetic.ensure(plan.data.name, Path(plan.data.folder), (lambda _: None) if quiet else say)
        preflight.machine(plan, store.folder)


def _filled(plan: Plan, args: argparse.Namespace) -> tuple[Plan, Found | None]:
    """With recipe fill, the plan for the batch that is found here; any other as it is."""
    from trainmark.launch import fill, planning

    if args.resume or not fill.wanted(plan, args.settings):
        return plan, None
    found = fill.find(plan, say=(lambda _: None) if args.quiet else say)
    words = spoken(args)
    settings = [*words.settings, f"batch_per_device={found.batch_per_device}"]
    return planning.decide(plan.workload, replace(words, settings=settings)), found


def _get_ready_together(decided: list[Plan], store: Store, coordinator: Coordinator, *, quiet: bool) -> None:
    """The same on every machine of a run; one that is not ready tells the others, so that nobody waits for it."""
    from trainmark.launch import launcher
    from trainmark.spec.errors import TrainmarkError

    if coordinator.env.first_local_rank:
        return  # the first rank of this machine looks it over for all
    try:
        get_ready(decided, store, quiet=quiet)
    except TrainmarkError as error:
        launcher.refuse(coordinator, error)
        raise
