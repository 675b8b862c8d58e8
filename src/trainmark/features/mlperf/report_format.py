"""Writes one of our runs as an MLPerf result log, from its events; nothing it cannot claim is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trainmark.features.mlperf.benchmarks import Benchmark, compute_global_batch, find_benchmark
from trainmark.record.errors import UsageError
from trainmark.record.plan import Topology
from trainmark.record.precision import Precision
from trainmark.record.record import Record
from trainmark.record.run_folder import RankLog, read_rank

WORDS = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bfloat16", "float16": "fp16", "float8_e4m3fn": "fp8"}
"""The rules' names of types."""
CLOSED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "resnet": {
        "optimizer": ("sgd", "lars"), "schedule": ("poly",), "decay_power": (2,), "end_learning_rate": (0.0001,),
        "momentum": (0.9,), "label_smoothing": (0, 0.1),
        "evaluate_every": ("4 epochs", "4 epochs from 1", "4 epochs from 2", "4 epochs from 3"),
        "train_samples": (1281167,), "eval_samples": (50000,), "width": (64,), "classes": (1000, 1001),
        "image_px": (224,), "crop_area_least": (0.08,), "random_augment_ops": (0,), "mixup_alpha": (0,),
        "cutmix_alpha": (0,), "repeated_views": (1,), "clip_gradient_norm": (0,),
    },
    "llama31_8b": {
        "context": (8192,), "layers": (32,), "width": (4096,), "heads": (32,), "kv_heads": (8,), "ffn": (14336,),
        "vocabulary": (128256,), "tied": (False,), "rope_theta": (500000,), "schedule": ("cosine",),
        "decay_steps": (1200000,), "steps": (1200000,), "adam_beta1": (0.9,), "adam_beta2": (0.95,),
        "adam_eps": (1e-5,), "weight_decay": (0.1,), "clip_gradient_norm": (1.0,), "eval_samples": (1024,),
    },
}  # fmt: skip
"""What the closed division allows in a recipe, beside the target."""
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
        return {
            **recipe,
            "global_batch": compute_global_batch(self.record),
            "bn_span": int(recipe["batch_per_device"]) * shared,
            "steps_per_epoch": self.log.steps_per_epoch,
            "train_samples": _as_integer(self.record.data_facts.get("train_samples")),
            "eval_samples": self.log.evaluations[-1].samples,
            **self._types,
        }

    @property
    def by_samples(self) -> bool:
        """Whether logs of the benchmark count samples, and not epochs."""
        return self.benchmark.units[-1] == "samples"

    @property
    def _types(self) -> dict[str, str]:
        """The lowest precision of matmuls and collectives, by the rules' names; empty where they have none. Only linear
        layers use scaled types. Sharded ranks send weights in the compute type, others in the weights' type."""
        precision = Precision.parse(self.record.precision)
        linear, computed = WORDS.get(precision.computes_in), WORDS.get(precision.unscaled)
        sharded = self.record.plan.recipe.get("parallel") == "fsdp"
        exchanged = computed if sharded else WORDS.get(precision.weights)
        if not (linear and computed and exchanged):
            return {}
        return {"linear_in": linear, "computed_in": computed, "exchanged_in": exchanged}

    @property
    def reached(self) -> bool:
        return self.record.quality.reached

    @property
    def why_open(self) -> tuple[str, ...]:
        """What keeps the run out of the closed division; nothing where it may be in it."""
        allowed = CLOSED.get(self.benchmark.name)
        if allowed is None or self.benchmark.target is None:
            return (f"the closed division's rules for {self.benchmark.name} are not known",)
        values, found = self.values, []
        for field, choices in allowed.items():
            if values.get(field) not in choices:
                required = " or ".join(map(_format_value, choices))
                found.append(f"{field} is {_format_value(values.get(field))}, the closed division requires {required}")
        goal = self.benchmark.target * (100 if self.record.quality.unit == "%" else 1)
        target = values.get("target")
        if target is None or (target > goal if self.benchmark.better == "lower" else target < goal):
            found.append(f"target is {_format_value(target)}, the closed division requires {goal:g}")
        return tuple(found)


