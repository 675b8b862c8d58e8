"""ssh: the run as one command per node, with PET_ variables."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from trainmark.launch import secret
from trainmark.launch.cluster_env import PORT, RenderedRun
from trainmark.launch.cluster_job import ClusterJob, describe_job, make_activation_line, make_job, option
from trainmark.launch.ssh import parse_node_hosts
from trainmark.record.errors import UsageError

RENDERS = "a command for each host"
PASTE_S = 300.0
"""How long hosts wait for each other: commands are pasted by hand."""


@dataclass(frozen=True, kw_only=True)
class SshRequest:
    """The hosts of the run."""

    hosts: str = option("--hosts", "a host for each node; the first leads", metavar="A,B", default=...)
    port: int = option(
        "--port", "a free port of the first host (default: %(default)s)", metavar="N", default=PORT, kind=int
    )
    venv: str | None = option("--venv", "virtual environment to enter first", metavar="DIR")


REQUEST = SshRequest


def render(request: SshRequest, run: RenderedRun, say: Callable[[str], None]) -> str:
    options = replace(run.options, join_timeout_s=run.options.join_timeout_s or PASTE_S)
    return render_commands(make_job(replace(run, options=options)), request.hosts, port=request.port, venv=request.venv)


def render_commands(job: ClusterJob, hosts: str, *, port: int = PORT, venv: str | None = None) -> str:
    if not 1 <= port <= 65535:
        raise UsageError(f"--port {port} is not a port: 1 to 65535")
    topology = job.topology
    targets = parse_node_hosts(hosts, topology)
    lines = [
        *(f"# {line}" for line in describe_job(job)),
        "#",
        "# Paste each command into a terminal of its own, in any order: the nodes wait for each other.",
        "# Ctrl-C in the first one ends the whole run and keeps what was measured.",
        f"# Every node needs trainmark, in the same version, and the data at the same path; port {port} of the first",
        "# node, and those torch chooses, must be open between them.",
    ]
    if topology.nodes > 1:
        lines += [
            "# Each asks for the secret that the nodes prove to each other: on a command line everybody could read it.",
            "# Paste this one, made at random when this was rendered:",
            f"#   {secret.make()}",
        ]
    asking = (f"printf 'secret: ' >&2; read -r {secret.VARIABLE} && export {secret.VARIABLE}",)
    for node, target in enumerate(targets):
        variables = (
            ("PET_NNODES", str(topology.nodes), "how many nodes there are"),
            ("PET_NODE_RANK", str(node), "which of them this is"),
            ("PET_NPROC_PER_NODE", str(topology.devices_per_node), "workers on each"),
            ("PET_MASTER_ADDR", targets[0].host, "where node 0 is, as all the others reach it"),
            ("PET_MASTER_PORT", str(port), "a free port there"),
        )
        width = max(len(f"{name}={value}") for name, value, _ in variables)
        remote = [
            "",
            *([f"{make_activation_line(venv)} || exit  # where trainmark is installed"] if venv is not None else []),
            *(asking if topology.nodes > 1 else ()),
            *(f"export {f'{name}={shlex.quote(value)}':{width}}  # {meaning}" for name, value, meaning in variables),
            f"exec {job.shell_command()}",
            "",
        ]
        role = "makes the run folder and writes the record" if node == 0 else "sends what it measured to node 0"
        login = f"{target.user}@{target.host}" if target.user else target.host
        lines += [
            "",
            f"# node {node} of {topology.nodes}, on {target.host}: {role}",
            "# (-tt: what ends this ssh ends the command over there, too)",
            shlex.join(["ssh", "-tt", login, "\n".join(remote)]),
        ]
    return "\n".join([*lines, ""])
