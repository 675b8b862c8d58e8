"""`trainmark verify`: checks the arithmetic of a device by repeated steps, bit by bit, or against another device."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trainmark.cli.options import options_from_args
from trainmark.cli.terminal import mark_result_saved, open_console, print_status, screen_options, show
from trainmark.features.hosts import remote_run
from trainmark.features.verify import page as verify_page, parity, verdict as judgement
from trainmark.features.verify.document import VerifyDocument
from trainmark.features.verify.verdict import find_causes
from trainmark.record import site
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.language import current_language
from trainmark.record.numbers import parse_seconds
from trainmark.record.plan import Topology
from trainmark.record.precision import PRECISIONS
from trainmark.record.run_folder import RunFolder
from trainmark.view.frame import save_page

if TYPE_CHECKING:
    from trainmark.features.verify.parity import Parity
    from trainmark.launch.options import RunOptions
    from trainmark.record.store import Store

NAME = "verify"
HELP = "Check the arithmetic: repeat the same steps bit by bit, or compare them with another chip."
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
    add("--against", metavar="VERIFY", help="an earlier verify or a run, by id or 'last', or the file of one")
    add(
        "--show",
        metavar="VERIFY",
        help="compute nothing, and show that verify, also an interrupted one",
    )
    add("--recipe", metavar="NAME", help="reference, fill, quick or smoke (default: quick)")
    add("--topology", metavar="NxM", help="nodes x devices per node (default: 1x1)")
    add("--precision", metavar="P", help=f"one of {', '.join(PRECISIONS)} (default: fp32)")
    add("--platform", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    add("--data", metavar="DIR", help="the real data set (default: a synthetic one, made once and kept)")
    add("--set", action="append", default=[], metavar="key=value", dest="settings", help="change a field of the recipe")
    add("--seed", type=int, metavar="N", help="the seed of weights, order and augmentation")
    add("--init-from", metavar="FILE", help="start from the weights in FILE")
    add("--hosts", metavar="A,B", help="the nodes of a topology such as 2x8, reached by ssh")
    add("--port", type=int, metavar="N", help="where the first of several nodes listens for the others")
    add("--trust", action="store_true", help="use the ssh settings and programs of trainmark.toml in this folder")
    add(
        "--hang-timeout",
        type=float,
        dest="hang_timeout_s",
        metavar="S",
        help="end after this many seconds without progress (default: 600; at least 30 during startup)",
    )
    add("--store", metavar="DIR", help="where it is kept (default: $TRAINMARK_STORE or the user's data folder)")
    add("--json", action="store_true", help="one JSON document on stdout: what is kept, and the comparison")
    add("--quiet", action="store_true", help="no line per round, only the result")


def run(args: argparse.Namespace) -> int:
    from trainmark.features.verify import launch as verification
    from trainmark.launch import session

    options = options_from_args(args)
    store = session.open_store(options)
    other = judgement.find_document(args.against, store) if args.against else None
    if args.show:
        document, code = judgement.load_document(args.show, store), 0
    elif args.hosts:
        if other:
            raise UsageError("--against reads local files: run it on the first host, not with --hosts")
        document, code = _run_on_hosts(args, options)
    else:
        plan = verification.make_plan(options, args.soak_s, judgement.parse_plan(other) if other else None)
        watch = _RoundPrinter(quiet=args.quiet)
        own_command = [sys.executable, "-m", "trainmark", *sys.argv[1:]]
        outcome = verification.run_ranks(plan, options, store, own_command=own_command, say=print_status, watch=watch)
        if outcome is None:
            return 0
        if outcome.sentence:
            print_status(f"trainmark: {outcome.sentence}")
        document, code = judgement.make_document(outcome.folder, verification.read_switches(plan)), outcome.exit_code
        if code and not document.rounds:
            return code  # the reason is printed, and there is no result to save
    path = judgement.save_document(document, store)
    mark_result_saved()
    code = code or judgement.EXIT_CODES[document.verdict]
    found = parity.compare_verifies(document, other) if other else None
    if args.json:
        _dump(document, found)
    else:
        sys.stdout.write(verify_page.render_text(document, found, **screen_options(open_console())))
        show(f"kept: {path}")
    if found is not None and document.verdict != "incomplete":
        page = _write_page(document, found, store)
        (print_status if args.json else show)(f"page: {page}")
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
            found = find_causes(
                [one for log in logs for each in log.rounds if each.round == event.round for one in each.found]
            )
            readings = [reading for node in self._folder.nodes for reading in node.last]
            print_status(verify_page.describe_round(event, len(found), readings))
        self._rounds = len(rounds)


def _dump(document: VerifyDocument, found: Parity | None) -> None:
    text = msgspec.json.encode({"verify": document, "parity": found}).decode()
    sys.stdout.write(f"{text}{os.linesep}")


def _write_page(document: VerifyDocument, found: Parity, store: Store) -> Path:
    return save_page(
        f"{document.verify_id}.html", verify_page.render_page(document, found, language=current_language()), store
    )
