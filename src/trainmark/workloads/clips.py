"""Reference clips for scoring speech: recordings, and their copies resynthesised from mels."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, from_numpy

from trainmark.data import audio, griffin_lim
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip
from trainmark.data.mel import log_mel
from trainmark.record.sample import SpokenClips
from trainmark.workloads.sampling import Trained

GRIFFIN_LIM = "griffin-lim"
RECORDINGS = "recordings"


def validation_clips(folder: Path, file_lists: str, count: int) -> list[Clip]:
    """`count` clips, spread evenly over the validation set."""
    clips = reader.open_splits(folder, file_lists).val
    count = min(count, len(clips))
    return [clips[len(clips) * place // count] for place in range(count)]


def score_sources(clips: list[Clip], vocoder: Trained | None, seed: int) -> tuple[SpokenClips, ...]:
    """The recordings, and audio resynthesised from their mels by Griffin-Lim and, if given, by a vocoder."""
    texts = tuple(clip.text for clip in clips)
    recorded = [audio.read(clip.path) for clip in clips]
    mels = [log_mel(from_numpy(sound)) for sound in recorded]
    found = [
        SpokenClips(of=RECORDINGS, sounds=tuple(recorded), texts=texts),
        _label_sources(GRIFFIN_LIM, [griffin_lim.invert_mel(mel) for mel in mels], texts),
    ]
    if vocoder is not None:
        sounds = vocoder.workload.sound_of(vocoder, mels, seed).sounds
        found.append(_label_sources(vocoder.source.workload, sounds, texts))
    return tuple(found)


def _label_sources(by: str, sounds: list[Tensor], texts: tuple[str, ...]) -> SpokenClips:
    return SpokenClips(of=f"copy synthesis ({by})", sounds=tuple(sound.numpy() for sound in sounds), texts=texts)
