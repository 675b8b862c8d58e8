"""`trainmark list`: the workloads, their recipes, and the platforms."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from trainmark import workloads
from trainmark.cli.terminal import open_console, screen_options, show
from trainmark.platforms import files
from trainmark.record.recipe import RECIPES, Limits, deviations, fix_hp, to_values
from trainmark.view.terminal import TerminalWriter

if TYPE_CHECKING:
    from trainmark.workloads.workload import Workload

NAME = "list"
GROUP = "Measure"
HELP = "List workloads, recipes and platforms."
EXAMPLES = """\
  trainmark list
  trainmark list resnet50          its recipes and what they change
  trainmark list nvidia            a platform's precisions
  trainmark list --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a workload or a platform, for its details")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    if args.json:
        _show_document()
    elif args.name in files.names():
        platform = files.load(args.name)
        show(f"{platform.name}: {platform.title}, {', '.join(platform.precisions)}")
    elif args.name:
        _show_workload(workloads.find(args.name)[0])
    else:
        screen = open_console()
        writer = TerminalWriter(**screen_options(screen))
        facts = workloads.all_facts()
        rows = [(one.name, one.title, one.item, one.data_set) for one in facts]
        writer.put(writer.grid(("workload", "network", "counts", "data"), rows, left=range(4)), "")
        further = [f"{one.name} also {name}" for one in facts for name in one.recipes if name not in RECIPES]
        writer.put(f"recipes: {'; '.join([', '.join(RECIPES), *further])}")
        writer.put(f"platforms: {', '.join(files.names())}", "", "trainmark list NAME has the details of one")
        screen.file.write(writer.getvalue())
    return 0


def _show_workload(workload: Workload) -> None:
    show(f"{workload.name}: counts {workload.item}, trains to {workload.target.name} on {workload.data_set}")
    reference = workload.recipes["reference"]
    for name, recipe in workload.recipes.items():
        until = workload.limits.get(name, Limits())
        times = f" x {recipe.accumulate}" if recipe.accumulate > 1 else ""
        show(f"  {name:10} bs={recipe.batch_per_device}{times}, lr={recipe.learning_rate:g}; until {until}")
        if name != "reference":
            show(13 * " " + f"differs from reference: {fix_hp(deviations(recipe, reference), most=6)}")


def _show_document() -> None:
    document: dict[str, Any] = {
        "workloads": {
            workload.name: {
                "item": workload.item,
                "target": workload.target.name,
                "recipes": {name: to_values(recipe) for name, recipe in workload.recipes.items()},
            }
            for workload in map(workloads.load, workloads.names())
        },
        "platforms": {name: list(files.load(name).precisions) for name in files.names()},
    }
    print(json.dumps(document, indent=1))
