"""Log mel spectrograms, 80 bands and 86 frames per second: computed, cached on disk, and inverted to audio."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from trainmark.data import audio
from trainmark.data.audio import BadAudioError
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import NotReadyError, WorkloadError

Mel = npt.NDArray[np.float32]

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


def frames(samples: int) -> int:
    """Frames of a clip with this many samples."""
    return samples // MEL.hop + 1


@functools.cache
def filter_bank() -> torch.Tensor:
    """The weights (bands, fft // 2 + 1) of overlapping triangles of equal area; shared, do not modify.

    Slaney's mel scale: 15 mels up to 1000 Hz, evenly; above, 27 mels for every factor 6.4.
    """
    edges_mel = torch.linspace(
        _hz_to_mel(MEL.lowest_hz), _hz_to_mel(MEL.highest_hz), MEL.bands + 2, dtype=torch.float64
    )
    edges_hz = torch.where(edges_mel < 15, edges_mel * (200 / 3), 1000 * 6.4 ** ((edges_mel - 15) / 27))
    left, centre, right = (edges_hz[k : k + MEL.bands, None] for k in range(3))
    bins_hz = torch.linspace(0, MEL.rate / 2, MEL.fft // 2 + 1, dtype=torch.float64)
    triangles = torch.minimum((bins_hz - left) / (centre - left), (right - bins_hz) / (right - centre)).clamp(min=0)
    return (triangles * (2 / (right - left))).float()


def log_mel(samples: torch.Tensor) -> torch.Tensor:
    """Log magnitude (bands, frames) in each band, the first frame centred on sample 0.

    A clip too short for reflection padding is first padded with silence; its number of frames is unchanged.
    """
    count = frames(len(samples))
    # reflection needs one sample more than it adds
    samples = F.pad(samples.float(), (0, max(0, MEL.fft // 2 + 1 - len(samples))))
    magnitude = stft(samples)[:, :count].abs()
    mel = filter_bank().to(samples.device) @ magnitude
    return mel.clamp(min=MEL.least).log()


def stft(samples: torch.Tensor, pad_mode: str = "reflect") -> torch.Tensor:
    """The complex spectrum (fft // 2 + 1, frames)."""
    window = _hann().to(samples.device)
    return torch.stft(
        samples, MEL.fft, MEL.hop, MEL.window, window, center=True, pad_mode=pad_mode, return_complex=True
    )


@functools.cache
def _hann() -> torch.Tensor:
    """The analysis window; shared, do not modify."""
    return torch.hann_window(MEL.window, periodic=True, dtype=torch.float64).float()


def _hz_to_mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)


# The cache


class MelCache:
    """The mels of wav files, one `.npy` file each, so that a clip is analysed once; processes may share a folder.

    An average clip takes 181 kB, the 13,100 clips of LJSpeech 2.4 GB. Entries of changed files stay until the folder is
    removed, which is always safe.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / MEL.key

    def get(self, wav: Path) -> Mel:
        """The log mel (frames, bands) of a wav, from the cache or computed and cached."""
        mel = _load(self._entry(wav))
        return self._compute(wav) if mel is None else mel

    def has(self, wav: Path) -> bool:
        """Whether a complete entry of a wav exists."""
        try:
            return _load(self._entry(wav), mmap_mode="r") is not None
        except BadAudioError:
            return False

    def fill(self, wavs: Sequence[Path]) -> list[tuple[Path, str]]:
        """Computes missing entries; returns unusable wavs with the reason."""
        bad: list[tuple[Path, str]] = []
        for wav in wavs:
            try:
                if not self.has(wav):
                    self._compute(wav)
            except BadAudioError as error:
                bad.append((error.path, error.reason))
        return bad

    def put(self, wav: Path, mel: Mel) -> None:
        """Stores a mel (frames, bands) of a wav."""
        content = io.BytesIO()
        np.save(content, np.ascontiguousarray(mel))
        # no sync: an entry truncated by a power cut is detected and recomputed, and 13,100 syncs would take minutes
        try:
            write_atomic(self._entry(wav), content.getvalue())
        except OSError as error:
            raise NotReadyError(
                f"cannot cache mel spectrograms in {self.folder}: {error.strerror or error}; "
                "make room there (LJSpeech needs 2.4 GB) or set TRAINMARK_CACHE to another folder"
            ) from error

    def _compute(self, wav: Path) -> Mel:
        mel: Mel = np.ascontiguousarray(log_mel(torch.from_numpy(audio.read(wav))).numpy().T)
        self.put(wav, mel)
        return mel

    def _entry(self, wav: Path) -> Path:
        """Path of a wav's entry, which changes with its size and time."""
        path = wav.absolute()
        try:
            stat = path.stat()
        except OSError as error:
            raise BadAudioError(wav, f"it cannot be read ({error.strerror or error})") from error
        identity = b"%s\0%d\0%d" % (os.fsencode(path), stat.st_size, stat.st_mtime_ns)
        digest = hashlib.sha256(identity).hexdigest()[:16]
        # two levels, because folders with many thousands of files are slow
        return self.folder / digest[:2] / f"{wav.stem[:48]}-{digest}.npy"


def _load(entry: Path, mmap_mode: str | None = None) -> Mel | None:
    """An entry's mel; None if missing, truncated or damaged."""
    try:
        mel: Mel = np.load(entry, mmap_mode=mmap_mode, allow_pickle=False)  # type: ignore[arg-type]
    except (OSError, ValueError, EOFError):
        return None
    return mel if mel.dtype == np.float32 and mel.ndim == 2 and mel.shape[1] == MEL.bands and len(mel) else None


# The way back to audio: least squares, then Griffin-Lim

MAX_LOG_MEL = 10.0
"""Log mels are clamped here: full-scale audio stays far below, and an untrained model's output must not overflow."""
_TINY = 1e-12


def invert_mel(log_mel: torch.Tensor) -> torch.Tensor:
    """Audio (hop * (frames - 1)) whose log mel approximates the given one (bands, frames)."""
    if not torch.isfinite(log_mel).all():
        raise WorkloadError("cannot invert a mel spectrogram with NaN or infinite values; use an earlier checkpoint")
    return griffin_lim(linear_magnitude(log_mel))


def linear_magnitude(log_mel: torch.Tensor, updates: int = 100) -> torch.Tensor:
    """Non-negative least-squares magnitudes (fft // 2 + 1, frames) whose bands approximate exp(log_mel).

    Multiplicative updates keep signs; bins that no band covers become zero. Starts with each band spread over its bins:
    a clipped pseudo-inverse begins nearer and ends farther away.
    """
    bank = filter_bank().to(log_mel.device)
    with torch.no_grad():
        wanted = bank.T @ log_mel.float().clamp(max=MAX_LOG_MEL).exp()
        magnitude = wanted.clone()
        for _ in range(updates):
            # two thin matmuls: the square bank.T @ bank would cost three times as much
            magnitude *= wanted / (bank.T @ (bank @ magnitude)).clamp(min=_TINY)
    return magnitude


def griffin_lim(magnitude: torch.Tensor, iterations: int = 60, momentum: float = 0.99, seed: int = 0) -> torch.Tensor:
    """Audio (hop * (frames - 1)) whose spectrum has nearly these magnitudes; deterministic per seed.

    Starts from random phases and alternates between spectrum and audio, keeping the phases; momentum speeds up
    convergence.
    """
    samples = MEL.hop * (magnitude.shape[1] - 1)
    if samples <= 0:
        return magnitude.new_zeros(0)
    # as the mel was computed, if the audio is long enough to be mirrored
    pad_mode = "reflect" if samples > MEL.fft // 2 else "constant"
    turns = torch.rand(magnitude.shape, generator=torch.Generator().manual_seed(seed)).to(magnitude.device)
    with torch.no_grad():
        spectrum = torch.polar(magnitude, 2 * math.pi * turns)
        before = torch.zeros_like(spectrum)
        for _ in range(iterations):
            now = stft(_istft(spectrum, samples), pad_mode)
            # the same direction as now + momentum * (now - before)
            ahead = now - momentum / (1 + momentum) * before
            spectrum = ahead * (magnitude / ahead.abs().clamp(min=_TINY))
            before = now
        return _istft(spectrum, samples)


def _istft(spectrum: torch.Tensor, samples: int) -> torch.Tensor:
    return torch.istft(spectrum, MEL.fft, MEL.hop, MEL.window, _hann().to(spectrum.device), length=samples)
