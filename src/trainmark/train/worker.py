"""One rank of a run: reads the plan, opens data and device, trains, and writes events."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from trainmark import features
from trainmark.record import events
from trainmark.record.cores import end_with_parent
from trainmark.record.errors import InvalidResultError, TrainmarkError
from trainmark.record.events import EventWriter
from trainmark.record.plan import Plan
from trainmark.record.trust import trust_launcher
from trainmark.train import failures
from trainmark.train.ranks import LAUNCHED, PARENT, RESTART, Ranks, read_host_name

if TYPE_CHECKING:  # torch is imported with these, and that is init, not start-up
    from trainmark.train.monitor import Monitor

Task = Callable[..., None]
"""Called with the plan, the run folder, the ranks, the events and its own arguments."""

FIRST_LINE_NS = time.perf_counter_ns()
"""The end of start-up: before torch is imported, which counts as init."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where events, logs and checkpoints go")
    parser.add_argument("plan", type=Path, help="the plan on this machine")
    parser.add_argument("task", help="the task: train, trial, or one of a feature")
    parser.add_argument("words", nargs="*", help="arguments of the task")
    end_with_parent(int(os.environ.get(PARENT, "0")) or None)
    args = parser.parse_args()
    folder: Path = args.folder
    ranks = Ranks.from_environment()
    log = os.open(folder / f"rank{ranks.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with (folder / f"rank{ranks.rank}.stacks").open("w", encoding="utf-8") as stacks:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, file=stacks)
        return _run_task(find_task(args.task), folder, args.plan, ranks, *args.words)


def _run_task(task: Task, folder: Path, plan_file: Path, ranks: Ranks, *words: str) -> int:
    """Runs a task; an error goes to the event file as a message, and to the log as a traceback."""
    log = EventWriter(folder / f"rank{ranks.rank}.jsonl")
    log.write(
        events.Begin(
            rank=ranks.rank,
            host=read_host_name(os.environ),
            pid=os.getpid(),
            startup_ns=_measure_startup_ns(),
            restart=int(os.environ.get(RESTART, "0")),
            at_ns=time.perf_counter_ns(),
        )
    )
    try:
        plan = Plan.from_json(json.loads(plan_file.read_text(encoding="utf-8")))
        trust_launcher()
        task(plan, folder, ranks, log, *words)
        return 0
    except BaseException as error:
        traceback.print_exc()
        failed = failures.make_failed_event(ranks.rank, error)
        try:
            log.write(failed)
        except TrainmarkError:
            print("the failure could not be written to the event file", file=sys.stderr)
        return failed.exit_code


def measure_sleep_ns() -> int:
    """For which the machine has slept since it was started, where the system tells."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def run_training(plan: Plan, folder: Path, ranks: Ranks, log: EventWriter, *, compare: bool = True) -> None:
    """Trains a plan; unless `compare` is false, a step on the device is compared with the CPU first."""
    from trainmark.train import loop, monitor, post_training, setup

    slept_ns = measure_sleep_ns()
    job, position = setup.build_job(
        plan, ranks, folder, log, startup_ns=_measure_startup_ns(), began_ns=FIRST_LINE_NS, compare=compare
    )
    _handle_signals(job.monitor, monitor.INTERRUPTED, monitor.TERMINATED)
    gc.collect()
    gc.freeze()  # objects that live for the whole run are left out of every collection
    job.clock.charge("init")
    log.write(
        events.Ready(
            steps_per_epoch=job.data.steps_per_epoch,
            items_per_step=job.data.items_per_step,
            first_step=position.step,
            at_ns=time.perf_counter_ns(),
        )
    )
    with closing(job.data):
        try:
            with failures.explain_out_of_memory(job.recipe.batch_per_device, job.device):
                ended = loop.train(job, position)
            if job.proof:
                job.proof.conclude(job.clock.steps)
        finally:
            job.clock.charge("other")
            job.monitor.write_steps()
            log.write(
                events.Phases(
                    phases_ns=job.clock.phases_ns,
                    memory_peak_bytes=job.device.peak_memory_bytes(),
                    at_ns=time.perf_counter_ns(),
                    suspended_ns=max(0, measure_sleep_ns() - slept_ns),
                )
            )
        post_training.write_exchange(job)
        post_training.write_flops(job, ended)
        for feature in features.offers("after_training"):
            feature.work(job, position, ended, folder, plan)
        post_training.check_again(job, position, ended)
        post_training.check_links(job, ended)
        skipped = [f"{path}: {reason}" for path, reason in job.data.skipped]
        log.write(events.End(ended=ended, skipped=skipped, facts=dict(job.data.facts)))
    job.collectives.leave()
    if job.monitor.bad_step is not None:
        raise InvalidResultError(
            f"the loss was not finite at step {job.monitor.bad_step} on rank {ranks.rank}; no throughput is published. "
            f"Try a smaller learning rate than {job.recipe.learning_rate:g}"
        )


TASKS: dict[str, Task] = {
    "train": run_training,
    "trial": partial(run_training, compare=False),
}
"""A trial of a batch size compares nothing with the CPU first."""


def find_task(name: str) -> Task:
    """A task by name: one of TASKS, or one of a feature."""
    if name in TASKS:
        return TASKS[name]
    task: Task = next(task.work for task in features.offers("worker_task") if name == task.NAME)
    return task


def _measure_startup_ns() -> int:
    """Time since the launcher started this worker; all processes of a host share the monotonic clock."""
    launched = os.environ.get(LAUNCHED)
    return max(0, FIRST_LINE_NS - int(launched)) if launched else 0


def _handle_signals(monitor: Monitor, interrupted: int, terminated: int) -> None:
    """The first signal lets the running step finish; the launcher handles a second one."""

    def handle(number: int, frame: FrameType | None) -> None:
        monitor.stop_request = interrupted if number == signal.SIGINT else terminated

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is on disk: a library's threads must not abort the process while it is taken apart
