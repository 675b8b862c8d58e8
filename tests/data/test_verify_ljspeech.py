"""Speech sets with every kind of damage, and what is said of them."""

from __future__ import annotations

import math
import struct
import wave
from pathlib import Path

import pytest

from trainmark.data.ljspeech.prepare import SpeechSize, verify
from trainmark.data.verification import Decode, Report

RATE = 22050


def write_wav(path: Path, samples: int, *, channels: int = 1, loud: bool = True) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(RATE)
        if loud:
            tone = [int(8000 * math.sin(0.1 * place)) for place in range(samples * channels)]
            file.writeframes(struct.pack(f"<{len(tone)}h", *tone))
        else:
            file.writeframes(bytes(2 * samples * channels))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four clips of half a second and more."""
    folder = tmp_path / "set"
    (folder / "wavs").mkdir(parents=True)
    names = [f"LJ001-000{number}" for number in range(1, 5)]
    (folder / "metadata.csv").write_text("".join(f"{name}|A text.|a text\n" for name in names))
    for number, name in enumerate(names):
        write_wav(folder / "wavs" / f"{name}.wav", RATE // 2 + number)
    return folder


def check(root: Path, decode: Decode = "header") -> Report:
    return verify(root, decode=decode)


@pytest.mark.parametrize(
    ("decode", "seconds", "sentence"),
    [
        ("none", None, "4 clips"),
        ("header", (2 * RATE + 6) / RATE, "4 clips, 0:00:02 of audio"),
        ("full", (2 * RATE + 6) / RATE, "4 clips, 0:00:02 of audio"),
    ],
)
def test_a_good_set_is_counted_and_nothing_is_found(
    root: Path, decode: Decode, seconds: float | None, sentence: str
) -> None:
    report = check(root, decode)
    assert (report.found, report.expected, report.problems, report.notes) == (SpeechSize(clips=4), None, [], [])
    assert report.found.seconds == seconds
    assert report.ok
    assert report.sentence() == sentence


def test_a_day_of_speech_is_told_in_hours() -> None:
    assert str(SpeechSize(clips=13_100, seconds=86_117.1)) == "13100 clips, 23:55:17 of audio"


def damage(path: Path, kind: str) -> None:
    if kind == "stereo":
        write_wav(path, 100, channels=2)
    else:
        path.write_bytes({"empty": b"", "cut": path.read_bytes()[:-100], "a page": b"<html>"}[kind])


@pytest.mark.parametrize(
    ("kind", "text", "needs"),
    [
        ("empty", "it is empty", "none"),
        ("cut", "it is cut short: 22,054 bytes of sound promised, 21,954 there", "header"),
        ("a page", "it is no whole 16-bit WAV file", "header"),
        ("stereo", "it has 2 channels, not 1", "header"),
    ],
)
def test_a_damaged_clip_is_named_with_what_is_wrong(root: Path, kind: str, text: str, needs: Decode) -> None:
    damage(root / "wavs/LJ001-0003.wav", kind)
    levels: list[Decode] = ["none", "header", "full"]
    for decode in levels:
        report = check(root, decode)
        assert report.ok == (levels.index(decode) < levels.index(needs))
        if not report.ok:
            assert [finding.subject for finding in report.problems] == ["wavs/LJ001-0003.wav"]
            assert text in report.problems[0].sentence
            assert "the first: wavs/LJ001-0003.wav: it" in report.sentence()
        assert report.found.clips == 4


def test_missing_clips_and_wrong_lines_are_all_named(root: Path) -> None:
    with (root / "metadata.csv").open("a") as file:
        file.write("LJ001-0009|a|a\n../../etc/passwd|a|a\nLJ001-0001|a|a\n")
    (root / "wavs/LJ001-0002.wav").unlink()
    report = check(root)
    assert [str(problem) for problem in report.problems] == [
        "metadata.csv: line 6: '../../etc/passwd' is no id of a clip; expected a plain name like 'LJ001-0001'",
        "metadata.csv: line 7: duplicate clip 'LJ001-0001'",
        "wavs/LJ001-0002.wav: is missing",
        "wavs/LJ001-0009.wav: is missing",
    ]
    assert report.found.clips == 3


def test_what_no_line_names_is_noted_and_no_problem(root: Path) -> None:
    write_wav(root / "wavs/LJ001-0005.wav", 10)
    (root / "wavs/Thumbs.db").write_bytes(b"x")
    (root / "wavs/.LJ001-0006.wav.part").write_bytes(b"")
    report = check(root)
    assert report.ok
    assert [str(note) for note in report.notes] == [
        "wavs/LJ001-0005.wav: is in no line of metadata.csv and was left out",
        "wavs/Thumbs.db: is not named .wav and was left out",
    ]


def test_a_silent_clip_is_noted_where_every_sample_is_read(root: Path) -> None:
    write_wav(root / "wavs/LJ001-0001.wav", RATE, loud=False)
    assert check(root).notes == []
    report = check(root, "full")
    assert report.ok
    assert [str(note) for note in report.notes] == ["wavs/LJ001-0001.wav: is silent throughout"]


def test_links_are_followed_and_broken_ones_named(root: Path, tmp_path: Path) -> None:
    path = root / "wavs/LJ001-0001.wav"
    path.rename(tmp_path / "elsewhere.wav")
    path.symlink_to(tmp_path / "elsewhere.wav")
    assert check(root).ok
    (tmp_path / "elsewhere.wav").unlink()
    for decode in ("none", "header"):
        (problem,) = check(root, decode).problems
        assert str(problem) == "wavs/LJ001-0001.wav: it cannot be read (No such file or directory)"


def test_paths_are_told_from_the_folder_that_was_asked_about(root: Path) -> None:
    root.rename(root.parent / "LJSpeech-1.1")
    (root.parent / "LJSpeech-1.1/wavs/LJ001-0001.wav").unlink()
    assert check(root.parent).problems[0].subject == "LJSpeech-1.1/wavs/LJ001-0001.wav"
