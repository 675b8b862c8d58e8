"""Makes one record out of what the ranks of a run wrote down, whether or not they reached the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import trainmark
from trainmark.spec import statistics
from trainmark.spec.doubts import Facts, collect
from trainmark.spec.errors import NotReadyError
from trainmark.spec.events import EventTail
from trainmark.spec.metrics import Measured, measure, withhold
from trainmark.spec.plan import Plan
from trainmark.spec.record import Artifact, Evaluation, Quality, Record, Restart, Status
from trainmark.spec.target import Target
from trainmark.spec.timeline import RankTrace, Timeline
from trainmark.spec.topology import Topology
from trainmark.store import telemetry as samplers

SERIES = ("wait_ns", "compute_ns", "exchange_ns", "items", "loss")
"""What a rank writes down of every step."""


@dataclass(kw_only=True)
class _Again:
    """A worker that was started again and has not said yet from which step it goes on."""

    startup_ns: int
    reason: str | None
    """What the worker before it said of its failure, unless it only followed from another rank's."""
    damaged: tuple[str, ...] = ()


@dataclass(kw_only=True)
class RankStory:
    """One rank's events, added up."""

    rank: int = 0
    host: str = ""
    pid: int | None = None
    restart: int = 0
    """How often torchrun had started the ranks again when this worker began."""
    startup_ns: int = 0
    steps_per_epoch: int | None = None
    items_per_step: float | None = None
    first_step: int = 0
    wait_ns: list[int] = field(default_factory=list)
    compute_ns: list[int] = field(default_factory=list)
    exchange_ns: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] | None = None
    """What the steps were really computed in."""
    resumed: dict[str, Any] | None = None
    restarts: list[Restart] = field(default_factory=list)
    link: list[dict[str, Any]] = field(default_factory=list)
    """What the links between the ranks were measured to carry."""
    flops: dict[str, Any] = field(default_factory=dict)
    """Of an item, with the peak of a device and where that is from."""
    saved: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """For each checkpoint its step and the phases until then."""
    before_ns: dict[str, int] = field(default_factory=lambda: {"startup": 0})
    """All time until the worker's first line that is not steps: start-up, and what a restart kept and lost."""
    phases_ns: dict[str, int] = field(default_factory=dict)
    memory_peak_bytes: int | None = None
    end: dict[str, Any] | None = None
    failed: dict[str, Any] | None = None
    artifacts: list[dict[str, str]] = field(default_factory=list)
    no_sample: str | None = None
    """Why the trained model left no sample of its work, where it should have."""
    torn: bool = False
    """The event file ends in the middle of a line, which was dropped."""
    span: samplers.Span = field(default_factory=samplers.Span)
    phase: str = "startup"
    """What this rank was last seen doing."""
    _again: _Again | None = None

    def add(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "begin":
            self._begin(event)
        elif kind == "environment":
            self.environment = event
        elif kind == "precision":
            self.precision = event
        elif kind == "resumed":
            if self._again is None:
                self.resumed = event
            else:
                self._again.damaged = tuple(event["damaged"])
        elif kind == "ready":
            self.steps_per_epoch, self.items_per_step = event["steps_per_epoch"], event.get("items_per_step")
            self.phase = "train"
            if self.span.from_ns is None:
                self.span = samplers.Span(from_ns=event.get("at_ns"))
            if self._again is None:
                self.first_step = event["first_step"]
            else:
                self._go_on_from(event["first_step"], self._again)
        elif kind == "steps":
            self.phase = "train"
            for name in SERIES:
                getattr(self, name).extend(event.get(name, ()))
        elif kind == "alive":
            self.phase = event["phase"]
        elif kind == "evaluation":
            self.evaluations.append(event)
            self.phase = "train"
        elif kind == "link":
            self.link = event["results"]
        elif kind == "flops":
            self.flops = event
        elif kind == "saved":
            self.saved.append((event["step"], self._whole(event["phases_ns"])))
            self.phase = "train"
        elif kind == "phases":
            self.phases_ns, self.memory_peak_bytes = self._whole(event["phases_ns"]), event["memory_peak_bytes"]
            self.span = replace(self.span, until_ns=event.get("at_ns"))
        elif kind == "artifacts":
            self.artifacts = event["artifacts"]
        elif kind == "no-sample":
            self.no_sample = event["reason"]
        elif kind == "end":
            self.end, self.phase = event, "end"
        elif kind == "failed":
            self.failed = event

    def _begin(self, event: dict[str, Any]) -> None:
        """The worker's first line. What an earlier worker left is kept until it is known where this one goes on."""
        if self.pid is None:
            self.startup_ns, self.before_ns = event["startup_ns"], {"startup": event["startup_ns"]}
        else:
            failed = self.failed or {"consequence": True}
            reason = None if failed.get("consequence") else failed["sentence"]
            self._again = _Again(startup_ns=event["startup_ns"], reason=reason)
        self.rank, self.host, self.pid, self.phase = event["rank"], event["host"], event["pid"], "init"
        self.restart = event.get("restart", 0)
        self.failed = self.end = None

    def _go_on_from(self, step: int, again: _Again) -> None:
        """Drops what is trained again, and charges to `restart` all time that left nothing behind."""
        kept = max(0, step - self.first_step)
        for name in SERIES:
            del getattr(self, name)[kept:]
        self.saved = [(at, phases) for at, phases in self.saved if kept and at <= step]
        self.evaluations = [event for event in self.evaluations if kept and event["step"] <= step]
        self.first_step = self.first_step if kept else step
        phases = dict(self.saved[-1][1]) if self.saved else {"startup": self.startup_ns}
        lost_ns = max(0, again.startup_ns - sum(phases.values()) - sum(self.wait_ns) - sum(self.compute_ns))
        self.before_ns = {**phases, "restart": phases.get("restart", 0) + lost_ns}
        self.phases_ns, self._again = {}, None
        self.restarts.append(Restart(step=step, lost_s=lost_ns / 1e9, reason=again.reason, damaged=again.damaged))

    def _whole(self, phases_ns: dict[str, int]) -> dict[str, int]:
        """A worker's phases with those before it; what it calls start-up is all that was before it."""
        whole = dict(self.before_ns)
        for phase, ns in phases_ns.items():
            if phase != "startup":
                whole[phase] = whole.get(phase, 0) + ns
        return whole

    def trace(self) -> RankTrace:
        return RankTrace(
            rank=self.rank,
            host=self.host,
            phases_ns=self.phases_ns or self.before_ns,
            wait_ns=self.wait_ns,
            compute_ns=self.compute_ns,
            exchange_ns=self.exchange_ns or (),
            items=self.items,
            memory_peak_bytes=self.memory_peak_bytes,
        )


def read_ranks(folder: Path) -> list[RankStory]:
    stories = []
    for path in sorted(folder.glob("rank*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank"))):
        story, tail = RankStory(), EventTail(path)
        for event in tail.new_events():
            story.add(event)
        story.torn = tail.torn
        stories.append(story)
    return stories


