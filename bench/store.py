"""How fast a store of many records answers: commands as a user runs them, the index made anew, one very long run.

    python bench/store.py [--records 10000] [--rounds 5] [--folder DIR]

The records are made here: 400 steps on two ranks with two devices' sensors, about as large as real ones. Commands take
turns with a Python that does nothing: `x 9` is nine times its time, which a busy machine changes less than seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import figures
import msgspec
import numpy as np

from trainmark.record.machine import DeviceInfo, Environment, Telemetry
from trainmark.record.metrics import Measured, measure
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.recipe import Deviation, Limits
from trainmark.record.record import Doubt, Evaluation, Quality, Record
from trainmark.record.store import Store
from trainmark.record.timeline import RankTrace, Timeline

KINDS = 24
"""Different series there are; the rest of the records repeat them under other names."""
PLACE, DAY, GROUP = "bench-place-of-run-id", "bench-place-of-day", "bench-place-of-group"


def made_record(kind: int, *, steps: int = 400, ranks: int = 2) -> Record:
    """A run that never was, with the noise of a real one."""
    draw = np.random.default_rng(kind)
    pace_ns = 180e6 * (1 + 0.02 * (kind % 7))
    traces = tuple(
        RankTrace(
            rank=rank,
            host="node-a",
            phases_ns={
                "startup": 2_312_498_127,
                "init": 4_118_230_664,
                "evaluate": 9_704_119_380,
                "other": 120_441_902,
            },
            wait_ns=draw.normal(2.1e6, 2e5, steps).astype(int).tolist(),
            compute_ns=(pace_ns * (1 + draw.normal(0, 0.01, steps))).astype(int).tolist(),
            exchange_ns=draw.normal(9e6, 6e5, steps).astype(int).tolist(),
            items=[64] * steps,
            memory_peak_bytes=int(9.5 * 2**30) + rank,
        )
        for rank in range(ranks)
    )
    timeline = Timeline(ranks=traces, warmup_steps=min(10, steps), steady_from=min(10, steps))
    history = tuple(
        Evaluation(step=step, epoch=step / 100, values={"acc1": 10.0 + step / 50, "val_loss": 5.1}, samples=1024)
        for step in range(100, 500, 100)
    )
    plan = Plan(
        workload=("resnet50", "vit", "tacotron2")[kind % 3],
        recipe_name="quick",
        recipe={"batch_per_device": 64, "learning_rate": 0.1, "epochs": 100, "target": 75.5, "seed": 0, "width": 64},
        deviations=(Deviation(name="batch_per_device", short="bs", reference=256, actual=64),),
        topology=f"1x{ranks}",
        precision="amp-bf16",
        platform="cpu",
        data=DataChoice(name="imagenet", folder="/data/imagenet", synthetic=True),
        limits=Limits(steps=steps),
    )
    measured = Measured(item="images", timeline=timeline, memory_capacity_bytes=16 * 2**30, steps_planned=steps)
    return Record(
        run_id=PLACE,
        created=DAY,
        trainmark="0.1.0",
        status="valid",
        ended="the steps asked for are done",
        plan=plan,
        item="images",
        metrics=measure(measured),
        coverage=f"the steady part: {steps - 10} steps after 10 of warm-up",
        quality=Quality(name="acc1", unit="%", goal=75.5, better="higher", value=18.0, history=history),
        timeline=timeline,
        loss=[float(f"{7 - 0.005 * step + noise:.7g}") for step, noise in enumerate(draw.normal(0, 0.1, steps))],
        environment=Environment(device=DeviceInfo(name="AMD EPYC 7763 64-Core Processor"), torch="2.6.0"),
        doubts=(Doubt(code="generated-data", text="synthetic data, not the real set"),),
        group=GROUP,
        telemetry=msgspec.convert({"machines": [_machine(draw, samples=150, devices=2)]}, Telemetry),
    )


def _machine(draw: np.random.Generator, *, samples: int, devices: int) -> dict[str, object]:
    at_s = [float(f"{0.5 * index + 0.003:.6g}") for index in range(samples)]

    def series(mean: float) -> dict[str, list[float]]:
        return {"at_s": at_s, "values": [float(f"{value:.6g}") for value in draw.normal(mean, mean / 50, samples)]}

    names = {"power_w": 240.0, "temperature_c": 61.0, "memory_used_bytes": 1.1e10, "utilisation_percent": 93.0}
    hosts = {"memory_used_bytes": 3.1e10, "load": 2.4, "cpu_percent": 81.0, "foreign_percent": 0.4}
    return {
        "host": "node-a",
        "first_rank": 0,
        "every_s": 0.5,
        "samples": samples,
        "ended_early": False,
        "sampler_cpu_s": 0.6,
        "last_s": at_s[-1],
        "training_s": [6.4, at_s[-1]],
        "unavailable": {},
        "host_series": {name: series(mean) for name, mean in hosts.items()},
        "devices": [
            {
                "device": device,
                "series": {name: series(mean) for name, mean in names.items()},
                "throttled": {},
                "ecc_errors_new": 0.0,
                "power_samples": samples,
                "power_gap_s": 0.5,
            }
            for device in range(devices)
        ],
    }


def fill(store: Store, count: int) -> list[str]:
    """Writes files and run folders as they would have been left, without `add`'s waiting for the disk; their ids."""
    store.records.mkdir(parents=True, exist_ok=True)
    texts = [made_record(kind).dumps() for kind in range(KINDS)]
    run_ids = []
    for number in range(count):
        day, minute = divmod(number, 1440)
        moment = f"2026-{1 + day // 28:02}-{1 + day % 28:02}T{minute // 60:02}:{minute % 60:02}:00"
        compact = moment.replace("-", "").replace(":", "")
        run_id = f"resnet50-quick-1x2-amp-bf16-{compact}-{number:06x}"
        text = (
            texts[number % KINDS].replace(PLACE, run_id).replace(DAY, f"{moment}Z").replace(GROUP, f"{number // 5:08x}")
        )
        store.path(run_id).write_text(text, encoding="utf-8")
        (store.runs / run_id).mkdir(parents=True, exist_ok=True)
        run_ids.append(run_id)
    return run_ids


