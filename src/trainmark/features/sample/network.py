"""Loads the network of a run, and makes samples with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from trainmark import workloads
from trainmark.features.sample.after_training import SUFFIXES, find_data_folder, write_sample
from trainmark.platforms import detection, files
from trainmark.platforms.platform import Device, Platform
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.foreign_files import read_plain
from trainmark.record.plan import Plan
from trainmark.record.precision import Precision
from trainmark.record.recipe import from_values
from trainmark.record.record import Record
from trainmark.record.sample import NetworkUsed, SampleDocument
from trainmark.record.store import Store, read_record
from trainmark.record.trust import check_plan, trust_file
from trainmark.record.workload_facts import ShowFacts, WorkloadFacts, derive_facts
from trainmark.train import checkpoint
from trainmark.workloads import weights
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.workload import Workload


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
                    return Plan.from_json(json.loads(read_plain(folder / "plan.json")))
                except (OSError, ValueError) as error:
                    raise NotReadyError(f"the plan of run {folder} cannot be read: {error}") from error
        return None

    def facts(self) -> WorkloadFacts | None:
        """The workload's facts, without importing torch for built-in ones; None where there are only weights."""
        plan = self.plan
        if plan is None:
            return None
        return workloads.facts(plan.workload) or derive_facts(workloads.of_plan(plan))


def make_samples(
    run: str,
    inputs: Sequence[str],
    store: Store,
    *,
    settings: Sequence[str] = (),
    out: Path | None = None,
    score: bool = False,
    platform: str = "auto",
    force: bool = False,
    trust: bool = False,
) -> Iterator[tuple[SampleDocument, tuple[Path, ...]]]:
    """A sample of each input with its files; `out` is a file, or of several inputs a folder. Without it they lie in the
    store."""
    source = find_network(run, store, trust=trust)
    shows = check_can_show(source, run, score=score)
    for given in inputs:
        check_input(given, shows)
    own = store.samples / source.run_id if source.run_id and (store.runs / source.run_id).is_dir() else None
    targets = choose_paths(out, len(inputs) or 1, own=own, shows=shows, force=force)
    device = Platform(files.load(detection.choose_platform() if platform == "auto" else platform)).open(0)
    trained = load_trained(source, device)
    asked = SampleRequest(
        options=tuple(settings),
        score=score,
        data=find_data_folder(source.plan),
        open_run=lambda word: load_trained(find_network(word, store, trust=trust), device),
    )
    for number, place in enumerate(targets):
        request = replace(asked, given=inputs[number] if inputs else None)
        document = write_sample(trained, request, place, partial(check_free, force=force))
        yield document, tuple(place.with_name(left.file) for left in document.files)


def find_network(word: str, store: Store, *, trust: bool) -> Origin:
    """The network meant by a path, or by a run's word, whose plan the user may have to trust."""
    found = _find_origin(word, store)
    if trust:
        trust_file(found.path)
    if (plan := found.plan) is not None:
        own_platform = replace(plan, platform="cpu")  # the network is opened on the platform that the user names
        check_plan(own_platform, f"the plan of {found.path}", trust=trust)
    return found


def _find_origin(word: str, store: Store) -> Origin:
    """With the record of its run where there is one."""
    path = Path(word).expanduser()
    if path.exists() or os.sep in word or path.suffix == ".pt":
        run = next((folder for folder in (path, *path.absolute().parents) if (folder / "plan.json").is_file()), None)
        if run is None:
            return Origin(path)
        kept = store.path(run.name)
        return Origin(path, run.name, read_record(kept) if kept.is_file() else None)
    try:
        record = read_record(store.find(word))
    except UsageError:
        folder = store.run_folder(word)
        return Origin(folder, folder.name)
    folder = store.runs / record.run_id
    if not folder.is_dir():
        raise NotReadyError(f"the folder of run {record.run_id} is not in the store any more, and with it its weights")
    return Origin(folder, record.run_id, record)


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


def choose_paths(out: Path | None, count: int, *, own: Path | None, shows: ShowFacts | None, force: bool) -> list[Path]:
    """The path of each sample without a suffix; raises before any sample is made.

    Samples are numbered in the folder `own` of the store, or where several are requested in `out`.
    """
    suffix = SUFFIXES[shows.gives] if shows else ""
    if out is None and own is not None:
        own.mkdir(parents=True, exist_ok=True)
        first = max((int(path.stem) for path in own.glob("*.json") if path.stem.isdigit()), default=0) + 1
        found = [own / f"{first + place:03d}" for place in range(count)]
    elif count > 1:
        folder = out or Path("samples")
        if folder.suffix in SUFFIXES.values() or folder.is_file():
            raise UsageError(f"--out {folder} must be a folder, as every INPUT gets files of its own")
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise NotReadyError(f"the folder {folder} cannot be made: {error.strerror}") from error
        found = [folder / f"{place + 1:03d}" for place in range(count)]
    else:
        out = out or Path("sample")
        if shows and out.suffix and out.suffix.lower() != suffix:
            raise UsageError(f"--out {out} must end in {suffix}, as this network {shows.does}; or in nothing")
        if not out.expanduser().resolve().parent.is_dir():
            raise NotReadyError(f"cannot write {out}: there is no folder {out.parent}; make it, or choose another")
        found = [out.with_suffix("")]
    for place in found:
        for ending in filter(None, (suffix, ".json")):
            check_free(place.with_name(place.name + ending), force=force)
    return found


def check_free(path: Path, *, force: bool) -> None:
    """Refuses to overwrite a file unless forced."""
    if not force and os.path.lexists(path):
        raise UsageError(f"{path} exists and is not overwritten; choose another name, or --force")


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
