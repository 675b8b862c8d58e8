"""Makes one record out of what the ranks of a run wrote down, whether or not they reached the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import trainmark
from trainmark.run.doubts import Facts, collect
from trainmark.run.events import EventTail
from trainmark.spec import series
from trainmark.spec.errors import NotReadyError
from trainmark.spec.metrics import Measured, Quantity, measure
from trainmark.spec.plan import Plan
from trainmark.spec.record import Artifact, Evaluation, Quality, Record, Status
from trainmark.spec.target import Target
from trainmark.spec.timeline import RankTrace, Timeline


@dataclass(kw_only=True)
class RankStory:
    """One rank's events, added up."""

    rank: int = 0
    host: str = ""
    pid: int | None = None
    startup_ns: int = 0
    steps_per_epoch: int | None = None
    first_step: int = 0
    wait_ns: list[int] = field(default_factory=list)
    compute_ns: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    resumed: dict[str, Any] | None = None
    phases_ns: dict[str, int] = field(default_factory=dict)
    memory_peak_bytes: int | None = None
    end: dict[str, Any] | None = None
    failed: dict[str, Any] | None = None
    artifacts: list[dict[str, str]] = field(default_factory=list)
    no_sample: str | None = None
    """Why the trained model left no sample of its work, where it should have."""
    torn: bool = False
    """The event file ends in the middle of a line, which was dropped."""
    phase: str = "startup"
    """What this rank was last seen doing."""

    def add(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "begin":
            self.rank, self.host, self.pid = event["rank"], event["host"], event["pid"]
            self.startup_ns, self.phase = event["startup_ns"], "init"
        elif kind == "environment":
            self.environment = event
        elif kind == "resumed":
            self.resumed = event
        elif kind == "ready":
            self.steps_per_epoch, self.first_step, self.phase = event["steps_per_epoch"], event["first_step"], "train"
        elif kind == "steps":
            self.phase = "train"
            for name in ("wait_ns", "compute_ns", "items", "loss"):
                getattr(self, name).extend(event[name])
        elif kind == "alive":
            self.phase = event["phase"]
        elif kind == "evaluation":
            self.evaluations.append(event)
            self.phase = "train"
        elif kind == "phases":
            self.phases_ns, self.memory_peak_bytes = event["phases_ns"], event["memory_peak_bytes"]
        elif kind == "artifacts":
            self.artifacts = event["artifacts"]
        elif kind == "no-sample":
            self.no_sample = event["reason"]
        elif kind == "end":
            self.end, self.phase = event, "end"
        elif kind == "failed":
            self.failed = event

    def trace(self) -> RankTrace:
        return RankTrace(
            rank=self.rank,
            host=self.host,
            phases_ns=self.phases_ns or {"startup": self.startup_ns},
            wait_ns=self.wait_ns,
            compute_ns=self.compute_ns,
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
    steady_from = series.steady_start(whole.compute_s, whole.step_items) if whole.steps else 0
    warmup = 0 if plan.limits.full else steady_from
    timeline = Timeline(ranks=traces, warmup_steps=warmup, steady_from=steady_from)
    target = Target(**head["target"])
    quality = _quality(target, plan, first)
    status, ended = _status(ranks, launcher)
    measured = Measured(
        item=head["item"],
        timeline=timeline,
        memory_capacity_bytes=first.environment.get("device", {}).get("memory_bytes"),
        steps_planned=_planned(plan, first, reached=quality.reached and plan.limits.full),
        target_reached_ns=_reached_ns(target, plan, first),
    )
    metrics = measure(measured)
    if status == "invalid":
        metrics = {alias: _withheld(alias, quantity) for alias, quantity in metrics.items()}
    environment = {**first.environment, **launcher.get("machine", {})}
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
        loss=first.loss,
        environment=environment,
        doubts=collect(
            Facts(
                plan=plan,
                status=status,
                timeline=timeline,
                metrics=metrics,
                quality=quality,
                environment=environment,
                reference_global_batch=head["reference_global_batch"],
                resumed=first.resumed,
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


def _status(ranks: list[RankStory], launcher: dict[str, Any]) -> tuple[Status, str]:
    failures = [story.failed for story in ranks if story.failed]
    if failures:
        first = min(failures, key=lambda failure: failure["at_ns"])
        return "invalid" if first["exit_code"] == 5 else "incomplete", first["sentence"]
    if "fault" in launcher:
        return "incomplete", launcher["fault"]["sentence"]
    if any(story.end is None for story in ranks):
        return "incomplete", "the run was cut off"
    ended = ranks[0].end["ended"] if ranks[0].end else ""
    return ("incomplete" if ended in ("interrupted", "terminated") else "valid"), ended


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
    if plan.limits.steps is not None:
        return plan.limits.steps
    if not plan.limits.full or story.steps_per_epoch is None:
        return None
    if reached:
        return len(story.compute_ns)
    epochs = min(int(plan.recipe["epochs"]), plan.limits.epochs or int(plan.recipe["epochs"]))
    return epochs * story.steps_per_epoch - story.first_step


def _withheld(alias: str, quantity: Quantity) -> Quantity:
    """No throughput is published from a run whose loss was not finite."""
    if not alias.startswith("p_"):
        return quantity
    return Quantity(value=None, unit=quantity.unit, unavailable="the result is not valid")
