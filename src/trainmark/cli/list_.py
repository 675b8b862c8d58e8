"""`trainmark list`: the workloads, their recipes, and the platforms."""

from __future__ import annotations

import argparse
import json
from typing import Any

from trainmark import workloads
from trainmark.cli.terminal import show
from trainmark.platforms import files
from trainmark.record.recipe import Limits, deviations, fix_hp, to_values

NAME = "list"
HELP = "List workloads, recipes and platforms."
EXAMPLES = """\
  trainmark list
  trainmark list --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    loaded = [workloads.load(name) for name in workloads.names()]
    platforms = [files.load(name) for name in files.names()]
    if args.json:
        document: dict[str, Any] = {
            "workloads": {
                workload.name: {
                    "item": workload.item,
                    "target": workload.target.name,
                    "recipes": {name: to_values(recipe) for name, recipe in workload.recipes.items()},
                }
                for workload in loaded
            },
            "platforms": {platform.name: list(platform.precisions) for platform in platforms},
        }
        print(json.dumps(document, indent=1))
        return 0
    show("workloads")
    for workload in loaded:
        show(f"  {workload.name}: counts {workload.item}, trains to {workload.target.name} on {workload.data_set}")
        reference = workload.recipes["reference"]
        for name, recipe in workload.recipes.items():
            until = workload.limits.get(name, Limits())
            times = f" x {recipe.accumulate}" if recipe.accumulate > 1 else ""
            show(f"    {name:10} bs={recipe.batch_per_device}{times}, lr={recipe.learning_rate:g}; until {until}")
            if name != "reference":
                show(15 * " " + f"differs from reference: {fix_hp(deviations(recipe, reference), most=6)}")
    show("platforms")
    for platform in platforms:
        show(f"  {platform.name:10} {platform.title}: {', '.join(platform.precisions)}")
    return 0
