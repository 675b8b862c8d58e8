"""The mels a text-to-mel network makes of clips when it is told the true frames: what a vocoder of its own should hear.

Under teacher forcing it makes one frame for each true one, so these mels lie beside the recorded sound as the true ones
do. They are made on the host once for each network and clip, and kept beside the true ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from trainmark import workloads
from trainmark.data import synthetic
from trainmark.data.ljspeech.reader import Clip
from trainmark.data.mel_cache import Mel, MelCache
from trainmark.record.errors import NotReadyError, TrainmarkError
from trainmark.record.recipe import from_values
from trainmark.record.whole_files import sha256
from trainmark.workloads import weights

BATCH = 8
"""Clips that are made at once."""


@runtime_checkable
class TeacherForced(Protocol):
    """A workload whose networks make mels of texts."""

    def build(self, recipe: Any) -> nn.Module: ...

    def teacher_forced(
        self, model: Any, clips: Sequence[Clip], numbers: Sequence[int], cache: MelCache
    ) -> list[Tensor]:
        """For these of the clips, the mel (frames, bands) made with the true frames before each frame."""


class TaughtMels(MelCache):
    """The mels that the network in a file makes of clips; whatever is asked for must have been made before."""

    def __init__(self, file: Path, digest: str) -> None:
        super().__init__(synthetic.cache_folder() / "taught-mels" / digest[:16])
        self._file, self._digest = file, digest

    def make(self, clips: Sequence[Clip], cache: MelCache, first: float) -> None:
        """Those that are missing, from a share of the clips on, so that ranks begin at different places."""
        missing = [number for number, clip in enumerate(clips) if not self.has(clip.path)]
        if not missing:
            return
        workload, model = open_teacher(self._file, self._digest)
        start = int(len(missing) * first)
        for numbers in _parts([*missing[start:], *missing[:start]]):
            wanted = [number for number in numbers if not self.has(clips[number].path)]
            made = workload.teacher_forced(model, clips, wanted, cache) if wanted else []
            for number, mel in zip(wanted, made, strict=True):
                self.put(clips[number].path, mel.numpy())

    def _keep(self, entry: Path, wav: Path) -> Mel:
        raise NotReadyError(f"the mel made of {wav} is gone from {self.folder}; start the run again")


def open_teacher(file: Path, digest: str) -> tuple[TeacherForced, Any]:
    """The network in a checkpoint, ready to make mels; NotReadyError of another than was planned with, or none that
    can."""
    if sha256(file) != digest:
        raise NotReadyError(f"{file} was changed after the run was planned; plan it again")
    document = weights.read_document(file)
    try:
        made_by = document["made_by"]
        workload: Any = workloads.load(made_by["workload"])
        recipe = from_values(type(workload.recipes["reference"]), made_by["recipe"])
    except (KeyError, TypeError, TrainmarkError) as error:
        raise NotReadyError(f"{file} does not say what network it holds; give a run of this version") from error
    if not isinstance(workload, TeacherForced):
        raise NotReadyError(
            f"mels_from {file} holds a network of {made_by['workload']}, which makes no mels of texts; give a run of a "
            "network that does"
        )
    model = workload.build(recipe)
    weights.load_into(model, weights.read_weights(file), str(file))
    return workload, model.eval()


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), BATCH):
        yield numbers[first : first + BATCH]
