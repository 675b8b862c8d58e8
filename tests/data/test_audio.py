"""Sound files: the exact samples of good ones, one sentence with the name of each bad one."""

from __future__ import annotations

import io
import pickle
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from support.full_disk import fill_disk
from support.privileges import ordinary_permissions

from trainmark.data import audio
from trainmark.data.audio import RATE, BadAudioError
from trainmark.record.errors import NotReadyError, WorkloadError


def levels(count: int = 5000, channels: int | None = None) -> np.ndarray:
    shape = count if channels is None else (count, channels)
    return np.random.default_rng(3).integers(-32768, 32768, shape, dtype=np.int16)


def wav(samples: np.ndarray, rate: int = RATE, *, channels: int = 1, width: int = 2) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return stream.getvalue()


WHOLE = wav(levels())
NO_WAV = "it is no whole 16-bit WAV file ("

BAD = {
    "stereo": (wav(levels(channels=2), channels=2), "it has 2 channels, not 1"),
    "wrong rate": (wav(levels(), 44100), "it has 44,100 Hz, not 22,050"),
    "floats": (WHOLE[:20] + b"\3" + WHOLE[21:], "it is no whole 16-bit WAV file (unknown format: 3)"),
    "24 bits": (wav(levels(4500), width=3), "its samples have 24 bits, not 16"),
    "empty": (b"", "it is empty"),
    "a header alone": (wav(levels(0)), "it has a header and no samples"),
    "cut short": (WHOLE[:-1], "it is cut short: 10,000 bytes of sound promised, 9,999 there"),
    "cut short in the header": (WHOLE[:38], NO_WAV),
    "cut short after a few bytes": (WHOLE[:6], NO_WAV),
    "garbage": (np.random.default_rng(0).bytes(4000), NO_WAV),
    "text": (b"LJ001-0001|Printing\n" * 50, NO_WAV),
    "flac": (b"fLaC" + WHOLE, NO_WAV),
    "garbage after the first word": (
        b"RIFF\x00\x01\x00\x00WAVE" + b"\xff" * 300,
        NO_WAV,
    ),
    "no format": (
        b"RIFF\x00\x01\x00\x00WAVEdata\x00\x01\x00\x00" + b"\x01" * 300,
        NO_WAV,
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_by_name_and_reason(tmp_path: Path, kind: str) -> None:
    data, reason = BAD[kind]
    path = tmp_path / "录音 7.wav"
    path.write_bytes(data)
    for call in (audio.read, audio.length):
        with pytest.raises(BadAudioError) as caught:
            call(path)
        assert caught.value.path == path
        assert caught.value.reason.startswith(reason)
        assert str(caught.value).startswith(f"cannot use {path}: {reason}")
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 4


@pytest.mark.parametrize(("name", "reason"), [("none.wav", "No such file or directory"), ("", "Is a directory")])
def test_what_cannot_be_opened_is_refused_with_the_systems_reason(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(BadAudioError, match=reason):
        audio.read(tmp_path / name)


def test_a_file_without_permission_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(WHOLE)
    path.chmod(0)
    with ordinary_permissions(), pytest.raises(BadAudioError, match="Permission denied"):
        audio.length(path)


def test_the_error_survives_the_way_from_another_process(tmp_path: Path) -> None:
    error = BadAudioError(tmp_path / "a.wav", "it is empty")
    again = pickle.loads(pickle.dumps(error))
    assert (again.path, again.reason, str(again)) == (error.path, error.reason, str(error))


def test_samples_are_levels_over_32768_exactly(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WHOLE)
    samples = audio.read(tmp_path / "a.wav")
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples, levels() / 32768)
    assert audio.length(tmp_path / "a.wav") == 5000


def test_other_parts_around_the_sound_are_passed_over(tmp_path: Path) -> None:
    note = b"LIST" + struct.pack("<I", 5) + b"hello\0"  # five bytes and one to make it even
    data = WHOLE[:36] + note + WHOLE[36:] + note
    (tmp_path / "a.wav").write_bytes(b"RIFF" + struct.pack("<I", len(data) - 8) + data[8:])
    np.testing.assert_array_equal(audio.read(tmp_path / "a.wav"), levels() / 32768)


def test_what_was_read_is_written_back_exactly(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WHOLE)
    audio.write(tmp_path / "b.wav", audio.read(tmp_path / "a.wav"))
    assert (tmp_path / "b.wav").read_bytes() == WHOLE


def test_loud_sound_is_scaled_down_as_a_whole_and_quiet_sound_is_left_alone(tmp_path: Path) -> None:
    wave = torch.tensor([0.5, -2.0, 1.0], requires_grad=True)
    audio.write(tmp_path / "loud.wav", wave)
    np.testing.assert_array_equal(audio.read(tmp_path / "loud.wav"), [0.25, -1.0, 0.5])
    audio.write(tmp_path / "quiet.wav", wave.detach().bfloat16() / 4)
    np.testing.assert_array_equal(audio.read(tmp_path / "quiet.wav"), [0.125, -0.5, 0.25])


def test_the_loudest_sample_does_not_turn_over(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", np.array([1.0, -1.0], np.float32))
    np.testing.assert_array_equal(audio.read(tmp_path / "a.wav"), [32767 / 32768, -1.0])


def test_another_rate_is_written_as_asked(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", np.zeros(10, np.float32), rate=16000)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getframerate() == 16000


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sound_that_is_no_number_is_not_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(WorkloadError, match=r"a\.wav: the audio holds NaN or infinite values"):
        audio.write(tmp_path / "a.wav", np.array([0.0, value], np.float32))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(WHOLE)
    fill_disk(monkeypatch)
    with pytest.raises(NotReadyError, match=r"a\.wav: No space left on device; choose another place"):
        audio.write(path, np.zeros(10, np.float32))
    assert path.read_bytes() == WHOLE
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match=r"file/a\.wav"):
        audio.write(tmp_path / "file" / "a.wav", np.zeros(10, np.float32))
