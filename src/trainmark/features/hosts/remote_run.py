"""Runs a plan on several hosts through ssh: the same command on each; record and run folder come from the first.

The standard input of a remote process is its lifeline: the first line is the secret of the run, then it stays open, and
when it closes, also because this process or the connection is gone, the remote run ends itself.
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
from pathlib import Path
from typing import IO, Any

from trainmark.features.hosts import ssh
from trainmark.features.hosts.ssh import Host
from trainmark.launch.cluster_env import make_secret
from trainmark.launch.session import FOLDER
from trainmark.launch.signals import catch_signals
from trainmark.record.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError, error_from_exit_code
from trainmark.record.gather import reduce_ranks
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.run_folder import open_run
from trainmark.record.site import Remote, Site
from trainmark.record.store import Store
from trainmark.record.timeline import SeriesFile, StepSeries, describe_file

POLL_S = 0.05
GRACE_S = 20.0
"""Time for the first host to notice that another one failed, and to write its record."""
REFUSAL_GRACE_S = 5.0
"""The same where the other one refused to start."""
END_LIMIT_S = 30.0
"""Time for a remote process to end after its input was closed."""
TERMINATED = 128 + signal.SIGTERM
"""The exit code of a remote process that ended with its input."""
MAX_LINES = 20
_NOT_STARTED = (126, 127)
"""Exit codes of a shell that cannot run a program."""


def run_on_hosts(
    hosts: str, argv: Sequence[str], topology: Topology, site: Site, store: Path, *, quiet: bool
) -> tuple[Record | None, int]:
    """Runs `trainmark run` on the hosts as one run; returns its record, unless interrupted, and the exit code."""
    targets = ssh.parse_node_hosts(hosts, topology)
    document, code, folder = run_command(targets, ["run", *argv], topology, site, quiet=quiet)
    if document is None:
        return None, code
    record = parse_record(document, targets[0].host)
    if folder is not None:
        fetch_or_warn(targets[0], site.remote, folder, record.run_id, store)
    return record, code


def parse_record(document: Mapping[str, Any], host: str) -> Record:
    """The record that a host sent."""
    try:
        return Record.from_json(document)
    except UsageError as error:
        raise WorkloadError(f"host {host} sent a record that cannot be read: {error}") from error


def keep_record(record: Record, store: Store) -> Record:
    """Adds a record to the store, unless the host shares the store."""
    if not store.path(record.run_id).exists():
        record = restore_series(record, store.runs / record.run_id)
        store.add(record)
    return record


def query_hosts(
    hosts: str, argv: Sequence[str], topology: Topology, site: Site, *, quiet: bool
) -> tuple[dict[str, Any] | None, int]:
    """Runs a `trainmark` command on the hosts; returns the JSON document of the first one, unless interrupted."""
    document, code, _ = run_command(ssh.parse_node_hosts(hosts, topology), argv, topology, site, quiet=quiet)
    return document, code


def run_command(
    targets: Sequence[Host],
    argv: Sequence[str],
    topology: Topology,
    site: Site,
    *,
    quiet: bool,
    signals: list[int] | None = None,
) -> tuple[dict[str, Any] | None, int, str | None]:
    """The JSON document of the first host, unless interrupted before, its exit code, and its run folder, if any;
    `signals` are those of a caller that catches them."""
    address = ssh.resolve_leader(targets, site.remote)
    secret = make_secret()
    catching = catch_signals() if signals is None else contextlib.nullcontext(signals)
    with catching as signals, contextlib.ExitStack() as started:
        sides: list[RemoteNode] = []
        for node, target in enumerate(targets):
            line = ssh.make_remote_command(argv, node, topology, address, site)
            command = ssh.make_ssh_command(target, site.remote, line)
            sides.append(RemoteNode(target.host, command, leads=node == 0, show=node == 0 and not quiet))
            started.callback(sides[-1].kill)
            sides[-1].send_line(secret)
        failed = _supervise(sides, signals)
    leader = sides[0]
    code = leader.process.returncode
    document = leader.document()
    if document is None and not signals:
        raise make_error(failed or leader, site.remote)
    if signals and (document is None or code == TERMINATED):
        code = 128 + signals[0]
    elif code == TERMINATED and failed and failed is not leader:  # its input was closed, and it could not know why
        error = make_error(failed, site.remote)
        _print(f"trainmark: {error}")
        code = error.exit_code
    return document, code, leader.folder


class RemoteNode:
    """The ssh process of one host, and its output."""

    def __init__(self, host: str, command: list[str], *, leads: bool, show: bool) -> None:
        self.host = host
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
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
            start_new_session=True,  # Ctrl-C is passed on by closing the input, not by killing ssh
        )
        self._threads = [
            _start_reader(self.process.stdout, self._handle_answer if leads else self._handle_line),
            _start_reader(self.process.stderr, self._handle_line),
        ]

    def send_line(self, line: str) -> None:
        """Sends a secret by standard input, as others can read command lines."""
        with contextlib.suppress(OSError):  # it is gone, which is noticed later
            ssh.require_pipe(self.process.stdin).write(f"{line}\n")
            ssh.require_pipe(self.process.stdin).flush()

    def close_input(self) -> None:
        """Closes the input, so that the remote run finishes its step and ends."""
        with contextlib.suppress(OSError):
            ssh.require_pipe(self.process.stdin).close()

    def kill(self) -> None:
        """Ends the local ssh process, if it has not ended yet."""
        self.close_input()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()

    def document(self) -> dict[str, Any] | None:
        """The JSON document of the first host, once it has ended; None where there is no complete one."""
        try:
            return dict(json.loads(self._answer))
        except ValueError:
            return None

    @property
    def has_ended(self) -> bool:
        """Its process has ended and its output was read."""
        return self.process.poll() is not None and not any(thread.is_alive() for thread in self._threads)

    @property
    def has_failed(self) -> bool:
        return self.has_ended and self.process.returncode != 0

    @property
    def has_started(self) -> bool:
        """Whether trainmark was started on the host."""
        return self.arrived and self.process.returncode not in _NOT_STARTED and "No module named" not in self.last_line

    @property
    def last_line(self) -> str:
        return ssh.find_last_line(self.lines)

    def _handle_answer(self, line: str) -> None:
        if line.startswith("{"):
            self._answer = line
        elif line.strip():
            self._handle_line(line)

    def _handle_line(self, line: str) -> None:
        line = "".join(sign if sign.isprintable() or sign == "\t" else "�" for sign in line.rstrip("\r\n"))
        if line == ssh.ARRIVED:
            self.arrived = True
        elif line.startswith(FOLDER):
            self.folder = line.removeprefix(FOLDER)
        else:
            self.lines.append(line)
            if self._show:
                _print(line)


def _start_reader(stream: IO[str] | None, hear: Callable[[str], None]) -> threading.Thread:
    def read() -> None:
        with ssh.require_pipe(stream) as lines:
            for line in lines:
                hear(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _supervise(sides: Sequence[RemoteNode], signals: Sequence[int]) -> RemoteNode | None:
    """Waits until all have ended, and ends them after a failure; returns the one that failed first."""
    failed: RemoteNode | None = None
    close_at_s: float | None = None
    closed_at_s: float | None = None
    while alive := [side for side in sides if not side.has_ended]:
        now_s = time.monotonic()
        if failed is None and (failed := next((side for side in sides if side.has_failed), None)):
            close_at_s = now_s + _choose_grace_s(failed)
        if signals or sides[0] not in alive:
            close_at_s = now_s
        if closed_at_s is None and close_at_s is not None and now_s >= close_at_s:
            for side in alive:
                side.close_input()
            closed_at_s = now_s
        if len(signals) > 1 or (closed_at_s is not None and now_s - closed_at_s > END_LIMIT_S):
            break
        time.sleep(POLL_S)
    return failed or next((side for side in sides if side.has_failed), None)


def _choose_grace_s(failed: RemoteNode) -> float:
    """How long the first host has to end by itself after another one failed."""
    if not failed.has_started:
        return 0.0
    return REFUSAL_GRACE_S if failed.process.returncode in (2, 3) else GRACE_S


def make_error(side: RemoteNode, remote: Remote) -> TrainmarkError:
    """Why there is no record, in one sentence."""
    code, message = side.process.returncode, side.last_line.removeprefix("trainmark: ")
    because = f": {message}" if message else ""
    if not side.arrived:
        if code == 255:
            return NotReadyError(f"host {side.host} cannot be entered through ssh{because}")
        return NotReadyError(f"host {side.host} has no folder {remote.folder!r} to start in{because}")
    if not side.has_started:
        return NotReadyError(
            f"host {side.host} cannot start trainmark with {remote.python}{because}; "
            "set [remote] python in trainmark.toml to a Python there that has it"
        )
    if code == 255:
        return WorkloadError(f"host {side.host} was lost: its process was killed or the connection broke{because}")
    if code <= 0:
        return WorkloadError(f"host {side.host} ended without a record{because}")
    return error_from_exit_code(code, f"host {side.host} ended with exit code {code}{because}")


def fetch_or_warn(target: Host, remote: Remote, folder: str, run_id: str, store: Path) -> None:
    """A record is valid without its run folder."""
    try:
        ssh.fetch(target, remote, folder, run_id, store)
    except (TrainmarkError, KeyboardInterrupt) as error:
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        _print(f"trainmark: the run folder stays on host {target.host} as {folder}: {why}")


def _print(line: str) -> None:
    """Prints a line on stderr; a closed stderr does not fail the run."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")  # in one call, as two threads may write
        sys.stderr.flush()


def restore_series(record: Record, folder: Path) -> Record:
    """A record whose series file is missing, with the series from the run's events where possible."""
    if record.means_only is None:
        return record

    def read(expected: SeriesFile) -> StepSeries:
        *_, steps = reduce_ranks(open_run(folder), full=record.plan.limits.full)
        if steps is None or describe_file(record.run_id, steps) != expected:
            raise ValueError("the run's events give another series")
        return steps

    try:
        return Record.from_json(record.to_json(), read)
    except NotReadyError:
        return record
