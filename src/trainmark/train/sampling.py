"""Loads the network of a run, makes a sample with it, and writes the sample with its provenance."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import torch

from trainmark import features, workloads
from trainmark.data import audio
from trainmark.platforms.platform import Device
from trainmark.record.atomic_files import write_user_file
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.machine import Artifact
from trainmark.record.plan import Plan
from trainmark.record.precision import Precision
from trainmark.record.recipe import from_values
from trainmark.record.record import Record
from trainmark.record.sample import NetworkUsed, Part, Sample, SampleDocument, SoundPart, TextPart
from trainmark.record.workload_facts import ShowFacts, WorkloadFacts, derive_facts
from trainmark.train import checkpoint
from trainmark.workloads import weights
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.workload import Workload

SUFFIXES = {"sound": ".wav", "image": ".png", "text": ".txt"}


class Origin(NamedTuple):
    """Where a network is stored: a run folder, or a file of weights."""

    path: Path
    run_id: str = ""
    """Of the run; empty where there are only weights."""
    record: Record | None = None
    """Of the run, where it left one."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the run; None where there are only weights."""
        for folder in (self.path, *self.path.parents[:3]):  # state.pt, its checkpoint, all of them, the run
            if (folder / "plan.json").is_file():
                try:
                    return Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
                except (OSError, ValueError) as error:
                    raise NotReadyError(f"the plan of run {folder} cannot be read: {error}") from error
        return None

    def facts(self) -> WorkloadFacts | None:
        """The workload's facts, without importing torch for built-in ones; None where there are only weights."""
        plan = self.plan
        if plan is None:
            return None
        return workloads.facts(plan.workload) or derive_facts(workloads.of_plan(plan))


def check_can_show(source: Origin, word: str, *, score: bool = False) -> ShowFacts | None:
    """What the network of a run can show, before anything heavy is loaded; None where only weights are given."""
    facts = source.facts()
    if facts is not None and facts.shows is None:
        able = ", ".join(known.name for known in workloads.all_facts() if known.shows)
        raise UsageError(f"run {word} trained {facts.name}, which has nothing to show; those that have are {able}")
    if score and facts and facts.shows and facts.shows.gives != "sound":
        raise UsageError(f"--score is for speech, and run {word} trained {facts.name}, which {facts.shows.does}")
    return facts.shows if facts else None


def check_input(given: str, shows: ShowFacts | None) -> None:
    """Refuses a missing file, where the network takes one."""
    if shows and shows.takes != "text" and not Path(given).is_file():
        raise NotReadyError(f"INPUT {given} is no file; this network {shows.does}: give the path of one")


class SamplePaths:
    """Chooses where samples are written, and never overwrites a file unless forced."""

    def __init__(self, out: Path | None, *, own: Path | None, shows: ShowFacts | None, force: bool) -> None:
        self._out, self._own, self._shows, self._force = out, own, shows, force

    def choose(self, count: int, *, numbered: bool) -> list[Path]:
        """The path of each sample without a suffix; raises before any sample is made."""
        folder = self._folder(numbered=numbered)
        if folder is not None:
            taken = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]
            first = max(taken, default=0) + 1 if self._out is None else 1
            found = [folder / f"{first + place:03d}" for place in range(count)]
        else:
            found = [self._check_name(self._out or Path("sample"))]
        for place in found:
            for ending in (SUFFIXES[self._shows.gives] if self._shows else "", ".json"):
                if ending:
                    self.check(place.with_name(place.name + ending))
        return found

    def check(self, path: Path) -> None:
        if not self._force and os.path.lexists(path):
            raise UsageError(f"{path} exists and is not overwritten; choose another name, or --force")

    def _folder(self, *, numbered: bool) -> Path | None:
        """The folder of numbered samples: in the store, or where several are requested; else None."""
        if self._out is None and self._own is not None:
            self._own.mkdir(parents=True, exist_ok=True)
            return self._own
        if not numbered:
            return None
        folder = self._out or Path("samples")
        if folder.suffix in SUFFIXES.values() or folder.is_file():
            raise UsageError(f"--out {folder} must be a folder, as every INPUT gets files of its own")
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise NotReadyError(f"the folder {folder} cannot be made: {error.strerror}") from error
        return folder

    def _check_name(self, out: Path) -> Path:
        wanted = SUFFIXES[self._shows.gives] if self._shows else out.suffix
        if out.suffix and out.suffix.lower() != wanted:
            raise UsageError(f"--out {out} must end in {wanted}, as this network {self._does}; or in nothing")
        if not out.expanduser().resolve().parent.is_dir():
            raise NotReadyError(f"cannot write {out}: there is no folder {out.parent}; make it, or choose another")
        return out.with_suffix("")

    @property
    def _does(self) -> str:
        return self._shows.does if self._shows else "does otherwise"


