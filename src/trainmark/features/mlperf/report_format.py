"""Writes one of our runs as an MLPerf result log, from its events; nothing it cannot claim is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from trainmark.features.mlperf.benchmarks import Benchmark, compute_global_batch, find_benchmark
from trainmark.record.errors import UsageError
from trainmark.record.escape import terminal
from trainmark.record.plan import Topology
from trainmark.record.precision import Precision
from trainmark.record.recipe import Span
from trainmark.record.record import Record
from trainmark.record.run_folder import RankLog, read_rank

WORDS = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bfloat16", "float16": "fp16", "float8_e4m3fn": "fp8"}
"""The rules' names of types."""
Event = tuple[int, str, Any, dict[str, Any]]
"""Nanoseconds since the launch, key, value and metadata."""
NO_ORGANISATION = "not submitted"
"""The organisation in a log that is not submitted."""


@dataclass(frozen=True, kw_only=True)
class MlperfRun:
    """A run and what its log needs."""

    record: Record
    log: RankLog
    """Of rank 0, which evaluates."""
    benchmark: Benchmark

    @property
    def values(self) -> Mapping[str, Any]:
        """The recipe's fields, and what follows from them."""
        plan, recipe = self.record.plan, self.record.plan.recipe
        shared = Topology.parse(plan.topology).devices if recipe.get("batch_norm") == "all-devices" else 1
        tensor = int(recipe.get("tensor_parallel", 1))
        return {
            **recipe,
            "tensor_parallel": tensor,
            "micro_batch": int(recipe["batch_per_device"]) * tensor,
            "evaluate_samples": self._evaluate_samples,
            "global_batch": compute_global_batch(self.record),
            "bn_span": int(recipe["batch_per_device"]) * shared,
            "steps_per_epoch": self.log.steps_per_epoch,
            "train_samples": _as_integer(self.record.data_facts.get("train_samples")),
            "eval_samples": self.log.evaluations[-1].samples,
            **self._types,
            **self._decay,
            "zero": 0,
            "one": 1,
            "adamw": "adamw",
            "recipe_file": "recipe.json",
            "clip": recipe.get("clip_gradient_norm") or None,
        }

    @property
    def by_samples(self) -> bool:
        """Whether logs of the benchmark count samples, and not epochs."""
        return self.benchmark.units[-1] == "samples"

    @property
    def _evaluate_samples(self) -> float | None:
        """From one evaluation to the next; None where they are counted in epochs, or there is only one."""
        recipe: Mapping[str, Any] = self.record.plan.recipe
        if recipe.get("evaluate_every", "end") == "end":
            return None
        span = Span.parse(recipe["evaluate_every"])
        per_unit = {"steps": compute_global_batch(self.record), "items": 1 / recipe.get("context", 1)}.get(span.unit)
        return None if per_unit is None else span.count * per_unit

    @property
    def _types(self) -> dict[str, str]:
        """The lowest precision of matmuls and collectives, by the rules' names; empty where they have none. Only linear
        layers use scaled types. Sharded ranks send weights in the compute type, others in the weights' type."""
        precision = Precision.parse(self.record.precision)
        linear, computed = WORDS.get(precision.computes_in), WORDS.get(precision.unscaled)
        sharded = self.record.plan.recipe.get("parallel") in ("fsdp", "hsdp")
        exchanged = computed if sharded else WORDS.get(precision.weights)
        if not (linear and computed and exchanged):
            return {}
        return {"linear_in": linear, "computed_in": computed, "exchanged_in": exchanged}

    @property
    def _decay(self) -> dict[str, Any]:
        """How the learning rate decays, where it does so in a way the rules know."""
        recipe: Mapping[str, Any] = self.record.plan.recipe
        per_epoch = self.log.steps_per_epoch
        if recipe.get("schedule") == "poly":
            steps = recipe["epochs"] * per_epoch if recipe.get("epochs") is not None and per_epoch else None
            ends = {"poly_end_rate": recipe.get("end_learning_rate"), "poly_power": recipe.get("decay_power")}
            return {**ends, "poly_steps": steps}
        if recipe.get("schedule") == "cosine":
            steps = recipe["decay_steps"] - recipe["warmup_steps"] if recipe.get("decay_steps") else None
            ends = {"cosine_end_rate": recipe["learning_rate"] * recipe.get("last_rate", 0), "cosine_steps": steps}
            return {**ends, "cosine_name": "cosine with linear warmup"}
        return {}

    @property
    def why_open(self) -> tuple[str, ...]:
        """What keeps the run out of the closed division; nothing where it may be in it."""
        if self.benchmark.target is None:
            return (f"the target of {self.benchmark.name} is not one number",)
        values, rules = self.values, _load_rules()[self.benchmark.name]
        fixed = {one.name: [one.reference] for one in self.record.plan.deviations if one.name not in rules["free"]}
        found = []
        for field, choices in {**fixed, **rules["closed"]}.items():
            if values.get(field) not in choices:
                required = " or ".join(map(_format_value, choices))
                found.append(f"{field} is {_format_value(values.get(field))}, the closed division requires {required}")
        goal = self.benchmark.target * (100 if self.record.quality.unit == "%" else 1)
        target = values.get("target")
        if target is None or (target > goal if self.benchmark.better == "lower" else target < goal):
            found.append(f"target is {_format_value(target)}, the closed division requires {goal:g}")
        return tuple(found)


