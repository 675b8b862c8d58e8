"""Audits our own records: by their events where these are at hand, else by the steps on the record."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import trainmark
from trainmark import workloads
from trainmark.record import endings
from trainmark.record.audit import (
    DAMAGED,
    CannotCheckError,
    Check,
    check,
    conclude,
    doubtful,
    is_same,
    note,
    run_checks,
    wrong,
)
from trainmark.record.checks import CheckResult
from trainmark.record.doubts import collect_doubts
from trainmark.record.errors import NotReadyError
from trainmark.record.gather import gather_record
from trainmark.record.metrics import THROUGHPUTS, Measured, measure, withhold
from trainmark.record.numbers import meets_goal
from trainmark.record.plan import Topology
from trainmark.record.precision import name_precision
from trainmark.record.record import RECORD_SCHEMA, Record, upgrade
from trainmark.record.run_folder import RunFolder, open_run
from trainmark.record.timeline import SeriesFile, StepSeries, thin_series

FOLLOWING = ("e2e_time", *THROUGHPUTS, "mfu")
"""Metrics that are computed again from the series of the record."""
OF_EVENTS = ("torn-events", "no-sample", "resumed")
"""Doubts about what only the events tell: they may stand on a record, and nothing on it can confirm them."""
MAX_SHOWN = 3
"""Differences shown per part of a record."""
OUR_WORDS = re.compile(r"coverage|doubts\[\d+\]\.text|metrics\.\w+\.unavailable")
"""Sentences composed when a record is gathered: another version may word them otherwise."""
NOT_COMPARED = ("schema", "kind", "event_files")
"""Format fields; the hashes have their own check."""


@dataclass(frozen=True, kw_only=True)
class RecordCase:
    """A record under audit."""

    record: Record
    document: Mapping[str, Any]
    """As it stands in its file, in whichever schema."""
    folder: Path | None = None
    """The run's folder, with the events it was made of, where available."""

    @cached_property
    def run(self) -> RunFolder:
        if self.folder is None:
            raise CannotCheckError("the run's events were not read; 'trainmark audit' reads them where they are kept")
        try:
            return open_run(self.folder)
        except NotReadyError as error:
            raise CannotCheckError(str(error)) from error

    @cached_property
    def gathered(self) -> dict[str, Any]:
        """The record's document, gathered from its events."""
        found: dict[str, Any] = json.loads(gather_record(self.run.path).dumps())
        return found

    @cached_property
    def changed(self) -> dict[str, tuple[str | None, str | None]]:
        """Event files whose hash is not the record's: that on the record, and that of the file."""
        recorded, found = self.record.event_files, self.run.event_files()
        pairs = {name: (recorded.get(name), found.get(name)) for name in sorted({*recorded, *found})}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def is_of_this_version(self) -> bool:
        """Another may have defined warm-up, drift and intervals otherwise, and not have known a doubt."""
        return self.record.trainmark == trainmark.__version__ and self.document.get("schema") == RECORD_SCHEMA

    def require_steps(self) -> None:
        if self.record.means_only:
            raise CannotCheckError(str(self.record.means_only))


def audit_record(record: Record, folder: Path | None = None) -> tuple[CheckResult, ...]:
    """Every check on a record: with the run's `folder` against its events, else in milliseconds by itself."""
    document = json.loads(record.dumps()) if folder else record.to_json()
    return run_checks(CHECKS, RecordCase(record=record, document=document, folder=folder), record.run_id)


def audit_document(
    document: Mapping[str, Any],
    name: str,
    folder: Path | None = None,
    read: Callable[[SeriesFile], StepSeries] | None = None,
) -> tuple[CheckResult, ...]:
    """Every check on a record file's JSON; one that cannot be read as a record is wrong for that.

    With `read`, the series that a long run's record leaves to a file beside it.
    """
    title = "the file is a record, with the plan its fingerprint was taken of"
    try:
        record = Record.from_json(document, read)
    except DAMAGED as error:
        why, remedy = "no run writes a record that cannot be read", "who changed the file after it was written"
        return (conclude("readable", title, (wrong(str(error), why, remedy),), name),)
    case = RecordCase(record=record, document=document, folder=folder)
    return (conclude("readable", title, (), name), *run_checks(CHECKS, case, record.run_id))


