"""Starts the ranks of a run, watches over them, and leaves a record whatever happens to them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import psutil

from trainmark import workloads
from trainmark.data.lifeline import end_with_parent
from trainmark.platforms import files
from trainmark.run import gather
from trainmark.run.events import EventTail, EventWriter
from trainmark.run.gather import RankStory
from trainmark.spec.errors import NotReadyError
from trainmark.spec.plan import Plan
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology

POLL_S = 0.1
INIT_LIMIT_S = 600.0
"""Opening data, building the model, joining, leaving samples: nothing is heard meanwhile, so the limit is generous."""
TRAIN_LIMIT_S = 60.0
TRAIN_LIMIT_MEDIANS = 20
TERMINATE_LIMIT_S = 20.0
"""What a rank gets to finish its step and flush after SIGTERM."""
AFTER_FAILURE_S = 3.0
"""What the other ranks get to notice that one has failed."""
LAST_LINES = 20
HANG = 124

Watcher = Callable[[list[RankStory]], None]


class Run:
    """One execution of a plan: a folder, the processes working in it, and what they wrote so far."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.events = EventWriter(folder / "launcher.jsonl")
        self.ranks = [RankStory(rank=rank) for rank in range(Topology.parse(plan.topology).devices)]
        self._tails = [EventTail(folder / f"rank{rank}.jsonl") for rank in range(len(self.ranks))]
        self._progress_at_s = time.monotonic()
        self.signals: list[int] = []
        self.exit_code = 0

    def read(self) -> bool:
        """Takes in new events; True if there were any."""
        moved = False
        for story, tail in zip(self.ranks, self._tails, strict=True):
            for event in tail.new_events():
                story.add(event)
                moved = True
        if moved:
            self._progress_at_s = time.monotonic()
        return moved

    def silent_s(self) -> float:
        return time.monotonic() - self._progress_at_s

    def limit_s(self) -> float:
        """How long nothing may be heard before this is a hang."""
        if self.plan.hang_timeout_s is not None:
            return self.plan.hang_timeout_s
        if any(story.phase in ("startup", "init", "sample") for story in self.ranks):
            return INIT_LIMIT_S
        recent = [step for story in self.ranks for step in story.compute_ns[-100:]]
        median_s = float(np.median(recent)) / 1e9 if recent else INIT_LIMIT_S / TRAIN_LIMIT_MEDIANS
        return max(TRAIN_LIMIT_S, TRAIN_LIMIT_MEDIANS * median_s)

    def fault(self, exit_code: int, sentence: str) -> None:
        """Writes down why the run failed, once: the first reason is the one that counts."""
        if not self.exit_code:
            self.exit_code = exit_code
            self.events.write("fault", exit_code=exit_code, sentence=sentence)


