"""Computes log mel spectrograms: 80 bands, 86 frames per second."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

VERSION = 1
"""Increased whenever the same settings give other numbers."""


@dataclass(frozen=True, kw_only=True)
class MelSettings:
    """Parameters that determine a mel spectrogram."""

    rate: int = 22050
    fft: int = 1024
    hop: int = 256
    """Samples from one frame to the next."""
    window: int = 1024
    bands: int = 80
    lowest_hz: float = 0.0
    highest_hz: float = 8000.0
    least: float = 1e-5
    """Minimum of a band, so that silence has a logarithm."""

    @property
    def key(self) -> str:
        """A short hash of these settings."""
        fields = json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()[:12]


MEL = MelSettings()


def frames(samples: int, settings: MelSettings = MEL) -> int:
    """Frames of a clip with this many samples."""
    return samples // settings.hop + 1


@functools.cache
def filter_bank(settings: MelSettings = MEL) -> torch.Tensor:
    """The weights (bands, fft // 2 + 1) of overlapping triangles of equal area; shared, do not modify.

    Slaney's mel scale: 15 mels up to 1000 Hz, evenly; above, 27 mels for every factor 6.4.
    """
    edges_mel = torch.linspace(
        _hz_to_mel(settings.lowest_hz), _hz_to_mel(settings.highest_hz), settings.bands + 2, dtype=torch.float64
    )
    edges_hz = torch.where(edges_mel < 15, edges_mel * (200 / 3), 1000 * 6.4 ** ((edges_mel - 15) / 27))
    left, centre, right = (edges_hz[k : k + settings.bands, None] for k in range(3))
    bins_hz = torch.linspace(0, settings.rate / 2, settings.fft // 2 + 1, dtype=torch.float64)
    triangles = torch.minimum((bins_hz - left) / (centre - left), (right - bins_hz) / (right - centre)).clamp(min=0)
    return (triangles * (2 / (right - left))).float()


def log_mel(samples: torch.Tensor, settings: MelSettings = MEL) -> torch.Tensor:
    """Log magnitude (bands, frames) in each band, the first frame centred on sample 0.

    A clip too short for reflection padding is first padded with silence; its number of frames is unchanged.
    """
    count = frames(len(samples), settings)
    # reflection needs one sample more than it adds
    samples = F.pad(samples.float(), (0, max(0, settings.fft // 2 + 1 - len(samples))))
    magnitude = stft(samples, settings)[:, :count].abs()
    mel = filter_bank(settings).to(samples.device) @ magnitude
    return mel.clamp(min=settings.least).log()


def stft(samples: torch.Tensor, settings: MelSettings = MEL, pad_mode: str = "reflect") -> torch.Tensor:
    """The complex spectrum (fft // 2 + 1, frames)."""
    return torch.stft(
        samples,
        settings.fft,
        settings.hop,
        settings.window,
        hann(settings.window).to(samples.device),
        center=True,
        pad_mode=pad_mode,
        return_complex=True,
    )


@functools.cache
def hann(length: int) -> torch.Tensor:
    """The analysis window; shared, do not modify."""
    return torch.hann_window(length, periodic=True, dtype=torch.float64).float()


def _hz_to_mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)
