"""What a trained network shows people - sound, pictures, text - and the document that says what made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from trainmark.spec.artifact import Artifact
from trainmark.spec.recipe import knob
from trainmark.spec.record import Doubt

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SAMPLE_SCHEMA = 1
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
