"""The record of a run: one JSON document, written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Literal

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
    """One evaluation during a run."""

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
    """Checkpoints that could not be used."""


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
    """The user's tags."""
    note: str | None = None
    """The user's note."""
    skipped_files: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    data_facts: Mapping[str, float] = field(default_factory=dict)
    """How the data was read, such as the share of padding, as rank 0 saw it."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Thinned samples of devices and hosts; empty where nothing was sampled."""
    event_files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of every file of events this was made of, by its name in the run's folder."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a newer version: shown, and written back in place."""
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
        document: dict[str, Any] = _merge(self._known_fields(), self.unknown)
        return document

    def _known_fields(self) -> dict[str, Any]:
        return {
            "schema": RECORD_SCHEMA,
            "kind": KIND,
            "run_id": self.run_id,
            "created": self.created,
            "trainmark": self.trainmark,
            "revision": self.revision,
            "status": self.status,
            "ended": self.ended,
            "group": self.group,
            "plan": self.plan.to_json(),
            "item": self.item,
            "metrics": {alias: quantity_to_json(quantity) for alias, quantity in self.metrics.items()},
            "coverage": self.coverage,
            "quality": asdict(self.quality),
            "doubts": [_doubt_to_json(doubt) for doubt in self.doubts],
            "phases": {phase: ns / 1e9 for phase, ns in self.timeline.phases_ns.items()},
            "restarts": [asdict(restart) for restart in self.restarts],
            "environment": self.environment.to_json(),
            "skipped_files": list(self.skipped_files),
            "artifacts": msgspec.to_builtins(self.artifacts),
            "data_facts": dict(self.data_facts),
            "telemetry": msgspec.to_builtins(self.telemetry),
            "event_files": dict(self.event_files),
            **({"tags": dict(self.tags)} if self.tags else {}),
            **({"note": self.note} if self.note is not None else {}),
            **({"workload_facts": self.workload_facts.to_json()} if self.workload_facts else {}),
            "series": self._series(),
        }

    def _series(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "warmup_steps": self.timeline.warmup_steps,
            "steady_from": self.timeline.steady_from,
        }
        if self.series_file and self.points:
            points = msgspec.to_builtins(self.points)
            document |= {"file": msgspec.to_builtins(self.series_file), "points": points}
        else:
            document["loss"] = list(self.loss)
        return {**document, "ranks": [_trace_to_json(trace) for trace in self.timeline.ranks]}

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
            found = msgspec.convert(upgraded, _Document)
            steps, means_only = _steps(found.series, read)
            timeline = _timeline(found.series, steps)
        except msgspec.ValidationError as error:
            raise UsageError(f"this record is damaged: {describe_misfit(error)}") from error
        except ValueError as error:
            raise UsageError(f"this record is damaged: {error}") from error
        record = cls(
            plan=Plan.from_json(upgraded["plan"]),
            timeline=timeline,
            loss=steps.loss if steps else found.series.loss or [],
            series_file=found.series.file,
            points=found.series.points,
            means_only=means_only,
            **{name: getattr(found, name) for name in _PLAIN},
        )
        known = {**record._known_fields(), "environment": msgspec.to_builtins(record.environment)}
        known["telemetry"] = {"machines": known["telemetry"].get("machines", ())}
        unknown = unknown_fields(upgraded, known)
        return replace(record, unknown=unknown) if unknown else record


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


def _doubt_to_json(doubt: Doubt) -> dict[str, Any]:
    values = {"values": dict(doubt.values)} if doubt.values else {}
    return {"code": doubt.code, "text": doubt.text, **values}


def _trace_to_json(trace: RankTrace) -> dict[str, Any]:
    document: dict[str, Any] = {
        "rank": trace.rank,
        "host": trace.host,
        "phases_ns": dict(trace.phases_ns),
        "memory_peak_bytes": trace.memory_peak_bytes,
    }
    if trace.sums:
        return {**document, "sums": msgspec.to_builtins(trace.sums)}
    for name in ("wait_ns", "compute_ns", "exchange_ns"):
        document[name] = list(getattr(trace, name))
    if not trace.exchange_ns:
        del document["exchange_ns"]
    return {**document, "items": _pack(trace.items)}