@check("hashes", "the event files are those the record was made of")
def hashes(case: RecordCase) -> Iterator[CheckResult]:
    if "event_files" not in case.document:
        raise CannotCheckError("the record is of a version that took no hashes of its event files")
    # a machine that was lost may have written on after the record was made
    found = doubtful if case.record.status == "incomplete" else wrong
    for name, (recorded, seen) in case.changed.items():
        yield found(
            f"{name}: SHA-256 {(recorded or 'none')[:16]} on the record, {(seen or 'none')[:16]} of the file",
            "the file was changed, taken away or put there after the record was made",
            "who can write to the run's folder",
        )


@check("events", "the record is what its events make of it")
def events_agree(case: RecordCase) -> Iterator[CheckResult]:
    recorded, wrote = upgrade(case.document), case.gathered["environment"].get("trainmark") or case.record.trainmark
    told = {**case.gathered, "trainmark": wrote}
    late = case.record.status == "incomplete" and "event_files" in case.document and case.changed
    for part in dict.fromkeys((*told, *recorded)):
        if part in NOT_COMPARED:
            continue
        one, other = ({part: document[part]} if part in document else {} for document in (recorded, told))
        unlike = list(_find_differences(one, other, "", alike=wrote == trainmark.__version__))
        more = f" and {len(unlike) - MAX_SHOWN} more" if len(unlike) > MAX_SHOWN else ""
        if unlike:
            yield (doubtful if late else wrong)(
                "; ".join(unlike[:MAX_SHOWN]) + more,
                "gathered anew from the run's events it is another",
                "whether the record or its events were changed",
            )
    if missing := sorted(told["metrics"].keys() - recorded["metrics"].keys()):
        yield note(", ".join(missing), "it is not on the record, and its events give it", "which version wrote it")


def _find_differences(recorded: Any, gathered: Any, place: str, *, alike: bool) -> Iterator[str]:
    """Where two documents differ; unless one version wrote both (`alike`), one may know more, and word it otherwise."""
    if isinstance(recorded, Mapping) and isinstance(gathered, Mapping):
        for name in dict.fromkeys((*recorded, *gathered)):
            where = f"{place}.{name}".lstrip(".")
            if name in recorded and name in gathered:
                yield from _find_differences(recorded[name], gathered[name], where, alike=alike)
            elif alike and (name in recorded or place != "metrics"):
                yield f"{where} is {'not in the events' if name in recorded else 'not on the record'}"
    elif isinstance(recorded, list) and isinstance(gathered, list) and len(recorded) == len(gathered):
        for index, (one, other) in enumerate(zip(recorded, gathered, strict=True)):
            yield from _find_differences(one, other, f"{place}[{index}]", alike=alike)
    elif not is_same(recorded, gathered):
        reworded = not alike and OUR_WORDS.fullmatch(place)
        if not reworded or _find_numbers(recorded) != _find_numbers(gathered):
            yield f"{place} is {_shorten(recorded)} on the record, {_shorten(gathered)} by its events"


