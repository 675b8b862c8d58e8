"""How ssh is called: hosts as users write them, the line for the shell over there, and a run folder fetched back."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, AnyStr

from trainmark.launch import signals
from trainmark.launch.cluster_env import PORT
from trainmark.record.archives import ArchiveLimits, Destination, tar_members
from trainmark.record.atomic_files import atomic_folder
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import Topology
from trainmark.record.site import Remote, Site

ARRIVED = "trainmark arrived"
"""The first line of every remote side: ssh has let us in and the folder is there."""
FETCH_LIMITS = ArchiveLimits(files=100_000, total_bytes=64 << 30)

_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "ControlMaster=no",  # a master would outlive the run and keep our pipes open
)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_NOT_HERE = ("--hosts", "--store")
"""Words of the command line that mean this machine and take a value."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host as the user wrote it."""

    host: str
    user: str | None = None


def host_list(text: str) -> list[Host]:
    """Checked names: what ssh gets is a host and never an option or a command."""
    words = [word.strip() for word in text.split(",")]
    targets = [_target(word) for word in words]
    seen: set[str] = set()
    for target in targets:
        if target.host.lower() in seen:
            raise UsageError(f"host {target.host!r} is named twice in --hosts; every node is a host of its own")
        seen.add(target.host.lower())
    return targets


def parse_hosts(text: str, topology: Topology) -> list[Host]:
    """The same for the nodes of a run, as many as it has."""
    targets = host_list(text)
    if len(targets) != topology.nodes:
        raise UsageError(
            f"--hosts names {len(targets)} host{'s' * (len(targets) != 1)} and topology {topology} has "
            f"{topology.nodes} node{'s' * (topology.nodes != 1)}; name one host for each node"
        )
    return targets


def _target(word: str) -> Host:
    user, at, host = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"host {word!r} of --hosts: {user!r} is no name of a user")
    if not _NAME.fullmatch(host) and not _is_ipv6(host):
        hint = "; write the port as [remote] port in trainmark.toml" if host.count(":") == 1 else ""
        raise UsageError(f"host {word!r} of --hosts is no host name: letters, digits, '.' and '-', or an address{hint}")
    return Host(host=host, user=user or None)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6 and "%" not in text
    except ValueError:
        return False


def ssh_command(target: Host, remote: Remote, command: str | None = None) -> list[str]:
    """What to start here; without a command, ssh only says how it would go there."""
    argv = ["ssh"]
    if remote.ssh_config is not None:
        argv += ["-F", str(remote.ssh_config)]
    argv += ["-T", "-a", "-x"]
    for option in _OPTIONS:
        argv += ["-o", option]
    if remote.port is not None:
        argv += ["-p", str(remote.port)]
    if user := target.user or remote.user:
        argv += ["-l", user]
    return [*argv, "--", target.host, command] if command is not None else [*argv, "-G", "--", target.host]


def remote_command(argv: Sequence[str], node: int, topology: Topology, leader_address: str, site: Site) -> str:
    """One line for the shell over there, every word of it quoted; plain enough for any shell a user may have."""
    variables = {
        "PET_NNODES": topology.nodes,
        "PET_NODE_RANK": node,
        "PET_NPROC_PER_NODE": topology.devices_per_node,
        "PET_MASTER_ADDR": leader_address,
        "PET_MASTER_PORT": site.network.port or PORT,
        signals.VARIABLE: 1,
    }
    settings = shlex.join(f"{name}={value}" for name, value in variables.items())
    spoken = shlex.join(["-m", "trainmark", *_argv_over_there(argv), "--json"])
    python, folder = _quoted(site.remote.python), _quoted(site.remote.folder)
    return f"cd {folder} && echo {ARRIVED} && exec env {settings} {python} {spoken}"


def _argv_over_there(argv: Sequence[str]) -> Iterator[str]:
    """What the user typed without what is about this machine."""
    left = iter(argv)
    for word in left:
        if word in _NOT_HERE:
            next(left, None)
        elif word != "--json" and not word.startswith(tuple(f"{option}=" for option in _NOT_HERE)):
            yield word


def _quoted(path: str) -> str:
    """Quoted for a shell, but for the sign of the home folder at its beginning."""
    if path == "~":
        return path
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def look_up(targets: Sequence[Host], remote: Remote) -> str:
    """Asks ssh's own settings who would go where; refuses root, and gives the first host's real name or address."""
    for number, target in enumerate(targets):
        said = _answer_of(ssh_command(target, remote))
        found = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
        if found.get("user") == "root" and not remote.allow_root:
            raise UsageError(
                f"host {target.host} would be entered as root; name another user as USER@{target.host} or as [remote] "
                "user in trainmark.toml, or set allow_root = true there"
            )
        if number == 0:
            address = found.get("hostname", target.host)
    return address


def _answer_of(argv: list[str]) -> str:
    try:
        said = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotReadyError("--hosts needs the program ssh, which is not installed here") from None
    if said.returncode:
        raise UsageError(f"ssh refuses its settings: {last_line(said.stderr.splitlines()) or said.returncode}")
    return said.stdout


def fetch(target: Host, remote: Remote, folder: str, run_id: str, store: Path) -> None:
    """Copies a run folder, without its checkpoints, to this store: whole or not at all; not if it is there already."""
    path = PurePosixPath(folder)
    if not _RUN_ID.fullmatch(run_id) or path.name != run_id or not path.is_absolute():
        raise NotReadyError(f"it names its run {run_id!r} and its folder {folder!r}, which do not fit together")
    home = store / "runs" / run_id
    if home.exists():
        return
    command = shlex.join(["tar", "-cf", "-", "--exclude=checkpoints", "-C", str(path.parent), run_id])
    try:
        # unfinished it lies in the store, not among the runs, where it would be listed
        with (
            atomic_folder(home, beside=store) as unfinished,
            _output_of(ssh_command(target, remote, command)) as source,
            Destination(unfinished) as destination,
        ):
            for member in tar_members(source, f"the copy from host {target.host}", FETCH_LIMITS):
                name = PurePosixPath(member.name)
                if name.parts[0] != run_id or len(name.parts) < 2:
                    raise NotReadyError(f"{member} is not of this run")
                destination.write(name.relative_to(run_id), member, member.size)
    except OSError as error:
        raise NotReadyError(f"{home} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _output_of(argv: list[str]) -> Iterator[IO[bytes]]:
    """What a program writes, while it writes it; a program that fails is an error when all was read."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as talk:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=talk, start_new_session=True
        )
        try:
            with pipe(process.stdout) as source:
                yield source
                while source.read(1 << 16):  # tar pads its end, and fails if nobody takes that
                    pass
            if process.wait():
                talk.seek(0)
                said = next((line.strip() for line in talk if line.strip()), "it said nothing")
                raise NotReadyError(f"ssh ended with exit code {process.returncode}: {said}")
        finally:
            process.kill()
            process.wait()


def pipe(stream: IO[AnyStr] | None) -> IO[AnyStr]:
    if stream is None:
        raise ValueError("this process was started without a pipe here")
    return stream


def last_line(lines: Sequence[str]) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
