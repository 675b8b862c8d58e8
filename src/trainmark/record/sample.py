"""Samples of a trained network - sound, images, text - and the document that describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from trainmark.record.foreign_files import read_plain
from trainmark.record.machine import Artifact
from trainmark.record.recipe import knob
from trainmark.record.record import Doubt

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


SAMPLE_SCHEMA = 1
RECORDINGS = "recordings"
"""What speech is scored beside, of the kinds of clips."""
KIND = "trainmark sample"


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """Settings of a sample for `--set`; a workload adds its own in a subclass."""

    seed: int = knob(0, least=0)
    """Seed of the random numbers, where there are any."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SoundPart:
    samples: npt.NDArray[np.float32]
    """Of any level; normalised when written."""
    caption: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ImagePart:
    png: bytes
    caption: str


@dataclass(frozen=True, kw_only=True, eq=False)
class TextPart:
    text: str
    caption: str


Part = SoundPart | ImagePart | TextPart


class NetworkUsed(Struct, frozen=True, kw_only=True):
    """A network that made the sample, by the hash of its weights."""

    workload: str
    file: str
    """Its weights."""
    sha256: str
    run_id: str = ""
    """Empty where only weights were given."""
    step: int | None = None
    """Steps it had been trained for."""
    quality: str = ""
    value: float | None = None
    """At its last evaluation."""
    unit: str = ""

    def __str__(self) -> str:
        judged = f", {self.quality} {self.value:.4g}" if self.value is not None else ""
        return f"{self.run_id or self.workload}{judged} (sha256 {self.sha256[:12]})"


@dataclass(frozen=True, kw_only=True, eq=False)
class SpokenClips:
    of: str
    """`recordings`, `copy synthesis (griffin-lim)`, `speech`."""
    sounds: tuple[npt.NDArray[np.float32], ...]
    texts: tuple[str, ...] = ()
    """The spoken text of each; empty where unknown."""


class SpeechScore(Struct, frozen=True, kw_only=True):
    """Predicted scores of sounds of one kind; not a listening test."""

    of: str
    clips: int
    seconds: float
    predicted_mos: float | None = None
    """The mean over clips, from 1 to 5; None where the predictor is unavailable."""
    deviation: float | None = None
    """Of the clips from that mean; None of a single one."""
    wer: float | None = None
    """Word error rate; None where the recogniser is unavailable."""

    def __str__(self) -> str:
        opinion, words, clips = self.cells()
        return f"predicted MOS {opinion}, WER {words}, {clips}"

    def cells(self) -> tuple[str, str, str]:
        """Opinion, words and how much was heard, for people."""
        spread = f" ± {self.deviation:.2f}" if self.deviation is not None else ""
        opinion = "unavailable" if self.predicted_mos is None else f"{self.predicted_mos:.2f}{spread}"
        words = "unavailable" if self.wer is None else f"{100 * self.wer:.1f} %"
        clips = f"{self.clips} clip{'s' * (self.clips != 1)}, {self.seconds:.0f} s"
        return opinion, words, clips


class SpeechScores(Struct, frozen=True, kw_only=True):
    predictor: str
    """What predicted opinions, with its version; `unavailable: why; what installs it` where nothing did."""
    recogniser: str
    """The same of what wrote down the words."""
    rows: tuple[SpeechScore, ...]
    """Of a network's speech, with the recordings it learnt from and what is left of them after mel and vocoder: what it
    could reach at best."""
    note: str = "predicted by a network, not a listening test"


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """A network's output for one input."""

    parts: tuple[Part, ...]
    """The output first, then what explains it."""
    shown: str
    """The input, in words."""
    generator: str = ""
    """How the output was generated, where there is more than one way."""
    networks: tuple[NetworkUsed, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    clips: tuple[SpokenClips, ...] = ()
    """What is to be scored, where that was asked for."""


class SampleDocument(Struct, frozen=True, kw_only=True):
    """Written last, beside the files: where it exists, the sample is complete."""

    kind: str = KIND
    schema: int = SAMPLE_SCHEMA
    created: str = ""
    workload: str
    input: str
    networks: tuple[NetworkUsed, ...]
    """The one that was asked first."""
    generator: str = ""
    settings: dict[str, Any] = {}
    device: str = ""
    seconds: float = 0.0
    level_dbfs: float | None = None
    """Of a sound: its root mean square over full scale."""
    files: tuple[Artifact, ...]
    """Beside the document."""
    facts: dict[str, Any] = {}
    scores: SpeechScores | None = None
    """Of speech, where it was asked to be scored."""
    doubts: tuple[Doubt, ...] = ()

    def dumps(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def documents(folder: Path) -> Iterator[SampleDocument]:
    """The sample documents in a folder, oldest first; other files are skipped."""
    for path in sorted(folder.glob("*.json")):
        try:
            found = msgspec.json.decode(read_plain(path), type=SampleDocument)
        except (OSError, msgspec.DecodeError):  # or a validation error
            continue
        if (found.kind, found.schema) == (KIND, SAMPLE_SCHEMA):
            yield found
