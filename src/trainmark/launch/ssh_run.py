"""Runs a plan on several hosts through ssh: the same command on each, the record and run folder back from the first.

What holds a remote side up is its standard input: its first line is the run's secret, then we keep it open, and when it
closes, because we say so or because we or the connection are gone, the run over there ends itself.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainmark.launch import secret, ssh
from trainmark.launch.signals import catching_signals
from trainmark.launch.ssh import Host
from trainmark.record import gather
from trainmark.record.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError, error_from_exit_code
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.site import Remote, Site
from trainmark.record.store import Store

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
_NOT_STARTED = (126, 127)
"""What a shell exits with when it cannot run a program."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the hosts made of a command."""

    document: dict[str, Any] | None
    """What the first host said on its stdout; None if we were interrupted before it did."""
    exit_code: int
    folder: str | None
    """The first host's run folder, if it told one."""


@dataclass(frozen=True, kw_only=True)
class RemoteCommand:
    """`trainmark WORDS`, to be started on each node of a run."""

    argv: Sequence[str]
    topology: Topology
    leader_address: str
    secret: str
    site: Site

    def start(self, target: Host, node: int = 0, *, show: bool = False) -> RemoteNode:
        line = ssh.remote_command(self.argv, node, self.topology, self.leader_address, self.site)
        side = RemoteNode(target.host, ssh.ssh_command(target, self.site.remote, line), leads=node == 0, show=show)
        side.tell(self.secret)
        return side


def run_on_hosts(
    hosts: str, argv: Sequence[str], topology: Topology, site: Site, store: Path, *, quiet: bool
) -> tuple[Record | None, int]:
    """Runs `trainmark run WORDS` on the hosts as one run; its record, unless we were interrupted, and the exit code."""
    targets = ssh.parse_hosts(hosts, topology)
    answer = _ask(targets, ["run", *argv], topology, site, quiet=quiet)
    if answer.document is None:
        return None, answer.exit_code
    record = record_of(answer.document, targets[0].host)
    if answer.folder is not None:
        fetch_or_say_why(targets[0], site.remote, answer.folder, record.run_id, store)
    return record, answer.exit_code


def record_of(document: Mapping[str, Any], host: str) -> Record:
    """What a host sent, as a record."""
    try:
        return Record.from_json(document)
    except UsageError as error:
        raise WorkloadError(f"host {host} sent a record that cannot be read: {error}") from error


def keep_record(record: Record, store: Store) -> Record:
    """Adds it to the store, unless the host shares that."""
    if not store.path(record.run_id).exists():
        record = gather.restore_series(record, store.runs / record.run_id)
        store.add(record)
    return record


def ask_hosts(
    hosts: str, argv: Sequence[str], topology: Topology, site: Site, *, quiet: bool
) -> tuple[dict[str, Any] | None, int]:
    """Runs `trainmark WORDS` on the hosts; the document the first one wrote, unless we were interrupted before."""
    answer = _ask(ssh.parse_hosts(hosts, topology), argv, topology, site, quiet=quiet)
    return answer.document, answer.exit_code


def _ask(targets: Sequence[Host], argv: Sequence[str], topology: Topology, site: Site, *, quiet: bool) -> Answer:
    address = ssh.look_up(targets, site.remote)
    command = RemoteCommand(argv=argv, topology=topology, leader_address=address, secret=secret.make(), site=site)
    with catching_signals() as signals, contextlib.ExitStack() as started:
        sides: list[RemoteNode] = []
        for node, target in enumerate(targets):
            sides.append(command.start(target, node, show=node == 0 and not quiet))
            started.callback(sides[-1].kill)
        failed = _attend(sides, signals)
    leader = sides[0]
    code = leader.process.returncode
    document = leader.document()
    if document is None and not signals:
        raise error_of(failed or leader, site.remote)
    if signals and (document is None or code == TERMINATED):
        code = 128 + signals[0]
    elif code == TERMINATED and failed and failed is not leader:  # we let go of it, and it could not know why
        error = error_of(failed, site.remote)
        _say(f"trainmark: {error}")
        code = error.exit_code
    return Answer(document=document, exit_code=code, folder=leader.folder)


class RemoteNode:
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

    def tell(self, line: str) -> None:
        """Where all on this and that machine may read command lines, its input is for it alone."""
        with contextlib.suppress(OSError):  # it is gone, and will be heard to be
            ssh.pipe(self.process.stdin).write(f"{line}\n")
            ssh.pipe(self.process.stdin).flush()

    def let_go(self) -> None:
        """Closes its input, which asks the run over there to finish its step and end."""
        with contextlib.suppress(OSError):
            ssh.pipe(self.process.stdin).close()

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
        return ssh.last_line(self.lines)

    def _hear_answer(self, line: str) -> None:
        if line.startswith("{"):
            self._answer = line
        elif line.strip():
            self._hear_talk(line)

    def _hear_talk(self, line: str) -> None:
        line = "".join(sign if sign.isprintable() or sign == "\t" else "�" for sign in line.rstrip("\r\n"))
        if line == ssh.ARRIVED:
            self.arrived = True
        elif line.startswith(FOLDER):
            self.folder = line.removeprefix(FOLDER)
        else:
            self.lines.append(line)
            if self._show:
                _say(line)


def _reading(stream: IO[str] | None, hear: Callable[[str], None]) -> threading.Thread:
    def read() -> None:
        with ssh.pipe(stream) as lines:
            for line in lines:
                hear(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _attend(sides: Sequence[RemoteNode], signals: Sequence[int]) -> RemoteNode | None:
    """Waits until every side has ended, and sees to it that they do; returns the one that failed first."""
    failed: RemoteNode | None = None
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


def _patience_s(failed: RemoteNode) -> float:
    """How long the first host is given to end by itself after another one failed."""
    if not failed.took_part:
        return 0.0
    return REFUSAL_GRACE_S if failed.process.returncode in (2, 3) else GRACE_S


def error_of(side: RemoteNode, remote: Remote) -> TrainmarkError:
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
    return error_from_exit_code(code, f"host {side.host} ended with exit code {code}{because}")


def fetch_or_say_why(target: Host, remote: Remote, folder: str, run_id: str, store: Path) -> None:
    """A record without its folder is still a record."""
    try:
        ssh.fetch(target, remote, folder, run_id, store)
    except (TrainmarkError, KeyboardInterrupt) as error:
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        _say(f"trainmark: the run folder stays on host {target.host} as {folder}: {why}")


def _say(line: str) -> None:
    """One line of talk on stderr; never fails the run if nobody listens."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")  # in one piece: two threads may speak at once
        sys.stderr.flush()
