"""Options, output and exit codes of commands that end in a verdict."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from trainmark.analysis.comparison import to_json
from trainmark.cli.terminal import open_console, screen_options
from trainmark.record.errors import UsageError
from trainmark.view.compare_screen import render

if TYPE_CHECKING:
    from trainmark.api import Verdict

REGRESSED, INCONCLUSIVE = 6, 7
"""Exit codes."""


def add_verdict_options(parser: argparse.ArgumentParser) -> None:
    """The options `compare` and `reproduce` share."""
    parser.add_argument("--metric", default="p_core", metavar="M", help="what to compare by (default: p_core)")
    parser.add_argument(
        "--threshold", default="3%", metavar="P", help="a smaller difference is the same (default: 3%%)"
    )
    parser.add_argument("--gate", action="store_true", help="exit 7 wherever the result is inconclusive")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def show_verdict(verdict: Verdict, *, as_json: bool, gate: bool) -> int:
    """Prints a verdict; returns its exit code."""
    found = verdict.comparison
    screen = open_console()
    if as_json:
        screen.file.write(json.dumps(to_json(found), indent=2) + "\n")
    else:
        screen.file.write(render(found, **screen_options(screen)))
    if found.is_regression:
        return REGRESSED
    return INCONCLUSIVE if found.hidden_by_load is not None or (found.is_inconclusive and gate) else 0


def parse_threshold(word: str) -> float:
    """`3%`, `3 %` or `0.03` as 0.03."""
    text = word.strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"--threshold {word!r} is not a share; try '3%'") from None
    if not 0 <= value < 1:
        raise UsageError(f"--threshold must be from 0% to below 100%, not {word}; a share such as '3%' or 0.03")
    return value