class Took(NamedTuple):
    wall_s: float
    processor_s: float
    """What the machine's other programs hardly change."""


def timed(words: Sequence[str], environment: Mapping[str, str]) -> Took:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(words, env=dict(environment), capture_output=True, text=True)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode not in (0, 6, 7):
        raise SystemExit(f"{' '.join(words)} ended with {ended.returncode}:\n{ended.stderr}")
    return Took(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def in_turns(commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], rounds: int) -> None:
    """Each command once untimed, so that its modules are compiled, then all of them in turns; prints the medians."""
    took: dict[str, list[Took]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, words in commands.items():
            spent = timed(words, environment)
            if number:
                took[name].append(spent)
    nothing_s = statistics.median(spent.wall_s for spent in next(iter(took.values())))
    for name, times in took.items():
        wall_s = statistics.median(spent.wall_s for spent in times)
        processor_s = statistics.median(spent.processor_s for spent in times)
        figures.note(f"{name} seconds", wall_s)
        least = f"least {min(spent.wall_s for spent in times):.3f}"
        print(f"  {name:<34} {wall_s:.3f} s ({least}), {processor_s:.3f} s of processor, x {wall_s / nothing_s:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to make the store, and leave it (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch) / "store"
        environment = {**os.environ, "TRAINMARK_STORE": str(folder), "PYTHONPYCACHEPREFIX": str(Path(scratch) / "pyc")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed trainmark is compiled once, so this one is too
        store = Store(folder)
        run_ids = fill(store, args.records)
        size = sum(path.stat().st_size for path in store.records.iterdir())
        print(f"{len(run_ids)} records of {size / len(run_ids) / 1e3:.0f} kB, {size / 1e6:.0f} MB in all")

        program = [sys.executable, "-m", "trainmark"]
        nothing = [sys.executable, "-c", "pass"]
        timed([*program, "runs", "--store", scratch], environment)
        for name in ("the index made anew", "once more"):
            store.index.unlink(missing_ok=True)
            spent = timed([*program, "runs"], environment)
            figures.note("runs anew processor seconds", spent.processor_s)
            print(f"  {name:<34} {spent.wall_s:.2f} s, {spent.processor_s:.2f} s of processor")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"  {'memory of the largest process':<34} {peak:.0f} MB")

        middle = len(run_ids) // 2
        in_turns(
            {
                "python -c pass": nothing,
                "trainmark --version": [*program, "--version"],
                "trainmark runs": [*program, "runs"],
                "trainmark runs --json --limit 0": [*program, "runs", "--json", "--limit", "0"],
                "trainmark show": [*program, "show"],
                "trainmark show END_OF_ID": [*program, "show", run_ids[middle][-6:]],
                "trainmark compare A B": [*program, "compare", run_ids[middle], run_ids[middle + KINDS]],
            },
            environment,
            args.rounds,
        )

        long = made_record(0, steps=100_000, ranks=8)
        path = Path(scratch) / f"{PLACE}.json"
        began = time.perf_counter()
        text = long.dumps()
        wrote_s = time.perf_counter() - began
        path.write_text(text, encoding="utf-8")
        began = time.perf_counter()
        Record.from_json(json.loads(text))
        print(f"one run of 100 000 steps on 8 ranks, {len(text) / 1e6:.0f} MB:")
        print(f"  written as text {wrote_s:.2f} s, read back {time.perf_counter() - began:.2f} s")
        in_turns({"python -c pass": nothing, "trainmark show": [*program, "show", str(path)]}, environment, args.rounds)


if __name__ == "__main__":
    main()
