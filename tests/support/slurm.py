"""A real Slurm on this machine for the tests that need one: munged, slurmctld and a slurmd for each of two nodes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc", "scontrol", "scancel", "sinfo", "setpriv")
NODES = ("tm1", "tm2")
PATIENCE_S = 60.0

CONFIGURATION = """\
ClusterName=trainmark
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig=/dev/null
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """What keeps this machine from running a Slurm of its own, as a sentence, or None."""
    if os.geteuid() != 0:
        return "a Slurm of the test's own needs root"
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return f"a Slurm of the test's own needs {', '.join(absent)} (Debian: munge slurmctld slurmd slurm-client)"
    return None


class Slurm:
    """Two nodes of `cpus` processors each, that last as long as the `with` block."""

    def __init__(self, cpus: int = 4) -> None:
        self.cpus = cpus
        # not below pytest's folder: the path of a socket may not be longer than 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="trainmark-slurm-"))
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        try:
            self._configure()
            self._start("munged", *self._munge_words())
            self._wait_for("munged to open its socket", (self.folder / "munge.socket").exists)
            self._start("slurmctld", "-D")
            for node in NODES:
                self._start("slurmd", "-D", "-N", node)
            self._wait_for("both nodes to be idle", self._idle)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(
        self, program: str, *words: str | Path, environment: dict[str, str] | None = None, seconds: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of Slurm's programs as a user of this cluster would."""
        return subprocess.run(
            [program, *map(str, words)],
            env={**os.environ, **(environment or {}), **self.environment},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )

    def submit(self, *words: str | Path, environment: dict[str, str] | None = None) -> str:
        """The number of the job that sbatch made of these words."""
        found = self.call("sbatch", "--parsable", *words, environment=environment)
        if found.returncode:
            raise RuntimeError(f"sbatch failed: {found.stderr}")
        return found.stdout.strip().partition(";")[0]

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job, by the names scontrol gives it."""
        found = self.call("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in found.stdout.split() if "=" in word)

    def wait(self, number: str, seconds: float = 120.0) -> dict[str, str]:
        """The job once it is over, however it ended."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        self._wait_for(f"job {number} to end", lambda: self.job(number).get("JobState") in over, seconds)
        return self.job(number)

    def logs(self) -> str:
        """The last lines of every daemon, for the message of a test that failed."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-20:])
            for path in sorted(self.folder.glob("*.log"))
        )

    def _configure(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        (self.folder / "state").mkdir()
        control_port, *ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} State=UNKNOWN"
            for name, port in zip(NODES, ports, strict=True)
        )
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(host=host, folder=self.folder, control_port=control_port, nodes=nodes)
        )

    def _munge_words(self) -> list[str]:
        return [
            "--foreground",
            "--force",  # the folder is root's own, so that no other user can reach the socket; munged minds that
            f"--socket={self.folder}/munge.socket",
            f"--key-file={self.folder}/munge.key",
            f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/munged.seed",
        ]

    def _start(self, name: str, *words: str) -> None:
        program = _program(name)
        assert program is not None
        with (self.folder / f"{name}-{len(self._daemons)}.out.log").open("wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", program, *words],  # not even a killed test leaves a daemon
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _idle(self) -> bool:
        for daemon in self._daemons:
            if daemon.poll() is not None:
                raise RuntimeError(f"{daemon.args!r} ended with {daemon.returncode}\n{self.logs()}")
        found = self.call("sinfo", "--noheader", "--Node", "--format=%N %T")
        return sorted(found.stdout.split("\n")[:-1]) == [f"{name} idle" for name in NODES]

    def _wait_for(self, what: str, done: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:g} s for {what}\n{self.logs()}")
            time.sleep(0.1)

    def _end(self) -> None:
        """Cancels every job, so that no step outlives its slurmd, then ends the daemons, the newest first."""
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.call("scancel", "--user=root", seconds=10)
            self._wait_for("the steps to end", lambda: not list(self.folder.glob("spool-*/tm?_*")), 20)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
