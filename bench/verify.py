"""What a verify costs a step, which bit flips it finds, and how often it accuses or believes a chip wrongly.

    python bench/verify.py cost [WORKLOAD...] [--recipe smoke] [--rounds 12]
    python bench/verify.py flips [--rounds 300] [--steps 10] [--seed 0]
    python bench/verify.py against [WORKLOAD...] [--steps 10] [--seeds 3] [--out FILE]

`cost` makes each step of a workload in turn as a run does and as a verify does, in one process on the CPU, so that both
see the same machine; the ratio is that of the medians. `flips` computes the same steps of a small network on the
stand-in again and again. In every second round one bit of what one operator gives comes out wrong: operator, call,
place and bit by lot. What each flip changed first is found a second time without any hash, by keeping all tensors of a
round that goes wrong in the same way, and the two are held against each other. A flip that changes nothing, because
what follows rounds it away or leaves it out, is counted by itself. `against` holds chips of bench/chips.py against the
plain CPU as `verify --against` does: honest ones, which compute the same in another order, with other kernels or in a
narrower precision, and others that get one thing wrong in one layer, by lot for each seed. It counts how many honest
ones are accused and how many of the others pass; each comparison is a line of --out.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chips
import torch
from torch import Tensor

from trainmark import workloads
from trainmark.data import synthetic
from trainmark.features.verify import parity
from trainmark.features.verify.document import VerifyDocument
from trainmark.features.verify.hashed_steps import HashedSteps, Quantity, RoundLedger
from trainmark.features.verify.parity import Parity
from trainmark.features.verify.worker_task import deterministic_mode
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.platforms import standin
from trainmark.record.events import EventWriter
from trainmark.train import setup
from trainmark.train.loop import Job
from trainmark.train.ranks import Ranks
from trainmark.train.walker import Walker, read_name

FEW_SAMPLES = ("batch_per_device=4", "input_workers=0")
"""Fewer average less of what rounding does, and take less time."""
SMALL = ("hidden=16", "layers=1", "heads=2", "mlp=32", "batch_per_device=4", "input_workers=0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    cost = actions.add_parser("cost")
    cost.add_argument("workloads", nargs="*", default=["resnet50", "vit", "gpt124m"])
    cost.add_argument("--recipe", default="smoke")
    cost.add_argument("--rounds", type=int, default=12)
    flips = actions.add_parser("flips")
    flips.add_argument("--rounds", type=int, default=300)
    flips.add_argument("--steps", type=int, default=10)
    flips.add_argument("--seed", type=int, default=0)
    against = actions.add_parser("against")
    against.add_argument("workloads", nargs="*", default=list(workloads.names()))
    against.add_argument("--steps", type=int, default=10)
    against.add_argument("--seeds", type=int, default=3)
    against.add_argument("--first-seed", type=int, default=0)
    against.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.action == "against":
        show_against(args.workloads, args.steps, range(args.first_seed, args.first_seed + args.seeds), args.out)
    elif args.action == "cost":
        for name in args.workloads:
            show_cost(name, args.recipe, args.rounds)
    else:
        show_flips(args.rounds, args.steps, args.seed)


@contextmanager
def opened(options: RunOptions) -> Iterator[Job]:
    """The job of one rank, as a worker opens it."""
    plan = planning.make_plan(options.workloads[0], options)
    if plan.data.synthetic:
        synthetic.ensure(plan.data.name, Path(plan.data.folder), print)
    with tempfile.TemporaryDirectory() as folder:
        log = EventWriter(Path(folder) / "rank0.jsonl")
        ranks = Ranks(rank=0, world=1, local_rank=0, local_ranks=1)
        job, _ = setup.build_job(plan, ranks, Path(folder), log, startup_ns=0, began_ns=0, compare=False)
        with closing(job.data):
            yield job


def show_cost(name: str, recipe: str, rounds: int) -> None:
    with opened(RunOptions(workloads=(name,), recipe=recipe, platform="cpu")) as job:
        steps = HashedSteps(job, 1)
        steps.round()
        took: dict[str, list[float]] = {"plain": [], "hashed": []}
        for _ in range(rounds):
            took["hashed"].append(seconds(steps.round))
            took["plain"].append(seconds(lambda: steps.first_step(nullcontext())))
    plain, hashed = (statistics.median(values) for values in took.values())
    weights = sum(weight.numel() for weight in job.stepper.bare_model.parameters())
    print(f"{name} {recipe}: {weights:,} weights, plain {1e3 * plain:.1f} ms, hashed {1e3 * hashed:.1f} ms, "
          f"{hashed / plain:.3f} times")  # fmt: skip


def seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def show_flips(rounds: int, count: int, seed: int) -> None:
    lot = random.Random(seed)
    options = RunOptions(workloads=("vit",), recipe="smoke", platform="standin", settings=SMALL)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.toml"
        os.environ[standin.VARIABLE] = str(script)
        script.write_text("latency_us = 0\n", encoding="utf-8")
        with opened(options) as job:
            calls = same_calls(HashedSteps(job, count))
        planned = {number: a_flip(number, calls, lot) for number in range(3, rounds + 1, 2)}
        script.write_text("latency_us = 0\n" + "".join(planned.values()), encoding="utf-8")
        with opened(options) as job:
            found = hashed_rounds(HashedSteps(job, count), rounds)
        with opened(options) as job:
            wanted = plain_rounds(HashedSteps(job, count), rounds)
    right = sum(found.get(number) == wanted[number] for number in wanted)
    print(f"{rounds} rounds of {count} steps, {len(planned)} bits flipped in {len(calls)} kinds of operators")
    print(f"changed nothing: {len(planned) - len(wanted)}; changed something: {len(wanted)}")
    print(f"found: {len(found.keys() & wanted.keys())}, of them named rightly: {right}")
    print(f"missed: {len(wanted.keys() - found.keys())}, invented: {len(found.keys() - wanted.keys())}")
    print("first changed:", dict(Counter(stage for _, (stage, _) in wanted.values())))


def a_flip(number: int, calls: dict[str, int], lot: random.Random) -> str:
    """One of a round's calls, in the words of the stand-in's script."""
    operator = lot.choice(sorted(calls))
    at = (number - 1) * calls[operator] + lot.randint(1, calls[operator])
    places = {name: lot.randrange(1 << 20) for name in ("tensor", "place", "bit")}
    lines = "".join(f"{name} = {value}\n" for name, value in places.items())
    return f'[[flips]]\noperator = "{operator}"\nat = [{at}]\n{lines}'


class Calls:
    """A visitor that counts operators."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def visit(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen[read_name(operator)] += 1
        return operator(*args, **kwargs)


