"""Vocoding with a trained WaveNet: mels of any number and length, in segments generated in parallel.

Always on the host and in float32: an accelerator would launch about a hundred small kernels per sample.
"""

from __future__ import annotations

import copy
import hashlib
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
from trainmark.workloads.tacotron2.read_aloud import score_sources
from trainmark.workloads.wavenet import generate
from trainmark.workloads.wavenet.generate import Noise
from trainmark.workloads.wavenet.model import CONTEXT, HOP, REACH, WaveNet

MEL_MEAN, MEL_DEVIATION = -5.298, 2.113
"""LJSpeech's statistics, by which all mels are normalised."""

MEL_SETTINGS: Mapping[str, float] = {**asdict(MEL), "mel_mean": MEL_MEAN, "mel_deviation": MEL_DEVIATION}
"""Mel settings of networks trained here, stored in their checkpoints."""

STRETCH, SEARCHED = 64, 16
"""Minimum mean frames of a segment, and the search range for a quieter cut."""
MAX_AT_ONCE = 64
"""Segments generated in parallel."""


def refuse_other_mels(document: Any, file: Path) -> None:
    """NotReadyError unless a file of weights says that its network hears the mels of Tacotron2 here, as only those
    trained here do; `document` is the result of `weights.read_document`."""
    made_by = document.get("made_by") if isinstance(document, Mapping) else None
    heard = made_by.get("heard") if isinstance(made_by, Mapping) else None
    if heard == MEL_SETTINGS:
        return
    what = "does not say what mels its network hears, so it cannot speak after Tacotron2"
    if isinstance(heard, Mapping) and set(heard) == set(MEL_SETTINGS):
        others = [
            f"{name} {heard[name]:g} and not {ours:g}" for name, ours in MEL_SETTINGS.items() if heard[name] != ours
        ]
        what = f"was made for other mels than Tacotron2 speaks: {', '.join(others)}"
    raise NotReadyError(
        f"{file} {what}; train one with `trainmark run wavenet`; --init-from may begin with these weights"
    )


class _Stretch(NamedTuple):
    """A range of frames generated together; segments overlap at cuts."""

    mel: int
    first: int
    last: int


@torch.no_grad()
def speak(network: WaveNet, mels: Sequence[Tensor], *, gain: float = 1.0, seed: int = 0) -> list[Tensor]:
    """Audio for log mels (bands, frames) of any length, as computed by `data.mel.log_mel`: HOP samples per frame, from
    -1 to 1. `gain` is that of the training audio.

    Long mels are cut at quiet frames, and each segment starts from silence. A segment's random numbers depend on the
    seed and its position, not on the batch.
    """
    network = copy.deepcopy(network).float().cpu().eval()
    normed = [(mel.detach().cpu().float() - MEL_MEAN) / MEL_DEVIATION for mel in mels]
    stretches = [_Stretch(number, *place) for number, mel in enumerate(normed) for place in _cut_mel(mel)]
    sounds = [torch.zeros(mel.shape[1] * HOP) for mel in normed]
    by_length = sorted(stretches, key=lambda stretch: stretch.last - stretch.first)
    for begin in range(0, len(by_length), MAX_AT_ONCE):
        part = by_length[begin : begin + MAX_AT_ONCE]
        for stretch, made in zip(part, _generate(network, normed, part, seed), strict=True):
            _crossfade(sounds[stretch.mel], stretch, made)
    return [(sound / gain).clamp(-1, 1) for sound in sounds]


def _cut_mel(mel: Tensor) -> Iterator[tuple[int, int]]:
    """The segments of a mel, each from REACH frames before its cut to as many after the next."""
    frames = mel.shape[1]
    count = frames // STRETCH
    even = [round(frames * number / count) for number in range(1, count)] if count else []
    loudness = mel.mean(0)
    cuts = [at - SEARCHED + int(loudness[at - SEARCHED : at + SEARCHED].argmin()) for at in even]
    for first, last in zip([0, *(cut - REACH for cut in cuts)], [*(cut + REACH for cut in cuts), frames], strict=True):
        if last > first:
            yield first, last


