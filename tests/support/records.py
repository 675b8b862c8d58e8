"""Builds example records, so that a test says only what matters to it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from trainmark.record.doubts import doubt_text
from trainmark.record.language import ENGLISH
from trainmark.record.machine import Environment, Telemetry
from trainmark.record.metrics import Measured, measure
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.recipe import Deviation, Limits, Value
from trainmark.record.record import Doubt, Evaluation, Quality, Record
from trainmark.record.timeline import RankTrace, Timeline

REFERENCE: dict[str, Value] = {"batch_per_device": 256, "learning_rate": 0.8, "epochs": 100, "target": 75.5, "seed": 0}

MS = 1_000_000


def doubt(code: str, **values: Any) -> Doubt:
    """As a record keeps it that was made today."""
    return Doubt(code=code, text=doubt_text(code, values, ENGLISH), values=values)


def make_plan(**changes: Any) -> Plan:
    """A quick ResNet-50 on one CPU; `recipe` values are laid over the reference and their deviations computed."""
    recipe = {**REFERENCE, "batch_per_device": 32, "learning_rate": 0.1, **changes.pop("recipe", {})}
    short = {"batch_per_device": "bs", "learning_rate": "lr"}
    values: dict[str, Any] = {
        "workload": "resnet50",
        "recipe_name": "quick",
        "recipe": recipe,
        "deviations": tuple(
            Deviation(name=name, short=short.get(name, ""), reference=REFERENCE.get(name, 0), actual=value)
            for name, value in recipe.items()
            if REFERENCE.get(name) != value
        ),
        "topology": "1x1",
        "precision": "fp32",
        "platform": "cpu",
        "data": DataChoice(name="imagenet", folder="/data/imagenet", synthetic=True),
        "limits": Limits(steps=60),
    }
    return Plan(**{**values, **changes})


def make_timeline(
    *,
    ranks: int = 1,
    steps: int = 60,
    warmup_steps: int = 10,
    compute_ms: float = 5490,
    wait_ms: float = 40,
    items_per_step: int = 32,
) -> Timeline:
    """Steps with a small, repeating unrest; each further rank is 1 % slower than the one before."""
    return Timeline(
        warmup_steps=warmup_steps,
        ranks=tuple(
            RankTrace(
                rank=rank,
                host="node-a",
                phases_ns={"startup": 2300 * MS, "init": 4100 * MS, "evaluate": 9700 * MS, "other": 120 * MS},
                wait_ns=[int(wait_ms * MS)] * steps,
                compute_ns=[
                    int(compute_ms * MS * (1 + 0.01 * rank + 0.02 * (step * 7 % 11) / 11 + (0.5 if step < 3 else 0)))
                    for step in range(steps)
                ],
                items=[items_per_step] * steps,
                memory_peak_bytes=int(2.5 * 2**30),
            )
            for rank in range(ranks)
        ),
    )


def make_quality(**changes: Any) -> Quality:
    values: dict[str, Any] = {
        "name": "acc1",
        "unit": "%",
        "goal": 75.5,
        "better": "higher",
        "value": 0.3125,
        "reached": False,
        "history": (
            Evaluation(step=30, epoch=0.4, values={"acc1": 0.11, "val_loss": 6.93}, samples=1024),
            Evaluation(step=60, epoch=0.8, values={"acc1": 0.3125, "val_loss": 6.81}, samples=1024),
        ),
    }
    return Quality(**{**values, **changes})


def make_record(*, plan: dict[str, Any] | None = None, device: str = "AMD EPYC", **changes: Any) -> Record:
    """A valid record whose metrics are computed from its timeline; any field can be given instead."""
    timeline: Timeline = changes.pop("timeline", None) or make_timeline()
    item: str = changes.get("item", "images")
    measured = Measured(item=item, timeline=timeline, memory_capacity_bytes=16 * 2**30, steps_planned=timeline.steps)
    values: dict[str, Any] = {
        "run_id": "20261115-205100-resnet50-a1b2",
        "created": "2026-11-15T20:51:00+00:00",
        "trainmark": "0.1.0",
        "status": "valid",
        "ended": "60 steps were done",
        "plan": make_plan(**(plan or {})),
        "item": item,
        "metrics": measure(measured),
        "coverage": "the steady part: steps 11 to 60 of 60",
        "quality": make_quality(),
        "timeline": timeline,
        "loss": tuple(7 - 0.01 * step for step in range(timeline.steps)),
        "environment": {
            "device": {"name": device, "count": 1},
            "python": "3.11.7",
            "torch": "2.6.0",
            "system": {"kernel": "6.1.0", "memory_gib": 16.0},
        },
        "doubts": (
            doubt("small-batch", batch=32, all_data=False, reference=256),
            Doubt(code="generated-data", text="synthetic data, not the real set: no accuracy claim may rest on it"),
        ),
    }
    return Record(**typed({**values, **changes}))


def typed(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of a record whose environment and telemetry may be plain documents."""
    for name, kind in (("environment", Environment), ("telemetry", Telemetry)):
        if isinstance(found := values.get(name), dict):
            values = {**values, name: msgspec.convert(found, kind)}
    return values


def in_environment(record: Record, **fields: Any) -> Record:
    """The record with other plain values in its environment."""
    return dataclasses.replace(record, **typed({"environment": {**record.to_json()["environment"], **fields}}))


def a_vocoder_record(**changes: Any) -> Record:
    """A Tacotron2 run: another item, another quality, lower is better."""
    values: dict[str, Any] = {
        "run_id": "20261115-220000-tacotron2-c3d4",
        "created": "2026-11-15T22:00:00+00:00",
        "item": "mel frames",
        "plan": {
            "workload": "tacotron2",
            "recipe_name": "reference",
            "deviations": (),
            "precision": "tf32",
            "platform": "nvidia",
            "data": DataChoice(name="ljspeech", folder="/data/lj", synthetic=False),
            "limits": Limits(),
        },
        "device": "NVIDIA A100-SXM4-40GB",
        "timeline": make_timeline(steps=200, warmup_steps=0, compute_ms=1240, items_per_step=44_100),
        "coverage": "all training steps",
        "quality": make_quality(
            name="val_loss", unit="-", goal=0.4852, better="lower", value=0.4774, reached=True, history=()
        ),
        "doubts": (),
    }
    return make_record(**{**values, **changes})


def renamed(record: Record, run_id: str, created: str | None = None, **changes: Any) -> Record:
    return dataclasses.replace(record, run_id=run_id, created=created or record.created, **changes)
