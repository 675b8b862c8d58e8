"""Reads and writes the sound files speech is learnt from: WAV, one channel, 16 bits."""

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
"""Samples a second of every file that is read."""

LEVEL_DBFS, PEAK_DBFS = -23.0, -1.0
"""What is made to be heard has this root mean square over full scale, unless a peak would pass the other; then less."""

Samples = npt.NDArray[np.float32]


class BadAudioError(WorkloadError):
    """A sound file that cannot be learnt from."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # both as they are, so that the error can pass from process to process
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use {self.path}: {self.reason}; put a whole mono 16-bit WAV file of {RATE:,} Hz in its place"


def read(path: Path) -> Samples:
    """The samples of a file, from -1 up to but not including 1."""
    with _opened(path) as sound:
        samples: Samples = sound.read(dtype="float32")
        if len(samples) != sound.frames:
            raise BadAudioError(path, f"only {len(samples):,} of its {sound.frames:,} samples can be read")
    return samples


def length(path: Path) -> int:
    """How many samples a file has, by its header."""
    with _opened(path) as sound:
        return int(sound.frames)


def write(path: Path, samples: Samples | torch.Tensor, rate: int = RATE) -> None:
    """Writes samples whole or not at all; those beyond -1..1 are made quieter together until the loudest fits."""
    values = np.asarray(samples if isinstance(samples, np.ndarray) else samples.detach().cpu().float(), np.float32)
    if values.ndim != 1:
        raise ValueError(f"expected samples in one dimension, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise WorkloadError(f"cannot write {path}: the sound holds values that are no numbers; look at what made it")
    peak = float(np.abs(values).max(initial=0.0))
    levels = np.rint(values * (32768 / max(peak, 1.0))).clip(-32768, 32767).astype(np.int16)
    wav = io.BytesIO()
    _soundfile().write(wav, levels, rate, format="WAV", subtype="PCM_16")
    write_user_file(path, wav.getvalue())


def levelled(samples: Samples) -> Samples:
    """The same sound at the level all are made to be heard at; silence stays silence."""
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
def _opened(path: Path) -> Iterator[Any]:
    """The file as soundfile sees it, once its header shows that it is the kind we read."""
    soundfile = _soundfile()
    try:
        # opened here because soundfile cannot say why a file does not open; unbuffered because soundfile begins where
        # the system, not Python, has the file standing
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
    """Compares the size the header gives with the bytes there are: libsndfile would quietly take what it finds."""
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
        at += promised + promised % 2  # parts begin at even places
        file.seek(at)
    raise BadAudioError(path, "it is cut short before its sound begins")


def _refuse_other_kinds(path: Path, sound: Any) -> None:
    if sound.subtype != "PCM_16":
        raise BadAudioError(path, f"its samples are stored as {sound.subtype}, not as PCM_16")
    if sound.channels != 1:
        raise BadAudioError(path, f"it has {sound.channels} channels, not 1")
    if sound.samplerate != RATE:
        raise BadAudioError(path, f"it has {sound.samplerate:,} samples a second, not {RATE:,}")
    if sound.frames == 0:
        raise BadAudioError(path, "it has a header and no samples")


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # an OSError where libsndfile itself is missing
        raise NotReadyError(f"soundfile does not load ({error}); install it with 'pip install soundfile'") from error
    return soundfile
