"""What speech is scored beside: recordings of the same sentences, and what is left of them after their mels."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, from_numpy

from trainmark.data import audio, griffin_lim
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip
from trainmark.data.mel import log_mel
from trainmark.record.sample import RECORDINGS, SpokenClips
from trainmark.workloads.sampling import Trained

GRIFFIN_LIM = "griffin-lim"


def validation_clips(folder: Path, file_lists: str, count: int) -> list[Clip]:
    """So many, spread evenly over the validation set."""
    clips = reader.open_splits(folder, file_lists).val
    count = min(count, len(clips))
    return [clips[len(clips) * place // count] for place in range(count)]


def kinds(clips: list[Clip], vocoder: Trained | None, seed: int) -> tuple[SpokenClips, ...]:
    """The recordings, and sound made again from their mels: without a network, and by a vocoder if there is one."""
    texts = tuple(clip.text for clip in clips)
    recorded = [audio.read(clip.path) for clip in clips]
    mels = [log_mel(from_numpy(sound)) for sound in recorded]
    found = [
        SpokenClips(of=RECORDINGS, sounds=tuple(recorded), texts=texts),
        _copies(GRIFFIN_LIM, [griffin_lim.wave(mel) for mel in mels], texts),
    ]
    if vocoder is not None:
        sounds = vocoder.workload.sound_of(vocoder, mels, seed).sounds
        found.append(_copies(vocoder.source.workload, sounds, texts))
    return tuple(found)


def _copies(by: str, sounds: list[Tensor], texts: tuple[str, ...]) -> SpokenClips:
    return SpokenClips(of=f"copy synthesis ({by})", sounds=tuple(sound.numpy() for sound in sounds), texts=texts)
