"""A rank's process that is started before its run is planned, to import torch while its launcher does so itself.

It is told what to do once the run is decided and the machine looked over. What it was started with is a guess that
decides nothing: where its rank is to have other variables, it is ended, and another process takes its place.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from trainmark.launch import cluster_env, rank_environment
from trainmark.launch.options import RunOptions
from trainmark.platforms import files
from trainmark.spec.errors import TrainmarkError
from trainmark.spec.recipe import kind_of
from trainmark.spec.topology import Topology
from trainmark.train.ranks import EARLY, LAUNCHED


class EarlyWorker(NamedTuple):
    process: subprocess.Popen[bytes]
    launched_ns: int
    environment: Mapping[str, str]


_waiting: list[EarlyWorker] = []
"""Of this process; one at most."""


@contextlib.contextmanager
def started(options: RunOptions) -> Iterator[None]:
    """Meanwhile a worker waits for the first run, where that has one rank on this machine; none is left behind."""
    try:
        with contextlib.suppress(OSError, TrainmarkError):  # whoever plans the run says what is wrong
            if (settings := _settings(options)) is not None:
                _waiting.append(_start(settings, options.workloads[:1]))
        yield
    finally:
        while _waiting:
            _end(_waiting.pop())


def taken(environment: Mapping[str, str], words: Sequence[str]) -> EarlyWorker | None:
    """The one that waits, told its words, if it has the variables it is to have; it waits for nobody else."""
    if not _waiting:
        return None
    early = _waiting.pop()
    stdin = early.process.stdin
    if stdin is not None and early.environment == {**environment, LAUNCHED: str(early.launched_ns)}:
        with contextlib.suppress(OSError):  # of one that has died meanwhile
            stdin.write(json.dumps(words).encode() + b"\n")
            stdin.close()
            return early
    _end(early)
    return None


def waited_s() -> float:
    """How long ago the one that waits was started; the clock of its run has gone since then."""
    return (time.perf_counter_ns() - _waiting[0].launched_ns) / 1e9 if _waiting else 0.0


def _start(settings: Mapping[str, str], workload: Sequence[str]) -> EarlyWorker:
    launched_ns = time.perf_counter_ns()
    environment = rank_environment.of_rank(cluster_env.alone(Topology.parse("1x1")), 0, launched_ns, settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainmark.train.worker", EARLY, *workload],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # what it says before it has a log, another says after it
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return EarlyWorker(process, launched_ns, environment)


def _end(early: EarlyWorker) -> None:
    early.process.kill()
    early.process.communicate()


def _settings(options: RunOptions) -> Mapping[str, str] | None:
    """What the worker's libraries are probably told; None where no such worker is wanted, or is wanted at once."""
    if options.topology not in (None, "1x1") or options.sweep or options.hosts or options.resume:
        return None
    if kind_of(options.recipe or "quick").finds_batch:
        return None
    if cluster_env.find(Topology.parse("1x1"), os.environ).kind != "alone":
        return None
    if any(setting.replace(" ", "") == "host_settings=default" for setting in options.settings):
        return {}
    platform = options.platform if options.platform not in (None, "auto") else os.environ.get("TRAINMARK_PLATFORM")
    if platform:
        return files.load(platform).host_settings
    return {} if any(map(_seems_installed, files.names())) else files.load(files.EVERYWHERE).host_settings


def _seems_installed(platform: str) -> bool:
    """By the module that teaches torch its devices, or by a program that speaks with them."""
    file = files.load(platform)
    programs = [program.argv[0] for program in getattr(file.sensors, "programs", ())]
    programs += [file.driver.argv[0]] if file.driver else []
    modules = [file.plugin.partition(".")[0]] if file.plugin else []
    return any(map(shutil.which, programs)) or any(map(importlib.util.find_spec, modules))
