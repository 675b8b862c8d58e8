"""`trainmark platform`: checks that a vendor's devices do what a run relies on, or drafts a file for new ones."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.terminal import open_console, print_status, screen_options, show
from trainmark.platforms import files
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.view.terminal import TerminalWriter

if TYPE_CHECKING:
    from trainmark.record.checks import CheckResult

NAME = "platform"
HELP = "Check that a platform's devices do what a run relies on, or draft a file for new ones."
EXAMPLES = """\
  trainmark platform check nvidia          the cards of this machine, in a minute or less
  trainmark platform check mine.toml       a platform file of your own
  trainmark platform check standin --json  the stand-in, for programs
  trainmark platform new mine              writes mine.toml for an accelerator that no file describes"""

NEW = "Write a commented platform file from what torch reports about the accelerator of this machine."

WORDS = {"ok": "pass", "failed": "fail", "unknown": "skipped"}
STYLES = {"ok": "bold green", "failed": "bold red", "unknown": "dim"}
NOT_OPENED, FAILED, HUNG = 3, 4, 124


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="run the conformance list", description=HELP, allow_abbrev=False)
    check.add_argument("platform", metavar="FILE|NAME", help="a platform's name, or a .toml file")
    check.add_argument(
        "--hang-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="give up on a check without progress (default: 120)",
    )
    check.add_argument("--json", action="store_true", help="one JSON document on stdout")
    new = actions.add_parser("new", help="write a first file", description=NEW, allow_abbrev=False)
    new.add_argument("name", metavar="NAME", help="the platform's name; NAME.toml is written to this folder")


def run(args: argparse.Namespace) -> int:
    return _write_file(args.name) if args.action == "new" else _check(args)


def _write_file(name: str) -> int:
    from trainmark.features.doctor import new_platform as new_file

    if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,63}", name):
        raise UsageError(f"platform name {name!r} must be letters, digits, - and _ only")
    path = Path(f"{name}.toml")
    if path.exists() or name in files.names():
        raise UsageError(f"platform {name} exists already; choose another name")
    seen = new_file.inspect_accelerator()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(new_file.make_file(name, seen))
    except OSError as error:
        raise NotReadyError(f"{path} cannot be written: {error.strerror}") from error
    files.load(str(path))
    show(f"{path}: written from what torch reports about {seen.device_name or seen.device_type}")
    if not seen.precisions:
        show(f"no layer could be trained on it; the comments in {path} say why")
    show(f"next: trainmark platform check ./{path}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from trainmark.features.doctor import conformance

    file = files.load(args.platform)
    findings: list[CheckResult] = []
    code = 0
    watchdog = Watchdog(args.hang_timeout)
    try:
        for finding in conformance.examine(args.platform, watchdog.begin):
            findings.append(finding)
            if not args.json:
                _print_finding(finding)
    except NotReadyError as error:
        findings.append(conformance.report_not_opened(args.platform, error))
        code = NOT_OPENED
        if not args.json:
            _print_finding(findings[-1])
    finally:
        watchdog.end()
    if not code and any(finding.verdict == "failed" for finding in findings):
        code = FAILED
    summary = _summarize(findings)
    if args.json:
        document = {"platform": file.name, "title": file.title, "summary": summary, "passed": code == 0}
        json.dump(
            {**document, "findings": [_document(finding) for finding in findings]}, sys.stdout, ensure_ascii=False
        )
        print()
    else:
        show(f"{file.title}: {summary}")
    return code


class Watchdog:
    """Ends the program when a check hangs: a call into a driver cannot be interrupted."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._check, self._deadline_s = "", float("inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self, check: str) -> None:
        """Called per operator, so it only stores the time."""
        self._check, self._deadline_s = check, time.monotonic() + self._limit_s
        if not self._thread.ident:
            self._thread.start()

    def end(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(max(0.0, self._deadline_s - time.monotonic())):
            if time.monotonic() >= self._deadline_s:
                self._give_up()

    def _give_up(self) -> None:
        print_status(
            f"trainmark: the check {self._check!r} made no progress for {self._limit_s:g} s; "
            "the device hangs, or needs a larger --hang-timeout"
        )
        os._exit(HUNG)


def _summarize(findings: Sequence[CheckResult]) -> str:
    counted = [(word, sum(finding.verdict == verdict for finding in findings)) for verdict, word in WORDS.items()]
    return ", ".join(f"{count} {word}" for word, count in counted if count)


def _document(finding: CheckResult) -> dict[str, str]:
    return {
        "name": finding.name,
        "verdict": WORDS[finding.verdict],
        "sentence": finding.sentence,
        "remedy": finding.remedy,
    }


def _print_finding(finding: CheckResult) -> None:
    """Flushes at once: a check that hangs is the one after the last line."""
    screen = open_console()
    writer = TerminalWriter(**screen_options(screen))
    line = writer.table(heads=False)
    line.add_column(width=7)
    line.add_column(width=18, overflow="fold")
    line.add_column(overflow="fold")
    line.add_row(
        writer.text(WORDS[finding.verdict], STYLES[finding.verdict]), finding.name, writer.text(finding.sentence)
    )
    if finding.remedy:
        line.add_row("", "", writer.text(f"look at: {finding.remedy}"))
    writer.put(line)
    sys.stdout.write(writer.getvalue())
    sys.stdout.flush()
