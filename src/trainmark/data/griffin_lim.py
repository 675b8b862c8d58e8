"""Inverts log mel spectrograms without a network: least squares, then Griffin-Lim."""

from __future__ import annotations

import math

import torch

from trainmark.data.mel import MEL, MelSettings, filter_bank, hann, stft
from trainmark.record.errors import WorkloadError

MAX_LOG_MEL = 10.0
"""Log mels are clamped here: full-scale audio stays far below, and an untrained model's output must not overflow."""
_TINY = 1e-12


def invert_mel(log_mel: torch.Tensor, settings: MelSettings = MEL) -> torch.Tensor:
    """Audio (hop * (frames - 1)) whose log mel approximates the given one (bands, frames)."""
    if not torch.isfinite(log_mel).all():
        raise WorkloadError("cannot invert a mel spectrogram with NaN or infinite values; use an earlier checkpoint")
    return griffin_lim(linear_magnitude(log_mel, settings), settings)


def linear_magnitude(log_mel: torch.Tensor, settings: MelSettings = MEL, updates: int = 100) -> torch.Tensor:
    """Non-negative least-squares magnitudes (fft // 2 + 1, frames) whose bands approximate exp(log_mel).

    Multiplicative updates keep signs; bins that no band covers become zero. Starts with each band spread over its bins:
    a clipped pseudo-inverse begins nearer and ends farther away.
    """
    bank = filter_bank(settings).to(log_mel.device)
    with torch.no_grad():
        wanted = bank.T @ log_mel.float().clamp(max=MAX_LOG_MEL).exp()
        magnitude = wanted.clone()
        for _ in range(updates):
            # two thin matmuls: the square bank.T @ bank would cost three times as much
            magnitude *= wanted / (bank.T @ (bank @ magnitude)).clamp(min=_TINY)
    return magnitude


def griffin_lim(
    magnitude: torch.Tensor,
    settings: MelSettings = MEL,
    iterations: int = 60,
    momentum: float = 0.99,
    seed: int = 0,
) -> torch.Tensor:
    """Audio (hop * (frames - 1)) whose spectrum has nearly these magnitudes; deterministic per seed.

    Starts from random phases and alternates between spectrum and audio, keeping the phases; momentum speeds up
    convergence.
    """
    samples = settings.hop * (magnitude.shape[1] - 1)
    if samples <= 0:
        return magnitude.new_zeros(0)
    # as the mel was computed, if the audio is long enough to be mirrored
    pad_mode = "reflect" if samples > settings.fft // 2 else "constant"
    turns = torch.rand(magnitude.shape, generator=torch.Generator().manual_seed(seed)).to(magnitude.device)
    with torch.no_grad():
        spectrum = torch.polar(magnitude, 2 * math.pi * turns)
        before = torch.zeros_like(spectrum)
        for _ in range(iterations):
            now = stft(_istft(spectrum, samples, settings), settings, pad_mode)
            # the same direction as now + momentum * (now - before)
            ahead = now - momentum / (1 + momentum) * before
            spectrum = ahead * (magnitude / ahead.abs().clamp(min=_TINY))
            before = now
        return _istft(spectrum, samples, settings)


def _istft(spectrum: torch.Tensor, samples: int, settings: MelSettings) -> torch.Tensor:
    window = hann(settings.window).to(spectrum.device)
    return torch.istft(spectrum, settings.fft, settings.hop, settings.window, window, length=samples)
