"""Runs a plan on several hosts through ssh: the same command on each, the record and run folder back from the first.

What holds a remote side up is its standard input: we keep it open and empty, and when it closes, because we say so or
because we or the connection are gone, the run over there ends itself.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import IO, Any, AnyStr

from trainmark.datasets.unpack import Destination, Limits, members
from trainmark.launch import lifeline_stdin
from trainmark.launch.cluster_env import PORT
from trainmark.spec.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError
from trainmark.spec.record import Record
from trainmark.spec.site import Remote, Site
from trainmark.spec.topology import Topology

ARRIVED = "trainmark arrived"
"""The first line of every remote side: ssh has let us in and the folder is there."""
FOLDER = "trainmark: run folder "
"""Begins the line on stderr by which the first host says where its run folder is."""

POLL_S = 0.05
GRACE_S = 20.0
"""What the first host gets to notice that another one failed, and to write its record."""
REFUSAL_GRACE_S = 5.0
"""The same where the other one refused to begin: the first host has little to say."""
END_LIMIT_S = 30.0
"""What a remote side gets to end after we let go of it."""
TERMINATED = 128 + signal.SIGTERM
"""What a remote side exits with when it ended because its input did."""
LAST_LINES = 20
FETCH_LIMITS = Limits(files=100_000, total_bytes=64 << 30)

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
_NOT_STARTED = (126, 127)
"""What a shell exits with when it cannot run a program."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A host as the user wrote it."""

    host: str
    user: str | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the hosts made of a command."""

    document: dict[str, Any] | None
    """What the first host said on its stdout; None if we were interrupted before it did."""
    exit_code: int
    folder: str | None
    """The first host's run folder, if it told one."""


def run_on_hosts(
    hosts: str, words: Sequence[str], topology: Topology, site: Site, store: Path, *, quiet: bool
) -> tuple[Record | None, int]:
    """Runs `trainmark run WORDS` on the hosts as one run; its record, unless we were interrupted, and the exit code."""
    targets = parse_hosts(hosts, topology)
    answer = _ask(targets, ["run", *words], topology, site, quiet=quiet)
    if answer.document is None:
        return None, answer.exit_code
    try:
        record = Record.from_json(answer.document)
    except UsageError as error:
        raise WorkloadError(f"host {targets[0].host} sent a record that cannot be read: {error}") from error
    if answer.folder is not None:
        _fetch_or_say_why(targets[0], site.remote, answer.folder, record.run_id, store)
    return record, answer.exit_code


def ask_hosts(
    hosts: str, words: Sequence[str], topology: Topology, site: Site, *, quiet: bool
) -> tuple[dict[str, Any] | None, int]:
    """Runs `trainmark WORDS` on the hosts; the document the first one wrote, unless we were interrupted before."""
    answer = _ask(parse_hosts(hosts, topology), words, topology, site, quiet=quiet)
    return answer.document, answer.exit_code


def _ask(targets: Sequence[Target], words: Sequence[str], topology: Topology, site: Site, *, quiet: bool) -> Answer:
    leader_address = _look_up(targets, site.remote)
    commands = [
        ssh_command(target, site.remote, remote_command(words, node, topology, leader_address, site))
        for node, target in enumerate(targets)
    ]
    with _noting_signals() as signals, contextlib.ExitStack() as started:
        sides: list[Side] = []
        for node, (target, command) in enumerate(zip(targets, commands, strict=True)):
            sides.append(Side(target.host, command, leads=node == 0, show=node == 0 and not quiet))
            started.callback(sides[-1].kill)
        failed = _attend(sides, signals)
    leader = sides[0]
    code = leader.process.returncode
    document = leader.document()
    if document is None and not signals:
        raise _error(failed or leader, site.remote)
    if signals and (document is None or code == TERMINATED):
        code = 128 + signals[0]
    elif code == TERMINATED and failed and failed is not leader:  # we let go of it, and it could not know why
        error = _error(failed, site.remote)
        _say(f"trainmark: {error}")
        code = error.exit_code
    return Answer(document=document, exit_code=code, folder=leader.folder)


# Words


def parse_hosts(text: str, topology: Topology) -> list[Target]:
    """Checked names: what ssh gets is a host and never an option or a command."""
    words = [word.strip() for word in text.split(",")]
    targets = [_target(word) for word in words]
    seen: set[str] = set()
    for target in targets:
        if target.host.lower() in seen:
            raise UsageError(f"host {target.host!r} is named twice in --hosts; every node is a host of its own")
        seen.add(target.host.lower())
    if len(targets) != topology.nodes:
        raise UsageError(
            f"--hosts names {len(targets)} host{'s' * (len(targets) != 1)} and topology {topology} has "
            f"{topology.nodes} node{'s' * (topology.nodes != 1)}; name one host for each node"
        )
    return targets


