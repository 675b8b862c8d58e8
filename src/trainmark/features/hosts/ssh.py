"""Calls ssh: parses hosts, makes remote commands, and fetches run folders."""

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
"""The first line from every remote host: ssh has connected and the folder exists."""
FETCH_LIMITS = ArchiveLimits(files=100_000, total_bytes=64 << 30)

_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "ControlMaster=no",  # a master would outlive the run and hold our pipes
)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host as the user wrote it."""

    host: str
    user: str | None = None


def split_hosts(text: str) -> list[Host]:
    """Validated hosts, so that none is taken by ssh for an option or a command."""
    words = [word.strip() for word in text.split(",")]
    targets = [_parse_host(word) for word in words]
    seen: set[str] = set()
    for target in targets:
        if target.host.lower() in seen:
            raise UsageError(f"host {target.host!r} is named twice in --hosts; every node is a host of its own")
        seen.add(target.host.lower())
    return targets


def parse_node_hosts(text: str, topology: Topology) -> list[Host]:
    """The same for a run, one host per node."""
    targets = split_hosts(text)
    if len(targets) != topology.nodes:
        raise UsageError(
            f"--hosts names {len(targets)} host{'s' * (len(targets) != 1)} and topology {topology} has "
            f"{topology.nodes} node{'s' * (topology.nodes != 1)}; name one host for each node"
        )
    return targets


def _parse_host(word: str) -> Host:
    user, at, host = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"host {word!r} of --hosts: {user!r} is no user name")
    if not _NAME.fullmatch(host) and not _is_ipv6(host):
        hint = "; write the port as [remote] port in trainmark.toml" if host.count(":") == 1 else ""
        raise UsageError(f"host {word!r} of --hosts is no host name: letters, digits, '.' and '-', or an address{hint}")
    return Host(host=host, user=user or None)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6 and "%" not in text
    except ValueError:
        return False


def make_ssh_command(target: Host, remote: Remote, command: str | None = None) -> list[str]:
    """The ssh command; without a remote command, ssh prints its settings for the host."""
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


def make_remote_command(argv: Sequence[str], node: int, topology: Topology, leader_address: str, site: Site) -> str:
    """One line for the remote shell, fully quoted; plain enough for any shell."""
    variables = {
        "PET_NNODES": topology.nodes,
        "PET_NODE_RANK": node,
        "PET_NPROC_PER_NODE": topology.devices_per_node,
        "PET_MASTER_ADDR": leader_address,
        "PET_MASTER_PORT": site.network.port or PORT,
        signals.VARIABLE: 1,
    }
    settings = shlex.join(f"{name}={value}" for name, value in variables.items())
    arguments = shlex.join(["-m", "trainmark", *argv, "--json"])
    python, folder = _quote(site.remote.python), _quote(site.remote.folder)
    return f"cd {folder} && echo {ARRIVED} && exec env {settings} {python} {arguments}"


def _quote(path: str) -> str:
    """Quoted for a shell, except a leading `~`."""
    if path == "~":
        return path
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def resolve_leader(targets: Sequence[Host], remote: Remote) -> str:
    """Checks the ssh settings of all hosts, refuses root, and returns the name or address of the first host."""
    for number, target in enumerate(targets):
        settings = _run_ssh(make_ssh_command(target, remote))
        found = dict(line.split(" ", 1) for line in settings.splitlines() if " " in line)
        if found.get("user") == "root" and not remote.allow_root:
            raise UsageError(
                f"host {target.host} would be entered as root; name another user as USER@{target.host} or as [remote] "
                "user in trainmark.toml, or set allow_root = true there"
            )
        if number == 0:
            address = found.get("hostname", target.host)
    return address


def _run_ssh(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotReadyError("--hosts needs the program ssh, which is not installed here") from None
    if done.returncode:
        raise UsageError(f"ssh refuses its settings: {find_last_line(done.stderr.splitlines()) or done.returncode}")
    return done.stdout


def fetch(target: Host, remote: Remote, folder: str, run_id: str, store: Path) -> None:
    """Copies a run folder without its checkpoints to this store, atomically, unless it exists."""
    path = PurePosixPath(folder)
    if not _RUN_ID.fullmatch(run_id) or path.name != run_id or not path.is_absolute():
        raise NotReadyError(f"its run {run_id!r} and its folder {folder!r} do not match")
    home = store / "runs" / run_id
    if home.exists():
        return
    command = shlex.join(["tar", "-cf", "-", "--exclude=checkpoints", "-C", str(path.parent), run_id])
    try:
        # the temporary folder is outside of the runs, where it would be listed
        with (
            atomic_folder(home, beside=store) as unfinished,
            _stream_output(make_ssh_command(target, remote, command)) as source,
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
def _stream_output(argv: list[str]) -> Iterator[IO[bytes]]:
    """Streams the output of a program; raises at its end where the program failed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as talk:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=talk, start_new_session=True
        )
        try:
            with require_pipe(process.stdout) as source:
                yield source
                while source.read(1 << 16):  # tar pads its end, and fails if that is not read
                    pass
            if process.wait():
                talk.seek(0)
                message = next((line.strip() for line in talk if line.strip()), "no message")
                raise NotReadyError(f"ssh ended with exit code {process.returncode}: {message}")
        finally:
            process.kill()
            process.wait()


def require_pipe(stream: IO[AnyStr] | None) -> IO[AnyStr]:
    if stream is None:
        raise ValueError("this process was started without a pipe here")
    return stream


def find_last_line(lines: Sequence[str]) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