def _shorten(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _find_numbers(sentence: object) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", str(sentence))


# The record by itself


@check("steps", "phases, throughputs, quality and status follow from the steps and evaluations on the record")
def steps(case: RecordCase) -> Iterator[CheckResult]:
    record = case.record
    remedy = "which of the two was changed"
    if record.means_only and record.means_only.damaged:
        yield wrong(str(record.means_only), "the series were changed after the record was made", remedy)
        return
    case.require_steps()
    for place, recorded, computed in _compute_again(case):
        if not all(map(is_same, recorded, computed)):
            yield wrong(f"{place}: {recorded}, computed {computed}", "computed again it is another", remedy)


def _compute_again(case: RecordCase) -> Iterator[tuple[str, tuple[object, ...], tuple[object, ...]]]:
    """By place, what the record says, and what its steps and evaluations make of it."""
    record, kept, quality = case.record, case.record.timeline, case.record.quality
    yield "valid", (record.status == "valid",), (record.ended in endings.COMPLETE,)
    if record.status == "valid":
        yield "ranks", (len(kept.ranks),), (Topology.parse(record.plan.topology).devices,)
        finite = sum(loss is not None for loss in record.loss)
        yield "steps", (kept.steps, kept.steps), (len(record.loss), finite)
        if not record.series_file:
            for trace in kept.ranks:
                lengths = (len(trace.wait_ns), len(trace.compute_ns), len(trace.items))
                yield f"steps of rank {trace.rank}", lengths, (kept.steps,) * 3
    if record.series_file:
        yield from _summarise_again(record)
    phases: Mapping[str, float] = case.document["phases"]
    for phase in {**kept.phases_ns, **phases}:
        yield phase, (phases.get(phase),), (kept.phases_ns.get(phase, math.nan) / 1e9,)
    computed = measure(Measured(item=record.item, timeline=kept, flops=record.environment.flops))
    computed = withhold(computed) if record.status == "invalid" else computed
    for alias in (alias for alias in FOLLOWING if alias in record.metrics):
        one, other = record.metrics[alias], computed[alias]
        yield alias, (one.unit, one.value), (other.unit, other.value)
        if case.is_of_this_version:
            yield f"interval of {alias}", one.interval or (None,), other.interval or (None,)
    last = quality.history[-1].values.get(quality.name) if quality.history else None
    goal = float(record.plan.recipe["target"])
    reached = last is not None and meets_goal(last, goal, quality.better)
    yield quality.name, (quality.value, quality.goal, quality.reached), (last, goal, reached)
    if proof := record.environment.precision:
        ran = name_precision(proof.multiplications, proof.weights, proof.tf32, proof.autocast, proof.inside)
        yield "precision", (proof.ran,), (ran,)


def _summarise_again(record: Record) -> Iterator[tuple[str, tuple[object, ...], tuple[object, ...]]]:
    """What a long run's record keeps of its series, and the file that holds them."""
    kept, slowest = record.timeline, record.timeline.slowest
    yield "series.points", (record.points,), (thin_series(record.steps, kept.steady_from),)
    part = slice(kept.warmup_steps, kept.steps)
    sums = (*kept.sum_counted(slowest)[:3], kept.items)
    yield f"sums of rank {slowest.rank}", sums, (*slowest.part(part)[:3], sum(kept.items_of_steps[part]))


@check("doubts", "every doubt the numbers ask for stands on the record, and no other")
def doubts(case: RecordCase) -> Iterator[CheckResult]:
    record, known = case.record, workloads.facts_of(case.record)
    case.require_steps()
    bad = wrong if case.is_of_this_version else doubtful
    reference = known.reference if known else None
    asked = collect_doubts(record, reference_global_batch=reference.global_batch if reference else 0)
    # without its reference, that doubt is taken at its word
    unknown = OF_EVENTS if reference else (*OF_EVENTS, "small-batch")
    expected, recorded = {doubt.code for doubt in asked}, {doubt.code for doubt in record.doubts}
    for doubt in asked:
        if doubt.code not in recorded:
            shown = f"{doubt.code}: {doubt.text}"
            yield bad(shown, "the numbers ask for this doubt, and it is not there", "who took it out")
    for doubt in record.doubts:
        if doubt.code not in expected and doubt.code not in unknown:
            yield bad(f"{doubt.code}: {doubt.text}", "nothing on the record gives reason for it", "the doubts")


CHECKS: tuple[Check[RecordCase], ...] = (hashes, events_agree, steps, doubts)
