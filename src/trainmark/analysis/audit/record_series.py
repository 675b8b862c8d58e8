"""Checks on the raw series of a record: lengths, signs, counts, and that its phases are their sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec import statistics
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.record import coverage
from trainmark.spec.timeline import PHASES, RankTrace
from trainmark.spec.topology import Topology

LONGEST_STEP_NS = 24 * 3600 * 10**9
OF_STEPS = ("warmup", "data_wait", "compute")
"""Phases that are made of steps, and so kept in no rank's list of the others."""
LOSS_DIGITS = 7
"""Significant digits a run writes of a loss."""
ONE_CLOCK_S = 1.0
ONE_CLOCK_SHARE = 0.05
"""Ranks of one host begin and end together, to this."""


@check("ranks", "the record has the ranks its topology asks for")
def ranks(case: RecordCase) -> Iterator[CheckResult]:
    topology = Topology.parse(case.record.plan.topology)
    numbers = [trace.rank for trace in case.ranks]
    whole = numbers == list(range(topology.devices))
    part = (
        case.record.status != "valid"
        and numbers == sorted(set(numbers))
        and set(numbers) <= set(range(topology.devices))
    )
    if not whole and not part:
        yield wrong(
            f"ranks {', '.join(map(str, numbers)) or 'none'} of a {topology} run",
            f"a whole run has the ranks 0 to {topology.devices - 1}",
            "which series are missing, or stand there twice",
        )
    hosts = {trace.host for trace in case.ranks if trace.host}
    if len(hosts) > topology.nodes:
        yield wrong(f"{len(hosts)} hosts, {topology.nodes} nodes", "a rank's host was changed", "the names of hosts")


@check("lengths", "every series of a rank has one value a step")
def lengths(case: RecordCase) -> Iterator[CheckResult]:
    for trace in case.ranks:
        counts = {name: len(getattr(trace, name)) for name in ("wait_ns", "compute_ns", "items", "exchange_ns")}
        if not counts["exchange_ns"]:
            del counts["exchange_ns"]
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{name} {count}" for name, count in counts.items())
            yield wrong(f"rank {trace.rank}: {shown}", "a step leaves one value in each", "which series was cut")
    steps = [len(trace.compute_ns) for trace in case.ranks]
    if case.record.status == "valid" and len(set(steps)) > 1:
        yield wrong(f"steps by rank: {steps}", "ranks of a whole run take equally many steps", "which series was cut")
    measured = [bool(trace.exchange_ns) for trace in case.ranks if trace.compute_ns]
    if len(set(measured)) > 1:
        yield wrong("some ranks have it, some not", "the exchange is measured on all ranks or on none", "the series")


@check("durations", "every duration is a whole number of nanoseconds, not negative and not absurd")
def durations(case: RecordCase) -> Iterator[CheckResult]:
    for trace in case.ranks:
        for name in ("wait_ns", "compute_ns", "exchange_ns"):
            bad = [(step, value) for step, value in enumerate(getattr(trace, name)) if not _is_duration(value)]
            if bad:
                step, value = bad[0]
                yield wrong(
                    f"rank {trace.rank}, step {step}: {name} {value!r}, {len(bad)} such",
                    "no clock of a run writes that",
                    "what was changed in the series",
                )
        for phase, value in trace.phases_ns.items():
            if (
                not isinstance(value, int)
                or isinstance(value, bool)
                or value < 0
                or phase not in PHASES
                or phase in OF_STEPS
            ):
                yield wrong(f"rank {trace.rank}: {phase} {value!r} ns", "no clock of a run writes that", "the phases")
        longer = [
            step for step, (e, c) in enumerate(zip(trace.exchange_ns, trace.compute_ns, strict=False)) if e > c + 10**6
        ]
        if longer:
            yield wrong(
                f"rank {trace.rank}, step {longer[0]}: exchange {trace.exchange_ns[longer[0]]} ns, compute "
                f"{trace.compute_ns[longer[0]]} ns",
                "the exchange is a part of computing",
                "what was changed in the series",
            )
        peak = trace.memory_peak_bytes
        if peak is not None and (not isinstance(peak, int) or isinstance(peak, bool) or peak < 0):
            yield wrong(f"rank {trace.rank}: {peak!r} bytes", "memory is counted in whole bytes", "the series")


