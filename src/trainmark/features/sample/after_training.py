"""The sample that rank 0 leaves of its network after a run, and how samples are written."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from trainmark import features
from trainmark.data import audio
from trainmark.record import endings
from trainmark.record.atomic_files import write_user_file
from trainmark.record.errors import NotReadyError, TrainmarkError
from trainmark.record.events import ArtifactsLeft, NoSample
from trainmark.record.machine import Artifact
from trainmark.record.plan import Plan
from trainmark.record.sample import NetworkUsed, Part, Sample, SampleDocument, SoundPart, TextPart
from trainmark.train.loop import Job
from trainmark.train.post_training import interrupt_on_signals
from trainmark.train.schedule import Position
from trainmark.workloads.sampling import SampleRequest, Trained

SAMPLE = "sample"
"""The stem of its file names."""
SUFFIXES = {"sound": ".wav", "image": ".png", "text": ".txt"}


def work(job: Job, position: Position, ended: str, folder: Path, plan: Plan) -> None:
    leave_sample(job, ended, folder, find_data_folder(plan))


def leave_sample(job: Job, ended: str, folder: Path, data: Path | None) -> None:
    """Rank 0 writes a sample of its network into the run folder while the others wait. Where no rank can compute alone,
    all ranks make one, and only that of rank 0 is kept."""
    if ended in endings.WITHOUT_A_MODEL or not job.clock.steps or not job.recipe.leave_sample:
        return
    job.monitor.report_alive("sample", 0)
    is_first, is_sharded = job.collectives.rank == 0, job.stepper.parallel.together
    if is_first or is_sharded:
        try:
            together = _begin_together(job) if is_sharded else nullcontext()
            with tempfile.TemporaryDirectory() as scratch, interrupt_on_signals(), together:
                artifacts = _make_sample(job, folder if is_first else Path(scratch), data)
            if is_first:
                job.events.write(ArtifactsLeft(artifacts=artifacts))
        except (Exception, KeyboardInterrupt) as error:  # the result is measured already: nothing here may cost it
            traceback.print_exc()
            if is_first:
                job.events.write(NoSample(reason=_describe_error(error)))
    job.collectives.barrier()


@contextmanager
def _begin_together(job: Job) -> Iterator[None]:
    """A sharded network computes on all ranks or on none: before its first pass they agree that no rank failed."""
    agreed = False

    def agree(*, failed: bool = False) -> None:
        nonlocal agreed
        if not agreed:
            agreed = True
            [any_failed] = job.collectives.reduce_max(float(failed))
            if any_failed and not failed:
                raise NotReadyError("another rank could not make one; its log says why")

    # before the hook that gathers the weights
    hook = job.stepper.bare_model.register_forward_pre_hook(lambda *given: agree(), prepend=True)
    try:
        yield
        agree()
    except BaseException:
        agree(failed=True)
        raise
    finally:
        hook.remove()


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
    scorer = speech.load_scorer() if speech else None
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


def _make_sample(job: Job, folder: Path, data: Path | None) -> tuple[Artifact, ...]:
    model = job.stepper.bare_model
    model.eval()
    trained = Trained(
        workload=job.workload,
        model=model,
        recipe=job.recipe,
        device=job.device,
        source=NetworkUsed(workload=job.workload.name, file="", sha256=""),
    )
    with job.stepper.use_evaluation_weights(), job.stepper.arithmetic, job.device.autocast(job.stepper.precision):
        return write_sample(trained, SampleRequest(data=data), folder / SAMPLE).files


def _describe_error(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    first_line = str(error).partition("\n")[0]
    return first_line if isinstance(error, TrainmarkError) else f"{type(error).__name__}: {first_line}"
