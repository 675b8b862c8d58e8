"""Declares the options of a run as command-line arguments."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from trainmark.launch.options import LIMITS, PLAN, RECORD, RunOptions, read_option


def add_options(parser: argparse.ArgumentParser, *groups: str, metavar: str = "WORKLOAD", **helps: str) -> None:
    """Adds the options of these groups; `metavar` and `helps` override what another command means by them."""
    lengths = parser.add_mutually_exclusive_group()
    for each in fields(RunOptions):
        option = read_option(each)
        if option.group not in groups:
            continue
        more: dict[str, Any] = {"help": helps.get(each.name, option.help)}
        if not option.flag:
            parser.add_argument(each.name, nargs="*", metavar=metavar, **more)
            continue
        if option.metavar is None:
            more |= {"action": "store_true"}
        elif each.default == ():
            more |= {"action": "append", "default": [], "metavar": option.metavar}
        else:
            more |= {"type": option.parse, "default": each.default, "metavar": option.metavar}
        (lengths if each.name in LIMITS else parser).add_argument(option.flag, dest=each.name, **more)


def add_run_options(parser: argparse.ArgumentParser, *further: str, **helps: str) -> None:
    """Adds the options that mean the same on every machine, and those of further groups."""
    add_options(parser, PLAN, RECORD, *further, **helps)
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON document on stdout: a record, a list, or repeats with their groups",
    )


def options_from_args(args: argparse.Namespace) -> RunOptions:
    """Run options from parsed arguments, which have the same names."""
    known = {each.name for each in fields(RunOptions)}
    given: dict[str, Any] = {name: value for name, value in vars(args).items() if name in known}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return RunOptions(**given)