def same_calls(steps: HashedSteps) -> dict[str, int]:
    """The operators of a round that are called as often with hashes as without, by their calls."""
    steps.is_random = True
    hashed, plain = Calls(), Calls()
    with Walker(hashed.visit):
        steps.round()
    with Walker(plain.visit):
        kept_round(steps)
    moved = (
        "view",
        "t",
        "transpose",
        "detach",
        "expand",
        "permute",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "clone",
    )
    return {
        name: calls
        for name, calls in plain.seen.items()
        if hashed.seen[name] == calls and name not in moved and not name.startswith(("empty", "_to_copy", "copy_"))
    }


def hashed_rounds(steps: HashedSteps, rounds: int) -> dict[int, tuple[int, Quantity]]:
    """Of every round that is odd, where it is."""
    steps.is_random = True
    ledger, found = RoundLedger(), {}
    for _ in range(rounds):
        for odd in ledger.add(steps.round()):
            found[odd.round] = (odd.step, steps.quantities[odd.places[0]])
    return found


def plain_rounds(steps: HashedSteps, rounds: int) -> dict[int, tuple[int, Quantity]]:
    """The same by comparing tensors."""
    steps.is_random = True
    right = kept_round(steps)
    found = {}
    for number in range(2, rounds + 1):
        for step, (mine, theirs) in enumerate(zip(kept_round(steps), right, strict=True)):
            differing = [name for name in theirs if not same_bits(mine[name], theirs[name])]
            if differing:
                found[number] = (step, differing[0])
                break
    return found