def _target(word: str) -> Target:
    user, at, host = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"host {word!r} of --hosts: {user!r} is no name of a user")
    if not _NAME.fullmatch(host) and not _is_ipv6(host):
        hint = "; write the port as [remote] port in trainmark.toml" if host.count(":") == 1 else ""
        raise UsageError(f"host {word!r} of --hosts is no host name: letters, digits, '.' and '-', or an address{hint}")
    return Target(host=host, user=user or None)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6 and "%" not in text
    except ValueError:
        return False


def ssh_command(target: Target, remote: Remote, command: str | None = None) -> list[str]:
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


def remote_command(words: Sequence[str], node: int, topology: Topology, leader_address: str, site: Site) -> str:
    """One line for the shell over there, every word of it quoted; plain enough for any shell a user may have."""
    variables = {
        "PET_NNODES": topology.nodes,
        "PET_NODE_RANK": node,
        "PET_NPROC_PER_NODE": topology.devices_per_node,
        "PET_MASTER_ADDR": leader_address,
        "PET_MASTER_PORT": site.network.port or PORT,
        lifeline_stdin.VARIABLE: 1,
    }
    settings = shlex.join(f"{name}={value}" for name, value in variables.items())
    spoken = shlex.join(["-m", "trainmark", *_words_over_there(words), "--json"])
    python, folder = _quoted(site.remote.python), _quoted(site.remote.folder)
    return f"cd {folder} && echo {ARRIVED} && exec env {settings} {python} {spoken}"


def _words_over_there(words: Sequence[str]) -> Iterator[str]:
    """The user's words without those that are about this machine."""
    left = iter(words)
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


def _look_up(targets: Sequence[Target], remote: Remote) -> str:
    """Asks ssh's own settings who would go where; refuses root, and gives the first host's real name or address."""
    for number, target in enumerate(targets):
        said = _asked(ssh_command(target, remote))
        found = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
        if found.get("user") == "root" and not remote.allow_root:
            raise UsageError(
                f"host {target.host} would be entered as root; name another user as USER@{target.host} or as [remote] "
                "user in trainmark.toml, or set allow_root = true there"
            )
        if number == 0:
            address = found.get("hostname", target.host)
    return address


def _asked(argv: list[str]) -> str:
    try:
        said = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotReadyError("--hosts needs the program ssh, which is not installed here") from None
    if said.returncode:
        raise UsageError(f"ssh refuses its settings: {_last(said.stderr.splitlines()) or said.returncode}")
    return said.stdout


# Sides


class Side:
    """What we started for one host, and what was heard from it."""

    def __init__(self, host: str, command: list[str], *, leads: bool, show: bool) -> None:
        self.host = host
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.arrived = False
        self.folder: str | None = None
        self._show = show
        self._answer = ""
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a Ctrl-C in this terminal is passed on by letting go, not by killing ssh
        )
        self._threads = [
            _reading(self.process.stdout, self._hear_answer if leads else self._hear_talk),
            _reading(self.process.stderr, self._hear_talk),
        ]

    def let_go(self) -> None:
        """Closes its input, which asks the run over there to finish its step and end."""
        with contextlib.suppress(OSError):
            _stream(self.process.stdin).close()

    def kill(self) -> None:
        """Leaves nothing of it here, whether or not it has ended."""
        self.let_go()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()

    def document(self) -> dict[str, Any] | None:
        """What the first host answered, once it has ended; None where it did not, or not to the end."""
        try:
            return dict(json.loads(self._answer))
        except ValueError:
            return None

    @property
    def ended(self) -> bool:
        """Its process is gone and all it said was heard."""
        return self.process.poll() is not None and not any(thread.is_alive() for thread in self._threads)

    @property
    def failed(self) -> bool:
        return self.ended and self.process.returncode != 0

    @property
    def took_part(self) -> bool:
        """Whether trainmark itself ran over there."""
        return self.arrived and self.process.returncode not in _NOT_STARTED and "No module named" not in self.last_line

    @property
    def last_line(self) -> str:
        return _last(self.lines)

    def _hear_answer(self, line: str) -> None:
        if line.startswith("{"):
            self._answer = line
        elif line.strip():
            self._hear_talk(line)

    def _hear_talk(self, line: str) -> None:
        line = "".join(sign if sign.isprintable() or sign == "\t" else "�" for sign in line.rstrip("\r\n"))
        if line == ARRIVED:
            self.arrived = True
        elif line.startswith(FOLDER):
            self.folder = line.removeprefix(FOLDER)
        else:
            self.lines.append(line)
            if self._show:
                _say(line)


