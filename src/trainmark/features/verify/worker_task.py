"""One rank of a verify: computes the same steps again and again, and writes down every bit that comes out otherwise."""

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

from trainmark.features.verify.hashed_steps import HashedSteps, StoppedError
from trainmark.features.verify.known_answers import KnownAnswers
from trainmark.features.verify.repeated_operators import RepeatedOperators, deterministic
from trainmark.features.verify.round_ledger import Hashes, OddRound, RoundLedger
from trainmark.record import endings, events
from trainmark.record.atomic_files import write_atomic
from trainmark.record.event_files import EventWriter
from trainmark.record.plan import Plan
from trainmark.record.verify import NUMBERS_FILE, REPLICATED, BitDifference
from trainmark.train import failures, setup
from trainmark.train.collectives import Collectives
from trainmark.train.loop import Job
from trainmark.train.ranks import Ranks
from trainmark.train.walker import Walker

NAME = "verify"
MAX_LAYERS = 4
SAY_EVERY_S = 0.5
_WARNED = re.compile(r"^\W*([\w:]+)[^.]* does not have a deterministic implementation")


def work(plan: Plan, folder: Path, ranks: Ranks, log: EventWriter) -> None:
    """As many rounds as settle what is right, and more until the plan's time is over."""
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
    with closing(job.data), failures.explaining_memory(job.recipe.batch_per_device, job.device):
        verification = Verification(job, plan.limits.steps or 1, log, folder)
        verification.heed_signals()
        ended = verification.run(plan.limits.wall_s or 0.0)
    log.write(events.End(ended=ended))
    job.collectives.leave()


class Verification:
    """The rounds of one rank, and what they are held against."""

    def __init__(self, job: Job, steps: int, log: EventWriter, folder: Path) -> None:
        self._job, self._log, self._folder = job, log, folder
        self._wish = ""
        """Why to end early, once a signal has said so."""
        self._said_s = 0.0
        self._ledger = RoundLedger()
        self._steps = HashedSteps(job, steps, self._alive)
        self._answers = KnownAnswers(job.device, job.stepper.precision, job.collectives)
        self._operators = events.OperatorsRepeated(unavailable="not looked at yet")

    def heed_signals(self) -> None:
        """The first signal ends the step that runs; the launcher decides about a second one."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._wish = endings.INTERRUPTED if number == signal.SIGINT else endings.TERMINATED

        signal.signal(signal.SIGINT, handle)
        signal.signal(signal.SIGTERM, handle)

    def run(self, soak_s: float) -> str:
        """Rounds for so long, but at least until all is settled; returns why it ended."""
        began_s = time.monotonic()
        try:
            with deterministic(True), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self._walk_operators()
                while self._largest(not (self._ledger.settled or self._ledger.hopeless)):
                    self._round()
                self._tell_operators(warned)
                self._leave_numbers()
                while not self._largest(self._ledger.hopeless) and self._largest(time.monotonic() - began_s < soak_s):
                    self._round()
        except StoppedError:
            return self._wish or endings.INTERRUPTED
        return endings.VERIFIED

    def _round(self) -> None:
        began_s = time.monotonic()
        steps = self._steps.round()
        seconds = time.monotonic() - began_s
        number = self._ledger.rounds + 1
        found = [self._named(odd) for odd in self._ledger.add(steps)]
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

    def _named(self, odd: OddRound) -> BitDifference:
        """The first of what differs stands for the rest, which is its consequence."""
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
        """Every rank must hold the same after an exchange; the fewer are wrong."""
        collectives, quantities = self._job.collectives, self._steps.quantities
        if collectives.world == 1 or self._job.stepper.parallel.together:
            return
        shared = [place for place, (stage, _) in enumerate(quantities) if stage in REPLICATED]
        own = [[hashes[place] for place in shared] for hashes in steps]
        folded = _gathered(collectives, [_fold(values) for values in own])
        step = next((at for at, seen in enumerate(zip(*folded, strict=True)) if len(set(seen)) > 1), None)
        if step is None:
            return
        by_rank = _gathered(collectives, own[step])
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
        """Calls every operator twice: first as torch does by itself, then by deterministic implementations."""
        if self._job.recipe.compiled != "no":
            self._operators = events.OperatorsRepeated(unavailable="a compiled step does not show its operators")
            return
        loose, once = self._differing(wanted=False)
        strict, once_more = self._differing(wanted=True) if loose else (set(), set())
        for name in sorted((once | once_more) - loose - strict):
            self._report_operator(name)
        self._operators = events.OperatorsRepeated(
            seen=self._seen, steadied=sorted(loose - strict), unsteady=sorted(strict)
        )

    def _differing(self, *, wanted: bool) -> tuple[set[str], set[str]]:
        """The operators that differ in each of two walks, and those that differ in one alone: these are no habit."""
        first, second = RepeatedOperators(), RepeatedOperators()
        with deterministic(wanted):
            self._steps.first_step(Walker(first.visit))
            self._steps.is_random |= first.is_random
            self._seen = len(first.seen)
            if not self._largest(bool(first.differing)):
                return set(), set()
            self._steps.first_step(Walker(second.visit))
        return first.differing & second.differing, first.differing ^ second.differing

    def _report_operator(self, name: str) -> None:
        found = BitDifference(kind="operator", round=0, rank=self._job.collectives.rank, step=1, stage=name)
        self._log.write(events.RoundVerified(round=0, steps=1, seconds=0.0, found=[found]))

    def _tell_operators(self, warned: Sequence[warnings.WarningMessage]) -> None:
        names = (_WARNED.search(str(warning.message)) for warning in warned)
        found = sorted({match[1] for match in names if match})
        self._log.write(msgspec.structs.replace(self._operators, warned=found))

    def _leave_numbers(self) -> None:
        """As soon as the steps are settled, so that a long soak that is cut off has them."""
        numbers = self._steps.numbers()
        if self._job.collectives.rank == 0:
            write_atomic(self._folder / NUMBERS_FILE, msgspec.json.encode(numbers))

    def _alive(self, step: int) -> bool:
        now = time.monotonic()
        if now - self._said_s >= SAY_EVERY_S:
            self._said_s = now
            self._log.write(events.Alive(phase="verify", samples=step))
        return self._largest(bool(self._wish))

    def _largest(self, value: bool) -> bool:
        [found] = self._job.collectives.largest(float(value))
        return bool(found)


def _gathered(collectives: Collectives, values: Sequence[int]) -> list[list[int]]:
    """What every rank gives, by rank."""
    return [list(array("q", one)) for one in collectives.gather(array("q", values).tobytes())]


def _fold(values: Sequence[int]) -> int:
    packed = struct.pack(f"<{len(values)}q", *values)
    [folded] = struct.unpack("<q", hashlib.blake2b(packed, digest_size=8).digest())
    return int(folded)


def _first(by_rank: Sequence[Sequence[int]], place: int, value: int) -> int:
    return next(rank for rank, values in enumerate(by_rank) if values[place] == value)
