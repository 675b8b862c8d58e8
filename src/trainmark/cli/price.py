"""`--price` and `--pue`: what a device costs, by default from the site file."""

from __future__ import annotations

import argparse

from trainmark.record import site
from trainmark.record.errors import UsageError
from trainmark.record.site import Price


def add_price_options(parser: argparse.ArgumentParser, desc: str = "like 2.10/h") -> None:
    parser.add_argument(
        "--price", metavar="P/h", help=f"price of one device-hour, {desc} (default: [price] of trainmark.toml)"
    )
    parser.add_argument(
        "--pue", type=float, metavar="X", help="energy of the building over that of its machines (default: 1, or there)"
    )


def read_price(args: argparse.Namespace) -> Price:
    """The price from the options, on top of the site file's."""
    return site.parse_price(args.price, args.pue, site.load().price)


def read_prices(args: argparse.Namespace) -> tuple[Price, Price]:
    """The prices of the two sides of a comparison."""
    words = args.price.split(",") if args.price else [None]
    if (count := len(words)) > 2:
        raise UsageError(f"--price {args.price!r} has {count} prices, and there are two sides; give one or two")
    usual = site.load().price
    a, b = (site.parse_price(word, args.pue, usual) for word in (words[0], words[-1]))
    return a, b
