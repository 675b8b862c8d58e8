"""Mels on disk: computed once, shared by processes, and never believed when damaged."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.full_disk import fill_disk
from support.privileges import ordinary_permissions

from trainmark.data import audio
from trainmark.data.audio import BadAudioError
from trainmark.data.mel import MEL, MelCache, log_mel
from trainmark.record.errors import NotReadyError


def make_wavs(folder: Path, count: int, seed: int = 0) -> list[Path]:
    rng = np.random.default_rng(seed)
    paths = [folder / f"clip {n:03d}.wav" for n in range(count)]
    folder.mkdir(exist_ok=True)
    for path in paths:
        audio.write(path, rng.uniform(-0.5, 0.5, rng.integers(2000, 9000)).astype(np.float32))
    return paths


def expected_mel(wav: Path) -> np.ndarray:
    return log_mel(torch.from_numpy(audio.read(wav))).numpy().T


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.npy"))


def list_unfinished(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.part"))


def refuse_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a mel can only come from disk."""

    def fail(path: Path) -> Any:
        raise AssertionError(f"{path} was analysed again")

    monkeypatch.setattr(audio, "read", fail)


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    return make_wavs(tmp_path / "wavs", 1)[0]


def test_a_mel_is_computed_once_and_comes_from_disk_afterwards(
    tmp_path: Path, wav: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = MelCache(tmp_path / "cache").get(wav)
    assert first.dtype == np.float32 and first.flags.c_contiguous
    np.testing.assert_array_equal(first, expected_mel(wav))
    refuse_to_read(monkeypatch)
    second = MelCache(tmp_path / "cache").get(wav)
    assert second.dtype == np.float32 and second.flags.c_contiguous and second.flags.writeable
    np.testing.assert_array_equal(second, first)


@pytest.mark.parametrize(("extra_samples", "extra_ns"), [(0, 1), (300, 0)], ids=["another time", "another size"])
def test_a_changed_wav_gets_a_new_entry(tmp_path: Path, wav: Path, extra_samples: int, extra_ns: int) -> None:
    cache = MelCache(tmp_path / "cache")
    cache.get(wav)
    written_ns = wav.stat().st_mtime_ns
    audio.write(wav, np.full(audio.length(wav) + extra_samples, 0.1, np.float32))
    os.utime(wav, ns=(written_ns, written_ns + extra_ns))
    assert not cache.has(wav)
    np.testing.assert_array_equal(cache.get(wav), expected_mel(wav))


def test_wavs_of_one_name_in_two_folders_are_kept_apart(tmp_path: Path) -> None:
    (one,), (other,) = make_wavs(tmp_path / "a", 1), make_wavs(tmp_path / "b", 1, seed=5)
    cache = MelCache(tmp_path / "cache")
    assert cache.fill([one, other]) == []
    np.testing.assert_array_equal(cache.get(one), expected_mel(one))
    np.testing.assert_array_equal(cache.get(other), expected_mel(other))


def saved(mel: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, mel)
    return content.getvalue()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda data: b"",
    "cut by one byte": lambda data: data[:-1],
    "cut by a frame": lambda data: data[:-320],
    "cut in the header": lambda data: data[:60],
    "zeros": lambda data: bytes(len(data)),
    "text": lambda data: b"hello\n" * 100,
    "another type": lambda data: saved(np.zeros((12, 80), np.float64)),
    "another shape": lambda data: saved(np.zeros((12, 40), np.float32)),
    "no frames": lambda data: saved(np.zeros((0, 80), np.float32)),
    "a pickle": lambda data: pickle.dumps({"mel": 1}) * 50,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("fill", [False, True])
def test_a_damaged_entry_is_computed_again(tmp_path: Path, wav: Path, damage: str, fill: bool) -> None:
    cache = MelCache(tmp_path / "cache")
    cache.get(wav)
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGE[damage](whole))
    assert not cache.has(wav)
    if fill:
        assert cache.fill([wav]) == []
    else:
        np.testing.assert_array_equal(cache.get(wav), expected_mel(wav))
    assert entry.read_bytes() == whole


def test_filling_computes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wavs = make_wavs(tmp_path / "wavs", 3)
    cache = MelCache(tmp_path / "cache")
    cache.get(wavs[1])
    assert [cache.has(path) for path in wavs] == [False, True, False]
    assert cache.fill(wavs) == []
    refuse_to_read(monkeypatch)
    assert cache.fill(wavs) == []
    assert all(cache.has(path) for path in wavs)


def test_bad_wavs_are_listed_and_the_others_filled(tmp_path: Path) -> None:
    wavs = make_wavs(tmp_path / "wavs", 3)
    wavs[1].write_bytes(b"hello")
    missing = tmp_path / "missing.wav"
    cache = MelCache(tmp_path / "cache")
    assert cache.fill([*wavs, missing]) == [
        (wavs[1], "it is no whole 16-bit WAV file (cut short)"),
        (missing, "it cannot be read (No such file or directory)"),
    ]
    assert [cache.has(path) for path in [*wavs, missing]] == [True, False, True, False]
    with pytest.raises(BadAudioError, match=r"clip 001\.wav"):
        cache.get(wavs[1])


def test_a_full_disk_names_the_folder_and_the_remedy(
    tmp_path: Path, wav: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_disk(monkeypatch)
    cache = MelCache(tmp_path / "cache")
    for call in (lambda: cache.get(wav), lambda: cache.fill([wav])):
        with pytest.raises(NotReadyError, match=r"No space left on device.*set TRAINMARK_CACHE") as caught:
            call()
        assert str(tmp_path / "cache") in str(caught.value)
    assert not entries(tmp_path) and not list_unfinished(tmp_path)


def test_a_folder_that_cannot_be_written_still_gives_what_it_has(tmp_path: Path) -> None:
    wavs = make_wavs(tmp_path / "wavs", 2)
    folder = tmp_path / "cache"
    MelCache(folder).get(wavs[0])
    (folder / MEL.key).chmod(0o500)
    try:
        with ordinary_permissions():
            cache = MelCache(folder)
            np.testing.assert_array_equal(cache.get(wavs[0]), expected_mel(wavs[0]))
            with pytest.raises(NotReadyError, match=r"Permission denied.*set TRAINMARK_CACHE"):
                cache.get(wavs[1])
    finally:
        (folder / MEL.key).chmod(0o700)
