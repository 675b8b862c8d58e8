"""Makes MLPerf result logs as a run would have written them, whole or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

START_MS = 1_715_251_850_000
EPOCH_MS = 36_000
Entries = list[dict[str, Any]]

SGD: Mapping[str, Any] = {
    "opt_name": "sgd",
    "sgd_opt_base_learning_rate": 10.5,
    "sgd_opt_end_learning_rate": 0.0001,
    "sgd_opt_learning_rate_decay_poly_power": 2,
    "sgd_opt_learning_rate_decay_steps": 14000,
    "sgd_opt_weight_decay": 0.0001,
    "sgd_opt_momentum": 0.9,
    "model_bn_span": 400,
    "opt_learning_rate_warmup_epochs": 2,
}


def entries(
    *,
    seed: int = 7,
    epochs: int = 36,
    start_ms: int = START_MS,
    last: float = 0.7602,
    said: Mapping[str, Any] | None = None,
) -> Entries:
    """A ResNet run of the closed division: every 4 epochs an evaluation, the last one above the target."""
    found: Entries = []

    def write(key: str, value: Any = None, time_ms: float = start_ms, **metadata: Any) -> None:
        where = {"file": "train.py", "lineno": 10}
        found.append(
            {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value,
             "metadata": {**where, **metadata}}
        )  # fmt: skip

    facts = {
        "submission_benchmark": "resnet",
        "submission_org": "Lumen",
        "submission_division": "closed",
        "submission_status": "onprem",
        "submission_platform": "1xLumen L9",
        "cache_clear": True,
    }
    settings = {
        "seed": seed,
        "global_batch_size": 3264,
        "gradient_accumulation_steps": 1,
        "train_samples": 1_281_167,
        "eval_samples": 50_000,
        **SGD,
    }
    changed = {**facts, **settings, **(said or {})}
    for key in facts:
        write(key, changed[key])
    write("init_start")
    for key in changed:
        if key not in facts and changed[key] is not None:
            write(key, changed[key], start_ms + 5000)
    now = start_ms + 60_000
    write("init_stop", time_ms=now)
    write("run_start", time_ms=now + 10)
    now += 10
    for epoch in range(epochs):
        if epoch % 4 == 0:
            write("block_start", time_ms=now, first_epoch_num=epoch, epoch_count=4)
        write("epoch_start", time_ms=now, epoch_num=epoch)
        now += EPOCH_MS + (seed * 13 + epoch) % 7
        write("epoch_stop", time_ms=now, epoch_num=epoch)
        write("tracked_stats", {"throughput": 1_281_167 / 36.0}, now, step=epoch)
        if epoch % 4 == 3:
            write("eval_start", time_ms=now + 80, epoch_num=epoch)
            now += 530
            accuracy = last if epoch == epochs - 1 else round(0.75 - 0.6 * 0.8**epoch, 5)
            write("eval_stop", time_ms=now, epoch_num=epoch)
            write("eval_accuracy", accuracy, now, epoch_num=epoch)
            write("block_stop", time_ms=now, first_epoch_num=epoch - 3)
    write("run_stop", time_ms=now, status="success")
    return found


def text(found: Sequence[Mapping[str, Any]], prefix: str = "") -> str:
    return "".join(f"{prefix}:::MLLOG {json.dumps(entry)}\n" for entry in found)


def write_log(path: Path, found: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(found), encoding="utf-8")
    return path


def write_result(folder: Path, *, runs: int = 5, change: Callable[[int, Entries], Entries] | None = None) -> Path:
    """results/SYSTEM/resnet with so many runs, one after the other; returns that folder."""
    place = folder / "results" / "lumen_l9" / "resnet"
    for run in range(runs):
        found = entries(seed=1000 + 37 * run, start_ms=START_MS + run * 3_600_000)
        write_log(place / f"result_{run}.txt", change(run, found) if change else found)
    return place


def at(found: Entries, key: str, which: int = 0) -> dict[str, Any]:
    """One entry, to be changed."""
    return [entry for entry in found if entry["key"] == key][which]
