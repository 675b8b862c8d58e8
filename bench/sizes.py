"""How large a long run's logs and record become, and what gathering them takes: ranks that write for an hour or a week.

    python bench/sizes.py [--ranks 64] [--steps 20000] [--folder DIR]

Every rank writes through the real writer, a line a step as it does where a step takes a second; so does a sampler of
eight devices. Everything is then gathered in a process of its own. The last lines carry the figures on to a week at a
step a second on a thousand ranks, 125 machines.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from trainmark.record import events, gather
from trainmark.record.events import EventWriter
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.recipe import Limits
from trainmark.record.record import Record
from trainmark.record.store import Store, read_record

RUN = "resnet50-quick-1xN-amp-bf16-20260101T000000-000000"
WEEK_S = 7 * 24 * 3600
RANKS, MACHINES = 1000, 125
SAMPLES_PER_S = 2


def write_rank(folder: Path, rank: int, steps: int) -> None:
    draw = np.random.default_rng(rank)
    log = EventWriter(folder / f"rank{rank}.jsonl")
    log.write(events.Begin(rank=rank, host=f"node-{rank // 8}", pid=1, startup_ns=1_000_000))
    log.write(events.Ready(steps_per_epoch=None, first_step=0, at_ns=1))
    wait, compute, exchange = (
        draw.normal(mean, spread, steps).astype(int).tolist() for mean, spread in ((2.1e6, 2e5), (1e9, 1e7), (9e6, 6e5))
    )
    for step, loss in enumerate(draw.normal(3, 0.1, steps).tolist()):
        log.write(
            events.Steps(
                first=step,
                wait_ns=[wait[step]],
                compute_ns=[compute[step]],
                exchange_ns=[exchange[step]],
                items=[64],
                loss=[float(f"{loss:.7g}")],
            )
        )
    phases = {"startup": 1_000_000, "init": 4_000_000_000, "evaluate": 0, "checkpoint": 0, "other": 10_000_000}
    log.write(events.Phases(phases_ns=phases, memory_peak_bytes=2**34 + rank, at_ns=steps * 10**9))
    log.write(events.End(ended="the steps asked for are done"))
    log.close()


def write_samples(folder: Path, samples: int, machine: int = 0, every_s: float = 0.5) -> None:
    draw = np.random.default_rng(machine)
    log = EventWriter(folder / f"telemetry{machine}.jsonl")
    devices = list(range(8))
    log.write(
        events.SamplerBegin(
            host=f"node-{machine}",
            pid=1,
            first_rank=8 * machine,
            launched_ns=0,
            at_ns=0,
            every_s=every_s,
            devices=devices,
            cores=64,
        )
    )
    for number in range(samples):
        at_ns = int(number * every_s * 1e9)
        busy_s, used = every_s * number, float(draw.integers(10**10, 2 * 10**10))
        log.write(events.HostSample(at_ns=at_ns, busy_s=busy_s, own_s=busy_s, memory_used_bytes=int(used), load=64.25))
        readings = [
            events.DeviceReading(
                device=device,
                memory_used_bytes=used,
                power_w=float(f"{draw.normal(300, 10):.5g}"),
                temperature_c=float(draw.integers(55, 65)),
                utilisation_percent=99.0,
                clock_mhz=1410.0,
                throttled=(),
            )
            for device in devices
        ]
        log.write(events.DeviceSamples(at_ns=at_ns, readings=readings))
    log.write(events.SamplerEnd(at_ns=int(samples * every_s * 1e9), cpu_s=1.0))
    log.close()


def write_head(folder: Path, ranks: int) -> None:
    recipe = {"batch_per_device": 64, "learning_rate": 0.1, "epochs": 100, "target": 75.5, "seed": 0}
    plan = Plan(
        workload="resnet50",
        recipe_name="quick",
        recipe=recipe,
        deviations=(),
        topology=f"{ranks // 8}x8" if ranks > 8 else f"1x{ranks}",
        precision="amp-bf16",
        platform="cpu",
        data=DataChoice(name="imagenet", folder="/data/imagenet", synthetic=True),
        limits=Limits(steps=10**6),
    )
    target = {"name": "acc1", "unit": "%", "better": "higher"}
    head = {"run_id": RUN, "created": "2026-01-01T00:00:00Z", "item": "images", "target": target}
    (folder / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({**head, "reference_global_batch": 256}), encoding="utf-8")


def size(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths)


def gather_alone(folder: Path) -> tuple[float, float]:
    """Seconds of processor and megabytes that a process takes which makes the record and keeps it."""
    subprocess.run([sys.executable, __file__, "--gather", str(folder)], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="where to make the store, and leave it (default: a temporary one)")
    parser.add_argument("--gather", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gather:
        Store(args.gather).add(gather.gather_record(args.gather / "runs" / RUN))
        return
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(args.folder or Path(scratch))
        folder = store.runs / RUN
        folder.mkdir(parents=True)
        write_head(folder, args.ranks)
        began = time.process_time()
        for rank in range(args.ranks):
            write_rank(folder, rank, args.steps)
        took_us = 1e6 * (time.process_time() - began) / (args.ranks * args.steps)
        write_samples(folder, SAMPLES_PER_S * args.steps)
        logs = size(*folder.glob("rank*")) / (args.ranks * args.steps)
        samples = size(*folder.glob("telemetry*")) / args.steps
        print(f"{args.ranks} ranks, {args.steps} steps of a second, one machine of 8 devices sampled")
        print(f"  logs       {logs:.1f} bytes a rank and step, written in {took_us:.1f} us of processor")
        print(f"  samples    {samples:.0f} bytes a second and machine")
        processor_s, peak_mb = gather_alone(store.folder)
        found = read_record(store.path(RUN))
        assert found.series_file
        record, beside = size(store.path(RUN)), size(store.records / found.series_file.name)
        print(f"  record     {record / 1e3:.0f} kB, series beside it {beside / args.steps:.1f} bytes a step")
        print(f"  gathered   in {processor_s:.1f} s of processor with {peak_mb:.0f} MB")
        began = time.process_time()
        Record.from_json(json.loads(store.path(RUN).read_text(encoding="utf-8")))
        alone_s, began = time.process_time() - began, time.process_time()
        read_record(store.path(RUN))
        print(f"  read       alone in {alone_s:.2f} s, with its series in {time.process_time() - began:.2f} s")
    rank_steps = RANKS * WEEK_S
    print(f"a week on {RANKS} ranks and {MACHINES} machines:")
    print(f"  logs {rank_steps * logs / 1e9:.0f} GB, samples {MACHINES * WEEK_S * samples / 1e9:.0f} GB")
    print(f"  series beside the record {WEEK_S * beside / args.steps / 1e6:.0f} MB")
    print(f"  gathered in {processor_s / (args.ranks * args.steps) * rank_steps / 3600:.1f} h of processor")


if __name__ == "__main__":
    main()
