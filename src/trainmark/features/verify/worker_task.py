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
from contextlib import closing
from pathlib import Path
from types import FrameType

import msgspec
import torch
from torch import Tensor, distributed

from trainmark.features.verify.document import NUMBERS_FILE, REPLICATED
from trainmark.features.verify.hashed_steps import HashedSteps, Hashes, OddRound, RoundLedger, StoppedError
from trainmark.features.verify.repeated_operators import RepeatedOperators, deterministic_mode
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
from trainmark.train.walker import Walker

SIDE, INNER = 512, 256
"""Shape of the matmul with a known answer: sums of this many numbers from -1 to 1 are exact in every type."""
TILES = 8
"""Repeats of it in both dimensions on an accelerator, so that all its compute units are used."""
LENGTH = 1 << 16
MAX_PLACES = 3


class KnownAnswers:
    """Checks matmuls and collectives with exact answers, each time with the numbers in other places."""

    def __init__(self, device: Device, precision: Precision, collectives: Collectives) -> None:
        self._device, self._collectives = device, collectives
        generator = torch.Generator().manual_seed(22)
        self._left = torch.randint(-1, 2, (SIDE, INNER), generator=generator)
        self._right = torch.randint(-1, 2, (INNER, SIDE), generator=generator)
        self._answer = self._left @ self._right
        self._tiles = 1 if device.torch.type == "cpu" else TILES
        own = PRECISIONS[precision.name]
        lowered = own.autocast or own.weights
        self._types = {torch.float32: PRECISIONS["fp32"], getattr(torch, lowered): own}

    def check(self, round_: int) -> Iterator[BitDifference]:
        """What is wrong in this round; a collective call."""
        for dtype, precision in self._types.items():
            wrong = self._wrong_matmuls(round_, dtype, precision)
            if len(wrong):
                places = [f"row {a * SIDE + b}, column {c * SIDE + d}" for a, b, c, d in wrong[:MAX_PLACES].tolist()]
                yield self._difference("product", round_, str(dtype).removeprefix("torch."), places, len(wrong))
        if self._collectives.world > 1:
            yield from self._wrong_exchanges(round_)

    def _wrong_matmuls(self, round_: int, dtype: torch.dtype, precision: Precision) -> Tensor:
        tiles, device = self._tiles, self._device
        left = self._left.roll(round_, 0).to(device.torch, dtype).repeat(tiles, 1)
        right = self._right.roll(round_, 1).to(device.torch, dtype).repeat(1, tiles)
        wanted = self._answer.roll((round_, round_), (0, 1)).to(device.torch, dtype)
        with device.arithmetic(precision):
            found = left @ right
        device.synchronize()
        wrong = found.view(tiles, SIDE, tiles, SIDE) != wanted.view(1, SIDE, 1, SIDE)
        return wrong.nonzero()

    def _wrong_exchanges(self, round_: int) -> Iterator[BitDifference]:
        """A sum over all ranks, then what each rank gave, which shows the link that is wrong."""
        rank, world = self._collectives.rank, self._collectives.world
        numbers = torch.arange(LENGTH).roll(round_) % 997
        given = (numbers * (rank + 1)).to(self._device.torch, torch.float32)
        with self._device.arithmetic(PRECISIONS["fp32"]):
            summed = given.clone()
            distributed.all_reduce(summed)
            parts = [torch.empty_like(given) for _ in range(world)]
            distributed.all_gather(parts, given)
        self._device.synchronize()
        exchanged = {"sum over all ranks": (summed, world * (world + 1) // 2)}
        exchanged |= {f"what rank {other} gave": (part, other + 1) for other, part in enumerate(parts)}
        for name, (found, times) in exchanged.items():
            wrong = (found.cpu() != (numbers * times).to(torch.float32)).nonzero().flatten()
            if len(wrong):
                places = [f"number {place}" for place in wrong[:MAX_PLACES].tolist()]
                yield self._difference("link", round_, name, places, len(wrong))

    def _difference(self, kind: Kind, round_: int, stage: str, places: list[str], count: int) -> BitDifference:
        rank = self._collectives.rank
        return BitDifference(kind=kind, round=round_, rank=rank, stage=stage, layers=places, count=count)


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
        self._answers = KnownAnswers(job.device, job.stepper.precision, job.collectives)
        self._operators = events.OperatorsRepeated(unavailable="not checked yet")

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
                self._walk_operators()
                while self._is_any(not (self._ledger.settled or self._ledger.is_hopeless)):
                    self._round()
                self._log_operators(warned)
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
        found = [self._describe_odd(odd) for odd in self._ledger.add(steps)]
        found += self._compare_replicas(number, steps)
        found += self._answers.check(number)
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

    def _describe_odd(self, odd: OddRound) -> BitDifference:
        """Reports the first difference; the rest is its consequence."""
        quantities = [self._steps.quantities[place] for place in odd.places]
        stage = quantities[0][0]
        layers = [layer for of, layer in quantities if of == stage]
        return BitDifference(
            kind="repeat",
            round=odd.round,
            rank=self._job.collectives.rank,
            step=odd.step + 1,
            stage=stage,
            layers=[layer for layer in layers[:MAX_LAYERS] if layer],
            count=len(layers),
            never_alike=odd.never_alike,
        )

    def _compare_replicas(self, number: int, steps: Sequence[Hashes]) -> Iterator[BitDifference]:
        """Compares the ranks after an exchange; the minority is wrong."""
        collectives, quantities = self._job.collectives, self._steps.quantities
        if collectives.world == 1 or self._job.stepper.parallel.together:
            return
        shared = [place for place, (stage, _) in enumerate(quantities) if stage in REPLICATED]
        own = [[hashes[place] for place in shared] for hashes in steps]
        folded = _gather(collectives, [_fold(values) for values in own])
        step = next((at for at, seen in enumerate(zip(*folded, strict=True)) if len(set(seen)) > 1), None)
        if step is None:
            return
        by_rank = _gather(collectives, own[step])
        places = [at for at, seen in enumerate(zip(*by_rank, strict=True)) if len(set(seen)) > 1]
        stage = quantities[shared[places[0]]][0]
        of_stage = [at for at in places if quantities[shared[at]][0] == stage]
        [(usual, count), *_] = Counter(values[of_stage[0]] for values in by_rank).most_common()
        for rank, values in enumerate(by_rank):
            differing = [at for at in of_stage if values[at] != by_rank[_first(by_rank, of_stage[0], usual)][at]]
            if collectives.rank == 0 and (differing or 2 * count <= collectives.world):
                layers = [quantities[shared[at]][1] for at in differing or of_stage]
                yield BitDifference(
                    kind="replica",
                    round=number,
                    rank=rank,
                    step=step + 1,
                    stage=stage,
                    layers=layers[:MAX_LAYERS],
                    count=len(layers),
                    never_alike=2 * count <= collectives.world,
                )

    def _walk_operators(self) -> None:
        """Calls every operator twice: first with torch's defaults, then with deterministic implementations."""
        if self._job.recipe.compiled != "no":
            self._operators = events.OperatorsRepeated(unavailable="a compiled step does not show its operators")
            return
        loose, once = self._repeat_operators(wanted=False)
        strict, once_more = self._repeat_operators(wanted=True) if loose else (set(), set())
        for name in sorted((once | once_more) - loose - strict):
            self._report_operator(name)
        self._operators = events.OperatorsRepeated(
            seen=self._seen, steadied=sorted(loose - strict), unsteady=sorted(strict)
        )

    def _repeat_operators(self, *, wanted: bool) -> tuple[set[str], set[str]]:
        """The operators that differ in each of two walks, and those that differ in one alone."""
        first, second = RepeatedOperators(), RepeatedOperators()
        with deterministic_mode(wanted):
            self._steps.first_step(Walker(first.visit))
            self._steps.is_random |= first.is_random
            self._seen = len(first.seen)
            if not self._is_any(bool(first.differing)):
                return set(), set()
            self._steps.first_step(Walker(second.visit))
        return first.differing & second.differing, first.differing ^ second.differing

    def _report_operator(self, name: str) -> None:
        found = BitDifference(kind="operator", round=0, rank=self._job.collectives.rank, step=1, stage=name)
        self._log.write(events.RoundVerified(round=0, steps=1, seconds=0.0, found=[found]))

    def _log_operators(self, warned: Sequence[warnings.WarningMessage]) -> None:
        names = (_WARNED.search(str(warning.message)) for warning in warned)
        found = sorted({match[1] for match in names if match})
        self._log.write(msgspec.structs.replace(self._operators, warned=found))

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


def _first(by_rank: Sequence[Sequence[int]], place: int, value: int) -> int:
    return next(rank for rank, values in enumerate(by_rank) if values[place] == value)
