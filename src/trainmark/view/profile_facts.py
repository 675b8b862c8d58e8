"""Summary of a step profile: the longest operators, and what to try first."""

from __future__ import annotations

from collections.abc import Iterator

from trainmark.record.format import number
from trainmark.record.language import Say, _
from trainmark.record.machine import OperatorUse, StepProfile
from trainmark.record.record import Record
from trainmark.view.sections import FactSection, RecordFact, draw_section
from trainmark.view.terminal import TerminalWriter

MATMULS = ("mm", "bmm", "addmm", "baddbmm", "linear", "convolution", "attention", "scaled_mm", "lstm", "gru")
COPIES = ("copy_", "_to_copy", "clone", "contiguous", "cat", "index_select", "gather", "memcpy")
UPDATES = ("_fused_", "_foreach_", "_amp_")
EXCHANGES = ("allreduce", "all_reduce", "allgather", "all_gather", "reduce_scatter", "broadcast", "nccl", "gloo")
"""Parts of operators' names, by what they are for."""

_IDLE, _COPIES, _UPDATES, _EXCHANGES, _MATMULS, _WAITS = 0.15, 0.1, 0.15, 0.15, 0.7, 0.03
"""Shares of a step from which on it pays to look there first."""


def describe_profile(record: Record, *, width: int = 80, color: bool = False, encoding: str = "utf-8") -> str:
    """Where a step's time goes, for a terminal; empty where no step was profiled."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    draw_section(writer, build_profile(record, _))
    return writer.getvalue()


def build_profile(record: Record, say: Say) -> FactSection | None:
    """Where the time of a step goes, operator by operator."""
    found = record.environment.profile
    if found is None:
        return None
    one = found.seconds / found.steps
    facts = [
        RecordFact(say("step"), f"{number(one)} s"),
        RecordFact(say("nothing ran"), f"{100 * found.idle:.1f} %"),
        RecordFact(say("launches a step"), number(found.launches / found.steps)),
        *(RecordFact(say("try first"), sentence) for sentence in suggest_speedups(found, record, say)),
    ]
    if found.trace:
        facts.append(RecordFact(say("trace"), f"{record.run_id}/{found.trace}"))
    uses = [*found.operators, *([found.others] if found.others else [])]
    return FactSection(
        title=say("Where a step's time goes"),
        remark=say("{count} steps after those that count, under the profiler").format(count=found.steps),
        facts=facts,
        heads=(say("operator"), say("ms a step"), say("share"), say("calls a step"), say("MiB a step")),
        rows=[_row(use, found) for use in uses],
        left=frozenset({0}),
    )


def _row(use: OperatorUse, found: StepProfile) -> tuple[str, ...]:
    return (
        use.name,
        number(1e3 * use.seconds / found.steps),
        f"{100 * use.seconds / found.seconds:.1f} %",
        number(use.calls / found.steps),
        number(round(use.size_bytes / found.steps / 2**20, 2)),
    )


def suggest_speedups(found: StepProfile, record: Record, say: Say) -> Iterator[str]:
    """What most likely pays, the largest share first; a step that is nearly all matmuls needs other arithmetic."""
    shares = {name: _share(found, words) for name, words in (("copies", COPIES), ("updates", UPDATES))}
    shares |= {"exchanges": _share(found, EXCHANGES), "matmuls": _share(found, MATMULS), "idle": found.idle}
    timeline = record.timeline
    whole = sum(trace.whole.wait_ns + trace.whole.compute_ns for trace in timeline.ranks)
    shares["waits"] = sum(trace.whole.wait_ns for trace in timeline.ranks) / whole if whole else 0.0
    known = {
        "waits": (_WAITS, say("{share} of the counted time waits for data: more input_workers, or faster storage")),
        "idle": (
            _IDLE,
            say("nothing ran in {share} of a step, while the host prepared it: a larger batch, or compiled=blocks"),
        ),
        "copies": (_COPIES, say("{share} of a step copies data: see the trace for the callers")),
        "updates": (_UPDATES, say("{share} of a step updates weights: a larger batch, or accumulate=2")),
        "exchanges": (_EXCHANGES, say("{share} of a step exchanges gradients: a larger batch_per_device")),
        "matmuls": (
            _MATMULS,
            say("{share} of a step is matmuls: a lower precision, or a device with more arithmetic"),
        ),
    }
    for name in sorted(known, key=lambda name: (name == "matmuls", -shares[name])):
        least, sentence = known[name]
        if shares[name] >= least:
            yield sentence.format(share=f"{100 * shares[name]:.0f} %")


def _share(found: StepProfile, parts: tuple[str, ...]) -> float:
    taken = sum(use.seconds for use in found.operators if any(part in use.name.lower() for part in parts))
    return min(1.0, taken / found.seconds) if found.seconds else 0.0
