"""Turns log mel spectrograms back into sound without learnt weights: least squares, then Griffin-Lim."""

from __future__ import annotations

import math

import torch

from trainmark.data.mel import MEL, MelSettings, filter_bank, hann, stft
from trainmark.record.errors import WorkloadError

LOUDEST = 10.0
"""Log mels are cut here: sound of full scale stays far below, and an untrained model's guesses must not overflow."""
_TINY = 1e-12


def wave(log_mel: torch.Tensor, settings: MelSettings = MEL) -> torch.Tensor:
    """The sound (hop * (frames - 1)) whose log mel comes near the one given (bands, frames)."""
    if not torch.isfinite(log_mel).all():
        raise WorkloadError(
            "cannot make sound of a mel spectrogram that holds values that are no numbers; use an earlier checkpoint"
        )
    return griffin_lim(linear_magnitude(log_mel, settings), settings)


def linear_magnitude(log_mel: torch.Tensor, settings: MelSettings = MEL, updates: int = 100) -> torch.Tensor:
    """Magnitudes (fft // 2 + 1, frames), none negative, whose bands come near exp(log_mel) by least squares.

    Every update multiplies, so that no sign can change; bins that no band covers become zero. The start is each band
    spread over its bins: a pseudo-inverse, its negative part cut off, begins nearer and ends farther away.
    """
    bank = filter_bank(settings).to(log_mel.device)
    with torch.no_grad():
        wanted = bank.T @ log_mel.float().clamp(max=LOUDEST).exp()
        magnitude = wanted.clone()
        for _ in range(updates):
            # two thin products: multiplying by the square bank.T @ bank would cost three times as much
            magnitude *= wanted / (bank.T @ (bank @ magnitude)).clamp(min=_TINY)
    return magnitude


def griffin_lim(
    magnitude: torch.Tensor,
    settings: MelSettings = MEL,
    iterations: int = 60,
    momentum: float = 0.99,
    seed: int = 0,
) -> torch.Tensor:
    """A sound (hop * (frames - 1)) whose spectrum has nearly these magnitudes; the same for the same seed.

    Starts from random phases and goes back and forth between spectrum and sound, each time keeping the phases alone;
    momentum carries every step on in its direction, which gets nearer in as many steps.
    """
    samples = settings.hop * (magnitude.shape[1] - 1)
    if samples <= 0:
        return magnitude.new_zeros(0)
    # as the mel was made, where the sound is long enough to be mirrored
    pad_mode = "reflect" if samples > settings.fft // 2 else "constant"
    turns = torch.rand(magnitude.shape, generator=torch.Generator().manual_seed(seed)).to(magnitude.device)
    with torch.no_grad():
        spectrum = torch.polar(magnitude, 2 * math.pi * turns)
        before = torch.zeros_like(spectrum)
        for _ in range(iterations):
            now = stft(_sound(spectrum, samples, settings), settings, pad_mode)
            # the same direction as now + momentum * (now - before)
            ahead = now - momentum / (1 + momentum) * before
            spectrum = ahead * (magnitude / ahead.abs().clamp(min=_TINY))
            before = now
        return _sound(spectrum, samples, settings)


def _sound(spectrum: torch.Tensor, samples: int, settings: MelSettings) -> torch.Tensor:
    window = hann(settings.window).to(spectrum.device)
    return torch.istft(spectrum, settings.fft, settings.hop, settings.window, window, length=samples)