def _reading(stream: IO[str] | None, hear: Callable[[str], None]) -> threading.Thread:
    def read() -> None:
        with _stream(stream) as lines:
            for line in lines:
                hear(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _attend(sides: Sequence[Side], signals: Sequence[int]) -> Side | None:
    """Waits until every side has ended, and sees to it that they do; returns the one that failed first."""
    failed: Side | None = None
    let_go_at_s: float | None = None
    gone_at_s: float | None = None
    while alive := [side for side in sides if not side.ended]:
        now_s = time.monotonic()
        if failed is None and (failed := next((side for side in sides if side.failed), None)):
            let_go_at_s = now_s + _patience_s(failed)
        if signals or sides[0] not in alive:
            let_go_at_s = now_s
        if gone_at_s is None and let_go_at_s is not None and now_s >= let_go_at_s:
            for side in alive:
                side.let_go()
            gone_at_s = now_s
        if len(signals) > 1 or (gone_at_s is not None and now_s - gone_at_s > END_LIMIT_S):
            break
        time.sleep(POLL_S)
    return failed or next((side for side in sides if side.failed), None)


def _patience_s(failed: Side) -> float:
    """How long the first host is given to end by itself after another one failed."""
    if not failed.took_part:
        return 0.0
    return REFUSAL_GRACE_S if failed.process.returncode in (2, 3) else GRACE_S


def _error(side: Side, remote: Remote) -> TrainmarkError:
    """Why there is no record, in one sentence about one host."""
    code, said = side.process.returncode, side.last_line.removeprefix("trainmark: ")
    because = f": {said}" if said else ""
    if not side.arrived:
        if code == 255:
            return NotReadyError(f"host {side.host} cannot be entered through ssh{because}")
        return NotReadyError(f"host {side.host} has no folder {remote.folder!r} to start in{because}")
    if not side.took_part:
        return NotReadyError(
            f"host {side.host} cannot start trainmark with {remote.python}{because}; "
            "set [remote] python in trainmark.toml to a Python there that has it"
        )
    if code == 255:
        return WorkloadError(f"host {side.host} was lost: its process was killed or the connection broke{because}")
    if code <= 0:
        return WorkloadError(f"host {side.host} ended without a record{because}")
    error = TrainmarkError(f"host {side.host} ended with exit code {code}{because}")
    error.exit_code = code
    return error


@contextlib.contextmanager
def _noting_signals() -> Iterator[list[int]]:
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The run folder


def _fetch_or_say_why(target: Target, remote: Remote, folder: str, run_id: str, store: Path) -> None:
    """A record without its folder is still a record."""
    try:
        fetch(target, remote, folder, run_id, store)
    except (TrainmarkError, KeyboardInterrupt) as error:
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        _say(f"trainmark: the run folder stays on host {target.host} as {folder}: {why}")


def fetch(target: Target, remote: Remote, folder: str, run_id: str, store: Path) -> None:
    """Copies a run folder, without its checkpoints, to this store: whole or not at all; not if it is there already."""
    path = PurePosixPath(folder)
    if not _RUN_ID.fullmatch(run_id) or path.name != run_id or not path.is_absolute():
        raise NotReadyError(f"it names its run {run_id!r} and its folder {folder!r}, which do not fit together")
    home = store / "runs" / run_id
    if home.exists():
        return
    unfinished = store / f".{run_id}-{secrets.token_hex(4)}.part"  # not among the runs, where it would be listed
    command = shlex.join(["tar", "-cf", "-", "--exclude=checkpoints", "-C", str(path.parent), run_id])
    try:
        with _output_of(ssh_command(target, remote, command)) as source, Destination(unfinished) as destination:
            for member in members(source, f"the copy from host {target.host}", FETCH_LIMITS):
                name = PurePosixPath(member.name)
                if name.parts[0] != run_id or len(name.parts) < 2:
                    raise NotReadyError(f"{member} is not of this run")
                destination.write(name.relative_to(run_id), member, member.size)
        home.parent.mkdir(exist_ok=True)
        unfinished.rename(home)
    except OSError as error:
        raise NotReadyError(f"{home} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _output_of(argv: list[str]) -> Iterator[IO[bytes]]:
    """What a program writes, while it writes it; a program that fails is an error when all was read."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as talk:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=talk, start_new_session=True
        )
        try:
            with _stream(process.stdout) as source:
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


# Small things


def _stream(stream: IO[AnyStr] | None) -> IO[AnyStr]:
    if stream is None:
        raise ValueError("this process was started without a pipe here")
    return stream


def _last(lines: Sequence[str] | deque[str]) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _say(line: str) -> None:
    """One line of talk on stderr; never fails the run if nobody listens."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")  # in one piece: two threads may speak at once
        sys.stderr.flush()