@cache
def _load_rules() -> Mapping[str, Mapping[str, Any]]:
    rules: dict[str, dict[str, Any]] = msgspec.toml.decode(
        files("trainmark.features.mlperf").joinpath("rules.toml").read_bytes()
    )
    return rules


def open_run(record: Record, folder: Path) -> MlperfRun:
    """A run and its events; UsageError where it cannot be an MLPerf result."""
    plan, known = record.plan, find_benchmark(record.plan.workload)
    if known is None:
        raise UsageError(f"run {record.run_id} is of {plan.workload}, which is no benchmark of MLPerf Training")
    log = read_rank(folder, 0) if (folder / "rank0.jsonl").is_file() else None
    obstacles = {
        f"it is {record.status}: {terminal(record.ended)}": record.status != "valid",
        "it trained on synthetic data, on which no accuracy claim may rest; give the real set by --data": (
            plan.data.synthetic
        ),
        "it began with weights from a file": plan.init_from,
        "it resumed from a checkpoint, so its clock was interrupted": plan.resume_from or record.restarts,
        f"its events are not in {folder}; name a run of a store that has them": log is None,
        "it was never evaluated": log and not log.evaluations,
    }
    why = next((why for why, holds in obstacles.items() if holds), None)
    if why or log is None:
        raise UsageError(f"run {record.run_id} cannot be an MLPerf result: {why}")
    return MlperfRun(record=record, log=log, benchmark=known)


def format_log(
    run: MlperfRun, *, division: str, org: str = NO_ORGANISATION, platform: str = "", status: str = "research"
) -> str:
    """The log, line by line."""
    record = run.record
    launched_ms = datetime.fromisoformat(record.created.replace("Z", "+00:00")).timestamp() * 1000
    head = {
        "submission_benchmark": run.benchmark.name,
        "submission_division": division,
        "submission_org": org,
        "submission_platform": platform or describe_platform(record),
        "submission_status": status,
        "cache_clear": False,  # no caches are cleared before a run
        "trainmark": _list_provenance(record),
    }
    # Everything a worker does from its first line on counts as the run: it opens its data and tries a batch there,
    # which the rules allow no initialisation to touch.
    started = run.log.startup_ns
    ended = run.log.evaluations[-1].elapsed_ns
    if not record.quality.reached:
        ended = max(ended, sum((run.log.phases_ns or run.log.before_ns).values()) + run.log.busy_ns)
    events = [
        *((0, key, value, {}) for key, value in head.items()),
        (0, "init_start", None, {}),
        *((started, key, value, {}) for key, value in _list_settings(run)),
        (started, "init_stop", None, {}),
        (started, "run_start", None, {}),
        *_list_training(run),
        (ended, "run_stop", None, {"status": "success" if record.quality.reached else "aborted"}),
    ]
    kinds = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
    lines = []
    for elapsed_ns, key, value, metadata in events:
        entry = {
            "namespace": "",
            "time_ms": round(launched_ms + elapsed_ns / 1e6),
            "event_type": kinds.get(key.rpartition("_")[2], "POINT_IN_TIME"),
            "key": key,
            "value": value,
            "metadata": {"file": "trainmark", "lineno": 0, **metadata},
        }
        lines.append(f":::MLLOG {json.dumps(entry)}\n")
    return "".join(lines)


