"""`trainmark verify`: checks the arithmetic of a device by repeated steps, bit by bit, or against another device."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from trainmark import workloads
from trainmark.cli.options import add_options, options_from_args
from trainmark.cli.terminal import mark_result_saved, open_console, print_status, screen_options, show
from trainmark.features.hosts import remote_run
from trainmark.features.reproduce.rebuild import locate_data
from trainmark.features.verify import parity, verdict as judgement
from trainmark.features.verify.document import VerifyDocument
from trainmark.launch import launcher, planning, preflight, session
from trainmark.launch.coordinator import join_launchers
from trainmark.launch.launcher import Outcome
from trainmark.launch.options import RunOptions
from trainmark.platforms import detection, files
from trainmark.record import site
from trainmark.record.errors import NotReadyError, TrainmarkError, UsageError
from trainmark.record.numbers import parse_seconds
from trainmark.record.plan import Plan, Topology
from trainmark.record.precision import Precision
from trainmark.record.recipe import Limits
from trainmark.record.run_folder import RunFolder
from trainmark.record.store import Store
from trainmark.record.trust import check_plan, trust_file

NAME = "verify"
GROUP = "Judge"
HELP = "Check the arithmetic: the same steps again, bit by bit."
EXAMPLES = """\
  trainmark verify resnet50 --recipe smoke          30 steps twice, every bit of loss, gradients and weights compared
  trainmark verify resnet50 --topology 1x8          the same on eight devices; names the one that differs
  trainmark verify gpt124m --recipe smoke --soak 1h repeated for an hour, one line per round with temperatures
  trainmark verify vit --recipe smoke --platform cpu
  trainmark verify --against last --platform ./my_chip.toml   the same steps on another chip
  trainmark verify --against cpu.json --precision amp-bf16    or in another precision, from a file
  trainmark verify --show last                                an earlier verify, also an interrupted one

Exit codes: 0 all bits are equal, and with --against no more differs than rounding explains; 5 the arithmetic is wrong,
with step, rank and layer; 6 the other chip computes another training; 7 inconclusive, because operators are not
deterministic or the two did not make the same steps; 3 the machine is not ready. docs/verify.md explains it."""


OPTIONS = (
    *("recipe", "topology", "precision", "platform", "data", "settings", "seed", "init_from", "hosts", "port"),
    *("trust", "hang_timeout_s", "store", "quiet"),
)
"""Options of a run that a verify has, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "workloads",
        nargs="?",
        type=lambda word: (word,),
        default=(),
        metavar="WORKLOAD",
        help="a workload's name, or a .py file (default: the first)",
    )
    add("--steps", type=int, metavar="N", help="steps per round (default: 30, or those of --against)")
    add(
        "--soak",
        type=lambda text: parse_seconds(text, option="--soak"),
        default=0.0,
        dest="soak_s",
        metavar="TIME",
        help="repeat rounds for this long: 90s, 30m, 1h (default: until it is settled, usually two rounds)",
    )
    add("--against", metavar="VERIFY", help="an earlier verify, by id or 'last', or its file")
    add(
        "--show",
        metavar="VERIFY",
        help="compute nothing, and show that verify, also an interrupted one",
    )
    add_options(parser, *OPTIONS)
    add("--json", action="store_true", help="one JSON document on stdout: what is kept, and the comparison")


def run(args: argparse.Namespace) -> int:
    options = options_from_args(args)
    store = session.open_store(options)
    other = judgement.load_document(args.against, store) if args.against else None
    if args.show:
        document, code = judgement.load_document(args.show, store), 0
    elif args.hosts:
        if other:
            raise UsageError("--against reads local files: run it on the first host, not with --hosts")
        document, code = _run_on_hosts(args, options)
    else:
        plan = make_plan(options, args.soak_s, Plan.from_json(other.plan) if other else None)
        watch = _RoundPrinter(quiet=args.quiet)
        outcome = run_ranks(plan, options, store, watch)
        if outcome is None:
            return 0
        if outcome.sentence:
            print_status(f"trainmark: {outcome.sentence}")
        document, code = judgement.make_document(outcome.folder, read_switches(plan)), outcome.exit_code
        if code and not document.rounds:
            return code  # the reason is printed, and there is no result to save
    path = judgement.save_document(document, store)
    mark_result_saved()
    code = code or judgement.EXIT_CODES[document.verdict]
    found = parity.compare_verifies(document, other) if other else None
    if args.json:
        text = msgspec.json.encode({"verify": document, "parity": found}).decode()
        sys.stdout.write(f"{text}{os.linesep}")
    else:
        sys.stdout.write(judgement.render_text(document, found, **screen_options(open_console())))
        show(f"kept: {path}")
    if found is not None and document.verdict != "incomplete":
        code = code or parity.EXIT_CODES[found.verdict]
    return code


