"""Whether memory or open files of a run's processes grow over many steps: `python bench/endurance.py --steps 20000`.

A network so small that 20,000 steps take minutes; samples of every process of the run are taken while it goes on, and
the second half is compared with the first after warm-up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import psutil

from trainmark.data.imagenet import make

EVERY_S = 2.0


class Reading(NamedTuple):
    memory_mb: float
    files: int


def read_processes(pid: int) -> dict[str, Reading]:
    """By role: the launcher, and its children by the last word of their command."""
    found: dict[str, Reading] = {}
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            words = process.cmdline()
            role = "launcher" if process.pid == pid else next((w for w in words if w.startswith("trainmark.")), "child")
            found[f"{role} {process.pid}"] = Reading(process.memory_info().rss / 2**20, process.num_fds())
        except psutil.Error:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        make.make(Path(folder) / "set", classes=3, train_per_class=16, val_per_class=4, seed=1)
        words = ["run", "resnet50", "--recipe", "smoke", "--platform", "cpu", "--set", "width=4", "--quiet"]
        words += ["--set", "batch_per_device=8", "--set", "image_px=32", "--set", "checkpoint_every=never"]
        words += ["--data", f"{folder}/set", "--store", f"{folder}/store", "--steps", str(steps)]
        words += ["--set", "epochs=1000000", "--set", "evaluate_every=end", "--set", "target=101"]
        run = subprocess.Popen([sys.executable, "-m", "trainmark", *words], stdout=subprocess.DEVNULL)
        readings: dict[str, list[Reading]] = defaultdict(list)
        while run.poll() is None:
            for role, reading in read_processes(run.pid).items():
                readings[role].append(reading)
            time.sleep(EVERY_S)
    for role, found in readings.items():
        if len(found) < 8:
            continue
        early, late = found[len(found) // 4], found[-2]
        print(
            f"{role:40} {early.memory_mb:7.0f} MB -> {late.memory_mb:7.0f} MB, {early.files} -> {late.files} open files"
        )
    print(f"{steps} steps, exit {run.returncode}")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
