"""The options that several commands share: what to train, how, where, for how long, and how to start it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from trainmark.spec.duration import parse_seconds
from trainmark.spec.precision import PRECISIONS

if TYPE_CHECKING:
    from trainmark.launch.options import RunOptions


WORKLOADS = "what to train: a name, or a .py file that defines WORKLOAD (default: all of ours)"


def add_plan_options(parser: argparse.ArgumentParser, *, metavar: str = "WORKLOAD", words: str = WORKLOADS) -> None:
    """`metavar` and `words` are for a command whose words may mean something else than workloads."""
    add = parser.add_argument
    add("workloads", nargs="*", metavar=metavar, help=words)
    add("--recipe", metavar="NAME", help="reference, fill, quick or smoke (default: quick)")
    add("--topology", metavar="NxM", help="nodes x devices per node (default: 1x1)")
    add("--precision", metavar="P", help=f"one of {', '.join(PRECISIONS)} (default: fp32)")
    add("--platform", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    add("--data", metavar="DIR", help="the real data set (default: a synthetic one, made once and kept)")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--steps", type=int, metavar="N", help="stop after N steps")
    how_long.add_argument("--seconds", type=float, metavar="S", help="stop after S seconds of training")
    how_long.add_argument("--epochs", type=int, metavar="N", help="stop after N epochs")
    how_long.add_argument(
        "--items", type=int, metavar="N", help="stop after N images, mel frames or what else is counted"
    )
    add(
        "--budget",
        type=lambda text: parse_seconds(text, option="--budget"),
        dest="budget_s",
        metavar="TIME",
        help="time all runs share, data making and start-up included: 90s, 3m, 1h (default: 3m without a workload)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="key=value",
        dest="settings",
        help="change one field of the recipe",
    )
    add("--seed", type=int, metavar="N", help="the seed of weights, order and augmentation")
    add("--init-from", metavar="FILE", help="begin with the weights in FILE instead of random ones")
    add("--skip-bad", type=int, default=0, metavar="N", help="leave out up to N unreadable data files (default: 0)")
    add(
        "--profile",
        type=int,
        default=0,
        metavar="N",
        help="after the steps that count, look where the time of N more goes",
    )
    add(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="start failed ranks again up to K times, from their last checkpoint (default: 0)",
    )
    add(
        "--hang-timeout",
        type=float,
        dest="hang_timeout_s",
        metavar="S",
        help="seconds without progress that end the run (default: from the steps; at least 30 while it starts)",
    )


def add_sweep_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sweep",
        metavar="NxM,...",
        help="one workload at several topologies, like 1x1,1x2,1x4; asked for again, it goes on where it was",
    )


def add_run_options(parser: argparse.ArgumentParser, *, store: str) -> None:
    """Those of a run that mean the same on another machine; `store` says where records are kept."""
    add_plan_options(parser)
    add = parser.add_argument
    add("--repeat", type=int, default=1, metavar="K", help="run K times and report the spread")
    add(
        "--tag",
        action="append",
        default=[],
        metavar="key=value",
        dest="tags",
        help="kept on the record, to find the run by; may be given several times",
    )
    add("--note", metavar="TEXT", help="kept on the record, for people")
    add("--store", metavar="DIR", help=store)
    add(
        "--join-timeout",
        type=float,
        dest="join_timeout_s",
        metavar="S",
        help="seconds the nodes wait for each other (default: 60)",
    )
    add(
        "--strict",
        action="store_true",
        help="exit 5 if the target is missed, the result too noisy, or the precision another",
    )
    add(
        "--json",
        action="store_true",
        help="one JSON document on stdout: a record, a list, or repeats with their groups",
    )
    add("--quiet", action="store_true", help="no progress, only the result")


def from_args(args: argparse.Namespace) -> RunOptions:
    """What was said, of all that can be said about a run; the arguments are named as the options are."""
    from dataclasses import fields

    from trainmark.launch.options import RunOptions

    known = {each.name for each in fields(RunOptions)}
    said: dict[str, Any] = {name: value for name, value in vars(args).items() if name in known}
    said |= {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
    return RunOptions(**said)
