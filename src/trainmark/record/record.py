"""The record of a run: one JSON document, written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from trainmark.record.errors import UsageError, describe_misfit
from trainmark.record.language import ENGLISH, Say
from trainmark.record.machine import Artifact, Environment, Telemetry
from trainmark.record.metrics import Quantity, quantity_to_json
from trainmark.record.numbers import Count, Finite, Whole, around
from trainmark.record.plan import Plan
from trainmark.record.timeline import (
    Points,
    RankSums,
    RankTrace,
    SeriesFile,
    StepSeries,
    Timeline,
    build_timeline,
    expand_means,
    extract_series,
)
from trainmark.record.workload_facts import WorkloadFacts

RECORD_SCHEMA = 2
# The history of the schema. A field that is only added changes no number: a reader keeps what it does not know, and
# what a record does not have was not recorded. The number changes where an older document must be rewritten to be read.
#   1  The first. `restarts`, `artifacts`, `data_facts` and `telemetry` came during it, so that a record may lack them.
#   2  Intervals are on the logarithm; before, they lay symmetrically around their value and could reach below zero.
#      Warm-up ends where steps stop becoming faster; before, steps that became slower could be taken for it.
#      Those four are always there; with `revision`, the source that ran, and `event_files`, the SHA-256 of each event
#      file the record was made of (empty where nobody took them). The series of a long run lie in a file beside the
#      record, which names it in `series.file` and keeps sums of every rank and means of neighbouring steps.
KIND = "trainmark record"
REPEATS = "trainmark repeats"
"""The kind of the document that `run --repeat K --json` prints: records, and what their groups have in common."""

Status = Literal["valid", "invalid", "incomplete"]


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A reason to trust the result less, in words; the code is for programs."""

    code: str
    text: str
    """In English."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values in the text, by name, for translation; older records have none."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    step: Whole
    epoch: Finite | None
    """None where the data is a stream without epochs."""
    values: Mapping[str, Finite]
    samples: Whole


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How good the trained model was, by the workload's target."""

    name: str
    unit: str
    goal: Finite
    better: str
    value: Finite | None = None
    """From the last evaluation."""
    reached: bool = False
    history: tuple[Evaluation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The ranks were started again during the run."""

    step: Whole
    """Where they went on: at the newest checkpoint, or at the beginning."""
    lost_s: Finite
    """Work that was done again, and the time until the workers' first lines."""
    reason: str | None = None
    """The error of the rank that failed; None where it left none."""
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MeansOnly:
    """The series of a long run are missing: every step is known only as a mean over neighbours."""

    reason: str
    damaged: bool = False
    """The file exists but is not the recorded one."""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, kw_only=True)