def _is_duration(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LONGEST_STEP_NS


@check("items", "every step trained as many items as the plan's batch asks for")
def items(case: RecordCase) -> Iterator[CheckResult]:
    if not case.whole.steps:
        raise CannotCheckError("no step was done")
    most_per_sample = case.facts.most_items_per_sample if case.facts else None
    # where a batch of one leaves a remainder, some rank gets two
    most = math.inf if most_per_sample is None else max(2, case.step_batch) * most_per_sample
    least = 0 if case.record.plan.skip_bad else 1
    per_epoch = case.steps_per_epoch
    short_at = set() if not per_epoch or case.resumed else {per_epoch - 1, (per_epoch - 2) % per_epoch}
    for trace in case.ranks:
        for step, count in enumerate(trace.items):
            bad = not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most
            if not bad and most_per_sample == 1 and short_at and not case.record.plan.skip_bad:
                bad = count != case.step_batch and step % (per_epoch or 1) not in short_at and len(trace.items) > 2
            if bad:
                yield wrong(
                    f"rank {trace.rank}, step {step}: {count!r} {case.record.item}, batch {case.step_batch}",
                    "only the last steps of an epoch may hold fewer than the batch, and none more",
                    "the items of the series, and the recipe's batch",
                )
                break


@check("loss", "there is a finite loss for every step")
def loss(case: RecordCase) -> Iterator[CheckResult]:
    values = case.record.loss
    if len(values) != case.whole.steps:
        yield wrong(f"{len(values)} losses, {case.whole.steps} steps", "every step has a loss", "which series was cut")
    missing = [step for step, value in enumerate(values) if value is None]
    if missing and case.record.status == "valid":
        yield wrong(
            f"step {missing[0]} and {len(missing) - 1} more have none",
            "a run whose loss was not finite is not valid",
            "the status, and the log of the run",
        )
    least = case.facts.least_loss if case.facts else None
    for step, value in enumerate(values):
        if value is not None and (not math.isfinite(value) or (least is not None and value < least)):
            why = "this loss cannot be negative" if least == 0 else "there is no such loss"
            yield wrong(f"step {step}: {value!r}", why, "what was changed in the series")
            break
        if value is not None and float(f"{value:.{LOSS_DIGITS}g}") != value:
            yield doubtful(
                f"step {step}: {value!r}",
                f"a run writes {LOSS_DIGITS} digits of a loss, and this has more",
                "what was changed in the series",
            )
            break


@check("warm-up", "warm-up is what the series themselves show")
def warm_up(case: RecordCase) -> Iterator[CheckResult]:
    timeline, full = case.record.timeline, case.record.plan.limits.full
    steady = statistics.steady_start(case.whole.compute_s, case.whole.step_items) if case.whole.steps else 0
    warmup = 0 if full else steady
    if (timeline.steady_from, timeline.warmup_steps) != (steady, warmup):
        yield wrong(
            f"steady from {timeline.steady_from}, {timeline.warmup_steps} left out; computed {steady} and {warmup}",
            "which steps count is decided by the series, never by hand",
            "whether slow steps were hidden as warm-up",
        )
    expected = coverage(full=full, steps=case.whole.steps, warmup=warmup)
    if case.record.coverage != expected:
        yield wrong(f"{case.record.coverage!r}", f"the throughputs cover {expected}", "the words on the record")


@check("phases", "phases are the sums of the series, and their sum is e2e_time")
def phases(case: RecordCase) -> Iterator[CheckResult]:
    computed = {phase: ns / 1e9 for phase, ns in case.record.timeline.phases_ns.items()}
    said = computed if case.document is None else case.document["phases"]
    unlike = [phase for phase in {**computed, **said} if not same(said.get(phase), computed.get(phase))]
    if unlike:
        shown = ", ".join(f"{phase} {said.get(phase)!r}, computed {computed.get(phase)!r}" for phase in unlike)
        yield wrong(shown, "a phase is the sum of what was charged to it", "the phases, and the series")
    total, e2e = sum(said.values()), case.value("e2e_time")
    if not same(total, e2e):
        yield wrong(f"sum {total!r} s, e2e_time {e2e!r} s", "phases never overlap and leave nothing out", "the phases")


@check("one-clock", "ranks of one host end together")
def one_clock(case: RecordCase) -> Iterator[CheckResult]:
    hosts: dict[str, list[RankTrace]] = {}
    for trace in case.ranks:
        hosts.setdefault(trace.host, []).append(trace)
    several = [traces for traces in hosts.values() if len(traces) > 1]
    if not several or case.record.status != "valid":
        raise CannotCheckError("no host has two ranks" if not several else "the run did not reach its end")
    for traces in several:
        totals = [case.total_ns(trace) / 1e9 for trace in traces]
        apart = max(totals) - min(totals)
        if apart > max(ONE_CLOCK_S, ONE_CLOCK_SHARE * max(totals)):
            yield doubtful(
                f"{min(totals):.2f} to {max(totals):.2f} s on {traces[0].host or 'one host'}",
                "they were launched together, and none leaves before the others",
                "the phases of the rank that is apart",
            )


@check("restarts", "restarts and the time lost by them agree")
def restarts(case: RecordCase) -> Iterator[CheckResult]:
    found: Sequence[Any] = case.record.restarts
    lost = sum(restart.lost_s for restart in found)
    charged = case.ranks[0].phases_ns.get("restart", 0) / 1e9 if case.ranks else 0.0
    if not same(lost, charged, 1e-6):
        yield wrong(
            f"{lost!r} s lost by {len(found)} restarts, {charged!r} s charged",
            "what a restart lost is charged to the phase of that name",
            "the restarts, and the phases of rank 0",
        )
    places = [restart.step for restart in found]
    if places and (min(places) < 0 or (not case.resumed and max(places) > case.whole.steps)):
        yield wrong(
            f"restarted at {places}, {case.whole.steps} steps", "a run goes on at a step it has", "the restarts"
        )


CHECKS: tuple[Check[RecordCase], ...] = (
    ranks,
    lengths,
    durations,
    items,
    loss,
    warm_up,
    phases,
    one_clock,
    restarts,
)
