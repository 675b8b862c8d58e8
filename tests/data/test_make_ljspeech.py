"""The synthetic speech set: whole or absent, the same for everyone, and every letter to be heard."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trainmark.data import atomic_dataset, audio
from trainmark.data.ljspeech import formants, make, sentences
from trainmark.record.errors import NotReadyError, UsageError

Floats = NDArray[np.float64]


def contents(root: Path) -> dict[str, str]:
    """The hash of every file but the manifest by its path."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "trainmark-set.json"]
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def manifest(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "trainmark-set.json").read_text())
    return found


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of six clips that nobody changes."""
    root = tmp_path_factory.mktemp("six") / "set"
    make.make(root, clips=6)
    return root


# The set


def test_the_tree_is_shaped_like_ljspeech(six: Path) -> None:
    assert list(contents(six)) == ["metadata.csv", *(f"wavs/TM001-000{number}.wav" for number in range(1, 7))]
    assert names(six.parent) == ["set"]


def test_the_metadata_has_three_columns_and_a_line_for_every_clip(six: Path) -> None:
    lines = (six / "metadata.csv").read_text("utf-8").splitlines()
    assert [line.split("|") for line in lines] == [
        [f"TM001-000{number + 1}", *sentences.sentence(number, 0)] for number in range(6)
    ]


def test_the_clips_are_one_channel_of_16_bit_at_22050_hz(six: Path) -> None:
    for path in (six / "wavs").iterdir():
        assert 0.5 < np.abs(audio.read(path)).max() < 0.81


def test_a_clip_says_the_normalised_text(six: Path) -> None:
    written, spoken = sentences.sentence(2, 0)
    assert written != spoken
    end_s = formants.time_letters(spoken)[-1][2]
    assert audio.length(six / "wavs/TM001-0003.wav") == round(22050 * (end_s + formants.LEAD_S))


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    root = tmp_path / "set"
    make.make(root, clips=3, seed=5)
    says = manifest(root)
    assert (says["set"], says["clips"], says["seed"], says["version"]) == ("ljspeech", 3, 5, make.VERSION)
    assert says["bytes"] == sum((root / path).stat().st_size for path in contents(root))


def test_a_larger_set_holds_the_clips_of_a_smaller_one(six: Path, tmp_path: Path) -> None:
    make.make(tmp_path / "large", clips=8)
    large, small = contents(tmp_path / "large"), contents(six)
    assert small.pop("metadata.csv") != large["metadata.csv"]
    assert small.items() <= large.items()
    assert (tmp_path / "large/metadata.csv").read_bytes().startswith((six / "metadata.csv").read_bytes())


@pytest.mark.parametrize("wrong", [{"clips": 0}, {"clips": -3}, {"clips": 100_001}, {"seed": -1}])
def test_sizes_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
        make.make(tmp_path / "set", **wrong)  # type: ignore[arg-type]
    assert names(tmp_path) == []


# Whole or absent


MAKER = """
import sys
from pathlib import Path
from trainmark.data import atomic_dataset
from trainmark.data.ljspeech.make import make

def wait(done, total):
    print(done, total, flush=True)
    sys.stdin.readline()

atomic_dataset.WORTH_PROCESSES = int(sys.argv[2])
make(Path(sys.argv[1]), clips=60, progress=wait)
"""


@pytest.mark.slow
@pytest.mark.parametrize("worth_processes", [1, 1000])
def test_a_killed_maker_leaves_no_set_and_no_process_and_the_next_one_succeeds(
    tmp_path: Path, worth_processes: int
) -> None:
    root = tmp_path / "set"
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, root, str(worth_processes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert maker.stdout is not None
    assert maker.stdout.readline().split()[1] == b"60"
    maker.kill()
    # ends only when nobody holds the other end of the pipe: neither the maker nor a process it started
    maker.communicate(timeout=60)
    assert maker.returncode == -signal.SIGKILL
    assert not root.exists()
    (left_over,) = tmp_path.iterdir()
    assert not (left_over / "trainmark-set.json").exists()

    os.utime(left_over, (0, 0))  # makers may still be at work in a younger one
    make.make(root, clips=7)
    assert names(tmp_path) == ["set"]
    assert len(contents(root)) == 8


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(NotReadyError, match=r"synthetic clips to .*set: No space left on device; choose another"):
        make.make(tmp_path / "set", clips=2)
    assert names(tmp_path) == []


@pytest.mark.slow
def test_a_reader_that_dies_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "_read_clip", _die)
    monkeypatch.setattr(atomic_dataset, "WORTH_PROCESSES", 1)
    with pytest.raises(NotReadyError, match="process that makes the synthetic clips died"):
        make.make(tmp_path / "set", clips=60)
    assert names(tmp_path) == []


def _die(seed: int, root: Path, number: int) -> None:
    os._exit(1)


def test_making_clips_needs_no_torch() -> None:
    code = "import sys, trainmark.data.ljspeech.make; sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


# The sentences


def test_a_seed_gives_the_sentences_it_gave_when_records_were_made() -> None:
    said = repr([sentences.sentence(number, 0) for number in range(1000)])
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == "6f07678f75d0353f"


# The sound


def test_the_same_text_and_seed_give_the_same_samples() -> None:
    first, again = (formants.synthesize("Quick foxes jump.", 3) for _ in range(2))
    assert first.dtype == np.int16
    assert np.array_equal(first, again)
    assert not np.array_equal(first, formants.synthesize("Quick foxes jump.", 4))


@pytest.mark.slow
def test_every_letter_is_heard_by_its_spectrum_alone() -> None:
    """Letters of new sentences are told by the nearest of 26 mean spectra, taken at the middle of each letter."""
    heard = [(letter, spectrum) for number in range(160) for letter, spectrum in spectra(number)]
    train, test = heard[: len(heard) // 2], heard[len(heard) // 2 :]
    means = np.stack([np.mean([s for letter, s in train if letter == name], axis=0) for name in formants.SOUNDS])
    apart = ((means[:, None] - means) ** 2).mean(-1)[~np.eye(26, dtype=bool)]
    assert apart.min() > 0.8
    told = [list(formants.SOUNDS)[((means - s) ** 2).mean(-1).argmin()] for _, s in test]
    assert np.mean([name == letter for name, (letter, _) in zip(told, test, strict=True)]) > 0.98


def spectra(number: int) -> list[tuple[str, Floats]]:
    """Every letter of a sentence, with the logarithm of its energy in 80 bands evenly spaced on a mel scale."""
    text = sentences.sentence(number, 0)[1]
    sound = formants.synthesize(text, number) / 32768
    edges = np.interp(np.linspace(0, 45.25, 82), *_MEL)
    pitch = np.arange(513) * 22050 / 1024
    rising = (pitch - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - pitch) / (edges[2:] - edges[1:-1])[:, None]
    bank = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    letters = [
        (letter, round(11025 * (a + b))) for letter, a, b in formants.time_letters(text) if letter in formants.SOUNDS
    ]
    frames = np.stack([sound[middle - 512 : middle + 512] for _, middle in letters]) * np.hanning(1024)
    loudness = np.log(np.maximum(1e-5, np.abs(np.fft.rfft(frames)) @ bank.T))
    return [(letter, row) for (letter, _), row in zip(letters, loudness, strict=True)]


_HZ = np.arange(0, 8001, 10)
_MEL = (np.where(_HZ < 1000, _HZ * 0.015, 15 + 27 * np.log(np.maximum(_HZ, 1) / 1000) / np.log(6.4)), _HZ)