def record(folder: Path) -> Record:
    """The record of a run folder. A run that did not reach its end gives an incomplete one, with all it measured."""
    try:
        head = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        plan = Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError) as error:
        raise NotReadyError(f"{folder} is not a run folder: {error}") from error
    ranks = read_ranks(folder) or [RankStory()]
    launcher = _launcher_events(folder)
    first = ranks[0]
    traces = tuple(story.trace() for story in ranks)
    whole = Timeline(ranks=traces)
    steady_from = statistics.steady_start(whole.compute_s, whole.step_items) if whole.steps else 0
    warmup = 0 if plan.limits.full else steady_from
    timeline = Timeline(ranks=traces, warmup_steps=warmup, steady_from=steady_from)
    target = Target(**head["target"])
    quality = _quality(target, plan, first)
    status, ended = _status(plan, ranks, launcher)
    machines = samplers.read(folder, {story.rank: story.span for story in ranks})
    measured = Measured(
        item=head["item"],
        timeline=timeline,
        memory_capacity_bytes=first.environment.get("device", {}).get("memory_bytes"),
        steps_planned=_planned(plan, first, reached=quality.reached and plan.limits.full),
        target_reached_ns=_reached_ns(target, plan, first),
        sensed=samplers.sensed(machines, Topology.parse(plan.topology).nodes),
        flops_per_item=first.flops.get("per_item"),
        peak_tflops=first.flops.get("peak_tflops"),
        peak_source=first.flops.get("peak_source"),
    )
    metrics = measure(measured)
    if status == "invalid":
        metrics = withhold(metrics)
    seen = {"link": first.link, "flops": first.flops, "precision": first.precision, "fill": launcher.get("fill")}
    found = {name: facts for name, facts in seen.items() if facts}
    others = samplers.foreign_load(machines)
    environment = {**first.environment, **found, **({} if others is None else {"foreign_load": others})}
    telemetry = samplers.document(machines)
    restarts = _restarts(ranks)
    return Record(
        run_id=head["run_id"],
        created=head["created"],
        trainmark=trainmark.__version__,
        status=status,
        ended=ended,
        group=head["group"],
        plan=plan,
        item=head["item"],
        metrics=metrics,
        coverage="all training steps"
        if plan.limits.full
        else f"the steady part: {whole.steps - warmup} steps after {warmup} of warm-up",
        quality=quality,
        timeline=timeline,
        loss=_loss(ranks, whole.steps),
        restarts=restarts,
        environment=environment,
        telemetry=telemetry,
        doubts=collect(
            Facts(
                plan=plan,
                status=status,
                timeline=timeline,
                metrics=metrics,
                quality=quality,
                environment=environment,
                telemetry=telemetry,
                reference_global_batch=head["reference_global_batch"],
                resumed=first.resumed,
                restarts=restarts,
                torn_ranks=tuple(story.rank for story in ranks if story.torn),
                no_sample=first.no_sample,
            )
        ),
        skipped_files=tuple((first.end or {}).get("skipped", ())),
        artifacts=tuple(Artifact(**artifact) for artifact in first.artifacts),
        data_facts=_finite((first.end or {}).get("facts", {})),
    )


