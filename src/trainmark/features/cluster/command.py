"""`trainmark launch render`: prints the run as a Slurm script or a Kubernetes job, and starts nothing."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from trainmark.cli.options import add_run_options, options_from_args
from trainmark.cli.rendering import add_request_options, build_request, pin_options
from trainmark.cli.terminal import print_status
from trainmark.launch import cluster_env
from trainmark.launch.cluster_job import ClusterJob

NAME = "launch"
GROUP = "Cluster"
HELP = "Print a run as a Slurm script or a Kubernetes job."
EXAMPLES = """\
  trainmark launch render slurm resnet50 --recipe reference --topology 2x8 --platform nvidia --data /data/imagenet \\
      --partition gpu --time 4:00:00 --venv ~/trainmark > run.sh && sbatch run.sh
  trainmark launch render kubernetes resnet50 --recipe reference --topology 2x8 --platform nvidia \\
      --data /data/imagenet --data-claim datasets --image example.com/trainmark:1 | kubectl create -f -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="render", required=True)
    text = "print the run for others to start"
    render = actions.add_parser("render", help=text, description=f"{text.capitalize()}.", allow_abbrev=False)
    renderers = cluster_env.load_environments("render")
    targets = render.add_subparsers(metavar="|".join(renderers), required=True)
    for name, environment in renderers.items():
        text = environment.RENDERS
        described: dict[str, Any] = {"description": f"Print {text}.", "allow_abbrev": False}
        # `launch slurm` without `render` is what many write first: it works, and is not in the help
        for target in (targets.add_parser(name, help=text, **described), actions.add_parser(name, **described)):
            target.set_defaults(target=name)
            add_run_options(target, store="folder of records on the cluster")
            add_request_options(target, environment.REQUEST)


def run(args: argparse.Namespace) -> int:
    from trainmark.launch import planning

    options = replace(options_from_args(args), hosts=None, port=None)  # those name the machines that start it
    decided = planning.make_plans(options)
    environment = cluster_env.load_environments("render")[args.target]
    job = ClusterJob(options=pin_options(options, decided), plans=decided, as_json=args.json)
    print(environment.render(build_request(args, environment.REQUEST), job, print_status), end="")
    return 0
