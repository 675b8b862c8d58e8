"""All that speed is held to, beside what people would pick instead, in one table: `scripts/bench` without a name.

    python bench/table.py [--only resnet50,vit] [--rounds 3]

Each line comes from a benchmark of its own, run as its command says; they run one after the other, and want a machine
with nothing else to do. Packages that are not installed are left out, and said. It takes about half an hour.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import figures

HERE = Path(__file__).parent
PEERS = ("torchvision", "timm", "torchaudio", "nvidia-dali-cuda130", "pillow")


@dataclass(frozen=True, kw_only=True)
class Line:
    what: str
    figure: str
    """Its name among what the benchmark notes."""
    goal: float
    unit: str = "x"
    less: bool = False
    """Whether less is better."""

    def said(self, value: float | None) -> str:
        if value is None:
            return f"| {self.what} | not measured | {self._goal()} | |"
        reached = value <= self.goal if self.less else value >= self.goal
        return f"| {self.what} | {value:.3g} {self.unit} | {self._goal()} | {'yes' if reached else 'no'} |"

    def _goal(self) -> str:
        return f"at {'most' if self.less else 'least'} {self.goal:g} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Race:
    name: str
    command: tuple[str, ...]
    lines: tuple[Line, ...]
    rounds: bool = True
    """Whether it takes --rounds."""


def vision(workload: str, batch: int, lines: tuple[Line, ...]) -> Race:
    command = ("vision.py", "--workload", workload, "--batch", str(batch), "--precisions", "fp32", "--peers")
    return Race(name=workload, command=command, lines=lines)


def tacotron2() -> Iterator[Race]:
    for clips, goal in ((8, 3.8), (16, 2.3), (32, 1.8)):
        for frames in (200, 600):
            yield Race(
                name="tacotron2",
                command=(
                    *("tacotron2.py", "--batches", str(clips), "--frames", str(frames)),
                    *("--precisions", "fp32", *(("--peers",) if frames == 200 else ())),
                ),
                lines=(
                    Line(
                        what=f"Tacotron2 fp32, batch {clips}, {frames} frames, beside a textbook decoder",
                        figure=f"tacotron2 {clips} {frames} over textbook",
                        goal=goal,
                    ),
                    Line(
                        what=f"Tacotron2, batch {clips}, {frames} frames, memory of the textbook's",
                        figure=f"tacotron2 {clips} {frames} memory",
                        goal=1,
                        less=True,
                    ),
                ),
            )


RACES = (
    vision(
        "resnet50",
        16,
        (
            Line(
                what="ResNet-50 fp32, batch 16, beside torchvision", figure="resnet50 over torchvision/nchw", goal=1.3
            ),
            Line(
                what="the same beside torchvision in channels_last",
                figure="resnet50 over torchvision/channels_last",
                goal=1.15,
            ),
            Line(what="the same beside timm in channels_last", figure="resnet50 over timm/channels_last", goal=1.15),
            Line(what="the same, of the matmul peak", figure="resnet50 share of peak", goal=75, unit="%"),
        ),
    ),
    vision(
        "vit",
        8,
        (
            Line(what="ViT-B/16 fp32, batch 8, beside torchvision", figure="vit over torchvision/nchw", goal=1.05),
            Line(what="the same beside timm", figure="vit over timm/nchw", goal=1.05),
            Line(what="the same, of the matmul peak", figure="vit share of peak", goal=90, unit="%"),
        ),
    ),
    *tacotron2(),
    Race(
        name="wavenet",
        command=("wavenet.py",),
        lines=(Line(what="WaveNet fp32, 12 layers, beside a plain loop", figure="wavenet over plain", goal=1.3),),
    ),
    Race(
        name="pictures",
        command=("input.py", "--scenes", "no"),
        rounds=False,
        lines=(
            Line(
                what="pictures, crop and flip, beside Pillow's DataLoader",
                figure="pictures over DataLoader + Pillow",
                goal=2.6,
            ),
            Line(what="pictures with RandAugment", figure="augmented pictures over DataLoader + Pillow", goal=2.3),
        ),
    ),
    Race(
        name="pictures",
        command=("input.py", "--peers"),
        rounds=False,
        lines=(Line(what="pictures, crop and flip, beside DALI on the CPU", figure="pictures over DALI", goal=1),),
    ),
    Race(
        name="pictures",
        command=("feeding.py",),
        rounds=False,
        lines=(
            Line(
                what="p_train / p_core of ResNet-50 `quick`", figure="resnet50 p_train over p_core", goal=0.99, unit=""
            ),
        ),
    ),
    Race(
        name="harness",
        command=("overhead.py",),
        rounds=False,
        lines=(
            Line(
                what="harness around a tiny network's step",
                figure="harness microseconds",
                goal=20,
                unit="us",
                less=True,
            ),
        ),
    ),
    Race(
        name="launches",
        command=("launches.py", "--frames"),
        rounds=False,
        lines=(
            Line(
                what="Tacotron2's launches a frame, compiled=blocks",
                figure="tacotron2 launches a frame",
                goal=25,
                unit="launches",
                less=True,
            ),
        ),
    ),
    Race(
        name="start",
        command=("start.py",),
        rounds=False,
        lines=(
            Line(
                what="first step after `trainmark run resnet50 --recipe smoke`",
                figure="start resnet50 seconds",
                goal=4,
                unit="s",
                less=True,
            ),
        ),
    ),
    Race(
        name="runs",
        command=("store.py", "--records", "50000"),
        rounds=False,
        lines=(
            Line(
                what="`runs` of 50,000 records, index made anew",
                figure="runs anew processor seconds",
                goal=10,
                unit="CPU s",
                less=True,
            ),
            Line(what="the same later", figure="trainmark runs seconds", goal=0.3, unit="s", less=True),
        ),
    ),
)


def measured(race: Race, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "figures"
        words = [sys.executable, str(HERE / race.command[0]), *race.command[1:]]
        words += ["--rounds", str(rounds)] if race.rounds else []
        print("$", "python", f"bench/{race.command[0]}", *words[2:], flush=True)
        ended = subprocess.run(words, env={**os.environ, figures.FILE: str(notes)}, check=False)
        if ended.returncode:
            print(f"ended with {ended.returncode}", flush=True)
        return figures.read(notes)


def machine() -> str:
    cpus = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in cpus.read_text().splitlines() if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.processor()


def versions() -> str:
    found = []
    for package in ("torch", *PEERS):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = list(dict.fromkeys(race.name for race in RACES))
    parser.add_argument("--only", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    wanted = args.only.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    said = []
    for race in RACES:
        if race.name in wanted:
            found = measured(race, args.rounds)
            said += [line.said(found.get(line.figure)) for line in race.lines]
    print(f"\n{datetime.date.today():%d %B %Y}, {machine()}, {versions()}\n")
    print("| what | measured | goal | reached |\n|---|---:|---:|---|", *said, sep="\n")


if __name__ == "__main__":
    main()
