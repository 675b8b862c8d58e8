"""`trainmark plan --flops`: FLOPs, bytes and launches of a step by layer, and its roofline on cards."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmark.cli.terminal import open_console, screen_options
from trainmark.features.flops import roofline, step_table
from trainmark.record.errors import UsageError
from trainmark.record.precision import Precision

if TYPE_CHECKING:
    from trainmark.record.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flops",
        action="store_true",
        help="instead, FLOPs, bytes and launches of a step by layer, and its roofline on cards",
    )
    parser.add_argument("--card", metavar="NAME", help="with --flops: only this card, such as H100")


def is_requested(args: argparse.Namespace) -> bool:
    if args.card is not None and not args.flops:
        raise UsageError("--card needs --flops")
    return bool(args.flops)


def show_plans(plans: Sequence[Plan], args: argparse.Namespace) -> None:
    from trainmark.features.flops import counted_step  # which imports torch

    screen, documents = open_console(), []
    for plan in plans:
        step = counted_step.count_step(plan)
        found = roofline.find_bounds(step, Precision.parse(plan.precision), plan.platform, args.card)
        if args.json:
            documents.append(step_table.to_json(plan, step, found))
        else:
            screen.file.write(step_table.render(plan, step, found, **screen_options(screen)))
    if args.json:
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
