"""What a run leaves behind: one JSON document, written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec

from trainmark.spec.artifact import Artifact
from trainmark.spec.beyond import beyond, restored
from trainmark.spec.errors import UsageError, misfit
from trainmark.spec.intervals import around
from trainmark.spec.machine import Environment
from trainmark.spec.metrics import Quantity, quantity_to_json
from trainmark.spec.numbers import Count, Finite, Whole
from trainmark.spec.plan import Plan
from trainmark.spec.telemetry import Telemetry
from trainmark.spec.timeline import RankTrace, Timeline
from trainmark.spec.workload_facts import WorkloadFacts

RECORD_SCHEMA = 2
# The history of the schema. A field that is only added changes no number: a reader keeps what it does not know, and
# what a record does not have was not recorded. The number changes where an older document must be rewritten to be read.
#   1  The first. `restarts`, `artifacts`, `data_facts` and `telemetry` came during it, so that a record may lack them.
#   2  Intervals are on the logarithm; before, they lay symmetrically around their value and could reach below zero.
#      Warm-up ends where steps stop becoming faster; before, steps that became slower could be taken for it.
#      Those four are always there; with `revision`, the source that ran, and `event_files`, the SHA-256 of each event
#      file the record was made of (empty where nobody took them).
KIND = "trainmark record"
ALL_STEPS = "all training steps"

Status = Literal["valid", "invalid", "incomplete"]


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A reason to trust the result less, in words; the code is for programs."""

    code: str
    text: str


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
    """What the rank that failed said; None where it could not."""
    damaged: tuple[str, ...] = ()
    """Checkpoints that could not be used."""


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
    environment: Environment = field(default_factory=Environment)
    doubts: tuple[Doubt, ...] = ()
    restarts: tuple[Restart, ...] = ()
    group: str | None = None
    """Runs of one `--repeat` share it."""
    skipped_files: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    data_facts: Mapping[str, float] = field(default_factory=dict)
    """How the data was read, such as the share of padding, as rank 0 saw it."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    """What the samplers saw of devices and hosts, thinned; empty where nothing was sampled."""
    event_files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of every file of events this was made of, by its name in the run's folder."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """What a newer version wrote and this one does not know: shown, and written back where it stood."""
    workload_facts: WorkloadFacts | None = None
    """What a reader needs to know of the workload where it is not installed; older records do not have it."""

    def __repr__(self) -> str:
        plan = self.plan
        return f"<Record {self.run_id}: {plan.workload} {plan.recipe_name} {plan.topology}, {self.status}>"

    def __str__(self) -> str:
        return VIEWS["text"](self) if "text" in VIEWS else repr(self)

    def _repr_html_(self) -> str | None:
        """What a notebook shows instead of the text."""
        return VIEWS["html"](self) if "html" in VIEWS else None

    @property
    def precision(self) -> str:
        """What the run was computed in, as its first step showed; what was asked for where that was not seen."""
        seen = self.environment.precision
        return seen.ran if seen else self.plan.precision

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = restored(self._known(), self.unknown)
        return document

    def _known(self) -> dict[str, Any]:
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
            "doubts": [asdict(doubt) for doubt in self.doubts],
            "phases": {phase: ns / 1e9 for phase, ns in self.timeline.phases_ns.items()},
            "restarts": [asdict(restart) for restart in self.restarts],
            "environment": self.environment.to_json(),
            "skipped_files": list(self.skipped_files),
            "artifacts": msgspec.to_builtins(self.artifacts),
            "data_facts": dict(self.data_facts),
            "telemetry": msgspec.to_builtins(self.telemetry),
            "event_files": dict(self.event_files),
            **({"workload_facts": self.workload_facts.to_json()} if self.workload_facts else {}),
            "series": {
                "warmup_steps": self.timeline.warmup_steps,
                "steady_from": self.timeline.steady_from,
                "loss": list(self.loss),
                "ranks": [_trace_to_json(trace) for trace in self.timeline.ranks],
            },
        }

    def dumps(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Record:
        """Of any schema up to this one; UsageError where it is no record, or a damaged or a newer one."""
        upgraded = upgrade(document)
        try:
            found = msgspec.convert(upgraded, _Document)
        except msgspec.ValidationError as error:
            raise UsageError(f"this record is damaged: {misfit(error)}") from error
        record = cls(
            plan=Plan.from_json(upgraded["plan"]),
            timeline=Timeline(
                ranks=tuple(_trace_from_json(trace) for trace in found.series.ranks),
                warmup_steps=found.series.warmup_steps,
                steady_from=found.series.steady_from,
            ),
            loss=found.series.loss,
            **{name: getattr(found, name) for name in _PLAIN},
        )
        known = {**record._known(), "environment": msgspec.to_builtins(record.environment)}
        unknown = beyond(upgraded, {**known, "telemetry": {"machines": known["telemetry"].get("machines", ())}})
        return replace(record, unknown=unknown) if unknown else record


def parse(content: bytes) -> Any:
    """The document in a file of records; UsageError where it is no JSON, holds half a sign, or nests without end."""
    try:
        return msgspec.json.decode(content)
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text") from None
    except RecursionError:
        raise UsageError("nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"not JSON: {misfit(error)}") from None


def upgrade(document: Mapping[str, Any]) -> dict[str, Any]:
    """A record's document as this version would have written it; UsageError where it is none, or a newer one."""
    if not isinstance(document, Mapping):
        raise UsageError("not a trainmark record: its JSON is not an object")
    schema = document.get("schema")
    if document.get("kind") != KIND or schema not in range(1, RECORD_SCHEMA + 1) or isinstance(schema, bool):
        raise UsageError(
            f"not a trainmark record of schema {RECORD_SCHEMA} (kind {document.get('kind')!r}, schema {schema!r})"
        )
    return dict(document) if schema == RECORD_SCHEMA else _from_1(document)


