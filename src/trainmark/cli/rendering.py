"""Shared by `launch render` and `fleet --slurm`: cluster options, and run options with nothing left to defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import data as datasets, workloads
from trainmark.cli.terminal import print_status
from trainmark.data import synthetic
from trainmark.record.plan import NO_FOLDER

if TYPE_CHECKING:
    from trainmark.launch.options import RunOptions
    from trainmark.record.plan import Plan


def add_request_options(parser: argparse.ArgumentParser, request: type) -> None:
    """Adds the options that a cluster environment's request declares."""
    for each in fields(request):
        if about := each.metadata:
            default = {"required": True} if each.default is MISSING else {"default": each.default}
            parser.add_argument(
                about["flag"], type=about["kind"], metavar=about["metavar"], help=about["help"], **default
            )


def build_request(args: argparse.Namespace, request: type, **more: object) -> Any:
    flags = {each.name: each.metadata["flag"] for each in fields(request) if each.metadata}
    values = {name: getattr(args, flag.removeprefix("--").replace("-", "_")) for name, flag in flags.items()}
    return request(**values, **more)


def pin_options(options: RunOptions, decided: Sequence[Plan]) -> RunOptions:
    """Makes explicit what another machine might decide otherwise: platform, paths, the site's data."""
    first = decided[0]
    if options.platform in (None, "auto"):
        print_status(
            f"platform {first.platform} is what this machine has, and what is asked for; --platform names another"
        )
        options = replace(options, platform=first.platform)
    own = synthetic.folder(first.data.name) if first.data.name in datasets.names() else Path(NO_FOLDER)
    if len(decided) == 1 and Path(first.data.folder) != own:
        options = replace(options, data=first.data.folder)
    return replace(
        options,
        workloads=tuple(workloads.word_of(plan) for plan in decided),
        recipe=first.recipe_name,
        topology=first.topology,
        init_from=first.init_from,
    )
