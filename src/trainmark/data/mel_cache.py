"""Caches mel spectrograms on disk, so that each clip is analysed once.

An average clip takes 181 kB, the 13,100 clips of LJSpeech 2.4 GB. Entries of changed files stay until the folder is
removed, which is always safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from trainmark.data import audio
from trainmark.data.audio import BadAudioError
from trainmark.data.mel import MEL, MelSettings, log_mel
from trainmark.record.atomic_files import UNFINISHED, write_atomic
from trainmark.record.errors import NotReadyError

Mel = npt.NDArray[np.float32]

_HEADER_BYTES = 128
_CHECKSUM_BYTES = 4
_STALE_AFTER_S = 24 * 3600
_STEM_CHARACTERS = 48
"""Characters of a wav's name in its entry's name: short enough for any file system."""


class MelCache:
    """The mels of wav files, one `.npy` file each followed by a checksum; several processes may share a folder."""

    def __init__(self, folder: Path, settings: MelSettings = MEL) -> None:
        self.folder = folder / settings.key
        self.settings = settings
        self._sweep()

    def get(self, wav: Path) -> Mel:
        """The log mel (frames, bands) of a wav, from the cache or computed and cached."""
        entry = self._entry(wav)
        mel = self._load(entry)
        return self._keep(entry, wav) if mel is None else mel

    def has(self, wav: Path) -> bool:
        """Whether a complete entry of a wav exists; only `get` verifies its checksum."""
        try:
            with self._entry(wav).open("rb") as file:
                return self._is_complete(file.read(_HEADER_BYTES), os.fstat(file.fileno()).st_size)
        except (BadAudioError, OSError):
            return False

    def fill(self, wavs: Sequence[Path]) -> list[tuple[Path, str]]:
        """Computes missing entries; returns unusable wavs with the reason."""
        bad: list[tuple[Path, str]] = []
        for wav in wavs:
            try:
                if not self.has(wav):
                    self._keep(self._entry(wav), wav)
            except BadAudioError as error:
                bad.append((error.path, error.reason))
        return bad

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
        return self.folder / digest[:2] / f"{wav.stem[:_STEM_CHARACTERS]}-{digest}.npy"

    def _load(self, entry: Path) -> Mel | None:
        """The entry's mel; None if missing, truncated or damaged."""
        try:
            data = entry.read_bytes()
        except OSError:
            return None
        content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if not self._is_complete(data[:_HEADER_BYTES], len(data)) or checksum != _checksum(entry, content):
            return None
        mel: Mel = np.load(io.BytesIO(content), allow_pickle=False)
        return mel if np.isfinite(mel).all() else None

    def _is_complete(self, start: bytes, size: int) -> bool:
        """Whether the header fits a mel of this file size."""
        frames, odd_bytes = divmod(size - _HEADER_BYTES - _CHECKSUM_BYTES, self.settings.bands * 4)
        return frames >= 1 and odd_bytes == 0 and start == self._header(frames)

    def _header(self, frames: int) -> bytes:
        file = io.BytesIO()
        descr = np.lib.format.dtype_to_descr(np.dtype(np.float32))
        fields = {"descr": descr, "fortran_order": False, "shape": (frames, self.settings.bands)}
        np.lib.format.write_array_header_1_0(file, fields)
        return file.getvalue()

    def _keep(self, entry: Path, wav: Path) -> Mel:
        mel: Mel = np.ascontiguousarray(log_mel(torch.from_numpy(audio.read(wav)), self.settings).numpy().T)
        self._write(entry, mel)
        return mel

    def _write(self, entry: Path, mel: Mel) -> None:
        content = self._header(len(mel)) + mel.tobytes()
        # no sync: an entry truncated by a power cut is detected and recomputed, and 13,100 syncs would take minutes
        try:
            write_atomic(entry, content + _checksum(entry, content), beside=self.folder)
        except OSError as error:
            raise NotReadyError(
                f"cannot cache mel spectrograms in {self.folder}: {error.strerror or error}; "
                "make room there (LJSpeech needs 2.4 GB) or set TRAINMARK_CACHE to another folder"
            ) from error

    def _sweep(self) -> None:
        """Removes temporary files of killed processes; those younger than a day may be in use."""
        for path in self.folder.glob(f".*{UNFINISHED}"):
            with contextlib.suppress(OSError):  # another process may sweep too, or the folder is read-only
                if path.stat().st_mtime < time.time() - _STALE_AFTER_S:
                    path.unlink()


def _checksum(entry: Path, content: bytes) -> bytes:
    """Checksum of content and name, so that a renamed entry is rejected."""
    return zlib.crc32(content, zlib.crc32(os.fsencode(entry.name))).to_bytes(_CHECKSUM_BYTES, "little")
