"""Runs one plan on many hosts, each by itself and all at once: records come home, a host that fails is a sentence.

Every host is one remote side of `ssh_run`, held up by its standard input. A thread waits for each, as most of its time
is spent waiting and copying.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from trainmark.launch import secret, ssh, ssh_run
from trainmark.launch.signals import catching_signals
from trainmark.launch.ssh import Host
from trainmark.launch.ssh_run import RemoteCommand, RemoteNode
from trainmark.spec.errors import TrainmarkError
from trainmark.spec.record import Record
from trainmark.spec.site import Site
from trainmark.spec.topology import Topology
from trainmark.store.store import Store

AT_ONCE = 32
"""Hosts that run at a time, unless the user says otherwise: each holds a connection and a process here."""


@dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """What came of one host."""

    host: str
    records: tuple[Record, ...] = ()
    """Each of them is in the store by now."""
    failed: str = ""
    """What went wrong, in a sentence."""


def run_on_each(
    targets: Sequence[Host],
    argv: Sequence[str],
    topology: Topology,
    site: Site,
    store: Store,
    *,
    repeat: int = 1,
    at_once: int = AT_ONCE,
    heard: Callable[[HostAnswer], None],
) -> int:
    """Runs `trainmark run WORDS` on every host; `heard` is called as each ends, for one at a time. Gives the exit
    code of a signal that came meanwhile, else 0."""
    ssh.look_up(targets[:1], site.remote)  # a wrong setting of ssh ends here and not on every host
    job = _Job(argv=["run", *argv], topology=topology, site=site, store=store, repeat=repeat)

    def attend(target: Host) -> None:
        if not job.stop.is_set():
            answer = job.answer(target)
            with job.one_at_a_time:
                heard(answer)

    with catching_signals() as signals, ThreadPoolExecutor(max_workers=min(at_once, len(targets))) as pool:
        left = {pool.submit(attend, target) for target in targets}
        while left:
            ended, left = wait(left, timeout=ssh_run.POLL_S)
            if signals:
                job.stop.set()
            if len(signals) > 1:
                job.stop_now.set()
            for one in ended:
                one.result()  # an error of ours is raised here
    return 128 + signals[0] if signals else 0


@dataclass(frozen=True, kw_only=True)
class _Job:
    argv: list[str]
    topology: Topology
    site: Site
    store: Store
    repeat: int
    stop: threading.Event = field(default_factory=threading.Event)
    """Hosts are asked to end."""
    stop_now: threading.Event = field(default_factory=threading.Event)
    """And are not waited for."""
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever reads or writes a document: two threads in which msgspec learns a type at once crash it."""

    def answer(self, target: Host) -> HostAnswer:
        records: list[Record] = []
        failed = ""
        for _ in range(self.repeat):
            try:
                record, failed = self._run(target)
            except TrainmarkError as error:
                record, failed = None, str(error)
            if record:
                records.append(record)
            if failed:
                break
        return HostAnswer(host=target.host, records=tuple(records), failed=failed)

    def _run(self, target: Host) -> tuple[Record | None, str]:
        remote = self.site.remote
        address = ssh.look_up([target], remote)
        command = RemoteCommand(
            argv=self.argv, topology=self.topology, leader_address=address, secret=secret.make(), site=self.site
        )
        side = command.start(target)
        try:
            self._wait_for(side)
        finally:
            side.kill()
        if (document := side.document()) is None:
            error = ssh_run.error_of(side, remote)
            return None, "it was interrupted" if self.stop.is_set() else str(error)
        with self.one_at_a_time:
            record = ssh_run.record_of(document, target.host)
        if side.folder is not None:
            ssh_run.fetch_or_say_why(target, remote, side.folder, record.run_id, self.store.folder)
        with self.one_at_a_time:
            record = ssh_run.keep_record(record, self.store)
        code = side.process.returncode
        if self.stop.is_set() and code:
            return record, "it was interrupted"
        return record, f"its run ended with exit code {code}: {record.ended}" if code else ""

    def _wait_for(self, side: RemoteNode) -> None:
        """Until it has ended, which it is asked to where we are to stop."""
        gone_at_s: float | None = None
        while not side.ended:
            if self.stop.is_set() and gone_at_s is None:
                side.let_go()
                gone_at_s = time.monotonic()
            if gone_at_s is not None and time.monotonic() - gone_at_s > ssh_run.END_LIMIT_S:
                return
            if self.stop_now.is_set():
                return
            time.sleep(ssh_run.POLL_S)