def _run_on_hosts(args: argparse.Namespace, options: RunOptions) -> tuple[VerifyDocument, int]:
    """The document of the first of several hosts, once all of them are done."""
    over_there = replace(options, hosts=None, store=None, trust=False, quiet=False)
    words = [word for group in over_there.to_argv() for word in group]
    words += ["--soak", f"{args.soak_s:g}s"] if args.soak_s else []
    known = site.load().entering_hosts(trust=args.trust)
    topology = Topology.parse(args.topology or "1x1")
    answer, code = remote_run.query_hosts(args.hosts, ["verify", *words], topology, known, quiet=args.quiet)
    try:
        return msgspec.convert((answer or {}).get("verify"), VerifyDocument), code
    except msgspec.ValidationError as error:
        raise NotReadyError(
            f"the first of the hosts {args.hosts} did not answer with a verify; "
            "check that it has the same version of trainmark as this machine"
        ) from error


class _RoundPrinter:
    """Prints one line per round, with the sensors' readings."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._folder: RunFolder | None = None
        self._rounds = 0

    def __call__(self, folder: Path) -> None:
        if self._quiet:
            return
        self._folder = self._folder or RunFolder(folder)
        self._folder.update()
        logs = self._folder.logs
        rounds = [event for event in logs[0].rounds if event.round] if logs else []
        for event in rounds[self._rounds :]:
            found = [one for log in logs for each in log.rounds if each.round == event.round for one in each.found]
            now = judgement.summarize_sensors((0, reading) for node in self._folder.nodes for reading in node.last)
            print_status(judgement.describe_round(event, len(judgement.find_causes(found)), now))
        self._rounds = len(rounds)


# The plan and its ranks

STEPS = 30
"""The default: ten more than the rule for losses leaves out."""


def make_plan(options: RunOptions, soak_s: float = 0.0, against: Plan | None = None) -> Plan:
    """The plan of a verify: by the options, or the same steps as another verify."""
    if options.steps is not None and options.steps < 1:
        raise UsageError(f"--steps must be more than 0, not {options.steps}")
    if against is None:
        name = (options.workloads or (workloads.names()[0],))[0]
        decided = planning.make_plan(name, options)
        steps = options.steps or STEPS
    else:
        decided = _replan(against, options)
        steps = options.steps or against.limits.steps or STEPS
    return replace(
        decided,
        limits=Limits(steps=steps, wall_s=soak_s or None),
        max_restarts=0,
        resume_from=None,
    )


def run_ranks(plan: Plan, options: RunOptions, store: Store, watch: Callable[[Path], None]) -> Outcome | None:
    """Starts the ranks of this node, joins the other launchers of the job if any, and waits until they end.

    None on a launcher that does not lead, which has nothing to report.
    """
    own_command = [sys.executable, "-m", "trainmark", *sys.argv[1:]]
    topology, wait_s = Topology.parse(plan.topology), options.join_timeout_s
    with join_launchers(topology, own_command, port=options.port, wait_s=wait_s) as together:
        store.check_writable()
        leads = together is None or together.env.is_leader
        if together is None or not together.env.first_local_rank:
            try:
                preflight.get_ready(plan, store.folder, print_status if leads else lambda sentence: None)
            except TrainmarkError as error:
                if together:
                    together.refuse_run(error)
                raise
        shown = watch if leads else lambda folder: None
        outcome = launcher.run_task(plan, store.folder / "verify", "verify", coordinator=together, watch=shown)
        if together and leads:
            together.finish(outcome.exit_code)
    if leads:
        return outcome
    if outcome.sentence:
        print_status(f"trainmark: {outcome.sentence}")
    return None


def _replan(other: Plan, options: RunOptions) -> Plan:
    """Another verify's plan on this machine: only the chip, the precision and the topology may differ."""
    if options.workloads and workloads.find(options.workloads[0])[0].name != other.workload:
        raise UsageError(
            f"--against is a verify of {other.workload}, not of {options.workloads[0]}; leave the workload's name out"
        )
    words = [word for word in ("recipe", "seed", "init_from") if getattr(options, word) is not None]
    if words or options.settings:
        word = (words or ["set"])[0].replace("_", "-")
        raise UsageError(f"--against repeats the steps of the other verify; leave out --{word}")
    chosen = detection.choose_platform() if options.platform in (None, "auto") else str(options.platform)
    file = files.load(chosen)
    decided = replace(other, platform=str(Path(chosen).absolute()) if file.is_own else file.name)
    if file.is_own:
        trust_file(Path(chosen))
    check_plan(decided, "the other verify", trust=options.trust)
    precision = Precision.parse(options.precision or other.precision)
    if precision.name not in file.precisions:
        raise UsageError(
            f"precision {precision} does not run on platform {file.name}; it has {', '.join(file.precisions)}"
        )
    decided = replace(decided, precision=precision.name)
    if options.topology is not None:
        decided = planning.change_topology(decided, Topology.parse(options.topology))
    return locate_data(decided, options.data)


def read_switches(plan: Plan) -> dict[str, str]:
    """The variables that make the platform's libraries deterministic, with their values in the workers."""
    settings = files.load(plan.platform).deterministic_settings
    return {name: os.environ.get(name, value) for name, value in settings.items()}
