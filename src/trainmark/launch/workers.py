"""The worker processes of a launcher, one per rank: starts them, reads their events, and ends them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from trainmark.data import synthetic
from trainmark.launch import rendezvous
from trainmark.launch.cluster_env import SECRET, ClusterEnv
from trainmark.launch.coordinator import Coordinator, plan_file_name
from trainmark.platforms import files
from trainmark.record import cores, endings, site
from trainmark.record.events import Failed
from trainmark.record.plan import Plan
from trainmark.record.run_folder import RECENT_STEPS, RankLog, RunFolder
from trainmark.train.ranks import LAUNCHED, PARENT, RENDEZVOUS, RESTART

INIT_LIMIT_S = 600.0
"""For data, model, rendezvous and samples, during which there are no events."""
MIN_INIT_LIMIT_S = 30.0
"""The same with --hang-timeout: importing torch alone takes seconds."""
TRAIN_LIMIT_S = 60.0
TRAIN_LIMIT_MEDIANS = 20
STACKS_WAIT_S = 1.0
"""Time for a hanging rank to write its stacks."""
SAMPLER_LIMIT_S = 2.0
"""Time for the sampler to write its last line."""


OTHERS_VARIABLES = re.compile(
    rf"PET_.*|TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|ROLE_NAME|{SECRET}"
)
"""Variables of another launcher, and the secret, which workers do not inherit."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""torch warns of every host without reverse DNS."""

