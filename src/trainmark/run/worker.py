"""One rank of a run: reads the plan, opens data and device, trains, and writes down what happened."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

FIRST_LINE_NS = time.perf_counter_ns()
"""Where start-up ends and the worker's own work begins: before torch is imported, which counts as init."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place in the run, as its launcher says."""

    rank: int
    world: int
    local_rank: int
    local_ranks: int

    @classmethod
    def from_environment(cls) -> Ranks:
        read = os.environ.get
        return cls(
            rank=int(read("RANK", "0")),
            world=int(read("WORLD_SIZE", "1")),
            local_rank=int(read("LOCAL_RANK", "0")),
            local_ranks=int(read("LOCAL_WORLD_SIZE", "1")),
        )


def main() -> int:
    folder = Path(sys.argv[1])
    ranks = Ranks.from_environment()
    _die_with_the_launcher()
    log = os.open(folder / f"rank{ranks.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with (folder / f"rank{ranks.rank}.stacks").open("w", encoding="utf-8") as stacks:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, file=stacks)
        return _reporting_failure(folder, ranks)


def _reporting_failure(folder: Path, ranks: Ranks) -> int:
    """Runs the worker; whatever goes wrong ends up in the event file as a sentence, and in the log as a traceback."""
    from trainmark.run.events import EventWriter
    from trainmark.spec.errors import TrainmarkError

    events = EventWriter(folder / f"rank{ranks.rank}.jsonl")
    events.write("begin", rank=ranks.rank, host=socket.gethostname(), pid=os.getpid(), startup_ns=_startup_ns())
    try:
        work(folder, ranks, events)
        return 0
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, TrainmarkError):
            code, sentence = error.exit_code, str(error)
        else:
            code, sentence = 1, f"unexpected {type(error).__name__}: {error}"
        try:
            events.write("failed", rank=ranks.rank, exit_code=code, sentence=sentence, at_ns=time.perf_counter_ns())
        except TrainmarkError:
            print("the event file could not take the failure", file=sys.stderr)
        return code


