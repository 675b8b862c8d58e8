"""What a trained network shows people - sound, images, text - and the document that says what made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

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
LARGEST_DOCUMENT = 1_000_000
"""Bytes; what is larger is no document of ours."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """What `--set` may change of a sample; a workload adds its own in a subclass, with bounds as a recipe's fields."""

    seed: int = knob(0, least=0)
    """Another seed, another sample; of no matter where nothing is drawn."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SoundPart:
    samples: npt.NDArray[np.float32]
    """Of any loudness: it is brought to one level where it is written."""
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
    """A network that took part, so that anybody can tell whether another sample is of the same."""

    workload: str
    file: str
    """Its weights."""
    sha256: str
    run_id: str = ""
    """Empty where only weights were given."""
    step: int | None = None
    """Steps it had been trained for."""
    quality: str = ""
    """What its run was judged by."""
    value: float | None = None
    """At its last evaluation."""
    unit: str = ""

    def __str__(self) -> str:
        judged = f", {self.quality} {self.value:.4g}" if self.value is not None else ""
        return f"{self.run_id or self.workload}{judged} (sha256 {self.sha256[:12]})"


@dataclass(frozen=True, kw_only=True, eq=False)
class SpokenClips:
    """Sounds of one kind that are to be scored together."""

    of: str
    """`recordings`, `copy synthesis (griffin-lim)`, `speech`."""
    sounds: tuple[npt.NDArray[np.float32], ...]
    texts: tuple[str, ...] = ()
    """What is said in each; empty where nobody knows."""


class SpeechScore(Struct, frozen=True, kw_only=True):
    """What networks made of sounds of one kind. A prediction, not a listening test."""

    of: str
    clips: int
    seconds: float
    predicted_mos: float | None = None
    """The mean over clips, from 1 to 5; None where the predictor is unavailable."""
    deviation: float | None = None
    """Of the clips from that mean; None of a single one."""
    wer: float | None = None
    """Words that were heard otherwise, as a share of those said; None where the recogniser is unavailable."""

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
    """What a network made of one input."""

    parts: tuple[Part, ...]
    """What was asked for first, then what explains it."""
    shown: str
    """What the network was given, in words."""
    generator: str = ""
    """By what the output was drawn or computed, where there is more than one way."""
    networks: tuple[NetworkUsed, ...] = ()
    """Those that took part beside the one that was asked."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of how it came to be."""
    doubts: tuple[Doubt, ...] = ()
    clips: tuple[SpokenClips, ...] = ()
    """What is to be scored, where that was asked for."""


class SampleDocument(Struct, frozen=True, kw_only=True):
    """Lies beside what was made; where it is, all is."""

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
    """What it took to make."""
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
    """Those in a folder, oldest first; what is no such document is passed over."""
    for path in sorted(folder.glob("*.json")):
        try:
            if path.stat().st_size > LARGEST_DOCUMENT:
                continue
            found = msgspec.json.decode(path.read_bytes(), type=SampleDocument)
        except (OSError, msgspec.DecodeError):  # a misfit is one, too
            continue
        if (found.kind, found.schema) == (KIND, SAMPLE_SCHEMA):
            yield found