def _from_1(document: Mapping[str, Any]) -> dict[str, Any]:
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
        upgraded["metrics"] = {alias: _on_the_logarithm(found) for alias, found in metrics.items()}
    return upgraded


def _on_the_logarithm(quantity: Any) -> Any:
    """A quantity whose interval was as far below its value as above: as wide, and never below zero."""
    try:
        value, (low, high) = quantity["value"], quantity["interval"]
        return {**quantity, "interval": list(around(value, (high - low) / 2 / value))}
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # it has none, or is damaged, which is said later
        return quantity


VIEWS: dict[Literal["text", "html"], Callable[[Record], str]] = {}
"""How a record shows itself; whoever can draw one says so here, as drawing is not this room's business."""


def coverage(*, full: bool, steps: int, warmup: int) -> str:
    """Which of a run's steps its throughputs cover."""
    return ALL_STEPS if full else f"the steady part: {steps - warmup} steps after {warmup} of warm-up"


def _trace_to_json(trace: RankTrace) -> dict[str, Any]:
    # not asdict, which copies every number of every series
    document = {**vars(trace), "phases_ns": dict(trace.phases_ns), "items": _pack(trace.items)}
    for name in ("wait_ns", "compute_ns", "exchange_ns"):
        document[name] = list(document[name])
    if not trace.exchange_ns:
        del document["exchange_ns"]
    return document


class _Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A `RankTrace` as it is written: items are packed."""

    rank: Count
    host: str = ""
    phases_ns: dict[str, Count] = {}
    wait_ns: list[Count]
    compute_ns: list[Count]
    exchange_ns: list[Count] = []
    items: list[tuple[Count, Count]]
    memory_peak_bytes: Count | None = None

    def __post_init__(self) -> None:
        steps = len(self.compute_ns)
        if not len(self.wait_ns) == sum(count for count, _ in self.items) == steps or len(self.exchange_ns) > steps:
            raise ValueError(f"{steps} steps have one wait and one count of items each")


class _Series(msgspec.Struct, frozen=True, kw_only=True):
    warmup_steps: Count
    steady_from: Count
    loss: list[Finite | None]
    ranks: Annotated[list[_Trace], msgspec.Meta(min_length=1)]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a record's document holds, beside its plan and what follows from the series."""

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
    workload_facts: WorkloadFacts | None = None
    plan: dict[str, Any]
    series: _Series


_PLAIN = tuple(name for name in _Document.__struct_fields__ if name not in ("plan", "series"))


def _trace_from_json(trace: _Trace) -> RankTrace:
    return RankTrace(
        rank=trace.rank,
        host=trace.host,
        phases_ns=trace.phases_ns,
        wait_ns=trace.wait_ns,
        compute_ns=trace.compute_ns,
        exchange_ns=trace.exchange_ns or (),
        items=_unpack(trace.items),
        memory_peak_bytes=trace.memory_peak_bytes,
    )


def _pack(items: Sequence[int]) -> list[list[int]]:
    """Items of a step are nearly always the same number: [count, value] pairs keep a long run's record small."""
    return [[len(list(alike)), value] for value, alike in groupby(items)]


def _unpack(runs: Sequence[tuple[int, int]]) -> list[int]:
    items: list[int] = []
    for count, value in runs:
        items += [value] * count
    return items
