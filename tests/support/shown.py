"""Records as rich as real ones: long series, several ranks, sensors, a voice and its picture."""

from __future__ import annotations

import io
import math
import random
import struct
import wave
import zlib
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from support.records import in_environment, make_quality, make_record
from trainmark.record.machine import Artifact, FlopsFacts, Sensed
from trainmark.record.metrics import Measured, measure
from trainmark.record.plan import DataChoice
from trainmark.record.recipe import Limits
from trainmark.record.record import Doubt, Evaluation, Record
from trainmark.record.timeline import RankTrace, Timeline

MS = 1_000_000


def a_timeline(
    *, ranks: int = 1, steps: int = 2000, compute_ms: float = 320, items: int = 256, seed: int = 1
) -> Timeline:
    """Steps with unrest, rare spikes, a slow start; the last rank is a little slower than the others."""
    dice = random.Random(seed)
    traces = []
    for rank in range(ranks):
        slow = 1.03 if rank == ranks - 1 and ranks > 1 else 1.0
        own = [
            compute_ms * slow * (1 + abs(dice.gauss(0, 0.012)) + (0.35 if dice.random() < 0.004 else 0))
            + (compute_ms * 6 * math.exp(-step / 4) if step < 20 else 0)
            for step in range(steps)
        ]
        exchange = [compute_ms * 0.06 * (1 + dice.random()) for _ in range(steps)] if ranks > 1 else []
        traces.append(
            RankTrace(
                rank=rank,
                host="node-a",
                phases_ns={
                    "startup": 2_345_678_901,
                    "init": 8_100_000_003,
                    "evaluate": 39_700_000_017,
                    "checkpoint": 1_900_000_001,
                    "other": 512_345_679,
                },
                wait_ns=[int(compute_ms * MS * 0.012 * (1 + dice.random())) for _ in range(steps)],
                compute_ns=[int(MS * (value + (exchange[step] if exchange else 0))) for step, value in enumerate(own)],
                exchange_ns=[int(MS * value) for value in exchange],
                items=[items] * steps,
                memory_peak_bytes=int(27.6 * 2**30),
            )
        )
    return Timeline(ranks=tuple(traces), warmup_steps=20, steady_from=31)


def telemetry(*, devices: int = 1, seconds: float = 690, unavailable: dict[str, str] | None = None) -> dict[str, Any]:
    dice = random.Random(3)
    at_s = [round(index * seconds / 600, 3) for index in range(600)]

    def series(level: float, unrest: float, rise: float = 0.0) -> dict[str, Any]:
        warm = [level * (0.2 + 0.8 * min(1, at / 15)) + rise * (1 - math.exp(-at / 120)) for at in at_s]
        return {"at_s": at_s, "values": [round(value + dice.gauss(0, unrest), 4) for value in warm]}

    missing = unavailable or {}
    kept = {
        "power_w": series(388, 6),
        "temperature_c": series(40, 0.3, 24),
        "memory_used_bytes": series(28.4 * 2**30, 1e7),
        "utilisation_percent": series(97, 1),
    }
    return {
        "machines": [
            {
                "host": "node-a",
                "first_rank": 0,
                "every_s": 0.5,
                "samples": 1380,
                "ended_early": False,
                "sampler_cpu_s": 1.4,
                "last_s": seconds,
                "training_s": [11.0, seconds - 4],
                "unavailable": {"energy_j": "the tool has no counter", "clock_mhz": "the tool has no counter"}
                | missing,
                "host_series": {"cpu_percent": series(34, 3), "memory_used_bytes": series(58 * 2**30, 1e8)},
                "devices": [
                    {
                        "device": device,
                        "series": {name: values for name, values in kept.items() if name not in missing},
                        "throttled": {},
                        "ecc_errors_new": 0.0,
                        "power_samples": 1340,
                        "power_gap_s": 0.5,
                    }
                    for device in range(devices)
                ],
            }
        ]
    }