class Record:
    run_id: str
    created: str
    """UTC, ISO 8601. For people only: no duration is ever taken from it."""
    trainmark: str
    """The version that wrote this."""
    revision: str | None = None
    """The git revision of the source that ran; None where it was an installed package."""
    status: Status
    ended: str
    """Why the run ended, in words."""
    plan: Plan
    item: str
    metrics: Mapping[str, Quantity]
    """By the word the published tables use."""
    coverage: str
    """Which steps the throughputs cover."""
    quality: Quality
    timeline: Timeline
    loss: Sequence[float | None] = ()
    """Training loss of each step's global batch, as a mean over all ranks; None where any was not finite."""
    series_file: SeriesFile | None = None
    """Where the series of a long run lie; None where the record itself keeps them."""
    points: Points | None = None
    """The means it keeps of them."""
    means_only: MeansOnly | None = None
    """Set where these series are missing."""
    environment: Environment = field(default_factory=Environment)
    doubts: tuple[Doubt, ...] = ()
    restarts: tuple[Restart, ...] = ()
    group: str | None = None
    """Runs of one `--repeat` share it."""
    tags: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    skipped_files: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    data_facts: Mapping[str, Finite] = field(default_factory=dict)
    """How the data was read, such as the share of padding, as rank 0 saw it."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Thinned samples of devices and hosts; empty where nothing was sampled."""
    event_files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of every file of events this was made of, by its name in the run's folder."""
    workload_facts: WorkloadFacts | None = None
    """Facts of the workload, for readers without it; older records have none."""

    def __repr__(self) -> str:
        plan = self.plan
        return f"<Record {self.run_id}: {plan.workload} {plan.recipe_name} {plan.topology}, {self.status}>"

    @property
    def precision(self) -> str:
        """The precision of the first step; the requested one where that was not recorded."""
        seen = self.environment.precision
        return seen.ran if seen else self.plan.precision

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where it ran, each once, the host of rank 0 first."""
        return tuple(dict.fromkeys(trace.host for trace in self.timeline.ranks))

    @property
    def steps(self) -> StepSeries:
        """Of a long run, what lies in the file beside its record."""
        return extract_series(self.timeline, self.loss)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        document: dict[str, Any] = {
            "schema": RECORD_SCHEMA,
            "kind": KIND,
            **msgspec.to_builtins({name: value for name, value in plain.items() if value != _OPTIONAL.get(name, ...)}),
            "plan": self.plan.to_json(),
            "metrics": {alias: quantity_to_json(quantity) for alias, quantity in self.metrics.items()},
            "phases": {phase: ns / 1e9 for phase, ns in self.timeline.phases_ns.items()},
            "environment": self.environment.to_json(),
        }
        for doubt in document["doubts"]:
            if not doubt["values"]:
                del doubt["values"]
        if self.workload_facts:
            document["workload_facts"] = self.workload_facts.to_json()
        series: dict[str, Any] = {"warmup_steps": self.timeline.warmup_steps, "steady_from": self.timeline.steady_from}
        if self.series_file and self.points:
            series |= {"file": msgspec.to_builtins(self.series_file), "points": msgspec.to_builtins(self.points)}
        else:
            series["loss"] = list(self.loss)
        series["ranks"] = [_trace_to_json(trace) for trace in self.timeline.ranks]
        return {**document, "series": series}

    def dumps(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, document: Mapping[str, Any], read: Callable[[SeriesFile], StepSeries] | None = None) -> Record:
        """Of any schema up to this one; UsageError where it is no record, or a damaged or a newer one.

        Series that are not in the document are taken from `read`. Where that cannot find them, each step is the mean of
        its neighbours that the document keeps, and `means_only` says why.
        """
        upgraded = upgrade(document)
        try:
            found: Any = msgspec.convert(upgraded, _DOCUMENT)
            steps, means_only = _read_steps(found.series, read)
            timeline = _read_timeline(found.series, steps)
        except msgspec.ValidationError as error:
            raise UsageError(f"this record is damaged: {describe_misfit(error)}") from error
        except ValueError as error:
            raise UsageError(f"this record is damaged: {error}") from error
        return cls(
            plan=Plan.from_json(upgraded["plan"]),
            timeline=timeline,
            loss=steps.loss if steps else found.series.loss or [],
            series_file=found.series.file,
            points=found.series.points,
            means_only=means_only,
            **{name: getattr(found, name) for name in _PLAIN},
        )


def parse(content: bytes) -> Any:
    """The JSON document in a record file; UsageError where it is none."""
    try:
        return msgspec.json.decode(content)
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text") from None
    except RecursionError:
        raise UsageError("nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"not JSON: {describe_misfit(error)}") from None


def list_repeats(document: Any) -> Any:
    """The records of a repeats document; any other document unchanged."""
    repeats = isinstance(document, dict) and document.get("kind") == REPEATS
    return document.get("records", []) if repeats else document


def upgrade(document: Mapping[str, Any]) -> dict[str, Any]:
    """A record's document as this version would have written it; UsageError where it is none, or a newer one."""
    if not isinstance(document, Mapping):
        raise UsageError("not a trainmark record: its JSON is not an object")
    schema = document.get("schema")
    if document.get("kind") != KIND or schema not in range(1, RECORD_SCHEMA + 1) or isinstance(schema, bool):
        raise UsageError(
            f"not a trainmark record of schema {RECORD_SCHEMA} (kind {document.get('kind')!r}, schema {schema!r})"
        )
    return dict(document) if schema == RECORD_SCHEMA else _upgrade_from_1(document)


def _upgrade_from_1(document: Mapping[str, Any]) -> dict[str, Any]:
    later: dict[str, Any] = {
        "restarts": [],
        "artifacts": [],
        "data_facts": {},
        "telemetry": {},
        "revision": None,
        "event_files": {},
    }
    upgraded = {**later, **document, "schema": 2}
    if isinstance(metrics := upgraded.get("metrics"), Mapping):
        upgraded["metrics"] = {alias: _convert_interval(found) for alias, found in metrics.items()}
    return upgraded


def _convert_interval(quantity: Any) -> Any:
    """A quantity with a symmetric interval, converted to one on the logarithm."""
    try:
        value, (low, high) = quantity["value"], quantity["interval"]
        return {**quantity, "interval": list(around(value, (high - low) / 2 / value))}
    except (KeyError, TypeError, ValueError, ArithmeticError):  # it has none, or is damaged, which is reported later
        return quantity


def describe_coverage(*, full: bool, steps: int, warmup: int, say: Say = ENGLISH) -> str:
    """Which of a run's steps its throughputs cover."""
    if full:
        return say("all training steps")
    return say("the steady part: {steps} steps after {warmup} of warm-up").format(steps=steps - warmup, warmup=warmup)


