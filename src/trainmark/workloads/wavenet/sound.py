"""What a trained WaveNet shows: a sound made again from its mel, and sound for the mels of others."""

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
from trainmark.spec.sample import Sample, SampleSettings, SoundPart, SpokenClips
from trainmark.workloads import weights
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded
from trainmark.workloads.scoring.clips import kinds, validation_clips
from trainmark.workloads.wavenet import vocoder

EXAMPLE_S = 2.0
"""Of a validation clip, from its middle."""


@dataclass(frozen=True, kw_only=True)
class SoundSettings(SampleSettings):
    seconds: float = knob(0.0, least=0)
    """From the middle of the sound; 0 takes all of a file that was given, and two seconds of a validation clip."""
    score_clips: int = knob(4, least=1)
    """Validation clips that are made again too where they are to be scored."""


def sample(trained: Trained, asked: SampleRequest) -> Sample:
    """A sound made again from its mel, and the sound itself to be heard beside it."""
    settings = asked.settings(SoundSettings)
    if asked.given is None:
        clip = reader.open_splits(asked.data_folder, trained.recipe.file_lists).val[0]
        path, name = clip.path, f"validation clip {clip.name}"
    else:
        path, name = Path(asked.given), Path(asked.given).name
    recorded = _middle(_read(path), settings.seconds or (0.0 if asked.given else EXAMPLE_S))
    sounds, generator = sound_of(trained, [log_mel(recorded)], settings.seed)
    length_s = len(recorded) / audio.RATE
    return Sample(
        parts=(
            SoundPart(
                samples=sounds[0][: len(recorded)].numpy(),
                caption=f"{length_s:.1f} s of {name}, made again from its mel ({generator})",
            ),
            SoundPart(samples=recorded.numpy(), caption="the same as it was recorded"),
        ),
        shown=name,
        generator=generator,
        facts={"sound_s": length_s},
        clips=_clips(trained, asked, settings) if asked.score else (),
    )


def _clips(trained: Trained, asked: SampleRequest, settings: SoundSettings) -> tuple[SpokenClips, ...]:
    clips = validation_clips(asked.data_folder, trained.recipe.file_lists, settings.score_clips)
    return kinds(clips, trained, settings.seed)


def sound_of(trained: Trained, mels: Sequence[Tensor], seed: int) -> Vocoded:
    """The sound (hop x frames) of each mel (bands, frames), whatever it was trained in, on the host in float32."""
    if trained.source.file:
        file = Path(trained.source.file)
        vocoder.refuse_other_mels(weights.read_document(file), file)
    with torch.autocast("cpu", enabled=False):
        made = vocoder.speak(vocoder.of_training(trained.model, trained.recipe.gain), mels, seed)
    samples = sum(len(sound) for sound in made.sounds)
    loop = "a loop in C" if made.way == "c" else f"a loop in torch: {made.why}"
    return Vocoded(made.sounds, f"WaveNet, {samples / made.seconds:,.0f} samples a second by {loop}")


def _read(path: Path) -> Tensor:
    try:
        return torch.from_numpy(audio.read(path))
    except audio.BadAudioError as error:
        raise NotReadyError(str(error)) from error


def _middle(sound: Tensor, seconds: float) -> Tensor:
    length = min(len(sound), round(seconds * MEL.rate)) or len(sound)
    first = (len(sound) - length) // 2
    return sound[first : first + length]
