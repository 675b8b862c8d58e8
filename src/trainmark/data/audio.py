"""Reads and writes mono 16-bit WAV files."""

from __future__ import annotations

import contextlib
import io
import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainmark.record.atomic_files import write_user_file
from trainmark.record.errors import WorkloadError

if TYPE_CHECKING:
    import torch

RATE = 22050
"""Required sample rate in Hz."""

LEVEL_DBFS, PEAK_DBFS = -23.0, -1.0
"""Target RMS of generated audio, lowered where the peak would exceed the second."""

Samples = npt.NDArray[np.float32]


class BadAudioError(WorkloadError):
    """An unusable audio file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # both unchanged, so that the error can be pickled
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use {self.path}: {self.reason}; put a whole mono 16-bit WAV file of {RATE:,} Hz in its place"


def read(path: Path) -> Samples:
    """The samples of a file, in [-1, 1)."""
    with _open(path) as sound:
        levels = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
        if len(levels) != sound.getnframes():
            raise BadAudioError(path, f"only {len(levels):,} of its {sound.getnframes():,} samples can be read")
    samples: Samples = levels.astype(np.float32) / np.float32(32768)
    return samples


def length(path: Path) -> int:
    """Number of samples, by the header."""
    with _open(path) as sound:
        return sound.getnframes()


def write(path: Path, samples: Samples | torch.Tensor, rate: int = RATE) -> None:
    """Writes samples atomically, scaled down if any exceeds -1..1."""
    values = np.asarray(samples if isinstance(samples, np.ndarray) else samples.detach().cpu().float(), np.float32)
    if values.ndim != 1:
        raise ValueError(f"expected samples in one dimension, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise WorkloadError(f"cannot write {path}: the audio holds NaN or infinite values; check what made it")
    peak = float(np.abs(values).max(initial=0.0))
    levels = np.rint(values * (32768 / max(peak, 1.0))).clip(-32768, 32767).astype(np.int16)
    write_user_file(path, encode_wav(levels, rate))


def encode_wav(levels: npt.NDArray[np.int16], rate: int = RATE) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        file.writeframes(levels.astype("<i2").tobytes())
    return data.getvalue()


def normalise_level(samples: Samples) -> Samples:
    """The samples scaled to the target level; silence stays silence."""
    values = np.asarray(samples, np.float32)
    power, peak = (
        float(np.square(values, dtype=np.float64).mean()) if len(values) else 0.0,
        np.abs(values).max(initial=0),
    )
    if not np.isfinite(power) or power == 0:
        return values
    gain = min(10 ** (LEVEL_DBFS / 20) / power**0.5, 10 ** (PEAK_DBFS / 20) / float(peak))
    louder: Samples = values * np.float32(gain)
    return louder


@contextlib.contextmanager
def _open(path: Path) -> Iterator[wave.Wave_read]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise BadAudioError(path, "it is empty")
            with wave.open(file) as sound:
                if fault := _find_fault(sound, size - file.tell()):  # the samples begin here
                    raise BadAudioError(path, fault)
                yield sound
    except OSError as error:
        raise BadAudioError(path, f"it cannot be read ({error.strerror or error})") from error
    except (wave.Error, EOFError, RuntimeError) as error:  # the latter for a chunk that leads outside the file
        raise BadAudioError(path, f"it is no whole 16-bit WAV file ({str(error) or 'cut short'})") from error


def _find_fault(sound: wave.Wave_read, left_bytes: int) -> str:
    if sound.getsampwidth() != 2:
        return f"its samples have {8 * sound.getsampwidth()} bits, not 16"
    if sound.getnchannels() != 1:
        return f"it has {sound.getnchannels()} channels, not 1"
    if sound.getframerate() != RATE:
        return f"it has {sound.getframerate():,} Hz, not {RATE:,}"
    if not sound.getnframes():
        return "it has a header and no samples"
    if 2 * sound.getnframes() > left_bytes:
        return f"it is cut short: {2 * sound.getnframes():,} bytes of sound promised, {left_bytes:,} there"
    return ""
