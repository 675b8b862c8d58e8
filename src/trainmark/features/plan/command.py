"""`trainmark plan`: prints what a run would do, and starts nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmark.cli.options import add_options, options_from_args
from trainmark.cli.terminal import open_console, screen_options, show
from trainmark.features.plan import roofline, step_table
from trainmark.launch.options import PLAN, SWEEP
from trainmark.record.errors import UsageError
from trainmark.record.precision import Precision

if TYPE_CHECKING:
    from trainmark.record.plan import Plan

NAME = "plan"
HELP = "Print the decided plan and run nothing."
EXAMPLES = """\
  trainmark plan resnet50 --recipe reference --topology 1x8
  trainmark plan resnet50 --sweep 1x1,1x2,1x4
  trainmark plan resnet50 --recipe quick --set batch_per_device=8 --json
  trainmark plan llama8b --recipe reference --precision bf16 --flops --card H100"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, PLAN, SWEEP)
    parser.add_argument(
        "--flops",
        action="store_true",
        help="instead, FLOPs, bytes and launches of a step by layer, and its roofline on cards",
    )
    parser.add_argument("--card", metavar="NAME", help="with --flops: only this card, such as H100")
    parser.add_argument("--json", action="store_true", help="one JSON document: a plan, or a list of them")


def run(args: argparse.Namespace) -> int:
    from trainmark.launch import planning

    if args.card is not None and not args.flops:
        raise UsageError("--card needs --flops")
    options = options_from_args(args)
    decided = planning.make_plans(options)
    if args.flops:
        return _print_count(decided, args.card, as_json=args.json)
    if args.json:
        documents = [plan.to_json() for plan in decided]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
        return 0
    for plan in decided:
        show(f"{plan.workload}, recipe {plan.recipe_name}, {plan.topology}, {plan.precision}, platform {plan.platform}")
        if plan.workload_source:
            show(f"  from         {plan.workload_source}")
        kind = " (synthetic)" if plan.data.synthetic else ""
        show(f"  data         {plan.data.folder or f'{plan.data.name}, made by the workload'}{kind}")
        show(f"  runs until   {plan.limits}")
        if planning.needs_search(plan, options):
            show("  batch        searched at the start; the numbers below are the published ones")
        if plan.init_from:
            show(f"  begins with  {plan.init_from}")
        show(f"  fingerprint  {plan.fingerprint[:16]}")
        changed = {deviation.name: deviation.reference for deviation in plan.deviations}
        for name, value in plan.recipe.items():
            note = f"   (reference: {changed[name]})" if name in changed else ""
            print(f"  {name:24} {value}{note}")
    return 0


def _print_count(decided: Sequence[Plan], card: str | None, *, as_json: bool) -> int:
    from trainmark.features.plan import counted_step

    screen, documents = open_console(), []
    for plan in decided:
        step = counted_step.count_step(plan)
        found = roofline.find_bounds(step, Precision.parse(plan.precision), plan.platform, card)
        if as_json:
            documents.append(step_table.to_json(plan, step, found))
        else:
            screen.file.write(step_table.render(plan, step, found, **screen_options(screen)))
    if as_json:
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    return 0
