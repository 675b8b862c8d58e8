"""One rank of a verify: repeats the same steps, and logs every bit that differs."""

from __future__ import annotations

import hashlib
import re
import signal
import struct
import time
import warnings
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from trainmark.features.verify.document import NUMBERS_FILE, REPLICATED
from trainmark.features.verify.hashed_steps import INTEGERS, HashedSteps, Hashes, OddRound, RoundLedger, StoppedError
from trainmark.platforms.platform import Device
from trainmark.record import endings, events
from trainmark.record.atomic_files import write_atomic
from trainmark.record.events import BitDifference, EventWriter, Kind
from trainmark.record.plan import Plan
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.train import failures, setup
from trainmark.train.collectives import Collectives
from trainmark.train.loop import Job
from trainmark.train.ranks import Ranks
from trainmark.train.walker import Walker, computes, copy_arguments, is_random, is_uninitialized, read_name

NAME = "verify"
MAX_LAYERS = 4
REPORT_EVERY_S = 0.5
_WARNED = re.compile(r"^\W*([\w:]+)[^.]* does not have a deterministic implementation")


def work(plan: Plan, folder: Path, ranks: Ranks, log: EventWriter) -> None:
    """Runs rounds until the result is settled, and until the plan's time is over."""
    began_ns = time.perf_counter_ns()
    job, _ = setup.build_job(plan, ranks, folder, log, startup_ns=0, began_ns=began_ns, compare=False)
    log.write(
        events.Ready(
            steps_per_epoch=job.data.steps_per_epoch,
            items_per_step=job.data.items_per_step,
            first_step=0,
            at_ns=began_ns,
        )
    )
    with closing(job.data), failures.explain_out_of_memory(job.recipe.batch_per_device, job.device):
        verification = Verification(job, plan.limits.steps or 1, log, folder)
        verification.catch_signals()
        ended = verification.run(plan.limits.wall_s or 0.0)
    log.write(events.End(ended=ended))
    job.collectives.leave()


