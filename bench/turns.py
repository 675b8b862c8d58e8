"""Processes that take turns, so that each of them sees the same machine, and the rate a matrix product reaches."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from trainmark.platforms import files
from trainmark.platforms.matmul_probe import measure_matmul_flops
from trainmark.platforms.platform import Platform


class Child:
    """A process that works when it is told to and answers with a number; see `serve`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
        )

    def turn(self, seconds: float) -> Any:
        """Lets the child work for so long, at least once, and returns what it says."""
        assert self._process.stdin and self._process.stdout
        print(seconds, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def settle(children: Iterable[Child]) -> None:
    """Gives each a turn that does not count: imports, memory's pages and an optimizer's state are behind all then."""
    for child in children:
        child.turn(0)


def serve(step: Callable[[], None], answer: Callable[[float], Any] = lambda seconds: seconds) -> None:
    """The child's side: for every line it reads, works for that many seconds and answers with seconds a step."""
    for line in sys.stdin:
        began, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - began < float(line):
            step()
            count += 1
        print(json.dumps(answer((time.perf_counter() - began) / count)), flush=True)


def race(ways: Mapping[str, Mapping[str, Callable[[], object]]], rounds: int) -> None:
    """For each thing the ways of doing it, taking turns; prints the median of each."""
    for what, calls in ways.items():
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                times[name].append(1000 * (time.perf_counter() - began))
        print(what + ":", ", ".join(f"{name} {statistics.median(ms):.2f} ms" for name, ms in times.items()))


def matmul_peak(dtype: torch.dtype) -> float:
    """The best rate of several large matrix products on this CPU, in FLOP/s."""
    return measure_matmul_flops(Platform(files.load("cpu")).open(0), dtype)
