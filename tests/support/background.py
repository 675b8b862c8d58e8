"""Runs in the background, for tests that do something to them while they go on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
from conftest import TINY_RUN

from support.hosts import Host
from trainmark.record.run_folder import RankLog, RunFolder

LONG = (*TINY_RUN, "--set", "epochs=100000", "--set", "evaluate_every=end")
"""A run that does not end by itself."""


def record_of(folder: Path) -> dict[str, Any]:
    [path] = (folder / "records").glob("*.json")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def ranks(path: Path) -> list[RankLog]:
    """What the ranks of a run have written so far."""
    folder = RunFolder(path)
    folder.update()
    return folder.logs


class Started:
    """A run in the background, with its store."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *words: str | Path,
        popen: Callable[..., Any] | None = None,
        host: Host | None = None,
    ) -> None:
        """`popen` starts it with pipes; `host` is where, if not on this machine."""
        self.store = Path(environment["TRAINMARK_STORE"])
        popen = popen or (subprocess.Popen if host is None else host.popen)
        self.process: Any = popen(
            [sys.executable, "-m", "trainmark", *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **({"start_new_session": True} if popen is subprocess.Popen else {}),
        )

    def folder(self) -> Path:
        """Of its only run, or of its part in one that another machine leads."""
        [folder] = [*(self.store / "runs").glob("*"), *(self.store / "launchers").glob("*")]
        return folder

    def ranks(self) -> list[RankLog]:
        return ranks(self.folder())

    def wait_for_steps(self, count: int) -> RankLog:
        """Polls the run's own event files until every rank here has written down that many steps."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended early: {self.process.communicate()}")
            folders = [*(self.store / "runs").glob("*"), *(self.store / "launchers").glob("*")]
            logs = [log for folder in folders for log in ranks(folder)]
            if logs and all(len(log.compute_ns) >= count for log in logs):
                return logs[0]
            time.sleep(0.05)
        raise AssertionError("the run made no steps")

    def pids(self) -> list[int]:
        """The processes of its ranks."""
        return [log.pid for log in self.ranks() if log.pid is not None]

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=90)
        return self.process.returncode, out, err


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pids: Iterable[int]) -> None:
    deadline = time.monotonic() + 20
    for pid in pids:
        while not gone(pid):
            assert time.monotonic() < deadline, f"process {pid} outlived its run"
            time.sleep(0.05)


def sabotage(folder: Path, code: str) -> dict[str, str]:
    """Variables under which every Python starts with this code: how a test damages one rank of real processes."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


AT_STEP_3_OF_RANK_1 = """
import os
if os.environ.get("RANK") == "1":
    from trainmark.train import stepper
    train, done = stepper.Stepper.step, []
    def step(self, batch):
        done.append(1)
        if len(done) == 4:
            {act}
        return train(self, batch)
    stepper.Stepper.step = step
"""
