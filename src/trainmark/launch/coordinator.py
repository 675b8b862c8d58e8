"""Coordinates the launchers of a run on several nodes through the store of the leader: facts, faults, files."""

from __future__ import annotations

import json
import os
import platform as host_platform
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch.distributed import DistStoreError

import trainmark
from trainmark.launch import cluster_env, rendezvous, signals
from trainmark.launch.cluster_env import SECRET, ClusterEnv
from trainmark.launch.rendezvous import StoreServer
from trainmark.platforms import files
from trainmark.record import site
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import HangError, NotReadyError, TrainmarkError, UsageError, error_from_exit_code
from trainmark.record.plan import Plan, Topology
from trainmark.record.run_folder import HEAD_FILE, PLAN_FILE, RunHead
from trainmark.train.collectives import LostStoreError, RendezvousStore
from trainmark.train.ranks import read_host_name

JOIN_TIMEOUT_S = 60.0
"""How long launchers wait for each other to join."""
READY_TIMEOUT_S = 900.0
"""How long they wait for data preparation and preflight checks of each other."""
HEARTBEAT_S = 0.5
LOST_S = 15.0
"""A launcher without a heartbeat for so long is lost, unless the plan has a shorter timeout."""
LEAVE_TIMEOUT_S = 5.0
"""How long the leader waits for the others to leave, and they for its reply."""
CHUNK_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 30
RANK_FILE = re.compile(
    r"(rank[0-9]{1,7}\.(jsonl(\.gz)?|log|stacks)|launcher[0-9]{1,7}\.log|telemetry[0-9]{1,7}\.jsonl(\.gz)?)"
)
"""The only files a launcher may send to the leader."""

RestartDecision = Literal["restart", "stop"]
"""What happens once some ranks have ended: all restart, or none."""


def plan_file_name(env: ClusterEnv) -> str:
    """The name of a launcher's plan in the run folder."""
    return PLAN_FILE if env.is_leader else f"plan.launcher{env.launcher}.json"


