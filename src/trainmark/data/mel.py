"""Turns sound into log mel spectrograms: what a voice sounds like, 86 times a second, in 80 bands."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

VERSION = 1
"""Counts up whenever the same settings give other numbers."""


@dataclass(frozen=True, kw_only=True)
class MelSettings:
    """How sound becomes a mel spectrogram; two that agree in this agree in every number."""

    rate: int = 22050
    fft: int = 1024
    hop: int = 256
    """Samples from one frame to the next."""
    window: int = 1024
    bands: int = 80
    lowest_hz: float = 0.0
    highest_hz: float = 8000.0
    least: float = 1e-5
    """What a band holds at least, so that silence has a logarithm."""

    @property
    def key(self) -> str:
        """A short name for these settings, another for any other."""
        fields = json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()[:12]


MEL = MelSettings()


def frames(samples: int, settings: MelSettings = MEL) -> int:
    """How many frames a clip of this many samples has."""
    return samples // settings.hop + 1


@functools.cache
def filter_bank(settings: MelSettings = MEL) -> torch.Tensor:
    """The weights (bands, fft // 2 + 1) of overlapping triangles of equal area; shared, so not to be changed.

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
    """The logarithm (bands, frames) of the spectrum's magnitude in each band, the first frame centred on sample 0.

    A clip too short to be mirrored at its ends is first lengthened by silence; its number of frames stays its own.
    """
    count = frames(len(samples), settings)
    # mirroring needs one sample more than it adds
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
    """The window every frame is seen through; shared, so not to be changed."""
    return torch.hann_window(length, periodic=True, dtype=torch.float64).float()


def _hz_to_mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)
