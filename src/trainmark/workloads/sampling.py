"""Requests for samples from a trained network, by `trainmark sample` and at the end of a run."""

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
    """What sampling needs of a device."""

    @property
    def torch(self) -> torch.device: ...

    def name(self) -> str: ...

    def set_precision(self, precision: Precision, /) -> None: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained network in evaluation mode on its device, and its source."""

    workload: Any
    model: Any
    recipe: Any
    device: SampleDevice
    source: NetworkUsed


def _refuse_other_run(word: str) -> Trained:
    raise NotReadyError(f"{word!r} cannot be opened while a run ends; `trainmark sample` takes it")


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleRequest:
    """Input and options of a sample."""

    given: str | None = None
    """The INPUT: a text, or the path of an existing file; None lets the workload choose from its data."""
    options: tuple[str, ...] = ()
    """Settings as `key=value`."""
    data: Path | None = None
    """The run's data folder; None if it no longer exists, or there was none."""
    score: bool | None = None
    """Score speech, with reference clips; None leaves it to the recipe."""
    open_run: Callable[[str], Trained] = _refuse_other_run
    """Opens another run, named as in all commands, or a file of weights."""

    def settings(self, kind: type[Settings]) -> Settings:
        """The options as the workload's settings; UsageError for an unknown one."""
        return apply_settings(kind(), self.options)

    @property
    def data_folder(self) -> Path:
        if self.data is None:
            raise NotReadyError("the data of this run no longer exists, so there is no example; give an INPUT")
        return self.data


class Vocoded(NamedTuple):
    """Audio of mels, each (samples), and how it was generated."""

    sounds: list[Tensor]
    generator: str


@runtime_checkable
class VocoderWorkload(Protocol):
    """A workload whose networks generate audio from log mel spectrograms."""

    def sound_of(self, trained: Trained, mels: Sequence[Tensor], seed: int) -> Vocoded:
        """Audio of mels (bands, frames) as in data/mel.py; NotReadyError for a network trained on others."""
