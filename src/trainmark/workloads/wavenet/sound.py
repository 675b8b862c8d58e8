"""What a trained vocoder shows: a sound made again from its mel, with the recording beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainmark.datasets import audio
from trainmark.datasets.ljspeech import reader
from trainmark.datasets.mel import MEL, log_mel
from trainmark.spec.errors import NotReadyError
from trainmark.spec.recipe import knob
from trainmark.spec.sample import Sample, SampleSettings, SoundPart
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded
from trainmark.workloads.wavenet import vocoder
from trainmark.workloads.wavenet.model import WaveNet

EXAMPLE_S = 2.0
"""Of a validation clip, from its middle."""


@dataclass(frozen=True, kw_only=True)
class SoundSettings(SampleSettings):
    seconds: float = knob(0.0, least=0)
    """From the middle of the sound; 0 takes all of a file that was given, and two seconds of a validation clip."""


def sample(trained: Trained, asked: SampleRequest) -> Sample:
    """A sound made again from its mel, and the sound itself to be heard beside it."""
    settings = asked.settings(SoundSettings)
    if asked.given is None:
        clip = reader.open_splits(asked.data_folder, trained.recipe.file_lists).val[0]
        path, name = clip.path, f"validation clip {clip.name}"
    else:
        path, name = Path(asked.given), Path(asked.given).name
    recorded = _middle(_read(path), settings.seconds or (0.0 if asked.given else EXAMPLE_S))
    sounds, generator = sound_of(trained.model, trained.recipe.gain, [log_mel(recorded)], settings.seed)
    made, length_s = sounds[0][: len(recorded)], len(recorded) / audio.RATE
    return Sample(
        parts=(
            SoundPart(samples=made.numpy(), caption=f"{length_s:.1f} s of {name}, made again from its mel"),
            SoundPart(samples=recorded.numpy(), caption="the same as it was recorded"),
        ),
        shown=name,
        generator=generator,
        facts={"sound_s": length_s},
    )


def sound_of(model: WaveNet, gain: float, mels: Sequence[Tensor], seed: int) -> Vocoded:
    """The sound (hop x frames) of each mel (bands, frames); `gain` is what the network's sound was multiplied by."""
    made = vocoder.speak(model, mels, gain=gain, seed=seed)
    loop = "a loop in C" if made.way == "c" else f"a loop in torch ({made.why})"
    rate = sum(map(len, made.sounds)) / made.seconds
    return Vocoded(made.sounds, f"WaveNet by {loop}, {made.stretches} stretches at once, {rate:,.0f} samples a second")


def _read(path: Path) -> Tensor:
    try:
        return torch.from_numpy(audio.read(path))
    except audio.BadAudioError as error:
        raise NotReadyError(str(error)) from error


def _middle(sound: Tensor, seconds: float) -> Tensor:
    length = min(len(sound), round(seconds * MEL.rate)) or len(sound)
    first = (len(sound) - length) // 2
    return sound[first : first + length]
