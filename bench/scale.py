"""How gathering, the record and the page grow with the ranks: runs of 8 to 100,000 ranks, simulated.

    python bench/scale.py [--ranks 8,64,1000,10000,100000] [--steps 100] [--folder DIR]

Every rank writes through the real writer, ten steps of a second a line, eight ranks a machine, each
machine sampled every other second. Each run is
gathered into a store by a process of its own, then shown and drawn as a page by others: seconds are of processor.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sizes import RUN, size, write_head, write_samples

from trainmark.record import events, gather
from trainmark.record.events import EventWriter
from trainmark.record.store import Store, read_record

STEPS_A_LINE = 10
SAMPLED_EVERY_S = 2.0
HEADS = ("ranks", "steps", "logs MB", "gather s", "MB", "record kB", "a rank B", "series kB", "show s", "page s", "kB")


def write_rank(folder: Path, rank: int, steps: int) -> None:
    """A rank of its own speed, whose steps are a little unlike."""
    draw = np.random.default_rng(rank)
    own = 1 + 0.002 * float(draw.normal())
    log = EventWriter(folder / f"rank{rank}.jsonl")
    log.write(events.Begin(rank=rank, host=f"node-{rank // 8}", pid=1, startup_ns=1_000_000))
    log.write(events.Ready(steps_per_epoch=None, first_step=0, at_ns=1))
    compute = (1e9 * own * draw.normal(1, 0.01, steps)).astype(int).tolist()
    for first in range(0, steps, STEPS_A_LINE):
        part = compute[first : first + STEPS_A_LINE]
        count = len(part)
        log.write(
            events.Steps(
                first=first,
                wait_ns=[2_100_000] * count,
                compute_ns=part,
                exchange_ns=[9_000_000] * count,
                items=[64] * count,
                loss=[3.0] * count,
            )
        )
    phases = {"startup": 1_000_000, "init": 4_000_000_000, "evaluate": 0, "checkpoint": 0, "other": 10_000_000}
    log.write(events.Phases(phases_ns=phases, memory_peak_bytes=2**34 + rank, at_ns=steps * 10**9))
    log.write(events.End(ended="the steps asked for are done"))
    log.close()


def alone(*words: str) -> tuple[float, float]:
    """Seconds of processor and megabytes of a process."""
    command = [sys.executable, *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = _wait(process)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int, resource.struct_rusage]:
    pid, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return pid, process.returncode, used


def row(folder: Path, ranks: int, steps: int) -> tuple[str, ...]:
    store = Store(folder)
    run = store.runs / RUN
    run.mkdir(parents=True)
    write_head(run, ranks)
    for rank in range(ranks):
        write_rank(run, rank, steps)
    for machine in range(-(-ranks // 8)):
        write_samples(run, round(steps / SAMPLED_EVERY_S), machine, SAMPLED_EVERY_S)
    logs = size(*run.glob("*.jsonl*"))
    gather_s, gather_mb = alone(__file__, "--gather", str(folder))
    record = size(store.path(RUN))
    beside = size(*store.records.glob("*.series.jsonl.gz"))
    show_s, _ = alone("-m", "trainmark", "show", RUN, "--store", str(folder))
    page = folder / "page.html"
    page_s, _ = alone("-m", "trainmark", "report", RUN, "--html", str(page), "--store", str(folder))
    found = read_record(store.path(RUN))
    assert len(found.timeline.ranks) == ranks
    return (
        f"{ranks:,}", str(steps), f"{logs / 1e6:.1f}", f"{gather_s:.1f}", f"{gather_mb:.0f}", f"{record / 1e3:.0f}",
        f"{record / ranks:.0f}", f"{beside / 1e3:.1f}", f"{show_s:.1f}", f"{page_s:.1f}", f"{size(page) / 1e3:.0f}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,1000,10000,100000")
    parser.add_argument("--steps", default="100")
    parser.add_argument("--folder", type=Path, help="where to make the stores, and leave them")
    parser.add_argument("--gather", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gather:
        Store(args.gather).add(gather.gather_record(args.gather / "runs" / RUN))
        return
    print("| " + " | ".join(HEADS) + " |\n" + "|---:" * len(HEADS) + "|", flush=True)
    for steps in map(int, args.steps.split(",")):
        for ranks in map(int, args.ranks.split(",")):
            with tempfile.TemporaryDirectory() as scratch:
                folder = (args.folder or Path(scratch)) / f"{ranks}x{steps}"
                print("| " + " | ".join(row(folder, ranks, steps)) + " |", flush=True)


if __name__ == "__main__":
    main()
