"""`trainmark plan`: prints what a run would do, and starts nothing."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from trainmark import features
from trainmark.cli.options import add_options, options_from_args
from trainmark.cli.terminal import show
from trainmark.launch.options import PLAN, SWEEP, RunOptions

if TYPE_CHECKING:
    from trainmark.record.plan import Plan

NAME = "plan"
GROUP = "Measure"
HELP = "Print the decided plan and run nothing."
EXAMPLES = """\
  trainmark plan resnet50 --recipe reference --topology 1x8
  trainmark plan resnet50 --sweep 1x1,1x2,1x4
  trainmark plan resnet50 --recipe quick --set batch_per_device=8 --json
  trainmark plan llama8b --recipe reference --precision bf16 --flops --card H100"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, PLAN, SWEEP)
    for feature in features.offers("plan_view"):
        feature.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document: a plan, or a list of them")


def run(args: argparse.Namespace) -> int:
    from trainmark.launch import planning

    views = [feature for feature in features.offers("plan_view") if feature.is_requested(args)]
    options = options_from_args(args)
    plans = planning.make_plans(options)
    if views:
        views[0].show_plans(plans, args)
    elif args.json:
        documents = [plan.to_json() for plan in plans]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    else:
        for plan in plans:
            _show_plan(plan, options)
    return 0


def _show_plan(plan: Plan, options: RunOptions) -> None:
    from trainmark.launch import planning

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
        show(f"  {name:24} {value}{note}")
