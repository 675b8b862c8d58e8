"""Declares the options of a run, and prices, as command-line arguments."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from typing import Any

import msgspec

from trainmark.launch.options import LIMITS, PLAN, RECORD, RunOptions, read_option
from trainmark.record import site
from trainmark.record.errors import UsageError
from trainmark.record.site import MAX_PUE, MIN_PUE, Price

TOPICS = {
    "what to train": ("recipe", "settings", "precision", "data", "seed", "init_from"),
    "where": ("platform", "topology", "sweep", "hosts", "port", "join_timeout_s", "trust"),
    "how long": (*LIMITS, "budget_s", "repeat"),
    "when something goes wrong": ("resume", "max_restarts", "skip_bad", "hang_timeout_s", "strict"),
    "what is kept and shown": ("store", "group", "tags", "note", "profile", "quiet"),
}
"""The options of a run as its help groups them."""


def add_price_options(parser: argparse.ArgumentParser, desc: str = "like 2.10/h") -> None:
    parser.add_argument(
        "--price", metavar="P/h", help=f"price of one device-hour, {desc} (default: [price] of trainmark.toml)"
    )
    parser.add_argument(
        "--pue", type=float, metavar="X", help="energy of the building over that of its machines (default: 1, or there)"
    )


def read_price(args: argparse.Namespace) -> Price:
    """The price from the options, on top of the site file's."""
    return parse_price(args.price, args.pue, site.load().price)


def read_prices(args: argparse.Namespace) -> tuple[Price, Price]:
    """The prices of the two sides of a comparison."""
    words = args.price.split(",") if args.price else [None]
    if (count := len(words)) > 2:
        raise UsageError(f"--price {args.price!r} has {count} prices, and there are two sides; give one or two")
    usual = site.load().price
    a, b = (parse_price(word, args.pue, usual) for word in (words[0], words[-1]))
    return a, b


_SIGN = r"([A-Za-z$€£¥]{0,4})"


_WRITTEN = re.compile(rf"{_SIGN} ?([0-9]+(?:\.[0-9]+)?) ?{_SIGN}/h")


def parse_price(price: str | None, pue: float | None, usual: Price) -> Price:
    """The price from `--price` and `--pue`, by default `usual`."""
    if pue is not None:
        if not MIN_PUE <= pue <= MAX_PUE:
            raise UsageError(f"--pue {pue:g} is not between 1 and 5; a building uses at least what its machines do")
        usual = msgspec.structs.replace(usual, pue=pue)
    if price is None:
        return usual
    match = _WRITTEN.fullmatch(price.strip())
    if not match or (match[1] and match[3]) or not 0 < float(match[2]) <= 1e9:
        raise UsageError(f"--price {price!r} is not a price of one device an hour; try 2.10/h or EUR 2.10/h")
    currency = match[1] or match[3] or usual.currency
    return msgspec.structs.replace(usual, device_hour=float(match[2]), currency=currency)


def add_options(parser: argparse.ArgumentParser, *groups: str, metavar: str = "WORKLOAD", **helps: str) -> None:
    """Adds the options of these groups, or of these names; `metavar` and `helps` are what another command means."""
    known = {each.name: each for each in fields(RunOptions) if {read_option(each).group, each.name} & {*groups}}
    if "workloads" in known:
        text = helps.get("workloads", read_option(known["workloads"]).help)
        parser.add_argument("workloads", nargs="*", metavar=metavar, help=text)
    for topic, names in TOPICS.items():
        shown = parser.add_argument_group(topic)
        lengths = shown.add_mutually_exclusive_group() if known.keys() & {*LIMITS} & {*names} else shown
        for each in (known[name] for name in names if name in known):
            option = read_option(each)
            more: dict[str, Any] = {"help": helps.get(each.name, option.help)}
            if option.metavar is None:
                more |= {"action": "store_true"}
            elif each.default == ():
                more |= {"action": "append", "default": [], "metavar": option.metavar}
            else:
                more |= {"type": option.parse, "default": each.default, "metavar": option.metavar}
            (lengths if each.name in LIMITS else shown).add_argument(option.flag, dest=each.name, **more)


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
