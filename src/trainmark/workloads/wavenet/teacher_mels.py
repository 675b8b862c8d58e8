"""Mels that a trained network predicts from the texts of clips under teacher forcing, cached on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from trainmark import workloads
from trainmark.data import synthetic
from trainmark.data.ljspeech.reader import Clip
from trainmark.data.mel import Mel, MelCache
from trainmark.record.errors import NotReadyError, TrainmarkError
from trainmark.record.recipe import from_values
from trainmark.workloads import weights

BATCH = 8
"""Clips per forward pass."""


@runtime_checkable
class PredictsMels(Protocol):
    """A workload whose networks predict mels from texts."""

    def make_mels(self, model: Any, clips: Sequence[Clip], numbers: Sequence[int], cache: MelCache) -> list[Tensor]:
        """Teacher-forced mels (frames, bands) of these clips of a split."""


class TeacherMels(MelCache):
    """Mels predicted by the network in a file; `make` must be called before `get`."""

    def __init__(self, file: Path, digest: str) -> None:
        super().__init__(synthetic.cache_folder() / "taught-mels" / digest[:16])
        self._file, self._digest = file, digest

    def make(self, clips: Sequence[Clip], cache: MelCache, *, first: float) -> None:
        """Makes the missing mels of a split; ranks start at different positions: `first`, as a share of the clips."""
        # always the same clips together: the prenet's dropout and the convolutions depend on the padding of a batch
        batches = [range(at, min(at + BATCH, len(clips))) for at in range(0, len(clips), BATCH)]
        start = int(len(batches) * first)
        teacher: tuple[PredictsMels, nn.Module] | None = None
        for numbers in (*batches[start:], *batches[:start]):
            if all(self.has(clips[number].path) for number in numbers):
                continue
            workload, model = teacher = teacher or open_teacher(self._file, self._digest)
            for number, mel in zip(numbers, workload.make_mels(model, clips, numbers, cache), strict=True):
                self.put(clips[number].path, mel.numpy())

    def _compute(self, wav: Path) -> Mel:
        raise NotReadyError(f"the mel of {wav} is missing from {self.folder}; restart the run")


def open_teacher(file: Path, digest: str) -> tuple[PredictsMels, nn.Module]:
    """The network in a checkpoint, for evaluation; NotReadyError if it changed since planning or predicts no mels."""
    file, found = weights.find_weights(file, "setting mels_from")
    if found != digest:
        raise NotReadyError(f"{file} was changed after the run was planned; plan it again")
    document = weights.read_document(file)
    try:
        made_by = document["made_by"]
        workload = workloads.load(made_by["workload"])  # by name, never a path
        recipe = from_values(type(workload.recipes["reference"]), made_by["recipe"])
    except (AttributeError, LookupError, TypeError, TrainmarkError) as error:
        raise NotReadyError(
            f"mels_from {file} does not say which built-in workload it was trained by; give a run of this version"
        ) from error
    if not isinstance(workload, PredictsMels):
        raise NotReadyError(
            f"mels_from {file} holds a network of {workload.name}, which predicts no mels from texts; "
            "give a run of tacotron2"
        )
    given = weights.read_weights(file)
    weights.check_fit(weights.build_network(workload, recipe), given, str(file))  # before memory is allocated
    model = workload.build(recipe)
    weights.load_into(model, given, str(file))
    return workload, model.eval()