def open_run(record: Record, folder: Path) -> MlperfRun:
    """A run and its events; UsageError where it cannot be an MLPerf result."""
    plan, known = record.plan, find_benchmark(record.plan.workload)
    if known is None:
        raise UsageError(f"run {record.run_id} is of {plan.workload}, which is no benchmark of MLPerf Training")
    log = read_rank(folder, 0) if (folder / "rank0.jsonl").is_file() else None
    obstacles = {
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
    ended = run.log.evaluations[-1].elapsed_ns if run.reached else _find_end(run.log)
    events = [
        *((0, key, value, {}) for key, value in head.items()),
        (0, "init_start", None, {}),
        *((started, key, value, {}) for key, value in list_settings(run.benchmark.name, run.values)),
        (started, "init_stop", None, {}),
        (started, "run_start", None, {}),
        *_list_training(run),
        (ended, "run_stop", None, {"status": "success" if run.reached else "aborted"}),
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


def list_settings(benchmark: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The hyperparameters a log states; what does not hold for the run's recipe is left out."""
    found = {
        "seed": values.get("seed"),
        "global_batch_size": values["global_batch"],
        "gradient_accumulation_steps": values.get("accumulate"),
        "train_samples": values["train_samples"],
        "eval_samples": values["eval_samples"],
        **{"resnet": _resnet_settings, "llama31_8b": _llama_settings}[benchmark](values),
    }
    return [(key, _as_integer(value)) for key, value in found.items() if value is not None]


def _resnet_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    name = values["optimizer"]
    found = {"opt_name": name, "model_bn_span": values["bn_span"]}
    if name not in ("sgd", "lars"):
        return found
    found |= {f"{name}_opt_{key}": values.get(key) for key in ("momentum", "weight_decay", "end_learning_rate")}
    found[f"{name}_opt_base_learning_rate"] = values.get("learning_rate")
    if name == "lars":
        found |= {"lars_epsilon": 0, "lars_opt_learning_rate_warmup_epochs": values.get("warmup_epochs")}
    else:
        found["opt_learning_rate_warmup_epochs"] = values.get("warmup_epochs")
    if values["schedule"] != "poly":
        return found | {f"{name}_opt_end_learning_rate": None}
    found[f"{name}_opt_learning_rate_decay_poly_power"] = values.get("decay_power")
    if values.get("epochs") is not None and values["steps_per_epoch"] is not None:
        found[f"{name}_opt_learning_rate_decay_steps"] = values["epochs"] * values["steps_per_epoch"]
    return found


def _llama_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        "opt_name": "adamw",
        "max_sequence_length": values["context"],
        "max_steps": values.get("steps"),
        "opt_base_learning_rate": values["learning_rate"],
        "opt_learning_rate_warmup_steps": values.get("warmup_steps"),
        "opt_adamw_beta_1": values["adam_beta1"],
        "opt_adamw_beta_2": values["adam_beta2"],
        "opt_adamw_epsilon": values["adam_eps"],
        "opt_adamw_weight_decay": values["weight_decay"],
        "opt_gradient_clip_norm": values.get("clip_gradient_norm") or None,
        "lowest_numerical_precision_in_linear": values.get("linear_in"),
        "lowest_numerical_precision_in_attn": values.get("computed_in"),
        "lowest_numerical_precision_in_comm": values.get("exchanged_in"),
        "micro_batch_size": values["batch_per_device"],
        "config_filename": "recipe.json",
        **{f"{kind}_parallelism": 1 for kind in ("tensor", "pipeline", "context", "expert")},
    }
    if values["schedule"] == "cosine":
        found["opt_end_learning_rate"] = values["learning_rate"] * values["last_rate"]
        found["opt_learning_rate_decay_schedule"] = "cosine with linear warmup"
        if values.get("decay_steps"):
            found["opt_learning_rate_decay_steps"] = values["decay_steps"] - values["warmup_steps"]
    return found


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


def _find_end(log: RankLog) -> int:
    """When the run ended, in ns since the launch."""
    phases = log.phases_ns or log.before_ns
    last = log.evaluations[-1].elapsed_ns
    return max(last, sum(phases.values()) + log.busy_ns)


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
