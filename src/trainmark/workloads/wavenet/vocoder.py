"""A trained WaveNet as a voice: mels of any number and length become sound, in stretches that are made side by side.

Always on the host and in float32: a card would be told about a hundred small products a sample.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainmark.data import audio
from trainmark.data.ljspeech import reader
from trainmark.data.mel import MEL, log_mel
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import knob
from trainmark.record.sample import Sample, SampleSettings, SoundPart, SpokenClips
from trainmark.workloads import weights
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded
from trainmark.workloads.tacotron2.clips import kinds, validation_clips
from trainmark.workloads.wavenet import generate
from trainmark.workloads.wavenet.facts import FACTS
from trainmark.workloads.wavenet.generate import Chance, Way
from trainmark.workloads.wavenet.model import CONTEXT, HOP, REACH, WaveNet

MEL_MEAN, MEL_DEVIATION = -5.298, 2.113
"""Of LJSpeech: the units in which the network hears every mel, whatever the data."""

HEARD: Mapping[str, float] = {**asdict(MEL), "mel_mean": MEL_MEAN, "mel_deviation": MEL_DEVIATION}
"""What a network trained here hears; its checkpoints say so."""

PUBLIC_NAMES: Mapping[str, Sequence[str]] = {
    "rate": ("sample_rate", "sampling_rate", "fs"),
    "hop": ("hop_size", "hop_length", "n_shift"),
    "fft": ("fft_size", "n_fft", "filter_length"),
    "window": ("win_length",),
    "bands": ("num_mels", "n_mels", "n_mel_channels"),
    "lowest_hz": ("fmin", "mel_fmin"),
    "highest_hz": ("fmax", "mel_fmax"),
}
"""What the settings that public files carry call the same."""

STRETCH, SEARCHED = 64, 16
"""Frames a sentence's stretches have at least, in the mean, and how far from even a quieter cut is looked for."""
MAX_AT_ONCE = 64
"""Stretches that are made side by side."""


class Vocoder(NamedTuple):
    """A network ready to speak."""

    network: WaveNet
    gain: float
    """What its sound was multiplied by in training."""


class Waves(NamedTuple):
    """What became of the mels."""

    sounds: list[Tensor]
    """One for each mel: HOP samples for each of its frames, from -1 to 1."""
    way: Way
    """The loop that made them: compiled C, or torch."""
    why: str
    """Where it was not the C loop, the reason."""
    stretches: int
    seconds: float
    """That took; all of it, the cutting and joining too."""


def refuse_other_mels(document: Any, file: Path) -> None:
    """NotReadyError unless a file of weights says that its network hears exactly the mels that Tacotron2 speaks here.

    `document` is what `weights.read_document` gave. Public files say it under `hparams` or `config`, or in a file
    `hparams.json` beside them.
    """
    instead = f"train one with `trainmark run {FACTS.name}`; --init-from may begin with these weights"
    said = _heard(document, file)
    if not said:
        raise NotReadyError(
            f"{file} does not say what mels its network hears, so it cannot speak after Tacotron2; {instead}"
        )
    others = [
        f"{name} {value:g} and not {HEARD[ours]:g}"
        for ours, name, value in said
        if not math.isclose(value, HEARD[ours])
    ]
    if others:
        raise NotReadyError(f"{file} was made for other mels than Tacotron2 speaks: {', '.join(others)}; {instead}")
    if {ours for ours, _, _ in said} != set(HEARD):
        raise NotReadyError(
            f"{file} does not say how the mels were scaled that its network hears, so it cannot speak after Tacotron2; "
            f"{instead}"
        )


def of_training(network: WaveNet, gain: float) -> Vocoder:
    """The network as it was trained, whatever on and in."""
    return Vocoder(copy.deepcopy(network).float().cpu().eval(), gain)


class _Stretch(NamedTuple):
    """Frames of a mel that are made in one go; where it was cut, some of them are made by both sides."""

    mel: int
    first: int
    last: int


