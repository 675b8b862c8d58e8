"""`trainmark platform`: checks that a vendor's devices do what a run relies on, or drafts a file for new ones."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from string import Template
from typing import Any

from trainmark.cli.terminal import print_status, show
from trainmark.features.doctor import screen
from trainmark.platforms import files
from trainmark.record import tables
from trainmark.record.checks import CheckResult, failed
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.precision import PRECISIONS

NAME = "platform"
GROUP = "Cluster"
HELP = "Check what a platform's devices do, or draft a file for new ones."
EXAMPLES = """\
  trainmark platform check nvidia          the cards of this machine, in a minute or less
  trainmark platform check mine.toml       a platform file of your own
  trainmark platform check standin --json  the stand-in, for programs
  trainmark platform new mine              writes mine.toml for an accelerator that no file describes"""

NEW = "Write a commented platform file from what torch reports about the accelerator of this machine."
HANG_S = 600.0
NAME_COLUMNS = 18
NOT_OPENED, FAILED, HUNG = 3, 4, 124


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="run the conformance list", description=HELP, allow_abbrev=False)
    check.add_argument("platform", metavar="FILE|NAME", help="a platform's name, or a .toml file")
    check.add_argument(
        "--hang-timeout",
        type=float,
        default=HANG_S,
        metavar="SECONDS",
        help=f"give up on a check after so long (default: {HANG_S:g})",
    )
    check.add_argument("--json", action="store_true", help="one JSON document on stdout")
    new = actions.add_parser("new", help="write a first file", description=NEW, allow_abbrev=False)
    new.add_argument("name", metavar="NAME", help="the platform's name; NAME.toml is written to this folder")


def run(args: argparse.Namespace) -> int:
    return _write_file(args.name) if args.action == "new" else _check(args)


def _check(args: argparse.Namespace) -> int:
    from trainmark.features.doctor import conformance

    file = files.load(args.platform)
    findings: list[CheckResult] = []
    code = 0
    try:
        for name, check in conformance.list_checks(args.platform):
            findings.append(_run_in_time(name, check, args.hang_timeout))
            if not args.json:
                _print_finding(findings[-1])
    except NotReadyError as error:
        remedy = f"`trainmark platform check {args.platform}` needs one device that torch sees"
        findings.append(replace(failed(str(error), remedy), name="opens"))
        if not args.json:
            _print_finding(findings[-1])
        code = NOT_OPENED
    if not code and any(finding.verdict == "failed" for finding in findings):
        code = FAILED
    summary = screen.summarize(findings)
    if args.json:
        found = [screen.make_document(finding) for finding in findings]
        screen.dump(
            {"platform": file.name, "title": file.title, "summary": summary, "passed": not code, "findings": found}
        )
    else:
        show(f"{file.title}: {summary}")
    return code


def _run_in_time(name: str, check: Any, limit_s: float) -> CheckResult:
    """Ends the program when a check hangs: a call into a driver cannot be interrupted."""
    from trainmark.features.doctor import conformance

    def give_up() -> None:
        print_status(
            f"trainmark: the check {name!r} did not end within {limit_s:g} s; "
            "the device hangs, or needs a larger --hang-timeout"
        )
        os._exit(HUNG)

    watchdog = threading.Timer(limit_s, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        return conformance.run_check(name, check)
    finally:
        watchdog.cancel()


def _print_finding(finding: CheckResult) -> None:
    """Flushes at once: a check that hangs is the one after the last line."""
    writer = screen.make_writer()
    screen.put_result(writer, finding, NAME_COLUMNS)
    sys.stdout.write(writer.getvalue())
    sys.stdout.flush()


# A new file


def _write_file(name: str) -> int:
    if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,63}", name):
        raise UsageError(f"platform name {name!r} must be letters, digits, - and _ only")
    path = Path(f"{name}.toml")
    if path.exists() or name in files.names():
        raise UsageError(f"platform {name} exists already; choose another name")
    text = draft_file(name)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotReadyError(f"{path} cannot be written: {error.strerror}") from error
    files.load(str(path))
    show(f"{path}: written from what torch reports about this machine's accelerator")
    show(f"next: trainmark platform check ./{path}")
    return 0


def draft_file(name: str) -> str:
    """A file with the keys that most platforms need, from what torch reports; unknown ones are comments."""
    import torch
    from torch import distributed

    from trainmark.features.doctor.device_checks import find_fault
    from trainmark.platforms import device_errors
    from trainmark.platforms.platform import Platform

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        raise NotReadyError(
            "torch sees no accelerator here, and a platform file is written from what it sees; import its plugin, or "
            "install one for this torch"
        )
    kind = found.type
    table = {"title": kind, "device_type": kind, "collectives": files.NO_COLLECTIVES, "precisions": list(PRECISIONS)}
    file = tables.read(files.PlatformFile, table, "a first file", name=kind, word=kind, text="")
    seen, capacity, refused = kind, 64, dict[str, str | None]()
    try:
        device = Platform(file).open(0)
        seen, capacity = device.name(), round((device.memory_capacity_bytes() or 0) / 2**30) or 64
        # any device trains under the settings of TF32; whether it has TF32, its matmuls show
        refused = {
            word: find_fault(device, precision) if precision.allows_tf32 else device.explain_refusal(precision)
            for word, precision in PRECISIONS.items()
        }
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        refused = dict.fromkeys(PRECISIONS, device_errors.first_line(error))
    trained = [f'"{word}"' for word, reason in refused.items() if reason is None]
    template = Path(__file__).with_name("new_platform.toml").read_text(encoding="utf-8")
    return Template(template).substitute(
        name=name,
        torch=torch.__version__,
        count=torch.accelerator.device_count(),
        device=_comment(seen),
        kind=kind,
        variable=kind.upper(),
        collectives=distributed.Backend.default_device_backend_map.get(kind, files.NO_COLLECTIVES),
        precisions=", ".join(trained) or '"fp32"',
        refused="".join(f"# not {word}: {_comment(reason)}\n" for word, reason in refused.items() if reason),
        plugin=f'plugin = "{plugin}"' if (plugin := _find_plugin(kind)) else '# plugin = "torch_vendor"',
        release=".".join(re.findall(r"\d+", torch.__version__)[:2]),
        pattern=re.escape(_comment(seen)).replace("\\ ", " "),
        capacity=capacity,
    )


def _comment(words: str) -> str:
    """External text on one line, in printable ASCII."""
    return re.sub(r"[^\x20-\x7e]", "?", words)[:160]


def _find_plugin(device_type: str) -> str | None:
    """The module of the entry point that registers the device in torch; None where torch has it built in."""
    import torch

    if device_type != torch._C._get_privateuse1_backend_name():
        return None
    modules = [entry.value.partition(":")[0] for entry in entry_points(group="torch.backends")]
    named = [module for module in modules if device_type in module]
    return next(iter(named or modules), None)
