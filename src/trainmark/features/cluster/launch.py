"""`trainmark launch render`: prints the run as a Slurm script, a Kubernetes job or ssh commands, and starts nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.cli.options import add_run_options, from_args
from trainmark.cli.terminal import say
from trainmark.features.cluster.rendering import add_slurm_options, job_of, settled, slurm_script
from trainmark.record.errors import UsageError

if TYPE_CHECKING:
    from trainmark.launch.options import RunOptions
    from trainmark.record.plan import Plan

NAME = "launch"
HELP = "Print a run as a Slurm script, a Kubernetes job or ssh commands."
EXAMPLES = """\
  trainmark launch render slurm resnet50 --recipe reference --topology 2x8 --platform nvidia --data /data/imagenet \\
      --partition gpu --time 4:00:00 --venv ~/trainmark > run.sh && sbatch run.sh
  trainmark launch render kubernetes resnet50 --recipe reference --topology 2x8 --platform nvidia \\
      --data /data/imagenet --data-claim datasets --image example.com/trainmark:1 | kubectl create -f -
  trainmark launch render ssh resnet50 --recipe quick --topology 2x8 --platform nvidia --hosts node1,node2"""

PULL_S = 900.0
"""How long pods wait for each other: one may still be fetching its image."""
PASTE_S = 300.0
"""How long hosts wait for each other: a person pastes the commands one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="render", required=True)
    text = "print the run for others to start"
    render = actions.add_parser("render", help=text, description=f"{text.capitalize()}.", allow_abbrev=False)
    targets = render.add_subparsers(dest="target", metavar="slurm|kubernetes|ssh", required=True)
    for name, text, add_options, show in (
        ("slurm", "a script for sbatch", add_slurm_options, slurm_script),
        ("kubernetes", "a TrainJob for Kubeflow Trainer v2", _add_kubernetes, _kubernetes),
        ("ssh", "a command for each host", _add_ssh, _ssh),
    ):
        target = targets.add_parser(name, help=text, description=f"Print {text}.", allow_abbrev=False)
        add_run_options(target, store="where records are kept, over there")
        add_options(target)
        target.set_defaults(show=show)


def run(args: argparse.Namespace) -> int:
    from trainmark.launch import planning

    options = replace(from_args(args), hosts=None, port=None)  # those mean the machines that are to start it
    decided = planning.plans(options)
    print(args.show(args, settled(options, decided), decided), end="")
    return 0


# The options of each rendering


def _add_kubernetes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--name", metavar="NAME", help="the job's name (default: from the plan)")
    add("--image", required=True, metavar="IMAGE", help="a container image with trainmark in it")
    add("--namespace", metavar="NAME", help="where the job lives (default: kubectl's)")
    add(
        "--runtime", default="torch-distributed", metavar="NAME", help="a ClusterTrainingRuntime (default: %(default)s)"
    )
    add("--data-claim", metavar="NAME", help="a PersistentVolumeClaim with the data; records are kept on it, too")
    add("--mount", metavar="DIR", help="where the claim appears in the pods (default: the folder above --data)")
    add("--device-resource", metavar="NAME", help="a device's name in the cluster (default: the platform file's)")


def _add_ssh(parser: argparse.ArgumentParser) -> None:
    from trainmark.launch.cluster_env import PORT

    add = parser.add_argument
    add("--hosts", required=True, metavar="A,B", help="a host for each node; the first leads")
    add("--port", type=int, default=PORT, metavar="N", help="a free port of the first host (default: %(default)s)")
    add("--venv", metavar="DIR", help="virtual environment to enter first")


# The renderings


def _kubernetes(args: argparse.Namespace, options: RunOptions, decided: Sequence[Plan]) -> str:
    from trainmark.features.cluster import render_kubernetes as kubernetes
    from trainmark.platforms import files

    store, mount = options.store, args.mount
    if args.data_claim is not None:
        mount = mount or kubernetes.default_mount(options.data)
        store = store or f"{mount.rstrip('/')}/trainmark"
    elif mount is not None:
        raise UsageError("--mount says where a claim appears; name the claim with --data-claim")
    if store is None:
        say("the records stay in the pods and are lost with them; keep them with --data-claim, or --store")
    request = kubernetes.KubernetesRequest(
        image=args.image,
        namespace=args.namespace,
        runtime=args.runtime,
        claim=args.data_claim,
        mount=mount,
        resource=args.device_resource or files.load(decided[0].platform).kubernetes_resource,
    )
    patient = replace(options, store=store, join_timeout_s=options.join_timeout_s or PULL_S)
    return kubernetes.manifest(job_of(args, patient, decided), request)


def _ssh(args: argparse.Namespace, options: RunOptions, decided: Sequence[Plan]) -> str:
    from trainmark.features.cluster import render_ssh as ssh

    patient = replace(options, join_timeout_s=options.join_timeout_s or PASTE_S)
    return ssh.commands(job_of(args, patient, decided), args.hosts, port=args.port, venv=args.venv)