def _list_training(run: MlperfRun) -> Iterator[Event]:
    """Epochs and evaluations. An evaluation lasts from the step before it to its event: what lies between, such
    as a checkpoint, counts as evaluation."""
    log, per_epoch = run.log, None if run.by_samples else run.log.steps_per_epoch
    scored = {evaluation.step: evaluation for evaluation in log.evaluations}
    now = log.startup_ns + log.phases_ns.get("init", log.before_ns.get("init", 0))
    if first := scored.get(0):
        yield from _list_evaluation(run, now, first)
        now = max(now, first.elapsed_ns)
    batch, since = run.values["global_batch"], 0
    for step, (wait_ns, compute_ns) in enumerate(zip(log.wait_ns, log.compute_ns, strict=True), 1):
        if per_epoch and (step - 1) % per_epoch == 0:
            yield now, "epoch_start", None, {"epoch_num": (step - 1) // per_epoch + 1}
        elif not per_epoch and step == since + 1:
            yield now, "block_start", None, {"samples_count": since * batch}
        now += wait_ns + compute_ns
        if per_epoch and step % per_epoch == 0:
            yield now, "epoch_stop", None, {"epoch_num": step // per_epoch}
        if (evaluation := scored.get(step)) is not None:
            if not per_epoch:
                yield now, "block_stop", None, {"samples_count": (step - since) * batch}
            since = step
            yield from _list_evaluation(run, now, evaluation)
            now = max(now, evaluation.elapsed_ns)


def _list_evaluation(run: MlperfRun, now: int, evaluation: Any) -> Iterator[Event]:
    place = (
        {"epoch_num": _as_integer(evaluation.epoch)}
        if evaluation.epoch is not None and not run.by_samples
        else {"samples_count": evaluation.step * run.values["global_batch"]}
    )
    quality = run.record.quality
    value = evaluation.values.get(quality.name)
    ended = max(now, evaluation.elapsed_ns)
    yield now, "eval_start", None, place
    yield ended, "eval_stop", None, place
    if value is not None:
        yield ended, "eval_accuracy", value / 100 if quality.unit == "%" else value, place


def _list_settings(run: MlperfRun) -> list[tuple[str, Any]]:
    """The hyperparameters a log states; what does not hold for the run's recipe is left out."""
    values, tables = run.values, _load_rules()[run.benchmark.name]
    keys = {
        "seed": "seed",
        "global_batch_size": "global_batch",
        "gradient_accumulation_steps": "accumulate",
        "train_samples": "train_samples",
        "eval_samples": "eval_samples",
        **tables["keys"],
        **tables.get(values.get("optimizer", ""), {}),
    }
    return [(key, _as_integer(values[field])) for key, field in keys.items() if values.get(field) is not None]


def describe_platform(record: Record) -> str:
    """`2x8 NVIDIA H100`."""
    device = record.environment.device.name or record.plan.platform_word
    return f"{record.plan.topology} {device}"


def _list_provenance(record: Record) -> dict[str, Any]:
    plan = record.plan
    return {
        "run": record.run_id,
        "version": record.trainmark,
        "revision": record.revision,
        "recipe": plan.recipe_name,
        "differs": [str(deviation) for deviation in plan.deviations],
        "precision": record.precision,
        "doubts": [doubt.text for doubt in record.doubts],
        "rank0": record.event_files.get("rank0.jsonl"),
    }


def _as_integer(value: Any) -> Any:
    """3.0 as 3, which is how logs count."""
    return int(value) if isinstance(value, float) and value == int(value) else value


def _format_value(value: Any) -> str:
    return "not known" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def choose_division(runs: Sequence[MlperfRun], requested: str | None) -> str:
    """The division of runs that are one result: closed where all may be, unless requested otherwise."""
    reasons = [reason for run in runs for reason in run.why_open]
    if requested == "closed" and reasons:
        raise UsageError(f"these runs are not of the closed division: {reasons[0]}; --division open takes them")
    return requested or ("open" if reasons else "closed")


def write_log(records: Sequence[Record], *, language: str, folders: Mapping[str, Path]) -> str:
    """The log of one run; which division it may be in is part of it."""
    if len(records) != 1:
        raise UsageError(
            f"mllog is the log of one run, and {len(records)} are meant; name one, or see 'trainmark package'"
        )
    run = open_run(records[0], folders.get(records[0].run_id, Path()))
    return format_log(run, division=choose_division([run], None))


FORMATS = {"mllog": write_log}
