"""Lies of a device that no run has seen, by name, and honest devices that differ by rounding: what a run says of each.

    python bench/lies.py [--only NAME...] [--steps 12]    every lie in a run of its own: found by which doubt
    python bench/lies.py --honest 200                     honest devices in one process: how many are accused

The stand-in tells the lies of a table that was made with a foreign device. `late` lies begin with the sixth step of
training, so that every check before it sees an honest device. A lie that no run finds is tried on `trainmark verify`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
LIE = "TRAINMARK_LIE"
LATE_STEP = 6
LARGE = 150_000
SITE = f"""import os, sys
if os.environ.get("{LIE}") and any(word.endswith("trainmark.train.worker") for word in sys.orig_argv):
    sys.path.append({str(BENCH)!r})
    import lies
    lies.tell(os.environ["{LIE}"])
"""
TINY = {
    "gpt124m": ("layers=1", "batch_per_device=4"),
    "resnet50": ("width=4", "batch_per_device=8"),
    "vit": ("hidden=16", "layers=1", "heads=2", "mlp=32", "batch_per_device=8"),
}
USUAL = {
    "stand-in",
    "generated-data",
    "small-batch",
    "emulated-precision",
    "few-steps",
    "foreign-load",
    "drifting",
    "rank-skew",
    "at-chance",
}
USUAL |= {
    "power-sampling",
    "loss-rose",
    "stalled-step",
    "crowded-cores",
    "target-missed",
    "below-bar",
}
"""Doubts of tiny runs on a busy machine, which accuse no device of its arithmetic, exchange or clock."""


@dataclass(frozen=True, kw_only=True)
class Lie:
    operators: tuple[str, ...] = ()
    """Whose calls it replaces; none are all."""
    call: Callable[..., Any] | None = None
    """Called with the honest operator, its name, arguments and how often it was called."""
    install: Callable[[Callable[[], bool]], None] | None = None
    """Replaces something else; called with whether the lie has begun."""
    script: str = ""
    words: tuple[str, ...] = ()
    workload: str = "resnet50"
    late: bool = False


# -- arithmetic


def scale(factor: float) -> Callable[..., Any]:
    def call(honest: Any, name: str, args: Any, count: int) -> Any:
        return map_floats(honest(args), lambda tensor: tensor * factor)

    return call


def lower(narrow: str, wide: str = "float32", above: int = 0) -> Callable[..., Any]:
    """Operands of matmuls are rounded first."""
    import torch

    from trainmark.platforms import standin_device

    def call(honest: Any, name: str, args: Any, count: int) -> Any:
        if (
            not is_matmul(name)
            or max((arg.numel() for arg in args if isinstance(arg, torch.Tensor)), default=0) <= above
        ):
            return honest(args)
        return honest(tuple(map_floats(arg, round_, getattr(torch, wide)) for arg in args))

    def round_(tensor: Any) -> Any:
        if narrow == "tf32":
            return standin_device._round(tensor, narrow)
        return tensor.to(getattr(torch, narrow)).to(tensor.dtype)

    return call


def is_matmul(name: str) -> bool:
    return name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward") or "attention" in name


def map_floats(value: Any, change: Callable[[Any], Any], dtype: Any = None) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    def one(tensor: Any) -> Any:
        return change(tensor) if tensor.is_floating_point() and dtype in (None, tensor.dtype) else tensor

    return tree_map_only(torch.Tensor, one, value)


def lose(honest: Any, name: str, args: Any, count: int, *, every: int = 1) -> Any:
    """What the operator writes in place is lost, at every so-manieth call."""
    import torch
    from torch.utils._pytree import tree_map_only

    return honest(tree_map_only(torch.Tensor, torch.Tensor.clone, args) if count % every == 0 else args)


def forget_weights(honest: Any, name: str, args: Any, count: int) -> Any:
    data, weight, *rest = honest(args)
    return data, weight if weight is None or count % 3 == 0 else weight * 0, *rest


def keep_all(honest: Any, name: str, args: Any, count: int) -> Any:
    return honest(args).fill_(1)


def hide_odd(honest: Any, name: str, args: Any, count: int) -> Any:
    return map_floats(honest(args), lambda tensor: tensor.nan_to_num(0, 0, 0) if tensor.itemsize > 1 else tensor)


def exchange(change: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """`change` gets each summed tensor and what this rank had given."""

    def call(honest: Any, name: str, args: Any, count: int) -> Any:
        given = [tensor.clone() for tensor in args[0]]
        result = honest(args)
        if all(tensor.is_floating_point() and tensor.itemsize == 4 for tensor in args[0]):
            result[-1].wait()
            for tensor, own in zip(args[0], given, strict=True):
                change(tensor, own)
        return result

    return call


def narrow_exchange(total: Any, own: Any) -> None:
    total.copy_(total.bfloat16())


def without_one(total: Any, own: Any) -> None:
    import torch

    lost = own.clone() if os.environ["RANK"] == "1" else torch.zeros_like(own)
    torch.distributed.broadcast(lost, 1)
    total.sub_(lost)


# -- clocks, memory, data


def change_events(change: Callable[[float], float]) -> Callable[..., None]:
    def install(has_begun: Callable[[], bool]) -> None:
        from trainmark.platforms.standin_device import QueueEvent

        honest = QueueEvent.elapsed_time
        setattr(QueueEvent, "elapsed_time", lambda self, later: change(honest(self, later)))  # noqa: B010

    return install


def drift() -> Callable[[float], float]:
    began = time.monotonic()
    return lambda ms: ms * max(0.1, 1 - 0.3 * (time.monotonic() - began) / 60)


def stamp_at_launch(has_begun: Callable[[], bool]) -> None:
    from trainmark.platforms.standin_device import QueueEvent

    honest = QueueEvent.record

    def record(self: Any) -> None:
        honest(self)
        self.launched_ns = time.perf_counter_ns()

    QueueEvent.record = record  # type: ignore[method-assign]
    setattr(QueueEvent, "elapsed_time", lambda self, later: (later.launched_ns - self.launched_ns) / 1e6)  # noqa: B010


def slow_process_clock(has_begun: Callable[[], bool]) -> None:
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns"):
        honest = getattr(time, name)
        first = honest()
        kind = type(first)
        setattr(time, name, lambda honest=honest, first=first, kind=kind: first + kind(0.8 * (honest() - first)))


def do_not_wait(has_begun: Callable[[], bool]) -> None:
    from trainmark.platforms.standin_device import Queue

    Queue.wait_until = lambda self, due_ns: None  # type: ignore[method-assign]


def halve_memory(has_begun: Callable[[], bool]) -> None:
    from trainmark.platforms.standin_device import StandInDevice

    for name in ("memory_allocated", "max_memory_allocated"):
        honest = getattr(StandInDevice, name)
        setattr(StandInDevice, name, lambda self, device=None, honest=honest: honest(self) // 2)


def repeat_batch(has_begun: Callable[[], bool]) -> None:
    from trainmark.platforms.standin_device import StandInDevice

    honest = StandInDevice.to_device
    kept: dict[Any, Any] = {}

    def to_device(self: Any, tensor: Any) -> Any:
        if not has_begun() or tensor.dim() < 2:
            return honest(self, tensor)
        key = (tensor.shape[1:], tensor.dtype)
        if key not in kept or len(kept[key]) < len(tensor):
            kept[key] = tensor.clone()
        return honest(self, kept[key][: len(tensor)])

    StandInDevice.to_device = to_device  # type: ignore[method-assign]


def late(lie: Lie) -> Lie:
    from dataclasses import replace

    return replace(lie, late=True)


TWO = ("--topology", "1x2", "--set", "batch_norm=per-device")
UPDATES = ("_fused_sgd_", "_fused_adamw_", "_fused_adam_")
SUMS = ("allreduce_",)


def make_lies() -> dict[str, Lie]:
    large = Lie(call=lower("bfloat16", above=LARGE), words=("--set", "width=16", "--set", "batch_per_device=32"))
    narrow, narrow8 = Lie(call=lower("bfloat16")), Lie(call=lower("float8_e4m3fn", "bfloat16"), words=BF16)
    wrong_backward = Lie(operators=("convolution_backward",), call=scale(1.1))
    no_update = Lie(operators=UPDATES, call=lose)
    no_weights = Lie(operators=("convolution_backward",), call=forget_weights)
    repeated = Lie(install=repeat_batch)
    local = Lie(operators=SUMS, call=exchange(lambda total, own: total.copy_(own)), workload="vit", words=TWO)
    halved = Lie(operators=SUMS, call=exchange(lambda total, own: total.mul_(0.5)), workload="vit", words=TWO)
    dropped = Lie(operators=SUMS, call=exchange(without_one), workload="vit", words=TWO)
    long = ("--steps", "40")
    return {
        "events x0.5": Lie(install=change_events(lambda ms: ms * 0.5)),
        "events x0.9": Lie(install=change_events(lambda ms: ms * 0.9)),
        "events x0.98": Lie(install=change_events(lambda ms: ms * 0.98)),
        "drift, 30 % a minute": Lie(install=change_events(drift()), words=long),
        "events stamped at launch": Lie(install=stamp_at_launch, script="slowdown = 6\n"),
        "only intervals below 1 s halved": Lie(
            install=change_events(lambda ms: ms / 2 if ms < 1000 else ms), words=long
        ),
        "events and the clock of the process x0.8": Lie(install=slow_process_clock, words=("--steps", "60")),
        "synchronize returns early": Lie(install=do_not_wait, script="slowdown = 6\n"),
        "fp32 in bf16": narrow,
        "fp32 in tf32": Lie(call=lower("tf32")),
        "fp32 in bf16 in large matmuls": large,
        "fp32 in bf16, late": late(narrow),
        "bf16 in fp8": narrow8,
        "bf16 in fp8, late": late(narrow8),
        "gelu x1.01": Lie(operators=("gelu",), call=scale(1.01), workload="vit"),
        "conv backward x1.01": Lie(operators=("convolution_backward",), call=scale(1.01)),
        "conv backward x1.10": wrong_backward,
        "conv backward x1.10, amp-bf16": Lie(
            operators=("convolution_backward",), call=scale(1.1), words=("--precision", "amp-bf16")
        ),
        "conv backward x1.10, late": late(wrong_backward),
        "every 10th update left out": Lie(operators=UPDATES, call=partial(lose, every=10)),
        "no update": no_update,
        "no update, late": late(no_update),
        "batch-norm statistics frozen": Lie(operators=("native_batch_norm",), call=lose),
        "2 of 3 conv weight gradients missing": no_weights,
        "2 of 3 conv weight gradients missing, late": late(no_weights),
        "dropout not applied": Lie(operators=("bernoulli_", "bernoulli", "native_dropout"), call=keep_all),
        "NaN and infinity become 0": Lie(call=hide_odd),
        "data repeated": repeated,
        "data repeated, late": late(repeated),
        "all-reduce local": local,
        "all-reduce drops a rank": dropped,
        "all-reduce local, late": late(local),
        "all-reduce halved, late": late(halved),
        "all-reduce drops a rank, late": late(dropped),
        "all-reduce in bf16": Lie(operators=SUMS, call=exchange(narrow_exchange), workload="vit", words=TWO),
        "memory statistics x0.5": Lie(install=halve_memory),
        "power constant 300 W": Lie(script="power_w = 300\n", words=("--steps", "150")),
        "power in mW": Lie(script="power_w = 300000\n", words=("--steps", "30")),
    }


BF16 = ("--precision", "bf16")


def tell(name: str) -> None:
    """In a rank: the stand-in lies from now on, or from a step of training on."""
    lie = make_lies()[name]
    begun = [not lie.late]
    if lie.install is slow_process_clock:
        lie.install(lambda: True)
        return
    from trainmark.platforms.standin_device import Launches
    from trainmark.train.stepper import Stepper

    step, steps = Stepper.step, Counter[str]()

    def counted(self: Any, *args: Any) -> Any:
        steps["made"] += 1
        begun[0] = begun[0] or steps["made"] >= LATE_STEP
        return step(self, *args)

    if lie.late:
        setattr(Stepper, "step", counted)  # noqa: B010
    if lie.install:
        lie.install(lambda: begun[0])
    if lie.call:
        replace_operators(Launches, lie.operators, lie.call, begun)


def replace_operators(launches: Any, operators: Sequence[str], call: Callable[..., Any], begun: list[bool]) -> None:
    honest, counts = launches.__torch_dispatch__, Counter[str]()

    def dispatch(self: Any, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.name().partition("::")[2].partition(".")[0]
        if not begun[0] or (operators and name not in operators):
            return honest(self, operation, types, args, kwargs)
        counts[name] += 1
        return call(lambda given: honest(self, operation, types, given, kwargs), name, args, counts[name])

    launches.__torch_dispatch__ = dispatch


# -- runs


def run(name: str, lie: Lie, folder: Path, steps: int, command: str = "run") -> tuple[int, list[str], str]:
    """One run, or verify, of a lie: exit code, accusing doubts, and the last line of stderr."""
    if command == "run" and lie.script == "" and not {*lie.words} & {"--topology"} and "process" not in name:
        words = dict(zip(lie.words[::2], lie.words[1::2], strict=True)) | {
            setting.partition("=")[0]: setting for setting in lie.words[1::2] if "=" in setting
        }
        with restored():
            tell(name)
            record = train_here(
                lie.workload,
                [word for word in words.values() if "=" in word],
                words.get("--precision", "fp32"),
                int(words.get("--steps", steps)),
            )
        doubts = [doubt.code for doubt in record.doubts if doubt.code not in USUAL]
        return 5 if record.status == "invalid" else 0, doubts, record.ended
    (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    (folder / "script.toml").write_text(lie.script, encoding="utf-8")
    env = {**os.environ, LIE: name, "PYTHONPATH": str(folder), "TRAINMARK_STANDIN": str(folder / "script.toml")}
    env |= {"TRAINMARK_STORE": str(folder / "store"), "OMP_NUM_THREADS": "1"}
    settings = [word for setting in TINY[lie.workload] for word in ("--set", setting)]
    argv = [sys.executable, "-m", "trainmark", command, lie.workload, "--recipe", "smoke", "--platform", "standin"]
    argv += [*settings, *(["--steps", str(steps)] if "--steps" not in lie.words else []), *lie.words, "--json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=900, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(done.stdout)
        doubts = [doubt["code"] for doubt in found.get("doubts", ()) if doubt["code"] not in USUAL]
    except ValueError:
        doubts = []
    return done.returncode, doubts, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="lies by name")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--honest", type=int, metavar="RUNS", help="count accusations of honest devices")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    if args.honest:
        count_accusations(args.honest, random.Random(args.seed))
        return
    caught = 0
    lies = {name: lie for name, lie in make_lies().items() if not args.only or name in args.only}
    for name, lie in lies.items():
        with tempfile.TemporaryDirectory() as folder:
            code, doubts, last = run(name, lie, Path(folder), args.steps)
            by = "run"
            if not code and not doubts:
                code, _, last = run(name, lie, Path(folder), 12, "verify")
                by = "verify" if code else "nothing"
        caught += by != "nothing"
        print(f"| {name} | {by} | {', '.join(doubts) or last[:120]} | {code} |", flush=True)
    print(f"{caught} of {len(lies)} lies found")


# -- honest devices


def compute_in_float64(honest: Any, name: str, args: Any, count: int) -> Any:
    import torch

    if not is_matmul(name) or "attention" in name:
        return honest(args)
    narrow = next(arg.dtype for arg in args if isinstance(arg, torch.Tensor))
    wide = honest(tuple(map_floats(arg, torch.Tensor.double) for arg in args))
    return map_floats(wide, lambda tensor: tensor.to(narrow))


def sum_backwards(honest: Any, name: str, args: Any, count: int) -> Any:
    if name in ("mm", "bmm"):
        return honest((args[0].flip(-1), args[1].flip(-2)))
    if name in ("addmm", "baddbmm"):
        return honest((args[0], args[1].flip(-1), args[2].flip(-2)))
    if name == "convolution" and args[8] == 1 and not args[6]:
        return honest((args[0].flip(1), args[1].flip(1), *args[2:]))
    if name == "convolution_backward":
        data, *rest = honest((args[0].flip(0), args[1].flip(0), *args[2:]))
        return data if data is None else data.flip(0), *rest
    return honest(args)


HONEST = {"plain": None, "float64 inside": compute_in_float64, "sums backwards": sum_backwards}
PRECISIONS = ("fp32", "fp32", "bf16", "amp-bf16", "amp-fp16")


@contextmanager
def restored() -> Iterator[None]:
    """Takes every lie back."""
    from trainmark.platforms.standin_device import Launches, Queue, QueueEvent, StandInDevice
    from trainmark.train.stepper import Stepper

    before = {each: dict(vars(each)) for each in (Launches, Queue, QueueEvent, StandInDevice, Stepper)}
    try:
        yield
    finally:
        for each, attributes in before.items():
            for name, value in attributes.items():
                if vars(each)[name] is not value:
                    setattr(each, name, value)


def train_here(workload: str, settings: Sequence[str], precision: str, steps: int) -> Any:
    """The record of a training in this process, without launcher and sampler."""
    from trainmark.launch.launcher import make_run_folder
    from trainmark.launch.options import RunOptions
    from trainmark.launch.planning import make_plan
    from trainmark.record.errors import TrainmarkError
    from trainmark.record.events import Begin, EventWriter
    from trainmark.record.gather import gather_record
    from trainmark.train import failures, step_check, worker
    from trainmark.train.ranks import Ranks

    step_check.MAX_CPU_S = 1e9  # on a busy machine
    settings = (*TINY[workload], *settings, "input_workers=0", "checkpoint_every=never")
    options = RunOptions(recipe="smoke", platform="standin", precision=precision, steps=steps, settings=settings)
    with tempfile.TemporaryDirectory() as parent:
        folder = make_run_folder(make_plan(workload, options), Path(parent), "")
        log = EventWriter(folder / "rank0.jsonl")
        log.write(Begin(rank=0, host="here", pid=os.getpid(), startup_ns=0))
        try:
            worker.run_training(make_plan(workload, options), folder, Ranks.from_environment(), log)
        except TrainmarkError as error:
            log.write(failures.make_failed_event(0, error))
        return gather_record(folder)


def count_accusations(runs: int, lot: random.Random) -> None:
    from trainmark.platforms.standin_device import Launches

    accused = 0
    for number in range(runs):
        workload, precision, kind = lot.choice(list(TINY)), lot.choice(PRECISIONS), lot.choice(list(HONEST))
        steps = lot.randrange(12, 21)
        with restored():
            if call := HONEST[kind]:
                replace_operators(Launches, (), call, [True])
            record = train_here(workload, (f"seed={lot.randrange(10**6)}",), precision, steps)
        doubts = [doubt.text for doubt in record.doubts if doubt.code not in USUAL]
        check = record.environment.step_check
        not_repeated = "" if check is None or check.after_step else f" {check.not_repeated or check.unavailable}"
        accused += bool(doubts) or record.status != "valid"
        words = f"{workload} {precision} {kind} {steps} steps{not_repeated}"
        print(f"{number + 1} {words}: {'; '.join(doubts) or record.status}; {accused} accused", flush=True)


if __name__ == "__main__":
    main()
