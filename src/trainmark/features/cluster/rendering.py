"""What `launch render` and `fleet --slurm` share: Slurm's options, and a run settled for another machine to start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.terminal import say

if TYPE_CHECKING:
    from trainmark.features.cluster.render_job import ClusterJob
    from trainmark.launch.options import RunOptions
    from trainmark.record.plan import Plan


def add_slurm_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", metavar="NAME", help="the job's name (default: from the plan)")
    add("--time", metavar="T", help="the longest it may take, such as 2:00:00 (default: the cluster's)")
    add("--partition", metavar="NAME", help="the queue (default: the cluster's)")
    add("--account", metavar="NAME", help="who pays (default: the user's)")
    add("--gpus-per-node", type=int, metavar="N", help="devices to ask for (default: the topology's; none on cpu)")
    add("--cpus-per-task", type=int, metavar="N", help="processors a node (default: all of them)")
    add("--venv", metavar="DIR", help="virtual environment to enter first")


def slurm_script(
    args: argparse.Namespace, options: RunOptions, decided: Sequence[Plan], *, array: int | None = None
) -> str:
    from trainmark.features.cluster import render_slurm as slurm

    request = slurm.SlurmRequest(
        time=args.time,
        partition=args.partition,
        account=args.account,
        gpus_per_node=args.gpus_per_node,
        cpus_per_task=args.cpus_per_task,
        venv=absolute(args.venv),
        array=array,
    )
    return slurm.script(job_of(args, replace(options, store=absolute(options.store)), decided), request)


def absolute(path: str | None) -> str | None:
    """Paths mean the same wherever the job starts."""
    return None if path is None else str(Path(path).expanduser().absolute())


def settled(options: RunOptions, decided: Sequence[Plan]) -> RunOptions:
    """Says everything that another machine might decide otherwise: the device found here, paths, the site's data."""
    from trainmark import data as datasets, workloads
    from trainmark.data import synthetic
    from trainmark.record.plan import NO_FOLDER

    first = decided[0]
    if options.platform in (None, "auto"):
        say(f"platform {first.platform} is what this machine has, and what is asked for; --platform names another")
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


def job_of(args: argparse.Namespace, options: RunOptions, decided: Sequence[Plan]) -> ClusterJob:
    from trainmark.features.cluster.render_job import ClusterJob, name_for

    names, *rest = options.to_argv()
    words = (("run", *names), *rest, *([("--json",)] if args.json else []))
    return ClusterJob(plans=tuple(decided), words=words, name=getattr(args, "name", None) or name_for(decided))
