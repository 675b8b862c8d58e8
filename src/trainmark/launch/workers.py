"""The worker processes of a launcher: listens to what they write, signals them, and ends them all."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from trainmark.datasets.die_with_parent import end_with_parent
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.network import Route
from trainmark.platforms import files
from trainmark.spec import endings
from trainmark.spec.plan import Plan
from trainmark.spec.rank_log import RECENT_STEPS, RankLog
from trainmark.spec.run_folder import RunFolder

INIT_LIMIT_S = 600.0
"""Opening data, building the model, joining, leaving samples: nothing is heard meanwhile, so the limit is generous."""
LEAST_INIT_LIMIT_S = 30.0
"""The same where the user allows less silence: torch alone takes seconds to load."""
TRAIN_LIMIT_S = 60.0
TRAIN_LIMIT_MEDIANS = 20
STACKS_WAIT_S = 1.0
"""What a hanging rank can still write of its stacks, it has written by then."""
SAMPLER_LIMIT_S = 2.0
"""What the sampler gets to write its last line."""
OTHERS_VARIABLES = re.compile(
    r"PET_.*|TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|ROLE_NAME"
)
"""What another launcher told this process is not meant for the workers we start."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """A rank that ended without a word."""

    rank: int
    code: int | None
    """Its exit code, or minus the signal that killed it, where that is known."""

    @property
    def how(self) -> str:
        if self.code is None:
            return "ended without a word"
        return f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exited with {self.code}"


class WorkerProcesses:
    """The ranks of one launcher: their processes, and what they wrote so far."""

    def __init__(
        self, plan: Plan, env: ClusterEnv, folder: Path, *, only_probe: bool = False, sampled: bool = True
    ) -> None:
        self.plan = plan
        self._only_probe = only_probe
        self._sampled = sampled and not only_probe
        self.env = env
        self.folder = folder
        self.log = folder / ("launcher.log" if env.leads else f"launcher{env.launcher}.log")
        # other launchers may write into the same folder, and what their ranks do is theirs to judge
        own = range(env.first_rank, env.first_rank + env.ranks)
        self._written = RunFolder(folder, only_ranks=own, keep=RECENT_STEPS)
        self.ranks = self._written.logs
        self._heard_at_s = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._sampler: subprocess.Popen[bytes] | None = None

    def start(self, plan_file: Path, route: Route, launched_ns: int) -> None:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(plan_file, route),
                env=self._environment(route, launched_ns),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # a terminal's Ctrl-C reaches the launcher only, which passes it on when it is time
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - the thread that starts it lives as long as this process
            )
        if self.env.first_local_rank == 0 and self._sampled:
            self._start_sampler(launched_ns)

    def wait(self, seconds: float) -> bool:
        """True once the processes have ended."""
        try:
            self._started.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def read(self) -> bool:
        """Takes in new events; True if there were any."""
        moved = self._written.update()
        if moved:
            self._heard_at_s = time.monotonic()
        return moved

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._heard_at_s

    @property
    def limit_s(self) -> float:
        """How long nothing may be heard before this is a hang."""
        asked_s = self.plan.hang_timeout_s
        if any(log.phase in ("startup", "init", "sample") for log in self.ranks):
            return INIT_LIMIT_S if asked_s is None else max(asked_s, LEAST_INIT_LIMIT_S)
        if asked_s is not None:
            return asked_s
        recent = [step for log in self.ranks for step in log.compute_ns[-100:]]
        median_s = float(np.median(recent)) / 1e9 if recent else INIT_LIMIT_S / TRAIN_LIMIT_MEDIANS
        return max(TRAIN_LIMIT_S, TRAIN_LIMIT_MEDIANS * median_s)

    @property
    def may_restart(self) -> bool:
        """True where torchrun will start failed ranks again, and that could help."""
        pointless = any(log.failed and log.failed.exit_code in endings.SAME_AGAIN for log in self.ranks)
        return not pointless and max(log.restart for log in self.ranks) < self.plan.max_restarts

    @property
    def ended_well(self) -> bool:
        return self._started.returncode == 0 and all(log.end for log in self.ranks)

    def signal(self, number: int) -> None:
        """To the ranks themselves: a torchrun in between would kill them instead of letting them finish their step."""
        pids = [log.pid for log in self.ranks if log.pid is not None]
        for pid in pids if len(pids) == len(self.ranks) else [self._started.pid]:
            _kill(pid, number)

    def dump_stacks(self) -> None:
        for log in self.ranks:
            if log.pid is not None:
                _kill(log.pid, signal.SIGUSR1)
                _kill(log.pid, signal.SIGCONT)  # one that somebody stopped writes its stack when it may go on
        time.sleep(STACKS_WAIT_S)

    def end(self) -> None:
        """Leaves no process behind."""
        self._end_sampler()
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            for child in [*children, process]:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    continue
            process.wait()
        self.read()

    def dead(self) -> list[RankLog]:
        """Ranks whose process is gone although they said neither that they ended nor that they failed."""
        return [log for log in self.ranks if log.pid is not None and not log.end and not log.failed and _gone(log.pid)]

    def death(self) -> Death:
        """Which rank went first without a word, and how: torchrun wrote it down, or it was our own child."""
        silent = [log for log in self.ranks if not log.end and not log.failed] or self.ranks
        if not self._uses_torchrun:
            return Death(rank=silent[0].rank, code=self._started.returncode)
        by_pid = {log.pid: log for log in silent}
        for code, pid in re.findall(r"exitcode\s*: (-?\d+)\)?.*?\(?pid: (\d+)\)", self._log_text()):
            if int(pid) in by_pid:
                return Death(rank=by_pid[int(pid)].rank, code=int(code))
        gone = self.dead() or silent
        return Death(rank=gone[0].rank, code=None)

    def last_lines(self, rank: int, count: int = 20) -> str:
        """What the rank said last; where it never got to speak, what its launcher did."""
        own = self.folder / f"rank{rank}.log"
        path = own if own.exists() else self.log
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])

    def files(self) -> dict[str, Path]:
        """What the leader needs from here."""
        names = [f"rank{log.rank}.{end}" for log in self.ranks for end in ("jsonl", "jsonl.gz", "log", "stacks")]
        names += [f"telemetry{self.env.launcher}.jsonl", f"telemetry{self.env.launcher}.jsonl.gz"]
        return {name: self.folder / name for name in [*names, self.log.name]}

    def _start_sampler(self, launched_ns: int) -> None:
        """One a machine; where it cannot be started the run goes on, and its record says that nothing was sampled."""
        # launchers that are ranks have siblings here, which are no strangers: what started them all is above all
        above = self.env.is_rank and self.env.local_ranks > 1
        words = [str(self.folder / f"telemetry{self.env.launcher}.jsonl"), self.plan.platform]
        words += [str(self.env.local_ranks), f"--first-rank={self.env.first_rank}", f"--launched-ns={launched_ns}"]
        words += [f"--tree={os.getppid() if above else os.getpid()}"]
        try:
            self._sampler = subprocess.Popen(
                [sys.executable, "-m", "trainmark.launch.sampler", *words],
                env={**os.environ, "TRAINMARK_PARENT": str(os.getpid())},
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

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None  # noqa: S101 - nobody asks before it is started
        return self._process

    @property
    def _uses_torchrun(self) -> bool:
        alone = self.env.launchers == 1 and self.env.ranks == 1
        return not self.env.is_rank and not (alone and not self.plan.max_restarts)

    def _command(self, plan_file: Path, route: Route) -> list[str]:
        worker = ["-m", "trainmark.train.worker", str(self.folder), str(plan_file)]
        worker += ["--only-probe"] if self._only_probe else [] if self._sampled else ["--trial"]
        if not self._uses_torchrun:
            return [sys.executable, *worker]
        nodes = self.env.launchers
        torchrun = ["-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={self.env.ranks}"]
        torchrun += [f"--max-restarts={self.plan.max_restarts}", "--rdzv-backend=c10d"]
        if nodes == 1:
            torchrun += ["--rdzv-endpoint=localhost:0"]  # port 0: any free one
        else:
            # which node hosts is said outright: torchrun would guess from the host's name, and may guess wrong
            conf = f"is_host={int(self.env.leads)},join_timeout={INIT_LIMIT_S:.0f}"
            torchrun += [f"--rdzv-endpoint={route.rendezvous}", f"--rdzv-id={route.rendezvous}"]
            torchrun += [f"--rdzv-conf={conf}", f"--local-addr={route.local_address}"]
        return [sys.executable, *torchrun, *worker]

    def _environment(self, route: Route, launched_ns: int) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not OTHERS_VARIABLES.fullmatch(name)}
        environment |= {"TRAINMARK_LAUNCHED_NS": str(launched_ns), "PYTHONUNBUFFERED": "1"}
        if self._uses_torchrun:
            environment["TRAINMARK_FIRST_RANK"] = str(self.env.first_rank)
            # restarted ranks must not find the keys of the ranks before them in the store their agent keeps
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = str(int(self.plan.max_restarts > 0))
        else:
            environment["TRAINMARK_PARENT"] = str(os.getpid())
        if self.env.is_rank:
            environment |= self._rank_variables(route)
        if self.env.local_ranks > 1:
            cores = len(os.sched_getaffinity(0)) // self.env.local_ranks
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
        if self.env.launchers > 1 or self.env.ranks > 1:
            for name, value in route.variables.items():
                environment.setdefault(name, value)
        if self.plan.recipe["host_settings"] == "tuned":
            for name, value in files.load(self.plan.platform).host_settings.items():
                environment.setdefault(name, value)
        return environment

    def _rank_variables(self, route: Route) -> Mapping[str, str]:
        """What torchrun would tell the rank."""
        address, _, port = route.rendezvous.rpartition(":")
        return {
            "RANK": str(self.env.first_rank),
            "WORLD_SIZE": str(self.env.launchers),
            "LOCAL_RANK": str(self.env.first_local_rank),
            "LOCAL_WORLD_SIZE": str(self.env.local_ranks),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }

    def _log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