def run(
    plan: Plan, store: Path, *, group: str | None = None, watch: Watcher = lambda ranks: None
) -> tuple[Record, int, Path]:
    """Runs a plan to its end; returns its record, the exit code it deserves, and the run folder."""
    folder = _new_folder(plan, store, group)
    current = Run(plan, folder)
    before = _machine_use()
    launched_ns = time.perf_counter_ns()
    process = subprocess.Popen(
        _command(plan, folder),
        env=_environment(plan, launched_ns),
        stdin=subprocess.DEVNULL,
        stdout=(folder / "launcher.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a terminal's Ctrl-C reaches the launcher only, which passes it on when it is time
        preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    with _forwarding_signals(current):
        try:
            _supervise(current, process, watch)
        finally:
            _end_all(process, current)
    elapsed_s = (time.perf_counter_ns() - launched_ns) / 1e9
    current.events.write("machine", foreign_load=_foreign_load(before, _machine_use(), elapsed_s))
    _judge(current, process.returncode)
    record = gather.record(folder)
    return record, current.exit_code, folder


def _supervise(current: Run, process: subprocess.Popen[bytes], watch: Watcher) -> None:
    asked_at_s: float | None = None
    failed_at_s: float | None = None
    handled = 0
    while True:
        ended = process.poll() is not None
        if current.read() or ended:
            watch(current.ranks)
        if ended:
            return
        if len(current.signals) > handled:
            handled = len(current.signals)
            if handled > 1:
                return
            asked_at_s = time.monotonic()
            _signal_ranks(current, process, current.signals[0])
        if (
            asked_at_s is not None
            and time.monotonic() - asked_at_s > TERMINATE_LIMIT_S
            and current.signals[0] == signal.SIGTERM
        ):
            return
        if any(story.failed for story in current.ranks):
            failed_at_s = failed_at_s or time.monotonic()
            if time.monotonic() - failed_at_s > AFTER_FAILURE_S:
                return
        if current.silent_s() > current.limit_s():
            _report_hang(current)
            return
        try:
            process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            continue


def _signal_ranks(current: Run, process: subprocess.Popen[bytes], number: int) -> None:
    """To the ranks themselves: a torchrun in between would kill them instead of letting them finish their step."""
    pids = [story.pid for story in current.ranks if story.pid is not None]
    for pid in pids if len(pids) == len(current.ranks) else [process.pid]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _report_hang(current: Run) -> None:
    for story in current.ranks:
        if story.pid is not None:
            try:
                os.kill(story.pid, signal.SIGUSR1)  # the worker dumps its stacks
            except ProcessLookupError:
                continue
    time.sleep(1)  # what a stopped or spinning rank can still write, it has written by then
    where = ", ".join(
        f"rank {story.rank} was last seen in {story.phase} at step {story.first_step + len(story.compute_ns)}"
        for story in current.ranks
    )
    sentence = f"no progress for {current.limit_s():.0f} s: {where}; stacks are in {current.folder}/rank*.stacks"
    current.fault(HANG, sentence)


def _end_all(process: subprocess.Popen[bytes], current: Run) -> None:
    """Leaves no process behind."""
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        for child in [*children, process]:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()
    current.read()


def _judge(current: Run, returncode: int) -> None:
    """Finds the exit code, and for a rank that could not speak for itself the sentence."""
    failures = [story.failed for story in current.ranks if story.failed]
    if failures:
        first = min(failures, key=lambda failure: failure["at_ns"])
        current.fault(first["exit_code"], first["sentence"])
    elif current.signals:
        if all(story.end for story in current.ranks):
            current.exit_code = 128 + current.signals[0]  # they finished their step and said so themselves
        else:
            current.fault(128 + current.signals[0], f"the run was ended by {signal.Signals(current.signals[0]).name}")
    elif returncode != 0 or any(story.end is None for story in current.ranks):
        silent = next((story for story in current.ranks if story.end is None), current.ranks[0])
        how = f"was killed by {signal.Signals(-returncode).name}" if returncode < 0 else f"exited with {returncode}"
        step = silent.first_step + len(silent.compute_ns)
        lines = last_lines(current.folder, silent.rank)
        sentence = f"rank {silent.rank} {how} in {silent.phase} at step {step}"
        current.fault(4, sentence + (f"; its last lines:\n{lines}" if lines else ""))


def last_lines(folder: Path, rank: int) -> str:
    for name in (f"rank{rank}.log", "launcher.log"):
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            continue
        if lines:
            return "\n".join(lines[-LAST_LINES:])
    return ""


def _new_folder(plan: Plan, store: Path, group: str | None) -> Path:
    workload = workloads.load(plan.workload)
    stamp = gather.now_utc()
    compact = stamp.replace("-", "").replace(":", "").removesuffix("Z")
    run_id = f"{plan.workload}-{plan.recipe_name}-{plan.topology}-{plan.precision}-{compact}-{secrets.token_hex(3)}"
    folder = store / "runs" / run_id
    head = {
        "run_id": run_id,
        "created": stamp,
        "group": group,
        "item": workload.item,
        "target": {"name": workload.target.name, "unit": workload.target.unit, "better": workload.target.better},
        "reference_global_batch": workload.reference_global_batch,
    }
    try:
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(plan.to_json(), indent=1), encoding="utf-8")
        (folder / "run.json").write_text(json.dumps(head, indent=1), encoding="utf-8")
    except OSError as error:
        raise NotReadyError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return folder


def _command(plan: Plan, folder: Path) -> list[str]:
    worker = ["-m", "trainmark.run.worker", str(folder)]
    devices = Topology.parse(plan.topology).devices_per_node
    if devices == 1:
        return [sys.executable, *worker]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={devices}"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]  # port 0: any free one
    return [sys.executable, *torchrun, *rendezvous, *worker]


def _environment(plan: Plan, launched_ns: int) -> dict[str, str]:
    environment = {**os.environ, "TRAINMARK_LAUNCHED_NS": str(launched_ns), "PYTHONUNBUFFERED": "1"}
    devices = Topology.parse(plan.topology).devices_per_node
    if devices == 1:
        environment["TRAINMARK_PARENT"] = str(os.getpid())
    else:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // devices)))
    if plan.recipe["host_settings"] == "tuned":
        for name, value in files.load(plan.platform).host_settings.items():
            environment.setdefault(name, value)
    return environment


@contextmanager
def _forwarding_signals(current: Run) -> Iterator[None]:
    def note(number: int, frame: FrameType | None) -> None:
        current.signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _machine_use() -> tuple[float, float]:
    """CPU seconds everybody used so far, and those of our finished children."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    everybody = sum(times[: len(times) - 2] if len(times) > 8 else times) - idle  # guest time is part of user time
    children = os.times()
    return everybody, children.children_user + children.children_system


def _foreign_load(before: tuple[float, float], after: tuple[float, float], elapsed_s: float) -> float:
    """Share of the machine's cores that went to others while we ran, stolen time included."""
    others = (after[0] - before[0]) - (after[1] - before[1])
    return max(0.0, others / (elapsed_s * (psutil.cpu_count() or 1)))
