"""The run as a script for sbatch: one task a node, each of which starts its node's workers; or an array of such."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from trainmark.features.cluster.render_job import ClusterJob, about, activation_line, check_option, printable
from trainmark.launch import secret
from trainmark.record.errors import UsageError

WARNING_S = 60
"""How long before the end of its time a run is told, so that it can save and write its record."""
LAST_TASK_S = 300
"""What the other nodes get to end after the first has: the first node writes the record in that time."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAMES = rf"{_NAME}(,{_NAME})*"
_TIME = r"[0-9]+|[0-9]+:[0-9]{2}(:[0-9]{2})?|[0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}"


@dataclass(frozen=True, kw_only=True)
class SlurmRequest:
    """What the script asks of the cluster beyond nodes; None leaves it to the cluster."""

    time: str | None = None
    partition: str | None = None
    account: str | None = None
    gpus_per_node: int | None = None
    """None is as many as the topology has on a node, or none on a CPU platform."""
    cpus_per_task: int | None = None
    venv: str | None = None
    array: int | None = None
    """So many tasks of an array, each of which is the whole job on a node of its own; None is one job."""


def script(job: ClusterJob, request: SlurmRequest) -> str:
    head = _HEAD if request.array is None else _array_head(job, request.array)
    lines = ["#!/bin/bash", *(f"# {line}" for line in about(job)), *head, "", *_directives(job, request), ""]
    if request.venv is not None:
        lines += ["# the virtual environment trainmark is installed in; every node must see it at this path", "set -e"]
        lines += [activation_line(request.venv), ""]
    step = [f"--nodes={job.topology.nodes}", f"--ntasks={job.topology.nodes}", "--ntasks-per-node=1"]
    if request.cpus_per_task is not None:
        step.append(f"--cpus-per-task={request.cpus_per_task}")
    step += ["--cpu-bind=none", "--kill-on-bad-exit=0", f"--wait={LAST_TASK_S}"]
    if job.topology.nodes > 1:
        lines += [*_SECRET, ""]
    return "\n".join([*lines, *_STEP, f"exec srun {' '.join(step)} \\\n  {job.shell_command()}", ""])


_HEAD = (
    "#",
    "# submit:     sbatch FILE",
    "# watch:      squeue --me; tail -f NAME-NUMBER.out",
    "# end early:  scancel --signal=TERM NUMBER   (the step is finished and what was measured is kept)",
)


def _array_head(job: ClusterJob, tasks: int) -> tuple[str, ...]:
    [*_, (_, store)] = [words for words in job.words if words[0] == "--store"]
    return (
        "#",
        "# submit:     sbatch FILE",
        "# watch:      squeue --me --array",
        f"# judge:      trainmark fleet {shlex.quote(printable(store))} --expect {tasks}",
        f"#             Where fewer than {tasks} nodes are free, Slurm gives one node to several tasks, one after the",
        "#             other: their runs count as repeats of one host, and --expect tells how many hosts are missing.",
    )


_SECRET = (
    "# what the nodes prove to each other before they talk: made anew in every job, and srun hands it on",
    f"export {secret.VARIABLE}=\"$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\"",
)

_STEP = (
    "# one trainmark on each node; the first node's leads and writes the record",
    "#   --cpu-bind=none         its workers share out the node's processors themselves",
    "#   --kill-on-bad-exit=0    when one node fails, the first still has to say which, and to write the record;",
    f"#   --wait={LAST_TASK_S}              whoever has not ended after so many seconds is ended by Slurm",
)


def _directives(job: ClusterJob, request: SlurmRequest) -> list[str]:
    """The #SBATCH lines, each below what it is for; one with ## is switched off."""
    for_each = job.topology.devices_per_node
    gpus = request.gpus_per_node
    if gpus is None:
        gpus = 0 if job.on_cpu else for_each
    least_of = (
        ("--gpus-per-node", gpus, 0),
        ("--cpus-per-task", request.cpus_per_task, 1),
        ("--slurm", request.array, 1),
    )
    for option, count, least in least_of:
        if count is not None and count < least:
            raise UsageError(f"{option} must be at least {least}, not {count}")
    name = check_option("--name", job.name, _NAME, "a job name: letters, digits, '.', '_' and '-'")
    time = _check_optional("--time", request.time, _TIME, "a time such as 30, 2:00:00 or 1-12:00:00")
    partition = _check_optional("--partition", request.partition, _NAMES, "the name of a partition")
    account = _check_optional("--account", request.account, _NAMES, "the name of an account")
    cpus = None if request.cpus_per_task is None else str(request.cpus_per_task)
    blocks = [
        ("the name squeue shows", _on("job-name", name)),
        *(
            [("where output goes: %x is the name, %j the number of the job", _on("output", "%x-%j.out"))]
            if request.array is None
            else [
                ("one task a node of the fleet, all of them alike", _on("array", f"1-{request.array}")),
                ("where output goes: %A is the number of the array, %a of the task", _on("output", "%x-%A_%a.out")),
            ]
        ),
        (f"as many nodes as the topology {job.topology} has", _on("nodes", str(job.topology.nodes))),
        (f"one task a node; it starts the node's {for_each} workers itself", _on("ntasks-per-node", "1")),
        (
            "devices of each node; where Slurm calls them something else: --gres=KIND:COUNT",
            _on("gpus-per-node", str(gpus)) if gpus else _off("gpus-per-node", str(for_each)),
        ),
        ("nodes of our own, because neighbours change what is measured", "#SBATCH --exclusive"),
        ("all memory of each node", _on("mem", "0")),
        (
            "processors of each node; all of them unless said otherwise",
            _on("cpus-per-task", cpus) if cpus else _off("cpus-per-task", "64"),
        ),
        ("the longest it may take, as hours:minutes:seconds", _on("time", time) if time else _off("time", "1:00:00")),
        ("the queue", _on("partition", partition) if partition else _off("partition", "NAME")),
        ("who pays", _on("account", account) if account else _off("account", "NAME")),
        (
            f"{WARNING_S} s before that time is over trainmark is told: it saves, and writes its record",
            _on("signal", f"TERM@{WARNING_S}"),
        ),
    ]
    return [line for comment, directive in blocks for line in (f"# {comment}", directive)]


def _check_optional(option: str, text: str | None, pattern: str, wanted: str) -> str | None:
    return None if text is None else check_option(option, text, pattern, wanted)


def _on(option: str, value: str) -> str:
    return f"#SBATCH --{option}={value}"


def _off(option: str, value: str) -> str:
    return f"##SBATCH --{option}={value}"