class Coordinator:
    """One per command; the keys of each run are prefixed by its number."""

    def __init__(
        self,
        env: ClusterEnv,
        *,
        secret: str | None = None,
        interface: str | None = None,
        join_timeout_s: float | None = None,
    ) -> None:
        """Without a secret, that of the variable is used."""
        self.env = env
        self.host = read_host_name(os.environ)
        self.shares_folder = True
        """The leader sees the run folder of this launcher, so that no file is sent."""
        self._join_timeout_s = JOIN_TIMEOUT_S if join_timeout_s is None else join_timeout_s
        self._server: StoreServer | None = None
        if env.is_leader:
            self._server, self._address = rendezvous.serve(env, secret, interface, self._join_timeout_s)
        else:
            self._address = rendezvous.find_leader(env, secret, self._join_timeout_s)
        self._store = RendezvousStore(self.connect(self._join_timeout_s))
        self._run = 0
        self._heartbeat: Heartbeat | None = None
        self._store.set(f"here/{env.launcher}", self.host)
        if self._server:
            try:
                self._wait_for_all("here", self._join_timeout_s, self._describe_missing)
            except BaseException:
                self._server.close()
                raise

    def connect(self, timeout_s: float = JOIN_TIMEOUT_S) -> socket.socket:
        """A new connection to the store, for this process or a rank that inherits it."""
        return rendezvous.connect(self._address, timeout_s)

    @property
    def rank_prefix(self) -> str:
        """The key prefix of the ranks of this run."""
        return self._key("ranks")

    def begin_run(self, plan: Plan, store: Path, make_folder: Callable[[str], Path]) -> Path:
        """Checks that all nodes can run together; returns the run folder, that of the leader where all see it."""
        everybody = self._exchange({"host": self.host, **collect_versions(plan)})
        if not self.env.is_leader:
            return self._join_run(plan, store)
        if error := _compare_nodes(everybody):
            self._put("start", {"refused": str(error), "exit_code": error.exit_code})
            raise error
        token = secrets.token_hex(8)
        folder = make_folder(token)
        self._put("start", {"folder": f"{folder.parent.name}/{folder.name}", "token": token})
        return folder

    def refuse_run(self, error: TrainmarkError) -> None:
        """Tells the other launchers that the next run cannot start here, so that nobody waits."""
        self._exchange({"not_ready": str(error), "exit_code": error.exit_code, "host": self.host})
        if self.env.is_leader:
            refused = {"refused": f"{self.host} is not ready: {error}", "exit_code": error.exit_code}
            self._put("start", refused)

    def start_heartbeat(self, lost_after_s: float) -> Heartbeat:
        store = RendezvousStore(self.connect())
        self._heartbeat = Heartbeat(store, self.env, self._key(""), lost_after_s)
        return self._heartbeat

    def decide_restart(self, restarts: int, wish: RestartDecision) -> RestartDecision:
        """The decision of the first launcher to call this after so many restarts; it holds for all."""
        decided = self._store.compare_set(self._key(f"restart/{restarts}"), "", wish)
        return "restart" if decided == b"restart" else "stop"

    def report(self, fault: Mapping[str, Any]) -> None:
        """Reports a fault to all launchers; the order of reports is the order of failures."""
        self._put(f"fault/{self._store.add(self._key('faults'), 1)}", fault)

    def faults(self) -> list[dict[str, Any]]:
        """All faults reported so far, in order."""
        number, found = 1, []
        while self._store.check([self._key(f"fault/{number}")]):
            found.append(self._get(f"fault/{number}"))
            number += 1
        return found

    def send_files(self, paths: Mapping[str, Path]) -> None:
        """Sends the files of a follower at the end of a run, in chunks."""
        chunks = {}
        for name, path in paths.items():
            if path.is_file():
                data = path.read_bytes()[:MAX_FILE_BYTES]
                starts = range(0, len(data), CHUNK_BYTES)
                for number, start in enumerate(starts):
                    self._store.set(self._key(f"file/{name}/{number}"), data[start : start + CHUNK_BYTES])
                chunks[name] = len(starts)
        self._put(f"done/{self.env.launcher}", {"files": chunks})

    def receive_files(self, launcher: int, folder: Path, is_alive: Callable[[], bool]) -> bool:
        """Waits for the files of a follower on the leader; False if it was lost before."""
        while not self._store.check([self._key(f"done/{launcher}")]):
            if not is_alive():
                return False
            time.sleep(HEARTBEAT_S / 5)
        for name, chunks in self._get(f"done/{launcher}")["files"].items():
            if not RANK_FILE.fullmatch(name):
                raise NotReadyError(f"launcher {launcher} sent a file with the name {name!r}; nothing was written")
            keys = [self._key(f"file/{name}/{number}") for number in range(chunks)]
            write_atomic(folder / name, b"".join(self._store.get(key) for key in keys))
            for key in keys:
                self._store.delete_key(key)
        return True

    def finish(self, exit_code: int) -> None:
        """The leader publishes the exit code of a run."""
        self._put("over", {"exit_code": exit_code})
        self._stop_heartbeat()

    def wait_for_end(self) -> int:
        """A follower waits for the exit code of the leader."""
        self._wait("over", "the leader did not report how the run ended")
        self._stop_heartbeat()
        return int(self._get("over")["exit_code"])

    def describe_launcher(self, launcher: int) -> str:
        """The node or rank of a launcher, and its host."""
        return f"{self.env.unit} {launcher} ({self._store.get(f'here/{launcher}').decode()})"

    def leave(self) -> None:
        """The store must outlive the last request of all followers."""
        self._stop_heartbeat()
        self._store.reply_timeout_s = LEAVE_TIMEOUT_S
        with suppress(Exception):  # peers that are gone are not waited for
            self._store.set(f"left/{self.env.launcher}", "")
            if self.env.is_leader:
                self._wait_for_all("left", LEAVE_TIMEOUT_S, lambda missing: "")
        self._store.close()
        if self._server:
            self._server.close()

    def _exchange(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Starts the next run: every launcher publishes its facts, and the leader gets them all."""
        self._run += 1
        self._put(f"facts/{self.env.launcher}", facts)
        if not self.env.is_leader:
            return []
        self._wait_for_all(self._key("facts"), READY_TIMEOUT_S, lambda missing: f"launcher {missing[0]} is not ready")
        return [self._get(f"facts/{launcher}") for launcher in range(self.env.launchers)]

    def _join_run(self, plan: Plan, store: Path) -> Path:
        """The run folder of a follower: that of the leader where this node sees it too, else its own."""
        self._wait("start", "the leader did not start the run")
        start = self._get("start")
        if "refused" in start:
            raise error_from_exit_code(start["exit_code"], start["refused"])
        folder = store / str(start["folder"])
        try:
            head = msgspec.json.decode((folder / HEAD_FILE).read_bytes(), type=RunHead)
            self.shares_folder = head.token == start["token"]
        except (OSError, ValueError):
            self.shares_folder = False
        if not self.shares_folder:
            folder = store / "launchers" / f"{folder.name}-{self.env.launcher}"
            folder.mkdir(parents=True)
        write_atomic(folder / plan_file_name(self.env), json.dumps(plan.to_json(), indent=1).encode())
        return folder

    def _stop_heartbeat(self) -> None:
        if self._heartbeat:
            self._heartbeat.stop()
            self._heartbeat = None

    def _describe_missing(self, missing: list[int]) -> str:
        there = [each for each in range(self.env.launchers) if each not in missing]
        joined = dict.fromkeys(self._store.get(f"here/{each}").decode() for each in there)
        unit = self.env.unit
        sentence = (
            f"{self._join_timeout_s:.0f} s passed and {len(there)} of {self.env.launchers} {unit}s joined "
            f"({', '.join(joined)}); {unit} {', '.join(map(str, missing))} did not"
        )
        if self._server and self._server.rejected:
            raise NotReadyError(
                f"{sentence}; rejected {', '.join(self._server.rejected)}: {SECRET} does not match; "
                "give all nodes the same one"
            )
        return sentence

    def _wait_for_all(self, prefix: str, timeout_s: float, describe: Callable[[list[int]], str]) -> None:
        deadline = time.monotonic() + timeout_s
        missing = list(range(self.env.launchers))
        while missing := [launcher for launcher in missing if not self._store.check([f"{prefix}/{launcher}"])]:
            if time.monotonic() > deadline:
                raise HangError(describe(missing))
            time.sleep(0.05)

    def _wait(self, name: str, sentence: str) -> None:
        try:
            self._store.wait([self._key(name)], timedelta(seconds=READY_TIMEOUT_S))
        except (DistStoreError, LostStoreError) as error:
            raise HangError(f"{sentence} ({self._address.host}:{self._address.port}): {error}") from error

    def _key(self, name: str) -> str:
        return f"run{self._run}/{name}"

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        self._store.set(self._key(name), json.dumps(dict(value)))

    def _get(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._store.get(self._key(name)))
        return document


class Heartbeat:
    """Runs in its own thread, so that a broken connection does not block the supervision of ranks."""

    def __init__(self, store: RendezvousStore, env: ClusterEnv, prefix: str, lost_after_s: float) -> None:
        self._store = store
        self.lost_after_s = lost_after_s
        self._env = env
        self._prefix = prefix
        self._stopped = threading.Event()
        self._replied_at_s = time.monotonic()
        self._beats: dict[int, tuple[bytes, float]] = {}
        self.fault = False
        """A launcher reported a fault."""
        self.restarts = 0
        """How many restarts of all ranks were decided."""
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def lost_launchers(self) -> list[int]:
        """Launchers without a recent heartbeat; a follower only checks the leader."""
        now = time.monotonic()
        if not self._env.is_leader:
            return [0] if now - self._replied_at_s > self.lost_after_s else []
        return [launcher for launcher, (_, at_s) in self._beats.items() if now - at_s > self.lost_after_s]

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=2)
        self._store.close()

    def _beat(self) -> None:
        count = 0
        while not self._stopped.wait(HEARTBEAT_S):
            count += 1
            try:
                self._store.set(f"{self._prefix}beat/{self._env.launcher}", str(count))
                self.fault = self.fault or self._store.check([f"{self._prefix}fault/1"])
                decision = f"{self._prefix}restart/{self.restarts}"
                if self._store.check([decision]) and self._store.get(decision) == b"restart":
                    self.restarts += 1
                if self._env.is_leader:
                    self._listen()
                self._replied_at_s = time.monotonic()
            except Exception:  # on any error the heartbeat stops, which the others notice
                return

    def _listen(self) -> None:
        for launcher in range(1, self._env.launchers):
            key = f"{self._prefix}beat/{launcher}"
            beat = self._store.get(key) if self._store.check([key]) else b""
            if launcher not in self._beats or self._beats[launcher][0] != beat:
                self._beats[launcher] = (beat, time.monotonic())


@contextmanager
def join_launchers(
    topology: Topology, own_command: Sequence[str] | None, *, port: int | None = None, wait_s: float | None = None
) -> Iterator[Coordinator | None]:
    """Joins the other launchers of the job; None where there are none.

    In the batch script of a Slurm job it starts `own_command` on every node instead, and does not return.
    """
    network = site.load().network
    here = cluster_env.detect_env(topology, os.environ, port or network.port)
    if own_command is None and (here.is_batch or here.launchers > 1):
        raise UsageError(
            f"topology {topology} needs several processes of this job, and a script is only one of them; "
            "start 'trainmark run' in the job instead, and read its record with trainmark.load('last')"
        )
    if here.is_batch:
        cluster_env.start_tasks(here, topology, list(own_command or ()))
    secret = signals.end_with_stdin() if signals.is_bound_to_stdin() else None
    if here.launchers == 1:
        yield None
        return
    together = Coordinator(here, secret=secret, interface=network.interface, join_timeout_s=wait_s)
    try:
        yield together
    finally:
        together.leave()


def collect_versions(plan: Plan) -> dict[str, str]:
    """Versions that must be equal on all nodes of a run."""
    plugin = files.load(plan.platform).plugin
    return {
        "python": ".".join(host_platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "trainmark": trainmark.__version__,
        **({plugin: str(getattr(import_module(plugin), "__version__", "?"))} if plugin else {}),
        "plan": plan.fingerprint[:16],
    }


def _compare_nodes(everybody: list[dict[str, Any]]) -> TrainmarkError | None:
    """Why these launchers cannot run together."""
    for launcher in everybody:
        if "not_ready" in launcher:
            return error_from_exit_code(
                launcher["exit_code"], f"{launcher['host']} is not ready: {launcher['not_ready']}"
            )
    names = [name for name in everybody[0] if name != "host"]
    rows = [name for name in names if len({launcher.get(name) for launcher in everybody}) > 1]
    if not rows:
        return None
    widths = [max(len(str(launcher.get(name, ""))) for name in ["host", *rows]) for launcher in everybody]
    lines = [
        f"  {name:<10}"
        + "  ".join(f"{launcher.get(name, '?'):<{width}}" for launcher, width in zip(everybody, widths, strict=True))
        for name in ["host", *rows]
    ]
    head = "the machines of this run differ; make these equal on all of them:"
    return NotReadyError("\n".join([head, *lines]))