def work(folder: Path, ranks: Ranks, events: Any) -> None:
    import torch

    from trainmark import workloads
    from trainmark.platforms import files
    from trainmark.platforms.platform import Platform
    from trainmark.run import checkpoint, environment, loop, pace
    from trainmark.run.agreement import Agreement, Alone, Together
    from trainmark.run.clock import Clock
    from trainmark.run.losses import losses_on
    from trainmark.run.stepper import Stepper
    from trainmark.spec.errors import InvalidResultError, NotReadyError
    from trainmark.spec.plan import Plan
    from trainmark.spec.precision import Precision
    from trainmark.spec.recipe import from_values
    from trainmark.spec.record import Evaluation
    from trainmark.spec.topology import Topology
    from trainmark.workloads.workload import Share

    plan = Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    workload = workloads.load(plan.workload)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    precision = Precision.parse(plan.precision)
    if ranks.world != Topology.parse(plan.topology).devices:
        raise NotReadyError(f"{plan.topology} asked, {ranks.world} ranks joined")

    # the data's helper processes are forked before any device is open or any thread has started
    share = Share(rank=ranks.rank, world=ranks.world, local_ranks=ranks.local_ranks)
    data = workload.open_data(recipe, Path(plan.data.folder), share, plan.skip_bad)
    platform = Platform(files.load(plan.platform))
    if platform.is_cpu:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks.local_ranks))
    device = platform.open(ranks.local_rank)
    device.set_precision(precision)
    clock = Clock(device.marks, device.synchronize, startup_ns=_startup_ns(), began_ns=FIRST_LINE_NS)
    agreement: Agreement = Alone()
    if ranks.world > 1:
        torch.distributed.init_process_group(platform.file.collectives)
        agreement = Together()

    torch.manual_seed(recipe.seed)
    model = workload.build(recipe).to(device.torch)
    model = model.to(memory_format=_memory_format(recipe.memory_format))  # type: ignore[call-overload]
    stepper = Stepper(
        model,
        optimizer=partial(workload.optimizer, recipe=recipe),
        loss=workload.loss,
        precision=precision,
        device=device,
        wrap=partial(_distributed, device=device) if ranks.world > 1 else lambda bare: bare,
        world=ranks.world,
    )
    position = loop.Position()
    if plan.resume_from:
        state, damaged = checkpoint.load_newest(Path(plan.resume_from))
        for sentence in damaged:
            print(sentence, file=sys.stderr)
        stepper.load_state(state["stepper"])
        history = [Evaluation(**evaluation) for evaluation in state["position"].pop("history")]
        position = loop.Position(history=history, **state["position"])
        events.write("resumed", step=position.step, epoch=position.epoch, damaged=damaged)

    def save(at: loop.Position) -> None:
        if agreement.rank == 0:
            checkpoint.save(folder / "checkpoints", at.step, {"stepper": stepper.state(), "position": asdict(at)})
        agreement.barrier()

    watch = pace.Pace(
        clock=clock,
        events=events,
        limits=plan.limits,
        agreement=agreement,
        losses=losses_on(device),
        first_step=position.step,
    )
    _on_signal(watch, pace.INTERRUPTED, pace.TERMINATED)
    if ranks.rank == 0:
        details = environment.collect(device)
        details["emulated_precision"] = device.emulates(precision)
        events.write("environment", **details)
    events.write("ready", steps_per_epoch=data.steps_per_epoch, first_step=position.step)
    gc.collect()
    gc.freeze()  # what lives for the whole run need not be looked at by every collection inside it
    clock.charge("init")
    job = loop.Job(
        workload=workload,
        recipe=recipe,
        limits=plan.limits,
        data=data,
        device=device,
        stepper=stepper,
        clock=clock,
        pace=watch,
        events=events,
        agreement=agreement,
        save=save,
    )
    try:
        with _explaining_memory(recipe.batch_per_device, device):
            ended = loop.train(job, position)
    finally:
        clock.charge("other")
        watch.write_down()
        data.close()
    events.write(
        "end",
        ended=ended,
        phases_ns=clock.phases_ns,
        memory_peak_bytes=device.peak_memory_bytes(),
        skipped=[f"{path}: {reason}" for path, reason in data.skipped],
    )
    if watch.bad_step is not None:
        raise InvalidResultError(
            f"the loss was not finite at step {watch.bad_step} on rank {ranks.rank}; no throughput is published. "
            f"Try a smaller learning rate than {recipe.learning_rate:g}"
        )
    if ranks.world > 1:
        torch.distributed.destroy_process_group()


def is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, (RuntimeError, MemoryError))
        and re.search(r"(can't allocate|out of) memory", str(error)) is not None
    )


def out_of_memory_sentence(batch: int, peak_bytes: int | None, error: BaseException) -> str:
    held = "" if peak_bytes is None else f" after holding {peak_bytes / 2**30:.2f} GiB"
    hint = f"try --set batch_per_device={batch // 2}" if batch > 1 else "the model does not fit"
    return f"out of memory with batch_per_device={batch}{held}: {str(error).partition(chr(10))[0]}; {hint}"


@contextmanager
def _explaining_memory(batch: int, device: Any) -> Iterator[None]:
    """The batch is never changed silently: the user is told which to try."""
    from trainmark.spec.errors import WorkloadError

    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise WorkloadError(out_of_memory_sentence(batch, device.peak_memory_bytes(), error)) from error
        raise


def _distributed(model: Any, device: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        model, device_ids=None if device.is_cpu else [device.torch.index], gradient_as_bucket_view=True
    )


def _memory_format(word: str) -> Any:
    import torch

    return torch.channels_last if word == "channels_last" else torch.contiguous_format


def _startup_ns() -> int:
    """Time since the launcher started this worker; the monotonic clock is one for all processes of a host."""
    launched = os.environ.get("TRAINMARK_LAUNCHED_NS")
    return max(0, FIRST_LINE_NS - int(launched)) if launched else 0


def _on_signal(watch: Any, interrupted: int, terminated: int) -> None:
    """The first signal lets the running step finish; the launcher decides about a second one."""

    def handle(number: int, frame: FrameType | None) -> None:
        watch.wish = interrupted if number == signal.SIGINT else terminated

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def _die_with_the_launcher() -> None:
    """Asks the kernel to end this process when its parent is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
        if os.environ.get("TRAINMARK_PARENT", str(os.getppid())) != str(os.getppid()):
            os._exit(1)  # it was gone before we could ask


if __name__ == "__main__":
    sys.exit(main())