class Verification:
    """The rounds of one rank, and what they are compared with."""

    def __init__(self, job: Job, steps: int, log: EventWriter, folder: Path) -> None:
        self._job, self._log, self._folder = job, log, folder
        self._stop_reason = ""
        """Why to end early, set by a signal."""
        self._reported_s = 0.0
        self._ledger = RoundLedger()
        self._steps = HashedSteps(job, steps, self._should_stop)
        self._answers = KnownAnswers(job.device, job.stepper.precision)

    def catch_signals(self) -> None:
        """The first signal ends the step that runs; the launcher decides about a second one."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._stop_reason = endings.INTERRUPTED if number == signal.SIGINT else endings.TERMINATED

        signal.signal(signal.SIGINT, handle)
        signal.signal(signal.SIGTERM, handle)

    def run(self, soak_s: float) -> str:
        """Runs rounds for `soak_s`, but at least until all is settled; returns why it ended."""
        began_s = time.monotonic()
        try:
            with deterministic_mode(True), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                operators = self._walk_operators()
                while self._is_any(not (self._ledger.settled or self._ledger.is_hopeless)):
                    self._round()
                names = (_WARNED.search(str(warning.message)) for warning in warned)
                found = sorted({match[1] for match in names if match})
                self._log.write(msgspec.structs.replace(operators, warned=found))
                self._write_numbers()
                while not self._is_any(self._ledger.is_hopeless) and self._is_any(time.monotonic() - began_s < soak_s):
                    self._round()
        except StoppedError:
            return self._stop_reason or endings.INTERRUPTED
        return endings.VERIFIED

    def _round(self) -> None:
        began_s = time.monotonic()
        steps = self._steps.round()
        seconds = time.monotonic() - began_s
        number = self._ledger.rounds + 1
        rank = self._job.collectives.rank
        found = [self._describe("repeat", rank, odd) for odd in self._ledger.add(steps)]
        found += self._compare_replicas(number, steps)
        found += self._answers.check(number, rank)
        self._log.write(
            events.RoundVerified(
                round=number,
                steps=len(steps),
                seconds=round(seconds, 6),
                found=found,
                settled=self._ledger.settled,
                hashed=len(self._steps.quantities),
                hashed_on_host=self._steps.hash.on_host,
                draws=self._steps.is_random,
            )
        )

    def _describe(self, kind: Kind, rank: int, odd: OddRound) -> BitDifference:
        """Names what differs in the first stage; later stages are its consequence."""
        quantities = [self._steps.quantities[place] for place in odd.places]
        stage = quantities[0][0]
        layers = [layer for of, layer in quantities if of == stage]
        return BitDifference(
            kind=kind,
            round=odd.round,
            rank=rank,
            step=odd.step + 1,
            stage=stage,
            layers=[layer for layer in layers[:MAX_LAYERS] if layer],
            count=len(layers),
            never_alike=odd.never_alike,
        )

    def _compare_replicas(self, number: int, steps: Sequence[Hashes]) -> Iterator[BitDifference]:
        """Compares the ranks after an exchange; the minority is wrong."""
        collectives = self._job.collectives
        if collectives.world == 1 or self._job.stepper.parallel.together:
            return
        shared = [place for place, (stage, _) in enumerate(self._steps.quantities) if stage in REPLICATED]
        own = [[hashes[place] for place in shared] for hashes in steps]
        folded = _gather(collectives, [_fold(values) for values in own])
        step = next((at for at, seen in enumerate(zip(*folded, strict=True)) if len(set(seen)) > 1), None)
        if step is None:
            return
        by_rank = _gather(collectives, own[step])
        votes = {
            place: Counter(seen).most_common(1)[0]
            for place, seen in zip(shared, zip(*by_rank, strict=True), strict=True)
            if len(set(seen)) > 1
        }
        no_majority = 2 * votes[min(votes)][1] <= collectives.world
        for rank, values in enumerate(by_rank if collectives.rank == 0 else ()):
            hashes = dict(zip(shared, values, strict=True))
            differing = [place for place, (usual, _) in votes.items() if hashes[place] != usual]
            if differing or no_majority:
                places = tuple(differing or votes)
                odd = OddRound(round=number, step=step, places=places, never_alike=no_majority)
                yield self._describe("replica", rank, odd)

    def _walk_operators(self) -> events.OperatorsRepeated:
        """Calls every operator twice: with torch's defaults, and where some differ with deterministic ones."""
        if self._job.recipe.compiled != "no":
            return events.OperatorsRepeated(unavailable="a compiled step does not show its operators")
        first, second = self._repeat_operators(wanted=False)
        loose, strict, once = first.differing & second.differing, set[str](), first.differing ^ second.differing
        if self._is_any(bool(loose)):
            third, fourth = self._repeat_operators(wanted=True)
            strict, once = third.differing & fourth.differing, once | third.differing ^ fourth.differing
        rank = self._job.collectives.rank
        if found := [  # an operator that differs in one walk alone has no such habit: it is a fault of the chip
            BitDifference(kind="operator", round=0, rank=rank, step=1, stage=name)
            for name in sorted(once - loose - strict)
        ]:
            self._log.write(events.RoundVerified(round=0, steps=1, seconds=0.0, found=found))
        return events.OperatorsRepeated(seen=len(first.seen), steadied=sorted(loose - strict), unsteady=sorted(strict))

    def _repeat_operators(self, *, wanted: bool) -> tuple[RepeatedOperators, RepeatedOperators]:
        """Two walks through the first step; one where nothing differs in it."""
        first = again = RepeatedOperators()
        with deterministic_mode(wanted):
            self._steps.first_step(Walker(first.visit))
            self._steps.is_random |= first.is_random
            if self._is_any(bool(first.differing)):
                again = RepeatedOperators()
                self._steps.first_step(Walker(again.visit))
        return first, again

    def _write_numbers(self) -> None:
        """As soon as the steps are settled, so that an interrupted soak has them."""
        numbers = self._steps.numbers()
        if self._job.collectives.rank == 0:
            write_atomic(self._folder / NUMBERS_FILE, msgspec.json.encode(numbers))

    def _should_stop(self, step: int) -> bool:
        now = time.monotonic()
        if now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            self._log.write(events.Alive(phase="verify", samples=step))
        return self._is_any(bool(self._stop_reason))

    def _is_any(self, value: bool) -> bool:
        [found] = self._job.collectives.reduce_max(float(value))
        return bool(found)


def _gather(collectives: Collectives, values: Sequence[int]) -> list[list[int]]:
    """The values of every rank, by rank."""
    return [list(array("q", one)) for one in collectives.gather(array("q", values).tobytes())]


def _fold(values: Sequence[int]) -> int:
    packed = struct.pack(f"<{len(values)}q", *values)
    [folded] = struct.unpack("<q", hashlib.blake2b(packed, digest_size=8).digest())
    return int(folded)