def load_trained(source: Origin, device: Device) -> Trained:
    """The network of a run or of a file of weights on a device, in evaluation mode and float32."""
    plan = source.plan
    if not source.path.exists():
        raise NotReadyError(f"{source.path} does not exist; give a run, the folder of one, or a file of weights")
    file, step = _find_weights(source.path, plan)
    found = weights.read_weights(file)
    if plan is None:
        workload = _find_fitting_workload(found, file)
        recipe = workload.recipes["reference"]
    else:
        workload = workloads.of_plan(plan)
        recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    model = workload.build(recipe)
    weights.load_into(model, found, str(file))
    device.set_precision(Precision.parse("fp32"))
    judged = source.record.quality if source.record else None
    return Trained(
        workload=workload,
        model=model.float().to(device.torch).eval(),
        recipe=recipe,
        device=device,
        source=NetworkUsed(
            workload=workload.name,
            run_id=source.run_id,
            file=str(file.absolute()),
            sha256=weights.weights_sha256(file),
            step=step,
            quality=judged.name if judged else "",
            value=judged.value if judged else None,
            unit=judged.unit if judged else "",
        ),
    )


def find_data_folder(plan: Plan | None) -> Path | None:
    """The data folder of a plan, if it exists here."""
    folder = Path(plan.data.folder) if plan and plan.data.folder else None
    return folder if folder and folder.is_dir() else None


def _name_files(sample: Sample, place: Path) -> list[tuple[Part, Path]]:
    """The file of each part, named after `place`; a second one of a kind is numbered."""
    found: list[tuple[Part, Path]] = []
    for part in sample.parts:
        kind = "sound" if isinstance(part, SoundPart) else "text" if isinstance(part, TextPart) else "image"
        before = sum(type(other) is type(part) for other, _ in found)
        number = f"-{before + 1}" if before else ""
        found.append((part, place.with_name(f"{place.name}{number}{SUFFIXES[kind]}")))
    return found


def _write_parts(sample: Sample, place: Path) -> tuple[Artifact, ...]:
    """Writes one file per part; all sound at the same level."""
    left = []
    for part, path in _name_files(sample, place):
        if isinstance(part, SoundPart):
            audio.write(path, audio.normalise_level(part.samples))
        else:
            write_user_file(path, part.text.encode() + b"\n" if isinstance(part, TextPart) else part.png)
        left.append(Artifact(file=path.name, caption=part.caption))
    return tuple(left)


@torch.no_grad()
def write_sample(
    trained: Trained, request: SampleRequest, place: Path, check: Callable[[Path], None] = lambda path: None
) -> SampleDocument:
    """Makes a sample and writes its parts and, last, its document; `check` may refuse a file before it is written."""
    wanted = trained.recipe.score_clips if request.score is None else request.score
    speech = features.load("scoring.sample_scorer") if wanted else None
    scorer = speech.installed() if speech else None
    if not (scorer and (scorer.opinion or scorer.transcript)):  # then no clip is made only to be scored
        request = replace(request, score=False)
    began = time.perf_counter()
    sample: Sample = trained.workload.sample(trained, request)
    seconds = time.perf_counter() - began
    for _, path in _name_files(sample, place):
        check(path)
    scores = speech.score(sample.clips, scorer) if speech else None
    has_sound = any(isinstance(part, SoundPart) and part.samples.any() for part in sample.parts)
    document = SampleDocument(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        workload=trained.source.workload,
        input=sample.shown,
        networks=(trained.source, *sample.networks),
        generator=sample.generator,
        settings=dict(setting.split("=", 1) for setting in request.options),
        device=trained.device.name(),
        seconds=seconds,
        level_dbfs=audio.LEVEL_DBFS if has_sound else None,
        files=_write_parts(sample, place),
        facts=dict(sample.facts),
        scores=scores,
        doubts=(*sample.doubts, *(speech.doubts(scores) if speech else ())),
    )
    write_user_file(place.with_name(f"{place.name}.json"), document.dumps())
    return document


def _find_weights(path: Path, plan: Plan | None) -> tuple[Path, int | None]:
    """The file of weights at a path and its step: the file itself, a checkpoint, or the newest whole one of a run."""
    if path.is_file():
        if path.name != "state.pt" or not (path.parent / "manifest.json").is_file():
            return path, None
        path = path.parent
    given = [path] if (path / "state.pt").is_file() else []
    damaged = ""
    for folder in (*given, *reversed([*weights.checkpoints(path), *weights.checkpoints(path / "checkpoints")])):
        reason = checkpoint.find_damage(folder)
        if reason is None:
            return folder / "state.pt", checkpoint.read_step(folder)
        damaged = damaged or f"checkpoint {folder} is damaged: {reason}; give the one before it, or another run"
    if damaged:
        raise NotReadyError(damaged)
    kept = plan.recipe.get("checkpoint_every") if plan else None
    remedy = f"--set checkpoint_every=end keeps them (this run has {kept})" if kept else "give a run that kept them"
    raise NotReadyError(f"{path} holds no weights; {remedy}")


def _find_fitting_workload(found: dict[str, torch.Tensor], file: Path) -> Workload:
    """The workload whose reference network fits the weights of a file."""
    for name in workloads.names():
        workload = workloads.load(name)
        with torch.device("meta"):
            model = workload.build(workload.recipes["reference"])
        try:
            weights.check_fit(model, found, str(file))
        except NotReadyError:
            continue
        return workload
    known = ", ".join(workloads.names())
    raise UsageError(f"{file} fits no reference network ({known}); give a run, whose plan says which network it is")
