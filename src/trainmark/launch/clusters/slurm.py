"""Slurm: a task of srun is a node or a rank; a script for sbatch has one task per node, or is an array of such."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from trainmark.launch.cluster_env import (
    SECRET,
    ClusterEnv,
    make_node_env,
    make_rank_env,
    make_secret,
    read_number,
    set_leader,
)
from trainmark.launch.cluster_job import (
    ClusterJob,
    check_option,
    describe_job,
    make_absolute,
    make_activation_line,
    option,
    replace_unprintable,
)
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import Topology

PRIORITY = 2
RENDERS = "a script for sbatch"
WARNING_S = 60
"""How long before its time limit a run gets SIGTERM, to save and write its record."""
LAST_TASK_S = 300
"""Time for the other nodes to end after the first, which writes the record meanwhile."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAMES = rf"{_NAME}(,{_NAME})*"
_TIME = r"[0-9]+|[0-9]+:[0-9]{2}(:[0-9]{2})?|[0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}"


def detect(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    """A task of srun is a rank where there is one per device, and a node where there is one per node."""
    if "SLURM_JOB_ID" not in environ:
        return None
    tasks = read_number(environ, "SLURM_STEP_NUM_TASKS", "Slurm") if "SLURM_STEP_ID" in environ else 1
    if tasks == 1:  # a batch script or a shell: no launcher was started yet
        return ClusterEnv(kind="slurm", is_batch=True, launchers=topology.nodes) if topology.nodes > 1 else None
    task, job, step = (read_number(environ, f"SLURM_{name}", "Slurm") for name in ("PROCID", "JOB_ID", "STEP_ID"))
    leader = find_address(parse_first_host(environ.get("SLURM_STEP_NODELIST", "")))
    # jobs may share a node, and steps a job: each gets a port of its own, below those the kernel hands out
    meeting_port = port or 10000 + (7 * job + step) % 20000
    if tasks == topology.nodes:
        return set_leader(make_node_env(topology, "slurm", task), leader, meeting_port)
    if tasks == topology.devices:
        local = read_number(environ, "SLURM_LOCALID", "Slurm")
        return set_leader(
            make_rank_env(topology, "slurm", task, tasks, local, _count_local_tasks(environ)), leader, meeting_port
        )
    raise NotReadyError(
        f"{topology} requested, {tasks} ranks joined; give srun --ntasks-per-node=1, or one task for each device"
    )


def _count_local_tasks(environ: Mapping[str, str]) -> int:
    """From a list such as `2(x3),1`: two tasks on the first three nodes, one on the fourth."""
    node = read_number(environ, "SLURM_NODEID", "Slurm")
    counts: list[int] = []
    for count, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    if node >= len(counts):
        raise NotReadyError(
            "this looks like a process of Slurm, but SLURM_STEP_TASKS_PER_NODE does not count this node"
        )
    return counts[node]


def parse_first_host(node_list: str) -> str:
    """The first name of a Slurm node list: gpu03 of `gpu[03-05,9],login`, rack1-ib of `rack[1-2]-ib`."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", node_list)
    if not match:
        raise NotReadyError("this looks like a process of Slurm, but its list of nodes is empty")
    return "".join(part or "" for part in match.groups())


def find_address(node: str) -> str:
    """The address of a Slurm node: its name, or where that does not resolve, the address that Slurm uses."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        pass
    else:
        return node
    try:
        shown = subprocess.run(
            ["scontrol", "show", "node", "-o", node], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        shown = ""
    match = re.search(r"\bNodeAddr=(\S+)", shown)
    if not match:
        raise NotReadyError(
            f"the address of Slurm's node {node} is not known here: neither its name resolves nor scontrol"
        )
    return match[1]


def start_tasks(topology: Topology, command: Sequence[str]) -> NoReturn:
    """Replaces this process by the srun that starts the launchers of a batch job, with a new secret."""
    os.environ.setdefault(SECRET, make_secret())
    os.execvp("srun", make_srun_command(topology, os.environ, command))  # noqa: S606


def make_srun_command(topology: Topology, environ: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """The srun that starts one launcher per node inside an allocation. A failed task must not end the leader,
    which still has to write the record."""
    each = environ.get("SLURM_CPUS_PER_TASK")  # a step does not inherit it
    return [
        *("srun", f"--nodes={topology.nodes}", f"--ntasks={topology.nodes}", "--ntasks-per-node=1", "--overlap"),
        *([f"--cpus-per-task={each}"] if each else []),
        *("--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=300", *command),
    ]


@dataclass(frozen=True, kw_only=True)
class SlurmRequest:
    """What the script requests beside nodes; None leaves it to the cluster."""

    name: str | None = option("--name", "the job's name (default: from the plan)")
    time: str | None = option(
        "--time", "the longest it may take, such as 2:00:00 (default: the cluster's)", metavar="T"
    )
    partition: str | None = option("--partition", "the queue (default: the cluster's)")
    account: str | None = option("--account", "account to charge (default: the user's)")
    gpus_per_node: int | None = option(
        "--gpus-per-node", "devices to ask for (default: the topology's; none on cpu)", metavar="N", kind=int
    )
    cpus_per_task: int | None = option("--cpus-per-task", "CPUs per node (default: all)", metavar="N", kind=int)
    venv: str | None = option("--venv", "virtual environment to enter first", metavar="DIR")
    array: int | None = None
    """Tasks of a job array, each a whole job on its own node; None for one job."""


REQUEST = SlurmRequest


def render(request: SlurmRequest, job: ClusterJob, say: Callable[[str], None]) -> str:
    options = replace(job.options, store=make_absolute(job.options.store))
    job = replace(job, options=options, given_name=request.name)
    return render_script(job, replace(request, venv=make_absolute(request.venv)))


def render_script(job: ClusterJob, request: SlurmRequest) -> str:
    head = _HEAD if request.array is None else _render_array_head(job, request.array)
    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in describe_job(job)),
        *head,
        "",
        *_render_directives(job, request),
        "",
    ]
    if request.venv is not None:
        lines += ["# the virtual environment trainmark is installed in; every node must see it at this path", "set -e"]
        lines += [make_activation_line(request.venv), ""]
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


def _render_array_head(job: ClusterJob, tasks: int) -> tuple[str, ...]:
    [*_, (_, store)] = [words for words in job.words if words[0] == "--store"]
    return (
        "#",
        "# submit:     sbatch FILE",
        "# watch:      squeue --me --array",
        f"# judge:      trainmark fleet {shlex.quote(replace_unprintable(store))} --expect {tasks}",
        f"#             Where fewer than {tasks} nodes are free, Slurm gives one node to several tasks, one after the",
        "#             other: their runs count as repeats of one host, and --expect tells how many hosts are missing.",
    )


_SECRET = (
    "# what the nodes prove to each other before they talk: made anew in every job, and srun hands it on",
    f"export {SECRET}=\"$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\"",
)

_STEP = (
    "# one trainmark on each node; the first node's leads and writes the record",
    "#   --cpu-bind=none         its workers share out the node's processors themselves",
    "#   --kill-on-bad-exit=0    when one node fails, the first still has to say which, and to write the record;",
    f"#   --wait={LAST_TASK_S}              whoever has not ended after so many seconds is ended by Slurm",
)


def _render_directives(job: ClusterJob, request: SlurmRequest) -> list[str]:
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
    for flag, count, least in least_of:
        if count is not None and count < least:
            raise UsageError(f"{flag} must be at least {least}, not {count}")
    name = check_option("--name", job.name, _NAME, "a job name: letters, digits, '.', '_' and '-'")
    for flag, text, pattern, wanted in (
        ("--time", request.time, _TIME, "a time such as 30, 2:00:00 or 1-12:00:00"),
        ("--partition", request.partition, _NAMES, "the name of a partition"),
        ("--account", request.account, _NAMES, "the name of an account"),
    ):
        if text is not None:
            check_option(flag, text, pattern, wanted)
    output = [("where output goes: %x is the name, %j the number of the job", "output", "%x-%j.out", "")]
    if request.array is not None:
        output = [
            ("one task per node of the fleet, all equal", "array", f"1-{request.array}", ""),
            ("where output goes: %A is the number of the array, %a of the task", "output", "%x-%A_%a.out", ""),
        ]
    gres = "devices of each node; where Slurm calls them something else: --gres=KIND:COUNT"
    warning = f"SIGTERM {WARNING_S} s before the time limit: trainmark saves, and writes its record"
    blocks: list[tuple[str, str, object, object]] = [
        ("the name squeue shows", "job-name", name, ""),
        *output,
        (f"as many nodes as the topology {job.topology} has", "nodes", job.topology.nodes, ""),
        (f"one task per node, which starts its {for_each} workers", "ntasks-per-node", 1, ""),
        (gres, "gpus-per-node", gpus, for_each),
        ("nodes of our own, because neighbours change what is measured", "exclusive", True, ""),
        ("all memory of each node", "mem", "0", ""),
        ("processors of each node; all of them unless said otherwise", "cpus-per-task", request.cpus_per_task, 64),
        ("the longest it may take, as hours:minutes:seconds", "time", request.time, "1:00:00"),
        ("the queue", "partition", request.partition, "NAME"),
        ("account to charge", "account", request.account, "NAME"),
        (warning, "signal", f"TERM@{WARNING_S}", ""),
    ]
    return [
        line
        for comment, option, value, example in blocks
        for line in (f"# {comment}", _render_directive(option, value, example))
    ]


def _render_directive(option: str, value: object, example: object) -> str:
    if value is True:
        return f"#SBATCH --{option}"
    return f"#SBATCH --{option}={value}" if value else f"##SBATCH --{option}={example}"
