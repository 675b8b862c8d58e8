"""Sound made from mels has nearly those mels again, for voices, for scraps and for silence."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from trainmark.data import mel
from trainmark.record.errors import WorkloadError


@functools.cache
def voice(seconds: float = 2.0) -> torch.Tensor:
    """Something like speech: harmonics of a moving pitch shaped by moving formants, hisses, pauses."""
    rng = np.random.default_rng(0)
    t = np.arange(int(22050 * seconds)) / 22050
    pitch_hz = 120 + 25 * np.sin(2 * np.pi * 0.7 * t) + 10 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / 22050
    formants = (
        (550 + 250 * np.sin(2 * np.pi * 1.1 * t), 80, 1.0),
        (1500 + 500 * np.sin(2 * np.pi * 0.9 * t + 1), 120, 0.5),
        (2600.0, 180, 0.25),
    )
    sound = np.zeros(len(t))
    for k in range(1, 50):
        strength = sum(gain / (1 + ((k * pitch_hz - centre) / width) ** 2) for centre, width, gain in formants)
        sound += strength * np.sin(k * phase)
    beat = np.sin(2 * np.pi * 2 * t)
    hiss = 0.3 * np.diff(rng.standard_normal(len(t) + 1))
    sound = sound * np.clip(beat + 0.3, 0, 1) + hiss * np.clip(-beat - 0.6, 0, 1)
    sound = 0.6 * sound / np.abs(sound).max() + 1e-4 * rng.standard_normal(len(t))
    return torch.from_numpy(sound).float()


def distance(sound: torch.Tensor, log_mel: torch.Tensor) -> float:
    """The mean difference in nepers between the mel of a sound and the one it was made from."""
    return (mel.log_mel(sound) - log_mel).abs().mean().item()


def mismatch(sound: torch.Tensor, magnitude: torch.Tensor) -> float:
    """Spectral convergence: how far the spectrum of a sound is from the magnitudes asked for, relative to these."""
    return ((mel.stft(sound).abs() - magnitude).norm() / magnitude.norm()).item()


def test_a_voice_keeps_its_mel() -> None:
    wanted = mel.log_mel(voice())
    assert distance(mel.invert_mel(wanted), wanted) < 0.15


def test_least_squares_meets_the_bands() -> None:
    wanted = mel.log_mel(voice())
    found = mel.linear_magnitude(wanted)
    assert found.shape == (513, wanted.shape[1])
    assert found.min() >= 0
    assert ((mel.filter_bank() @ found - wanted.exp()).norm() / wanted.exp().norm()).item() < 0.003


def test_the_true_magnitudes_give_the_sound_nearly_exactly() -> None:
    magnitude = mel.stft(voice()).abs()
    assert mismatch(mel.griffin_lim(magnitude), magnitude) < 0.06


def test_the_same_seed_gives_the_same_sound_whatever_was_drawn_before() -> None:
    magnitude = mel.linear_magnitude(mel.log_mel(voice(0.3)))
    first = mel.griffin_lim(magnitude, iterations=5, seed=1)
    torch.rand(7)
    assert torch.equal(mel.griffin_lim(magnitude, iterations=5, seed=1), first)
    assert not torch.equal(mel.griffin_lim(magnitude, iterations=5, seed=2), first)


def test_making_sound_leaves_the_common_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    mel.invert_mel(torch.zeros(80, 5))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("frames", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("level", [math.log(1e-5), 0.0], ids=["silent", "loud"])
def test_scraps_and_silence_have_their_length_and_loudness(frames: int, level: float) -> None:
    sound = mel.invert_mel(torch.full((80, frames), level))
    assert sound.shape == (256 * max(0, frames - 1),)
    assert torch.isfinite(sound).all()
    if frames > 1:
        assert (sound.abs().max() > 0.05) == (level == 0.0)


def test_a_mel_below_and_above_any_sound_still_gives_numbers() -> None:
    sound = mel.invert_mel(torch.linspace(-500, 500, 80)[:, None].expand(80, 20))
    assert torch.isfinite(sound).all()


def test_a_models_half_precision_output_is_taken_as_it_is() -> None:
    sound = mel.invert_mel(mel.log_mel(voice(0.3)).bfloat16().requires_grad_())
    assert sound.dtype == torch.float32
    assert not sound.requires_grad


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_mel_that_is_no_number_is_refused_by_a_sentence(value: float) -> None:
    log_mel = torch.zeros(80, 10)
    log_mel[3, 4] = value
    with pytest.raises(WorkloadError, match="NaN or infinite values"):
        mel.invert_mel(log_mel)