def precision(asked: str, ran: str | None = None) -> dict[str, Any]:
    kind = "bfloat16" if "bf16" in (ran or asked) else "float32"
    return {
        "asked": asked,
        "ran": ran or asked,
        "computed": {"matmul": {kind: 3}, "convolution": {kind: 159}},
        "multiplications": {"matmul": {kind: 30}, "convolution": {kind: 4000}},
        "weights": {"float32": 25_557_032},
        "tf32": {"matmul": False, "convolution": False},
        "autocast": "bfloat16" if asked.startswith("amp") else None,
        "loss_scale": None,
        "skipped_steps": 0,
    }


FILL = {
    "batch_per_device": 256,
    "reason": "larger ones are not faster by more than 3 %",
    "took_s": 71.4,
    "curve": [
        {"batch": batch, "items_per_s": rate, "step_s": batch / rate, "memory_bytes": int(batch * 1.1e8), "unfit": ""}
        for batch, rate in ((32, 512.0), (64, 701.0), (128, 790.0), (256, 824.0), (320, 829.0))
    ]
    + [{"batch": 512, "items_per_s": 0.0, "step_s": 0.0, "memory_bytes": None, "unfit": "out of memory"}],
}


def a_run(run_id: str, timeline: Timeline, *, item: str = "images", flops: float = 24.3e9, **changes: Any) -> Record:
    """A record whose metrics are computed from what is given, sensors included."""
    sensed = changes.pop("sensed", Sensed(power_w=388.2, power_peak_w=402.0, energy_j=2.6e5, temperature_peak_c=64.0))
    measured = Measured(
        item=item,
        timeline=timeline,
        memory_capacity_bytes=40 * 2**30,
        steps_planned=timeline.steps,
        flops=FlopsFacts(per_item=flops, peak_tflops=changes.pop("peak", 312.0), peak_source="data sheet"),
        sensed=sensed,
    )
    steps = timeline.steps
    dice = random.Random(7)
    values: dict[str, Any] = {
        "run_id": run_id,
        "created": "2026-11-15T20:51:00+00:00",
        "device": "Example 9000",
        "item": item,
        "timeline": timeline,
        "metrics": measure(measured),
        "coverage": f"the steady part: steps 21 to {steps} of {steps}",
        "ended": f"{steps} steps were done",
        "loss": [6.9 * math.exp(-step / 900) + 1.1 + dice.gauss(0, 0.12) for step in range(steps)],
        "telemetry": telemetry(),
        "doubts": (),
    }
    record = make_record(**{**values, **changes})
    return in_environment(record, flops=to_builtins(measured.flops))


def resnet(run_id: str, topology: str = "1x1", **changes: Any) -> Record:
    ranks = {"1x1": 1, "1x2": 2, "1x8": 8}[topology]
    history = tuple(
        Evaluation(step=step, epoch=step / 500, values={"acc1": 76 * (1 - math.exp(-step / 500))}, samples=50_000)
        for step in range(200, 2001, 200)
    )
    values: dict[str, Any] = {
        "plan": {
            "topology": topology,
            "precision": "amp-bf16",
            "platform": "nvidia",
            "recipe": {"batch_per_device": 256, "learning_rate": 0.8},
            "data": DataChoice(name="imagenet", folder="/data/imagenet", synthetic=False),
            "limits": Limits(),
            "recipe_name": "reference",
        },
        "environment": {
            "device": {"name": "Example 9000", "count": ranks, "driver": "550.54"},
            "precision": precision("amp-bf16"),
            "torch": "2.6.0",
            "python": "3.11.7",
            "system": {"kernel": "6.1.0", "memory_gib": 512.0},
        },
        "telemetry": telemetry(devices=ranks),
        "quality": make_quality(value=history[-1].values["acc1"], reached=False, history=history),
        "doubts": (Doubt(code="target-missed", text="target missed: acc 74.61 % is below 75.5 %"),),
    }
    return a_run(run_id, a_timeline(ranks=ranks, steps=changes.pop("steps", 2000)), **{**values, **changes})


