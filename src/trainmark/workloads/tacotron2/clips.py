"""Reference clips for scoring speech: recordings, and their copies resynthesised from mels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor, from_numpy

from trainmark.data import audio
from trainmark.data.mel import invert_mel, log_mel
from trainmark.record.sample import RECORDINGS, SpokenClips
from trainmark.workloads.sampling import Trained

GRIFFIN_LIM = "griffin-lim"


class TextClip(Protocol):
    """A recording and its text."""

    @property
    def text(self) -> str: ...

    @property
    def path(self) -> Path: ...


def score_sources(clips: Sequence[TextClip], vocoder: Trained | None, seed: int) -> tuple[SpokenClips, ...]:
    """The recordings, and audio resynthesised from their mels by Griffin-Lim and, if given, by a vocoder."""
    texts = tuple(clip.text for clip in clips)
    recorded = [audio.read(clip.path) for clip in clips]
    mels = [log_mel(from_numpy(sound)) for sound in recorded]
    found = [
        SpokenClips(of=RECORDINGS, sounds=tuple(recorded), texts=texts),
        _label_sources(GRIFFIN_LIM, [invert_mel(mel) for mel in mels], texts),
    ]
    if vocoder is not None:
        sounds = vocoder.workload.sound_of(vocoder, mels, seed).sounds
        found.append(_label_sources(vocoder.source.workload, sounds, texts))
    return tuple(found)


def _label_sources(by: str, sounds: list[Tensor], texts: tuple[str, ...]) -> SpokenClips:
    return SpokenClips(of=f"copy synthesis ({by})", sounds=tuple(sound.numpy() for sound in sounds), texts=texts)
