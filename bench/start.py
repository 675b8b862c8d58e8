"""How long a command takes to its first step, by phase, and how soon commands answer that train nothing.

    python bench/start.py [--rounds 3] [--recipe smoke] [resnet50 tacotron2 wavenet vit gpt124m]

The synthetic data is made before, and every command runs once untimed. What a run spends is read from what its
processes wrote down, on the clock they share with this one; medians of rounds in which all commands take turns. `x 2`
is twice what `import torch` took in the same rounds, which a busy machine changes less than seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import figures

from trainmark.record import events
from trainmark.record.events import EventTail

WORKLOADS = ("resnet50", "tacotron2", "wavenet", "vit", "gpt124m")
PHASES = {
    "command": "until the rank's process is started",
    "worker": "until its first line",
    "orders": "until it has imported torch and knows its plan",
    "data": "until its data is open",
    "network": "until device, network and optimizer are ready",
    "step": "until its first step is done",
}
TORCH = "import torch"


def timed(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Seconds of a command, on the wall and of processors."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(words, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {ended.returncode}:\n{ended.stderr}")
    return {"wall": wall_s, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def first_step(words: Sequence[str], environment: Mapping[str, str], store: Path) -> dict[str, float]:
    """Seconds of each phase of a run to the end of its first step, and what its processes used from begin to end."""
    began_ns = time.perf_counter_ns()
    spent = timed(words, environment)
    folder = max((store / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    launched_ns = next(
        event.launched_ns
        for event in EventTail(folder / "telemetry0.jsonl").new_events()
        if isinstance(event, events.SamplerBegin)
    )
    at_ns, step_ns = {"began": began_ns, "command": launched_ns}, 0
    for event in EventTail(folder / "rank0.jsonl").new_events():
        if isinstance(event, events.Begin):
            at_ns["worker"] = launched_ns + event.startup_ns
            at_ns["orders"] = event.at_ns or at_ns["worker"]
        elif isinstance(event, events.DeviceOpening):
            at_ns["data"] = event.at_ns
        elif isinstance(event, events.Phases):
            at_ns["network"] = at_ns["worker"] + event.phases_ns["init"]
        elif isinstance(event, events.Steps) and event.first == 0:
            step_ns = event.wait_ns[0] + event.compute_ns[0]
    at_ns["step"] = at_ns["network"] + step_ns
    names = list(at_ns)
    found = {name: (at_ns[name] - at_ns[names[index]]) / 1e9 for index, name in enumerate(names[1:])}
    return {**found, "wall": sum(found.values()), "processor": spent["processor"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="W")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipe", default="smoke")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        environment = {**os.environ, "TRAINMARK_STORE": str(store), "PYTHONPYCACHEPREFIX": str(Path(scratch) / "pyc")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed trainmark is compiled once, so this one is too
        program = [sys.executable, "-m", "trainmark"]
        runs = {
            name: [*program, "run", name, "--recipe", args.recipe, "--steps", "1", "--quiet", "--json"]
            for name in args.workloads
        }
        answers = {
            "python -c pass": [sys.executable, "-c", "pass"],
            TORCH: [sys.executable, "-c", TORCH],
            "trainmark --help": [*program, "--help"],
            "trainmark runs": [*program, "runs"],
            "trainmark show last": [*program, "show", "last"],
        }
        took: dict[str, list[dict[str, float]]] = {name: [] for name in (*runs, *answers)}
        for number in range(args.rounds + 1):
            for name, words in runs.items():
                spent = first_step(words, environment, store)
                if number:
                    took[name].append(spent)
            for name, words in answers.items():
                spent = timed(words, environment)
                if number:
                    took[name].append(spent)
    median = {
        name: {key: statistics.median(one[key] for one in times) for key in times[0]} for name, times in took.items()
    }
    torch_s = median[TORCH]["wall"]
    print(f"recipe {args.recipe}, {args.rounds} rounds; seconds from the command to the end of the first step")
    for name, what in PHASES.items():
        print(f"  {name:<8} {what}")
    print(
        f"  {'':<12}{''.join(f'{name:>9}' for name in PHASES)}{'in all':>9}{'least':>9}{'x torch':>9}{'processor':>11}"
    )
    for name in runs:
        spent, least_s = median[name], min(one["wall"] for one in took[name])
        figures.note(f"start {name} seconds", spent["wall"])
        phases = "".join(f"{spent[phase]:9.2f}" for phase in PHASES)
        rest = f"{spent['wall']:9.2f}{least_s:9.2f}{spent['wall'] / torch_s:9.1f}{spent['processor']:11.1f}"
        print(f"  {name:<12}{phases}{rest}")
    print("commands that train nothing, and what they are held against")
    for name in answers:
        spent = median[name]
        least_s = min(one["wall"] for one in took[name])
        print(f"  {name:<22} {spent['wall']:.3f} s (least {least_s:.3f}), {spent['processor']:.3f} s of processor")


if __name__ == "__main__":
    main()