def kept_round(steps: HashedSteps) -> list[dict[Quantity, Tensor]]:
    steps._restore()
    stepper, kept = steps.job.stepper, []
    gradients: dict[Quantity, Tensor] = {}
    hooks = [
        weight.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient, name=name: gradients.__setitem__(("gradient", name), gradient.detach().numpy().copy())
        )
        for name, weight in stepper.bare_model.named_parameters()
    ]
    for batch in steps._batches():
        gradients.clear()
        with steps._fixed_random():
            loss = stepper.step(batch)
        found: dict[Quantity, Any] = {("loss", ""): loss.detach().numpy().copy(), **gradients}
        found |= {("weight", name): weight.detach().numpy().copy() for name, weight in stepper.updated_weights()}
        kept.append(found)
    for hook in hooks:
        hook.remove()
    return kept


# Beside another chip


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A chip held against another."""

    chip: str
    honest: bool
    workload: str
    seed: int
    found: Parity

    @property
    def wrongly(self) -> bool:
        """An honest chip accused, or another believed."""
        return (self.found.verdict == "differs") == self.honest

    def line(self) -> str:
        kind = "honest" if self.honest else "dishonest"
        first = self.found.first
        where = f"step {first.step}: {first.quantity} {first.difference} of {first.allowed}" if first else ""
        return "\t".join([self.workload, str(self.seed), kind, self.chip, self.found.verdict, where])


def show_against(names: Sequence[str], steps: int, seeds: Sequence[int], out: Path | None) -> None:
    counted: dict[tuple[bool, str], list[Compared]] = {}
    for seed in seeds:
        for name in names:
            for each in compared(name, seed, steps):
                counted.setdefault((each.honest, each.chip), []).append(each)
                if out:
                    with out.open("a", encoding="utf-8") as file:
                        file.write(f"{each.line()}\n")
                if each.wrongly:
                    print(each.line(), flush=True)
    for honest, title in ((True, "honest chips, accused"), (False, "dishonest chips, believed")):
        print(title)
        rows = {chip: members for (kind, chip), members in counted.items() if kind == honest}
        rows["all"] = [one for members in rows.values() for one in members]
        for chip, members in rows.items():
            print(f"  {chip}: {sum(one.wrongly for one in members)} of {len(members)}")


def compared(name: str, seed: int, steps: int) -> Iterator[Compared]:
    """Every chip on one workload with one seed."""
    plain: dict[str, VerifyDocument] = {}
    for precision in ("fp32", *chips.PRECISIONS):
        options = RunOptions(
            workloads=(name,), recipe="smoke", platform="cpu", precision=precision, seed=seed, settings=FEW_SAMPLES
        )
        with opened(options) as job:
            hashed = HashedSteps(job, steps)
            hashed.is_random = True  # dropout keeps everything, as in a verify of a step that draws
            plain[precision] = own = computed(hashed, options)
            if precision != "fp32":
                found = parity.compare_verifies(own, plain["fp32"])
                yield Compared(chip=f"{precision} beside fp32", honest=True, workload=name, seed=seed, found=found)
            for chip, honest in [
                *((chip, True) for chip in chips.HONEST),
                *((chip, False) for chip in chips.DISHONEST),
            ]:
                if precision not in chip.precisions:
                    continue
                entered = chip.enter(job, random.Random(f"{name} {seed} {chip.name}"))
                if entered is None:
                    continue
                with entered:
                    told = computed(hashed, options)
                found = parity.compare_verifies(told, own if honest else plain["fp32"])
                called = f"{chip.name}, {precision}" if honest else chip.name
                yield Compared(chip=called, honest=honest, workload=name, seed=seed, found=found)


def computed(hashed: HashedSteps, options: RunOptions) -> VerifyDocument:
    """What a verify would leave of the steps as they are computed now."""
    with deterministic_mode(True):
        numbers = hashed.numbers()
    plan = planning.make_plan(options.workloads[0], options)
    return VerifyDocument(
        verify_id="", created="", trainmark="", plan=plan.to_json(), device="", torch="", verdict="equal", sentence="",
        draws=True, numbers=numbers,
    )  # fmt: skip


def same_bits(one: Any, other: Any) -> bool:
    return bool(one.tobytes() == other.tobytes())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