SAMPLED = ("train", "verify")
"""Tasks with a sampler."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """A rank that ended without reporting it."""

    rank: int
    code: int
    """Its exit code, or minus the signal that killed it."""
    at_ns: int = field(default=0, compare=False)
    """When it was noticed, on the clock of `Failed.at_ns`."""

    @property
    def how(self) -> str:
        return f"was killed by {_name_signal(-self.code)}" if self.code < 0 else f"exited with {self.code}"


class WorkerProcesses:
    """The ranks of one launcher: their processes and their logs."""

    def __init__(
        self,
        plan: Plan,
        env: ClusterEnv,
        folder: Path,
        *,
        task: str = "train",
        words: Sequence[str] = (),
        coordinator: Coordinator | None = None,
    ) -> None:
        """`words` are for the task; the rendezvous is at the coordinator, or without one at a file in the folder."""
        self.plan = plan
        interface = site.load().network.interface
        self._network = rendezvous.make_collective_variables(env, interface) if env.world > 1 else {}
        self._coordinator = coordinator
        self._launched_ns = 0
        self._task = task
        self._words = words
        self.env = env
        self.folder = folder
        self.log = folder / ("launcher.log" if env.is_leader else f"launcher{env.launcher}.log")
        # other launchers may share the folder, and supervise their own ranks
        own = range(env.first_rank, env.first_rank + env.ranks)
        self._written = RunFolder(folder, only_ranks=own, keep=RECENT_STEPS)
        self.ranks = self._written.logs
        self.restarts = 0
        """How often all ranks were restarted."""
        self._last_event_s = time.monotonic()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: list[Death] = []
        """Ranks that ended by themselves, in order."""
        self._ended_when_read: list[Death] = []
        self._end_noticed = threading.Event()
        self._sampler: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._launched_ns = time.perf_counter_ns()
        self._start_ranks()
        if self.env.first_local_rank == 0 and self._task in SAMPLED:
            self._start_sampler()

    def restart(self) -> None:
        """Ends all ranks and restarts them from their newest checkpoint."""
        self._end_ranks()
        self.restarts += 1
        self._last_event_s = time.monotonic()
        self._start_ranks()

    def wait(self, seconds: float) -> bool:
        """True once all ranks have ended; returns early where one has."""
        self._end_noticed.wait(seconds)
        self._end_noticed.clear()
        return len(self._ended) == len(self._processes)

    def read(self) -> bool:
        """Reads new events; True if there were any."""
        self._ended_when_read = list(self._ended)  # one that ends meanwhile may have written more than was read
        moved = self._written.update()
        if moved:
            self._last_event_s = time.monotonic()
        return moved

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._last_event_s

    @property
    def limit_s(self) -> float:
        """How long without events is a hang."""
        timeout_s = self.plan.hang_timeout_s
        if any(not self._has_reported(log) or log.phase in ("startup", "init", "sample") for log in self.ranks):
            return INIT_LIMIT_S if timeout_s is None else max(timeout_s, MIN_INIT_LIMIT_S)
        if timeout_s is not None:
            return timeout_s
        recent = [step for log in self.ranks for step in log.compute_ns[-100:]]
        median_s = float(np.median(recent)) / 1e9 if recent else INIT_LIMIT_S / TRAIN_LIMIT_MEDIANS
        return max(TRAIN_LIMIT_S, TRAIN_LIMIT_MEDIANS * median_s)

    @property
    def failures(self) -> list[tuple[RankLog, Failed]]:
        """Failures that ranks reported, in order; ranks of one machine share a clock."""
        failures = [(log, log.failed) for log in self.ranks if log.failed and self._has_reported(log)]
        return sorted(failures, key=lambda pair: pair[1].at_ns)

    @property
    def deaths(self) -> list[Death]:
        """Ranks that failed or ended early without reporting it, in order."""
        silent, failed = {log.rank for log in self.silent}, {log.rank for log, _ in self.failures}
        return [
            death
            for death in self._ended_when_read
            if death.rank in silent or (death.code and death.rank not in failed)
        ]

    @property
    def silent(self) -> list[RankLog]:
        """Ranks that reported neither their end nor a failure."""
        return [log for log in self.ranks if not self._has_reported(log) or not (log.end or log.failed)]

    @property
    def failed(self) -> bool:
        return bool(self.failures or self.deaths)

    @property
    def may_restart(self) -> bool:
        """Whether a restart is allowed, and could help."""
        pointless = any(failed.exit_code in endings.SAME_AGAIN for _, failed in self.failures)
        return not pointless and self.restarts < self.plan.max_restarts

    def signal(self, number: int) -> None:
        for process in self._processes.values():
            process.send_signal(number)

    def dump_stacks(self) -> None:
        for log in self.ranks:
            if self._has_reported(log):  # before that, the signal would kill it
                self._processes[log.rank].send_signal(signal.SIGUSR1)
                # a stopped one writes its stacks once it continues
                self._processes[log.rank].send_signal(signal.SIGCONT)
        time.sleep(STACKS_WAIT_S)

    def end(self) -> None:
        """Leaves no process behind."""
        self._end_sampler()
        self._end_ranks()
        for file in self.folder.glob("rendezvous[0-9]*"):
            file.unlink(missing_ok=True)
        self.read()

    def last_lines(self, rank: int, count: int = 20) -> str:
        """The last lines of the rank's log, or of the launcher's where it has none."""
        own = self.folder / f"rank{rank}.log"
        path = own if own.exists() else self.log
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])

    def files(self) -> dict[str, Path]:
        """The files that the leader needs."""
        names = [f"rank{log.rank}.{end}" for log in self.ranks for end in ("jsonl", "jsonl.gz", "log", "stacks")]
        names += [f"telemetry{self.env.launcher}.jsonl", f"telemetry{self.env.launcher}.jsonl.gz"]
        return {name: self.folder / name for name in [*names, self.log.name]}

    def _has_reported(self, log: RankLog) -> bool:
        """Whether the rank has written events since the last restart."""
        return log.pid is not None and log.restart == self.restarts

    def _start_sampler(self) -> None:
        """One per machine; where it cannot be started, the run continues without samples."""
        # launchers that are ranks have siblings in the same run: their common parent is the root
        is_shared = self.env.is_rank and self.env.local_ranks > 1
        words = [str(self.folder / f"telemetry{self.env.launcher}.jsonl"), self.plan.platform]
        words += [str(self.env.local_ranks), f"--first-rank={self.env.first_rank}"]
        words += [f"--launched-ns={self._launched_ns}", f"--tree={os.getppid() if is_shared else os.getpid()}"]
        try:
            self._sampler = subprocess.Popen(
                [sys.executable, "-m", "trainmark.launch.sampler", *words],
                env={**filter_inherited_variables(), PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return

    def _end_sampler(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        sampler.terminate()
        try:
            sampler.wait(SAMPLER_LIMIT_S)
        except subprocess.TimeoutExpired:
            sampler.kill()
            sampler.wait()

    def _start_ranks(self) -> None:
        self._processes, self._ended, self._ended_when_read = {}, [], []
        words = [str(self.folder), str(self.folder / plan_file_name(self.env)), self._task, *self._words]
        for local in range(self.env.ranks):
            rank = self.env.first_rank + local
            with self.log.open("ab") as log, self._rendezvous() as (place, open_files):
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-m", "trainmark.train.worker", *words],
                    env={**self._environment(local), **place},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=open_files,
                    # Ctrl-C reaches only the launcher, which passes it on
                    start_new_session=True,
                )
        for rank, process in self._processes.items():
            # one thread each, as the order of their ends tells which failed first
            watch = threading.Thread(target=self._note_end, args=(rank, process, self._ended), daemon=True)
            watch.start()

    @contextmanager
    def _rendezvous(self) -> Iterator[tuple[dict[str, str], list[int]]]:
        """The variable of the rendezvous, and the open files that a rank inherits for it."""
        if self.env.world == 1:
            yield {}, []
        elif self._coordinator is None:
            file = self.folder / f"rendezvous{self.restarts}"
            file.touch(mode=0o600)
            yield {RENDEZVOUS: f"file:{file}"}, []
        else:
            with self._coordinator.connect() as connection:
                number, prefix = connection.fileno(), f"{self._coordinator.rank_prefix}{self.restarts}/"
                yield {RENDEZVOUS: f"connection:{number}:{prefix}"}, [number]

    def _note_end(self, rank: int, process: subprocess.Popen[bytes], ended: list[Death]) -> None:
        ended.append(Death(rank=rank, code=process.wait(), at_ns=time.perf_counter_ns()))
        self._end_noticed.set()

    def _end_ranks(self) -> None:
        self._ended = list(self._ended)  # from here on they are ended by us
        for process in self._processes.values():
            if process.poll() is not None:
                continue
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            process.kill()
        for process in self._processes.values():
            process.wait()

    def _environment(self, local: int) -> dict[str, str]:
        """The variables of a rank: its place, and settings of libraries unless the user has set them."""
        file, env = files.load(self.plan.platform), self.env
        variables = {
            **QUIET,
            "TORCHINDUCTOR_CACHE_DIR": str(synthetic.cache_folder() / "inductor"),
            **(file.host_settings if self.plan.recipe["host_settings"] == "tuned" else {}),
            **(file.deterministic_settings if self._task == "verify" else {}),
            **self._network,
            **filter_inherited_variables(),
            "RANK": str(env.first_rank + local),
            "WORLD_SIZE": str(env.world),
            "LOCAL_RANK": str(env.first_local_rank + local),
            "LOCAL_WORLD_SIZE": str(env.local_ranks),
            RESTART: str(self.restarts),
            LAUNCHED: str(self._launched_ns),
            PARENT: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
        }
        if env.local_ranks > 1:
            variables["OMP_NUM_THREADS"] = str(cores.choose_threads(env.local_ranks))
        return variables


def filter_inherited_variables() -> dict[str, str]:
    """The environment of this process, without variables meant for it alone."""
    return {name: value for name, value in os.environ.items() if not OTHERS_VARIABLES.fullmatch(name)}


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
