"""How a trained network is asked to show what it learnt: by the command, and by its own run once it has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from trainmark.record.errors import NotReadyError
from trainmark.record.precision import Precision
from trainmark.record.recipe import apply_settings
from trainmark.record.sample import NetworkUsed, SampleSettings

Settings = TypeVar("Settings", bound=SampleSettings)


class SampleDevice(Protocol):
    """What a network asks of the device it is shown on."""

    @property
    def torch(self) -> torch.device: ...

    def name(self) -> str: ...

    def set_precision(self, precision: Precision, /) -> None: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network that was trained, in evaluation mode on its device, and where it came from."""

    workload: Any
    model: Any
    recipe: Any
    device: SampleDevice
    source: NetworkUsed


def _no_other_run(word: str) -> Trained:
    raise NotReadyError(f"{word!r} cannot be opened while a run ends; `trainmark sample` takes it")


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleRequest:
    """What a network is to show."""

    given: str | None = None
    """The INPUT: a text, or the path of a file that is there; None where the workload is to choose from its data."""
    said: tuple[str, ...] = ()
    """Settings as `key=value`."""
    data: Path | None = None
    """The folder the run read; None where it is gone, or was made in memory."""
    score: bool | None = None
    """Whether speech is to be scored, and clips made to score it beside; None leaves it to the recipe."""
    open_run: Callable[[str], Trained] = _no_other_run
    """Opens another run, by the words all commands take, or a file of weights."""

    def settings(self, kind: type[Settings]) -> Settings:
        """What was said, in the workload's own terms; UsageError where it knows no such setting."""
        return apply_settings(kind(), self.said)

    @property
    def data_folder(self) -> Path:
        if self.data is None:
            raise NotReadyError("the data of this run is not there to take an example from; give an INPUT")
        return self.data


class Vocoded(NamedTuple):
    """Sound of mels, each (samples), and what made it: which kernel, on how many stretches at once."""

    sounds: list[Tensor]
    generator: str


@runtime_checkable
class VocoderWorkload(Protocol):
    """A workload whose networks make sound of log mel spectrograms."""

    def sound_of(self, trained: Trained, mels: Sequence[Tensor], seed: int) -> Vocoded:
        """Of mels (bands, frames) as data/mel.py makes them; NotReadyError of a network that learnt from others."""