def translate_coverage(record: Record, say: Say) -> str:
    """A record's coverage in the reader's language; the recorded text where its numbers give another."""
    limits, timeline = record.plan.limits, record.timeline
    if not timeline.ranks:
        return say(record.coverage)
    covers = partial(describe_coverage, full=limits.full, steps=timeline.steps, warmup=timeline.warmup_steps)
    return covers(say=say) if covers() == record.coverage else record.coverage


def _trace_to_json(trace: RankTrace) -> dict[str, Any]:
    document: dict[str, Any] = {
        "rank": trace.rank,
        "host": trace.host,
        "phases_ns": dict(trace.phases_ns),
        "memory_peak_bytes": trace.memory_peak_bytes,
    }
    if trace.sums:
        return {**document, "sums": msgspec.to_builtins(trace.sums)}
    document |= {"wait_ns": list(trace.wait_ns), "compute_ns": list(trace.compute_ns)}
    if trace.exchange_ns:
        document["exchange_ns"] = list(trace.exchange_ns)
    # items of a step are nearly always the same number: [count, value] pairs keep a long run's record small
    return {**document, "items": [[len(list(alike)), value] for value, alike in groupby(trace.items)]}


class _Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A `RankTrace` as it is written: items are packed."""

    rank: Count
    host: str = ""
    phases_ns: dict[str, Count] = {}
    wait_ns: Sequence[Count] = ()
    compute_ns: Sequence[Count] = ()
    exchange_ns: Sequence[Count] = ()
    items: Sequence[tuple[Count, Count]] = ()
    memory_peak_bytes: Count | None = None
    sums: RankSums | None = None

    def __post_init__(self) -> None:
        steps = len(self.compute_ns)
        if not len(self.wait_ns) == sum(count for count, _ in self.items) == steps or len(self.exchange_ns) > steps:
            raise ValueError(f"{steps} steps have one wait and one count of items each")

    def to_trace(self) -> RankTrace:
        items = () if self.sums else [value for count, value in self.items for _ in range(count)]
        return RankTrace(**{**msgspec.structs.asdict(self), "items": items})


class _Series(msgspec.Struct, frozen=True, kw_only=True):
    warmup_steps: Count
    steady_from: Count
    ranks: Annotated[list[_Trace], msgspec.Meta(min_length=1)]
    loss: list[Finite | None] | None = None
    """Missing with `file` and `points`, which stand instead of every rank's series."""
    file: SeriesFile | None = None
    points: Points | None = None

    def __post_init__(self) -> None:
        long = self.file is not None
        if not (self.points is not None) == (self.loss is None) == long:
            raise ValueError("there is a loss for every step, or a file of the series and their means")
        if any((trace.sums is not None) != long for trace in self.ranks):
            raise ValueError("every rank has its series, or every rank what they sum to")


def _read_steps(
    found: _Series, read: Callable[[SeriesFile], StepSeries] | None
) -> tuple[StepSeries | None, MeansOnly | None]:
    """The series that are not inside the record, as they are or as means; and why only as means."""
    if found.file is None or found.points is None:
        return None, None
    means = expand_means(found.points, found.file.steps, found.steady_from)
    if read is None:
        return means, MeansOnly(reason=f"{found.file.name} is not at hand")
    try:
        return read(found.file), None
    except FileNotFoundError:
        return means, MeansOnly(reason=f"{found.file.name} is not beside the record")
    except OSError as error:
        return means, MeansOnly(reason=f"{found.file.name} cannot be read: {error.strerror}")
    except ValueError as error:
        return means, MeansOnly(reason=f"{found.file.name} is not the record's: {error}", damaged=True)


def _read_timeline(found: _Series, steps: StepSeries | None) -> Timeline:
    ranks = [trace.to_trace() for trace in found.ranks]
    if steps is None:
        return Timeline(ranks=tuple(ranks), warmup_steps=found.warmup_steps, steady_from=found.steady_from)
    if min(trace.steps for trace in ranks) != len(steps.compute_ns):
        raise ValueError("its ranks have other steps than its series")
    return build_timeline(ranks, steps, warmup_steps=found.warmup_steps, steady_from=found.steady_from)


_OPTIONAL: dict[str, Any] = {"tags": {}, "note": None, "workload_facts": None}
_PLAIN = {
    name: hint
    for name, hint in get_type_hints(Record, include_extras=True).items()
    if name not in ("plan", "timeline", "loss", "series_file", "points", "means_only")
}
"""Fields that stand in the document as they are."""
_DOCUMENT = msgspec.defstruct(
    "_DOCUMENT",
    [
        *((name, hint) for name, hint in _PLAIN.items() if name not in _OPTIONAL),
        *((name, _PLAIN[name], default) for name, default in _OPTIONAL.items()),
        ("plan", dict[str, Any]),
        ("series", _Series),
    ],
    kw_only=True,
)