def _generate(network: WaveNet, mels: Sequence[Tensor], part: Sequence[_Stretch], seed: int) -> Iterator[Tensor]:
    """Audio of segments, which are padded to one length; the excess is dropped."""
    # REACH more, so that no kept frame is affected by the end
    longest = max(last - first for _, first, last in part) + REACH
    heard = [
        mels[mel][:, torch.arange(first - CONTEXT, first + longest + CONTEXT).clamp(0, mels[mel].shape[1] - 1)]
        for mel, first, _ in part
    ]
    drawn = [_draw_stretch(stretch, longest, network.sizes.mixtures, seed) for stretch in part]
    noise = Noise(*(torch.cat(numbers, 1) for numbers in zip(*drawn, strict=True)))
    sounds = generate.generate(network, torch.stack(heard), noise)
    for (_, first, last), sound in zip(part, sounds, strict=True):
        yield sound[: (last - first) * HOP]


def _draw_stretch(stretch: _Stretch, longest: int, mixtures: int, seed: int) -> Noise:
    """The random numbers of a segment, independent of the batch; padding gets none."""
    number = int.from_bytes(hashlib.sha256(repr((seed, *stretch)).encode()).digest()[:7], "big")
    samples = (stretch.last - stretch.first) * HOP
    gumbel, logistic = generate.draw_noise(samples, 1, mixtures, torch.Generator().manual_seed(number))
    after = longest * HOP - samples
    return Noise(F.pad(gumbel, (0, 0, 0, 0, 0, after)), F.pad(logistic, (0, 0, 0, after)))


def _crossfade(sound: Tensor, stretch: _Stretch, made: Tensor) -> None:
    """Cross-fades at cuts."""
    rising = torch.linspace(0, 1, 2 * REACH * HOP)
    if stretch.first:
        made[: len(rising)] *= rising
    if stretch.last * HOP < len(sound):
        made[-len(rising) :] *= 1 - rising
    sound[stretch.first * HOP : stretch.last * HOP] += made


EXAMPLE_S = 2.0
"""Length of the example from the middle of a validation clip."""


@dataclass(frozen=True, kw_only=True)
class SoundSettings(SampleSettings):
    seconds: float = knob(0.0, least=0)
    """Seconds from the middle; 0 takes all of a given file, and two seconds of a validation clip."""
    score_clips: int = knob(4, least=1)
    """Additional validation clips if speech is scored."""


def sample(trained: Trained, request: SampleRequest) -> Sample:
    """Audio resynthesised from its mel, beside the original."""
    settings = request.settings(SoundSettings)
    if request.given is None:
        clip = reader.open_splits(request.data_folder, trained.recipe.file_lists).val[0]
        path, name = clip.path, f"validation clip {clip.name}"
    else:
        path, name = Path(request.given), Path(request.given).name
    recorded = _cut_middle(_read(path), settings.seconds or (0.0 if request.given else EXAMPLE_S))
    sounds, generator = sound_of(trained, [log_mel(recorded)], settings.seed)
    length_s = len(recorded) / audio.RATE
    return Sample(
        parts=(
            SoundPart(
                samples=sounds[0][: len(recorded)].numpy(),
                caption=f"{length_s:.1f} s of {name}, resynthesised from its mel ({generator})",
            ),
            SoundPart(samples=recorded.numpy(), caption="the original recording"),
        ),
        shown=name,
        generator=generator,
        facts={"sound_s": length_s},
        clips=_clips_to_score(trained, request, settings) if request.score else (),
    )


def _clips_to_score(trained: Trained, request: SampleRequest, settings: SoundSettings) -> tuple[SpokenClips, ...]:
    clips = reader.validation_clips(request.data_folder, trained.recipe.file_lists, settings.score_clips)
    return score_sources(clips, trained, settings.seed)


def sound_of(trained: Trained, mels: Sequence[Tensor], seed: int) -> Vocoded:
    """Audio (hop x frames) of each mel (bands, frames), on the host in float32."""
    if trained.source.file:
        file = Path(trained.source.file)
        refuse_other_mels(weights.read_document(file), file)
    began = time.perf_counter()
    with torch.autocast("cpu", enabled=False):
        sounds = speak(trained.model, mels, gain=trained.recipe.gain, seed=seed)
    samples = sum(len(sound) for sound in sounds)
    return Vocoded(sounds, f"WaveNet, {samples / (time.perf_counter() - began):,.0f} samples/s")


def _read(path: Path) -> Tensor:
    try:
        return torch.from_numpy(audio.read(path))
    except audio.BadAudioError as error:
        raise NotReadyError(str(error)) from error


def _cut_middle(sound: Tensor, seconds: float) -> Tensor:
    length = min(len(sound), round(seconds * MEL.rate)) or len(sound)
    first = (len(sound) - length) // 2
    return sound[first : first + length]
