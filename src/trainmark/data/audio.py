"""Reads and writes mono 16-bit WAV files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainmark.record.atomic_files import write_user_file
from trainmark.record.errors import NotReadyError, WorkloadError

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
        samples: Samples = sound.read(dtype="float32")
        if len(samples) != sound.frames:
            raise BadAudioError(path, f"only {len(samples):,} of its {sound.frames:,} samples can be read")
    return samples


def length(path: Path) -> int:
    """Number of samples, by the header."""
    with _open(path) as sound:
        return int(sound.frames)


def write(path: Path, samples: Samples | torch.Tensor, rate: int = RATE) -> None:
    """Writes samples atomically, scaled down if any exceeds -1..1."""
    values = np.asarray(samples if isinstance(samples, np.ndarray) else samples.detach().cpu().float(), np.float32)
    if values.ndim != 1:
        raise ValueError(f"expected samples in one dimension, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise WorkloadError(f"cannot write {path}: the audio holds NaN or infinite values; check what made it")
    peak = float(np.abs(values).max(initial=0.0))
    levels = np.rint(values * (32768 / max(peak, 1.0))).clip(-32768, 32767).astype(np.int16)
    wav = io.BytesIO()
    _import_soundfile().write(wav, levels, rate, format="WAV", subtype="PCM_16")
    write_user_file(path, wav.getvalue())


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
def _open(path: Path) -> Iterator[Any]:
    """The file opened by soundfile, after its header was checked."""
    soundfile = _import_soundfile()
    try:
        # opened here because soundfile does not report why a file cannot be opened; unbuffered because soundfile starts
        # at the descriptor's offset
        with path.open("rb", buffering=0) as file:
            _refuse_cut_short(path, file)
            file.seek(0)
            with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
                _refuse_other_kinds(path, sound)
                yield sound
    except OSError as error:
        raise BadAudioError(path, f"it cannot be read ({error.strerror or error})") from error
    except soundfile.LibsndfileError as error:
        raise BadAudioError(path, f"it is no whole WAV file ({error.error_string.rstrip('.')})") from error


def _refuse_cut_short(path: Path, file: io.FileIO) -> None:
    """Compares the header's size with the file's: libsndfile silently accepts truncated files."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise BadAudioError(path, "it is empty")
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        raise BadAudioError(path, "it is no WAV file, whatever its name says")
    at = 12
    while len(head := file.read(8)) == 8:
        at += 8
        promised = int.from_bytes(head[4:], "little")
        if head[:4] == b"data":
            if promised > size - at:
                raise BadAudioError(path, f"it is cut short: {promised:,} bytes of sound promised, {size - at:,} there")
            return
        at += promised + promised % 2  # chunks are aligned to 2 bytes
        file.seek(at)
    raise BadAudioError(path, "it is cut short before its sound begins")


def _refuse_other_kinds(path: Path, sound: Any) -> None:
    if sound.subtype != "PCM_16":
        raise BadAudioError(path, f"its samples are stored as {sound.subtype}, not as PCM_16")
    if sound.channels != 1:
        raise BadAudioError(path, f"it has {sound.channels} channels, not 1")
    if sound.samplerate != RATE:
        raise BadAudioError(path, f"it has {sound.samplerate:,} Hz, not {RATE:,}")
    if sound.frames == 0:
        raise BadAudioError(path, "it has a header and no samples")


def _import_soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # an OSError if libsndfile itself is missing
        raise NotReadyError(f"soundfile does not load ({error}); install it with 'pip install soundfile'") from error
    return soundfile