@torch.no_grad()
def speak(vocoder: Vocoder, mels: Sequence[Tensor], seed: int = 0, way: Way | None = None) -> Waves:
    """Sound for log mels (bands, frames) of any length, as `datasets.mel.log_mel` gives them and Tacotron2 speaks them.

    Long ones are cut at their quietest frames, and each stretch begins from silence. What is drawn for a stretch
    depends on the seed and its place, not on its company. Without a `way`, the faster one that can be had here.
    """
    began, network = time.perf_counter(), vocoder.network
    chosen = way or generate.way_here(network)
    normed = [(mel.detach().cpu().float() - MEL_MEAN) / MEL_DEVIATION for mel in mels]
    stretches = [_Stretch(number, *place) for number, mel in enumerate(normed) for place in _places(mel)]
    sounds = [torch.zeros(mel.shape[1] * HOP) for mel in normed]
    by_length = sorted(stretches, key=lambda stretch: stretch.last - stretch.first)
    for begin in range(0, len(by_length), MAX_AT_ONCE):
        part = by_length[begin : begin + MAX_AT_ONCE]
        for stretch, made in zip(part, _made(network, normed, part, seed, chosen), strict=True):
            _add(sounds[stretch.mel], stretch, made)
    return Waves(
        sounds=[(sound / vocoder.gain).clamp(-1, 1) for sound in sounds],
        way=chosen,
        why="" if chosen == "c" else "it was asked for" if way else generate.why_not_c(network),
        stretches=len(stretches),
        seconds=time.perf_counter() - began,
    )


def _places(mel: Tensor) -> Iterator[tuple[int, int]]:
    """Where a mel is cut, each stretch from REACH frames before its cut to as many after the next."""
    frames = mel.shape[1]
    count = frames // STRETCH
    even = [round(frames * number / count) for number in range(1, count)] if count else []
    loudness = mel.mean(0)
    cuts = [at - SEARCHED + int(loudness[at - SEARCHED : at + SEARCHED].argmin()) for at in even]
    for first, last in zip([0, *(cut - REACH for cut in cuts)], [*(cut + REACH for cut in cuts), frames], strict=True):
        if last > first:
            yield first, last


def _made(network: WaveNet, mels: Sequence[Tensor], part: Sequence[_Stretch], seed: int, way: Way) -> Iterator[Tensor]:
    """The sound of stretches, which are first brought to one length: what is made beyond an end is left out."""
    # REACH more, so that no frame that is kept is the last one, which would sound as if nothing followed
    longest = max(last - first for _, first, last in part) + REACH
    heard = [
        mels[mel][:, torch.arange(first - CONTEXT, first + longest + CONTEXT).clamp(0, mels[mel].shape[1] - 1)]
        for mel, first, _ in part
    ]
    draws = [_chance(stretch, longest, network.sizes.mixtures, seed) for stretch in part]
    chance = Chance(*(torch.cat(drawn, 1) for drawn in zip(*draws, strict=True)))
    sounds = generate.generate(network, torch.stack(heard), chance, way)
    for (_, first, last), sound in zip(part, sounds, strict=True):
        yield sound[: (last - first) * HOP]


def _chance(stretch: _Stretch, longest: int, mixtures: int, seed: int) -> Chance:
    """The draws of a stretch as if it were alone; what is made after it is not kept, so nothing is drawn for it."""
    number = int.from_bytes(hashlib.sha256(repr((seed, *stretch)).encode()).digest()[:7], "big")
    samples = (stretch.last - stretch.first) * HOP
    which, where = generate.draw_chance(samples, 1, mixtures, torch.Generator().manual_seed(number))
    after = longest * HOP - samples
    return Chance(F.pad(which, (0, 0, 0, 0, 0, after), value=0.5), F.pad(where, (0, 0, 0, after), value=0.5))


def _add(sound: Tensor, stretch: _Stretch, made: Tensor) -> None:
    """Each side of a cut fades into the other."""
    rising = torch.linspace(0, 1, 2 * REACH * HOP)
    if stretch.first:
        made[: len(rising)] *= rising
    if stretch.last * HOP < len(sound):
        made[-len(rising) :] *= 1 - rising
    sound[stretch.first * HOP : stretch.last * HOP] += made


class _Said(NamedTuple):
    """What a file says of its mels: our name, its own name, the value."""

    ours: str
    name: str
    value: float


def _heard(document: Any, file: Path) -> list[_Said]:
    if not isinstance(document, Mapping):
        return []
    own = document.get("made_by")
    if isinstance(own, Mapping) and isinstance(own.get("heard"), Mapping):
        return [_Said(name, name, value) for name, value in own["heard"].items() if name in HEARD]
    settings: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        beside = json.loads((file.parent / "hparams.json").read_text(encoding="utf-8"))
        settings |= beside if isinstance(beside, dict) else {}
    for key in ("hparams", "config"):
        settings |= document[key] if isinstance(document.get(key), Mapping) else {}
    return [
        _Said(ours, name, settings[name])
        for ours, names in PUBLIC_NAMES.items()
        for name in names
        if isinstance(settings.get(name), (int, float))
    ]


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
        refuse_other_mels(weights.read_document(file), file)
    with torch.autocast("cpu", enabled=False):
        made = speak(of_training(trained.model, trained.recipe.gain), mels, seed)
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
