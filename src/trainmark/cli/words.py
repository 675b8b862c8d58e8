"""The words `run` and `plan` share: what to train, how, where and for how long."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmark.spec.precision import PRECISIONS

if TYPE_CHECKING:
    from trainmark.launch.planning import Words
    from trainmark.spec.plan import Plan


def add_plan_words(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("workloads", nargs="*", metavar="WORKLOAD", help="what to train (default: all of them)")
    add("--recipe", metavar="NAME", help="reference, fill, quick or smoke (default: quick)")
    add("--topology", metavar="NxM", help="nodes x devices per node (default: 1x1)")
    add("--precision", metavar="P", help=f"one of {', '.join(PRECISIONS)} (default: fp32)")
    add("--platform", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    add("--data", metavar="DIR", help="the real data set (default: a generated one, made once and kept)")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--steps", type=int, metavar="N", help="stop after N steps")
    how_long.add_argument("--seconds", type=float, metavar="S", help="stop after S seconds of training")
    how_long.add_argument("--epochs", type=int, metavar="N", help="stop after N epochs")
    how_long.add_argument(
        "--items", type=int, metavar="N", help="stop after N images, mel frames or what else is counted"
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
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="start failed ranks again up to K times, from their last checkpoint (default: 0)",
    )
    add(
        "--hang-timeout",
        type=float,
        metavar="S",
        help="seconds without progress that end the run (default: from the steps; at least 30 while it starts)",
    )


def plans(args: argparse.Namespace) -> list[Plan]:
    """One decided plan for each workload asked for."""
    from trainmark import workloads
    from trainmark.launch import planning
    from trainmark.spec.errors import UsageError

    words = spoken(args)
    names = args.workloads or workloads.NAMES
    for word in ("data", "init_from"):
        if getattr(words, word) is not None and len(set(names)) > 1:
            raise UsageError(
                f"--{word.replace('_', '-')} is for one workload; name it: {', '.join(dict.fromkeys(names))}"
            )
    return [planning.decide(name, words) for name in names]


def spoken(args: argparse.Namespace) -> Words:
    from trainmark.launch.planning import Words
    from trainmark.spec.errors import UsageError

    if args.skip_bad < 0:
        raise UsageError(f"--skip-bad must be at least 0, not {args.skip_bad}")
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts must be at least 0, not {args.max_restarts}")
    return Words(
        recipe=args.recipe,
        topology=args.topology,
        precision=args.precision,
        platform=args.platform,
        data=args.data,
        steps=args.steps,
        seconds=args.seconds,
        epochs=args.epochs,
        items=args.items,
        settings=args.settings,
        seed=args.seed,
        skip_bad=args.skip_bad,
        hang_timeout_s=args.hang_timeout,
        max_restarts=args.max_restarts,
        init_from=args.init_from,
    )


def spelt(args: argparse.Namespace, add_words: Callable[[argparse.ArgumentParser], None]) -> Iterator[tuple[str, ...]]:
    """Those of some options that differ from their defaults, as one would type them for another command line."""
    parser = argparse.ArgumentParser(add_help=False)
    add_words(parser)
    for action in parser._actions:
        value = getattr(args, action.dest)
        if not action.option_strings or value == action.default:
            continue
        option = action.option_strings[0]
        if action.nargs == 0:
            yield (option,)
            continue
        for text in map(str, value if isinstance(value, list) else [value]):
            # a value that looks like an option has to be tied to its own
            yield (f"{option}={text}",) if text.startswith("-") else (option, text)