def a_voice(run_id: str = "20261115-220000-tacotron2-c3d4", **changes: Any) -> Record:
    history = tuple(
        Evaluation(step=step, epoch=step / 97, values={"val_loss": 0.46 + 1.9 * math.exp(-step / 260)}, samples=100)
        for step in range(97, 1940, 97)
    )
    values: dict[str, Any] = {
        "plan": {
            "workload": "tacotron2",
            "recipe_name": "reference",
            "deviations": (),
            "precision": "amp-bf16",
            "platform": "nvidia",
            "data": DataChoice(name="ljspeech", folder="/data/lj", synthetic=False),
            "limits": Limits(),
        },
        "created": "2026-11-15T22:00:00+00:00",
        "quality": make_quality(
            name="val_loss", unit="-", goal=0.4852, better="lower", value=0.4611, reached=True, history=history
        ),
        "artifacts": (
            Artifact(file="sample.wav", caption="the network speaks (griffin-lim): the quick brown fox"),
            Artifact(file="alignment.png", caption="the mel it made and where attention looked meanwhile"),
        ),
        "environment": {"device": {"name": "Example 9000"}, "precision": precision("amp-bf16")},
    }
    timeline = a_timeline(compute_ms=1240, items=44_100, steps=1900)
    return a_run(run_id, timeline, item="mel frames", flops=145e6, **{**values, **changes})


def on_a_laptop(run_id: str = "20261116-090000-resnet50-e5f6", **changes: Any) -> Record:
    """A short run on a CPU: doubts, no sensors, no target."""
    reason = {"power_w": "the kernel lets only root read it", "temperature_c": "no sensor was found"}
    values: dict[str, Any] = {
        "created": "2026-11-16T09:00:00+00:00",
        "device": "Example Laptop 7",
        "telemetry": telemetry(seconds=460, unavailable=reason),
        "sensed": Sensed(reasons={"power_w": "the kernel lets only root read it"}),
        "peak": 0.9,
        "environment": {"device": {"name": "Example Laptop 7"}, "precision": precision("fp32"), "torch": "2.6.0"},
        "doubts": (
            Doubt(code="small-batch", text="global batch 32 is below the reference recipe's 256"),
            Doubt(code="generated-data", text="synthetic data, not the real set: no accuracy claim may rest on it"),
            Doubt(code="foreign-load", text="other programs used 14 % of the machine"),
        ),
    }
    return a_run(run_id, a_timeline(compute_ms=7270, items=32, steps=60), **{**values, **changes})


def vit_filled(run_id: str = "20261116-100000-vit-0a1b", **changes: Any) -> Record:
    values: dict[str, Any] = {
        "plan": {"workload": "vit", "recipe_name": "fill", "precision": "amp-bf16", "platform": "nvidia"},
        "created": "2026-11-16T10:00:00+00:00",
        "environment": {
            "device": {"name": "Example 9000"},
            "precision": precision("amp-bf16", "fp32"),
            "fill": FILL,
        },
        "doubts": (Doubt(code="precision-differs", text="amp-bf16 was asked for, but the first step ran fp32"),),
    }
    timeline = a_timeline(compute_ms=402, items=256, steps=400, seed=5)
    return a_run(run_id, timeline, flops=105.2e9, **{**values, **changes})


def cut_off(run_id: str = "20261116-110000-vit-9f9f", **changes: Any) -> Record:
    return vit_filled(run_id, status="incomplete", ended="rank 3 on node-b was killed (SIGKILL) at step 400", **changes)


def a_sound(seconds: float = 1.0, rate: int = 22_050) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        values = (int(9000 * math.sin(index / 12) * math.sin(index / 2400)) for index in range(int(seconds * rate)))
        file.writeframes(b"".join(struct.pack("<h", value) for value in values))
    return stream.getvalue()


def a_picture(width: int = 640, height: int = 220) -> bytes:
    """A PNG of a bright diagonal, as an alignment looks."""
    rows = b"".join(
        b"\0" + bytes(max(20, 250 - int(6 * abs(x * height / width - (height - y)))) for x in range(width))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def leave_files(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sample.wav").write_bytes(a_sound())
    (folder / "alignment.png").write_bytes(a_picture())
    return folder
