"""The mel front end against numbers from an independent implementation, and at the edges."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from trainmark.data import mel
from trainmark.data.mel import MEL, MelSettings

SILENCE = math.log(1e-5)


def two_tones(samples: int = 22050) -> torch.Tensor:
    turns = 2 * math.pi * torch.arange(samples, dtype=torch.float64) / 22050
    return (0.5 * torch.sin(440 * turns) + 0.25 * torch.sin(3000 * turns)).float()


def test_the_filter_bank_is_slaneys() -> None:
    bank = mel.filter_bank()
    assert bank.shape == (80, 513)
    assert bank.dtype == torch.float32
    assert bank.double().sum().item() == pytest.approx(3.71368820, abs=1e-7)
    assert bank.max().item() == pytest.approx(0.02649254, abs=1e-8)
    assert bank.count_nonzero() == 727
    assert bank[0].nonzero().flatten().tolist() == [1, 2, 3]
    assert bank[0, 1:4].tolist() == pytest.approx([0.015528, 0.022651, 0.007124], abs=1e-6)
    assert bank[79].nonzero().flatten().tolist() == list(range(345, 372))


def test_two_tones_have_the_mel_they_should() -> None:
    found = mel.log_mel(two_tones())
    assert found.shape == (80, 87)
    assert found.dtype == torch.float32
    assert found.mean().item() == pytest.approx(-8.48461, abs=1e-4)
    assert found.max().item() == pytest.approx(1.44280, abs=1e-4)
    column = found[[0, 11, 12, 13, 40, 53, 54, 79], 43].tolist()
    expected = [-7.863, 1.4428, -0.2326, -2.971, -11.3412, -5.654, -0.4339, -11.5129]
    assert column == pytest.approx(expected, abs=1e-3)


def test_a_frame_is_the_windowed_spectrum_through_the_bank() -> None:
    samples = np.random.default_rng(1).standard_normal(4000)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    mirrored = np.concatenate([samples[512:0:-1], samples, samples[-2:-514:-1]])
    expected = np.stack(
        [
            np.log(mel.filter_bank().numpy() @ np.abs(np.fft.rfft(window * mirrored[at : at + 1024])))
            for at in range(0, 4001, 256)
        ],
        axis=1,
    )
    found = mel.log_mel(torch.from_numpy(samples))
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-4)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3000))
def test_any_length_gives_the_promised_number_of_frames(samples: int) -> None:
    found = mel.log_mel(two_tones(samples))
    assert found.shape == (80, mel.frames(samples))
    assert torch.isfinite(found).all()


def test_a_clip_too_short_to_be_mirrored_sounds_as_if_silence_followed() -> None:
    short = two_tones(300)
    longer = torch.cat([short, torch.zeros(213)])
    torch.testing.assert_close(mel.log_mel(short), mel.log_mel(longer)[:, :2])


def test_silence_is_the_logarithm_of_the_least() -> None:
    torch.testing.assert_close(mel.log_mel(torch.zeros(3000)), torch.full((80, 12), SILENCE))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(MelSettings)])
def test_every_setting_changes_the_key(field: str) -> None:
    other = dataclasses.replace(MEL, **{field: getattr(MEL, field) + 1})
    assert other.key != MEL.key