class _Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A `RankTrace` as it is written: items are packed."""

    rank: Count
    host: str = ""
    phases_ns: dict[str, Count] = {}
    wait_ns: list[Count] | None = None
    compute_ns: list[Count] | None = None
    exchange_ns: list[Count] = []
    items: list[tuple[Count, Count]] | None = None
    memory_peak_bytes: Count | None = None
    sums: RankSums | None = None

    def __post_init__(self) -> None:
        if self.sums is not None:
            return
        if self.wait_ns is None or self.compute_ns is None or self.items is None:
            raise ValueError("a rank has its series, or what they sum to")
        steps = len(self.compute_ns)
        if not len(self.wait_ns) == sum(count for count, _ in self.items) == steps or len(self.exchange_ns) > steps:
            raise ValueError(f"{steps} steps have one wait and one count of items each")


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


def _steps(
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


def _timeline(found: _Series, steps: StepSeries | None) -> Timeline:
    ranks = [_trace_from_json(trace) for trace in found.ranks]
    if steps is None:
        return Timeline(ranks=tuple(ranks), warmup_steps=found.warmup_steps, steady_from=found.steady_from)
    if min(trace.steps for trace in ranks) != len(steps.compute_ns):
        raise ValueError("its ranks have other steps than its series")
    return build_timeline(ranks, steps, warmup_steps=found.warmup_steps, steady_from=found.steady_from)


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a record, beside its plan and what follows from the series."""

    run_id: str
    created: str
    trainmark: str
    revision: str | None
    status: Status
    ended: str
    group: str | None
    item: str
    metrics: dict[str, Quantity]
    coverage: str
    quality: Quality
    doubts: tuple[Doubt, ...]
    restarts: tuple[Restart, ...]
    environment: Environment
    skipped_files: tuple[str, ...]
    artifacts: tuple[Artifact, ...]
    data_facts: dict[str, Finite]
    telemetry: Telemetry
    event_files: dict[str, str]
    tags: dict[str, str] = {}
    note: str | None = None
    workload_facts: WorkloadFacts | None = None
    plan: dict[str, Any]
    series: _Series

    def __post_init__(self) -> None:
        for alias, quantity in self.metrics.items():
            if quantity.interval and quantity.interval[0] > quantity.interval[1]:
                raise ValueError(f"the interval of {alias} ends before it begins")


_PLAIN = tuple(name for name in _Document.__struct_fields__ if name not in ("plan", "series"))


def _trace_from_json(trace: _Trace) -> RankTrace:
    return RankTrace(
        rank=trace.rank,
        host=trace.host,
        phases_ns=trace.phases_ns,
        wait_ns=() if trace.wait_ns is None else trace.wait_ns,
        compute_ns=() if trace.compute_ns is None else trace.compute_ns,
        exchange_ns=trace.exchange_ns or (),
        items=() if trace.items is None else _unpack(trace.items),
        memory_peak_bytes=trace.memory_peak_bytes,
        sums=trace.sums,
    )


def _pack(items: Sequence[int]) -> list[list[int]]:
    """Items of a step are nearly always the same number: [count, value] pairs keep a long run's record small."""
    return [[len(list(alike)), value] for value, alike in groupby(items)]


def _unpack(runs: Sequence[tuple[int, int]]) -> list[int]:
    items: list[int] = []
    for count, value in runs:
        items += [value] * count
    return items


def unknown_fields(document: Any, known: Any) -> dict[str, Any]:
    """The part of a document that `known`, which was parsed from it, lacks; list entries go by index."""
    if isinstance(document, Mapping) and isinstance(known, Mapping):
        pairs = [(str(name), value, name in known, known.get(name)) for name, value in document.items()]
    elif isinstance(document, list) and isinstance(known, (list, tuple)) and len(document) == len(known):
        if not document or not isinstance(document[0], Mapping):  # a series of numbers has no names to know
            return {}
        pairs = [(str(place), entry, True, known[place]) for place, entry in enumerate(document)]
    else:
        return {}
    found = {}
    for name, value, is_known, counterpart in pairs:
        if not is_known:
            found[name] = value
        elif more := unknown_fields(value, counterpart):
            found[name] = more
    return found


def _merge(known: Any, more: Mapping[str, Any]) -> Any:
    """A document with the part put back that `unknown_fields` took out of it."""
    if not more:
        return known
    if isinstance(known, (list, tuple)):
        return [_merge(entry, more.get(str(place), {})) for place, entry in enumerate(known)]
    whole = dict(known)
    for name, value in more.items():
        whole[name] = _merge(known[name], value) if name in known else value
    return whole
