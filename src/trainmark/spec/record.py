"""What a run leaves behind: one JSON document, written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Literal

import msgspec

from trainmark.spec.artifact import Artifact
from trainmark.spec.errors import UsageError
from trainmark.spec.metrics import Quantity, quantity_from_json, quantity_to_json
from trainmark.spec.plan import Plan
from trainmark.spec.timeline import RankTrace, Timeline

RECORD_SCHEMA = 1
MOST_STEPS = 100_000_000
"""No run is longer; a damaged count must not take all memory."""
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

    step: int
    epoch: float | None
    """None where the data is a stream without epochs."""
    values: Mapping[str, float]
    samples: int


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How good the trained model was, by the workload's target."""

    name: str
    unit: str
    goal: float
    better: str
    value: float | None = None
    """From the last evaluation."""
    reached: bool = False
    history: tuple[Evaluation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The ranks were started again during the run."""

    step: int
    """Where they went on: at the newest checkpoint, or at the beginning."""
    lost_s: float
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
    environment: Mapping[str, Any] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    restarts: tuple[Restart, ...] = ()
    group: str | None = None
    """Runs of one `--repeat` share it."""
    skipped_files: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    data_facts: Mapping[str, float] = field(default_factory=dict)
    """How the data was read, such as the share of padding, as rank 0 saw it."""
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    """What the samplers saw of devices and hosts, thinned; empty where nothing was sampled."""

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
        seen = self.environment.get("precision")
        return str(seen.get("ran", self.plan.precision)) if isinstance(seen, Mapping) else self.plan.precision

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": RECORD_SCHEMA,
            "kind": "trainmark record",
            "run_id": self.run_id,
            "created": self.created,
            "trainmark": self.trainmark,
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
            "environment": dict(self.environment),
            "skipped_files": list(self.skipped_files),
            "artifacts": msgspec.to_builtins(self.artifacts),
            "data_facts": dict(self.data_facts),
            "telemetry": dict(self.telemetry),
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
        if not isinstance(document, Mapping):
            raise UsageError("not a trainmark record: its JSON is not an object")
        if document.get("kind") != "trainmark record" or document.get("schema") != RECORD_SCHEMA:
            raise UsageError(
                f"not a trainmark record of schema {RECORD_SCHEMA} (kind {document.get('kind')!r}, "
                f"schema {document.get('schema')!r})"
            )
        try:
            return cls._read(document)
        except (KeyError, TypeError, IndexError) as error:
            raise UsageError(f"this record is damaged: {type(error).__name__} {error}") from error

    @classmethod
    def _read(cls, document: Mapping[str, Any]) -> Record:
        quality = dict(document["quality"])
        quality["history"] = tuple(Evaluation(**evaluation) for evaluation in quality["history"])
        return cls(
            run_id=document["run_id"],
            created=document["created"],
            trainmark=document["trainmark"],
            status=document["status"],
            ended=document["ended"],
            group=document["group"],
            plan=Plan.from_json(document["plan"]),
            item=document["item"],
            metrics={alias: quantity_from_json(entry) for alias, entry in document["metrics"].items()},
            coverage=document["coverage"],
            quality=Quality(**quality),
            doubts=tuple(Doubt(**doubt) for doubt in document["doubts"]),
            restarts=tuple(_restart_from_json(restart) for restart in document.get("restarts", ())),
            environment=document["environment"],
            skipped_files=tuple(document["skipped_files"]),
            artifacts=tuple(Artifact(**artifact) for artifact in document.get("artifacts", ())),
            data_facts=document.get("data_facts", {}),
            telemetry=document.get("telemetry", {}),
            loss=document["series"]["loss"],
            timeline=Timeline(
                ranks=tuple(_trace_from_json(trace) for trace in document["series"]["ranks"]),
                warmup_steps=document["series"]["warmup_steps"],
                steady_from=document["series"]["steady_from"],
            ),
        )


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


def _trace_from_json(document: Mapping[str, Any]) -> RankTrace:
    return RankTrace(**{**document, "items": _unpack(document["items"])})


def _restart_from_json(document: Mapping[str, Any]) -> Restart:
    return Restart(**{**document, "damaged": tuple(document["damaged"])})


def _pack(items: Sequence[int]) -> list[list[int]]:
    """Items of a step are nearly always the same number: [count, value] pairs keep a long run's record small."""
    return [[len(list(alike)), value] for value, alike in groupby(items)]


def _unpack(runs: Sequence[Sequence[int]]) -> list[int]:
    if sum(count for count, _ in runs) > MOST_STEPS:
        raise UsageError(f"this record is damaged: it counts items of more than {MOST_STEPS} steps")
    items: list[int] = []
    for count, value in runs:
        items += [value] * count
    return items
