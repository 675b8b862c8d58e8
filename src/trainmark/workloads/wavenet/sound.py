"""Sound of whole mel spectrograms: cut where it is quietest, made side by side, and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from trainmark.workloads.wavenet import generate
from trainmark.workloads.wavenet.batches import MEL_DEVIATION, MEL_MEAN
from trainmark.workloads.wavenet.model import CONTEXT, HOP, REACH, WaveNet

STRETCH = 48
"""Frames of a stretch, more or less; shorter ones are made sooner and have more joints."""
SEARCHED = 10
"""Frames on either side of an even cut among which the quietest is taken."""
MOST_AT_ONCE = 128
"""Stretches made side by side."""
FADE = 128
"""Samples over which one stretch goes over into the next."""
EXAMPLE_S = 2.0
"""Of a validation clip, from its middle."""


@dataclass(frozen=True, kw_only=True)
class SoundSettings(SampleSettings):
    seconds: float = knob(0.0, least=0)
    """From the middle of the sound; 0 takes all of a file that was given, and two seconds of a validation clip."""


@dataclass(frozen=True)
class _Stretch:
    """Frames of one mel: from `first` up to but not including `last`."""

    mel: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first


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
    edge = CONTEXT + REACH
    padded = [torch.nn.functional.pad((mel - MEL_MEAN) / MEL_DEVIATION, (edge, edge), mode="replicate") for mel in mels]
    stretches = [stretch for number, mel in enumerate(mels) for stretch in _stretches(number, mel)]
    weight, generator = next(model.parameters()), torch.Generator().manual_seed(seed)
    made: list[Tensor] = []
    for start in range(0, len(stretches), MOST_AT_ONCE):
        part = stretches[start : start + MOST_AT_ONCE]
        longest = max(stretch.count for stretch in part)
        wanted = torch.arange(longest + 2 * edge)
        heard = [
            padded[stretch.mel][:, (wanted + stretch.first).clamp(max=_last(padded[stretch.mel]))] for stretch in part
        ]
        draws = generate.draw_chance((longest + 2 * REACH) * HOP, len(part), model.sizes.mixtures, generator)
        chance = generate.Chance(*(drawn.to(weight.device, weight.dtype) for drawn in draws))
        sound = generate.generate(model, torch.stack(heard).to(weight.device, weight.dtype), chance).float().cpu()
        # what comes before is heard and not kept; what comes after is kept so far as the next goes over into it
        made += [
            row[REACH * HOP : (REACH + stretch.count) * HOP + FADE] for row, stretch in zip(sound, part, strict=True)
        ]
    joined = [
        _joined([sound for sound, stretch in zip(made, stretches, strict=True) if stretch.mel == number]) / gain
        for number in range(len(mels))
    ]
    return Vocoded(joined, f"wavenet, {len(stretches)} stretches at once")


def _stretches(number: int, mel: Tensor) -> list[_Stretch]:
    """A mel cut at quiet frames into parts of like length."""
    frames, loudness = mel.shape[1], mel.mean(0)
    count = max(1, round(frames / STRETCH))
    cuts = [0]
    for place in range(1, count):
        even = frames * place // count
        first = even - SEARCHED
        cuts.append(first + int(loudness[first : even + SEARCHED + 1].argmin()))
    cuts.append(frames)
    return [_Stretch(number, first, last) for first, last in pairwise(cuts)]


def _joined(sounds: Sequence[Tensor]) -> Tensor:
    """One after the other; the end of each fades into the beginning of the next, and that of the last is cut off."""
    rising = torch.linspace(0, 1, FADE)
    parts = []
    for before, sound in zip([None, *sounds[:-1]], sounds, strict=True):
        own = sound[:-FADE].clone()
        if before is not None:
            own[:FADE] = rising * own[:FADE] + (1 - rising) * before[-FADE:]
        parts.append(own)
    return torch.cat(parts)


def _last(mel: Tensor) -> int:
    return mel.shape[1] - 1


def _read(path: Path) -> Tensor:
    try:
        return torch.from_numpy(audio.read(path))
    except audio.BadAudioError as error:
        raise NotReadyError(str(error)) from error


def _middle(sound: Tensor, seconds: float) -> Tensor:
    length = min(len(sound), round(seconds * MEL.rate)) or len(sound)
    first = (len(sound) - length) // 2
    return sound[first : first + length]