# Answers that are known

SIDE, INNER = 512, 256
"""Shape of the matmul with a known answer: sums of this many numbers from -1 to 1 are exact in every type."""
TILES = 8
"""Repeats of it in both dimensions on an accelerator, so that all its compute units are used."""
MAX_PLACES = 3


class KnownAnswers:
    """Checks matmuls with exact answers, each time with the numbers in other places."""

    def __init__(self, device: Device, precision: Precision) -> None:
        self._device = device
        generator = torch.Generator().manual_seed(22)
        self._left = torch.randint(-1, 2, (SIDE, INNER), generator=generator)
        self._right = torch.randint(-1, 2, (INNER, SIDE), generator=generator)
        self._answer = self._left @ self._right
        self._tiles = 1 if device.torch.type == "cpu" else TILES
        lowered = precision.autocast or precision.weights
        self._types = {torch.float32: PRECISIONS["fp32"], getattr(torch, lowered): precision}

    def check(self, number: int, rank: int) -> Iterator[BitDifference]:
        """What is wrong in this round."""
        for dtype, precision in self._types.items():
            wrong = self._multiply(number, dtype, precision)
            if len(wrong):
                places = [f"row {a * SIDE + b}, column {c * SIDE + d}" for a, b, c, d in wrong[:MAX_PLACES].tolist()]
                stage = str(dtype).removeprefix("torch.")
                yield BitDifference(
                    kind="product", round=number, rank=rank, stage=stage, layers=places, count=len(wrong)
                )

    def _multiply(self, number: int, dtype: torch.dtype, precision: Precision) -> Tensor:
        """The places of wrong answers."""
        tiles, device = self._tiles, self._device
        left = self._left.roll(number, 0).to(device.torch, dtype).repeat(tiles, 1)
        right = self._right.roll(number, 1).to(device.torch, dtype).repeat(1, tiles)
        wanted = self._answer.roll((number, number), (0, 1)).to(device.torch, dtype)
        with device.arithmetic(precision):
            found = left @ right
        device.synchronize()
        wrong = found.view(tiles, SIDE, tiles, SIDE) != wanted.view(1, SIDE, 1, SIDE)
        return wrong.nonzero()


# Operators that are called twice

LINE_BYTES = 64


class RepeatedOperators:
    """A visitor that calls every operator twice; the step goes on with the result of the first call."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.differing: set[str] = set()
        self.is_random = False
        """An operator generates random numbers."""

    def visit(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = read_name(operator)
        self.seen.add(name)
        self.is_random |= is_random(operator)
        if is_random(operator) or is_uninitialized(operator) or not computes(operator, args):
            return operator(*args, **kwargs)
        again_args, again_kwargs = args, kwargs
        if operator._schema.is_mutable:
            with _disable_current_modes():
                again_args, again_kwargs = copy_arguments((args, kwargs), _copy_with_layout)
        result = operator(*args, **kwargs)
        again = operator(*again_args, **again_kwargs)
        with _disable_current_modes():
            if not _same_bits((result, args, kwargs), (again, again_args, again_kwargs)):
                self.differing.add(name)
        return result


@contextmanager
def deterministic_mode(wanted: bool) -> Iterator[None]:
    """Switches torch's deterministic implementations on or off; torch warns where it has none."""
    settings: Any = torch.utils.deterministic
    fill, before = settings.fill_uninitialized_memory, torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn" if wanted else "default")
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        settings.fill_uninitialized_memory = fill


def _copy_with_layout(tensor: Tensor) -> Tensor:
    """A copy with the same memory layout: another layout may change the order of summation."""
    if tensor.layout != torch.strided or not tensor.numel():
        return tensor.clone()
    lead = tensor.storage_offset() % (LINE_BYTES // tensor.itemsize)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    whole = tensor.as_strided((lead + extent,), (1,), tensor.storage_offset() - lead).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), lead)


def _same_bits(one: Any, other: Any) -> bool:
    """Compares floating tensors; integers of some operators are seeds, sizes or uninitialized memory."""
    for mine, theirs in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if isinstance(mine, Tensor) and mine.is_floating_point() and mine.layout == torch.strided:
            bits = INTEGERS[mine.itemsize]
            if mine.shape != theirs.shape or not torch.equal(mine.detach().view(bits), theirs.detach().view(bits)):
                return False
    return True