def now_utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _launcher_events(folder: Path) -> dict[str, Any]:
    return {event.pop("event"): event for event in EventTail(folder / "launcher.jsonl").new_events()}


def _status(plan: Plan, ranks: list[RankStory], launcher: dict[str, Any]) -> tuple[Status, str]:
    fault = launcher.get("fault") or _first_failure(ranks)  # the launcher has weighed what the ranks said
    if fault:
        return "invalid" if fault["exit_code"] == 5 else "incomplete", fault["sentence"]
    wanted = set(range(Topology.parse(plan.topology).devices))
    if absent := wanted - {story.rank for story in ranks}:
        return "incomplete", f"nothing came from rank {', '.join(map(str, sorted(absent)))}"
    if any(story.end is None for story in ranks):
        return "incomplete", "the run was cut off"
    ended = ranks[0].end["ended"] if ranks[0].end else ""
    return ("incomplete" if ended in ("interrupted", "terminated") else "valid"), ended


def _first_failure(ranks: list[RankStory]) -> dict[str, Any] | None:
    """Of a run whose launcher could not say it. Clocks of hosts differ, so only causes go before consequences."""
    failures = [story.failed for story in ranks if story.failed]
    return min(failures, key=lambda failure: bool(failure.get("consequence")), default=None)


def _loss(ranks: list[RankStory], steps: int) -> list[float | None]:
    """The loss of each step's global batch: ranks weigh theirs by their share, so it is the plain mean."""
    if len(ranks) == 1:
        return ranks[0].loss
    return [_mean(losses) for losses in islice(zip(*(story.loss for story in ranks), strict=False), steps)]


def _mean(losses: tuple[float | None, ...]) -> float | None:
    finite = [loss for loss in losses if loss is not None]
    return float(f"{sum(finite) / len(losses):.7g}") if len(finite) == len(losses) else None


def _restarts(ranks: list[RankStory]) -> tuple[Restart, ...]:
    """As rank 0 saw them, each with what the rank that failed could say of itself."""
    found = []
    for index, restart in enumerate(ranks[0].restarts):
        told = [story.restarts[index].reason for story in ranks if len(story.restarts) > index]
        found.append(replace(restart, reason=next((reason for reason in told if reason), None)))
    return tuple(found)


def _quality(target: Target, plan: Plan, story: RankStory) -> Quality:
    history = tuple(
        Evaluation(step=event["step"], epoch=event["epoch"], values=_finite(event["values"]), samples=event["samples"])
        for event in story.evaluations
    )
    goal = float(plan.recipe["target"])
    value = history[-1].values.get(target.name) if history else None
    return Quality(
        name=target.name,
        unit=target.unit,
        goal=goal,
        better=target.better,
        value=value,
        reached=value is not None and target.reached(value, goal),
        history=history,
    )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """A value that is not finite has no place in a JSON document: it is missing there."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _reached_ns(target: Target, plan: Plan, story: RankStory) -> int | None:
    for event in story.evaluations:
        value = event["values"].get(target.name)
        if value is not None and target.reached(value, float(plan.recipe["target"])):
            return int(event["elapsed_ns"])
    return None


def _planned(plan: Plan, story: RankStory, *, reached: bool) -> int | None:
    """How many steps the run was to take, as far as that is fixed."""
    if reached:
        return len(story.compute_ns)
    last = plan.last_step(
        first_step=story.first_step, steps_per_epoch=story.steps_per_epoch, items_per_step=story.items_per_step
    )
    return None if last is None else last - story.first_step
