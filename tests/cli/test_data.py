"""`trainmark data` makes, prepares and verifies a set as a user would ask for it."""

from __future__ import annotations

import io
import json
import tarfile
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
from scipy.io import savemat

from trainmark.cli.main import main
from trainmark.data import preparation, synthetic
from trainmark.data.ljspeech import make
from trainmark.record.errors import UsageError


def test_a_made_set_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    words = ["--classes", "2", "--train-per-class", "3", "--val-per-class", "1", "--seed", "5"]
    assert main(["data", "make", "imagenet", "--out", str(out), *words]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert main(["data", "verify", "imagenet", str(out), "--decode", "full"]) == 0
    assert capsys.readouterr().out == "2 classes, 6 train and 2 val files\n"


def test_a_set_is_never_made_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "make", "imagenet", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_picture_is_named_and_exits_3(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        for folder in (pictures / split).iterdir():
            (tmp_path / split / folder.name).mkdir(parents=True)
            for picture in folder.iterdir():
                (tmp_path / split / folder.name / picture.name).symlink_to(picture)
    victim = next((tmp_path / "val").glob("*/*.JPEG"))
    content = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(content[:500])
    assert main(["data", "verify", "imagenet", str(tmp_path), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["problems"][0]["path"] == str(victim.relative_to(tmp_path))


def archive(path: Path, files: dict[str, bytes], mode: Literal["w", "w:bz2"] = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_archives_become_a_set_that_can_be_read(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = next((pictures / "train").glob("*/*.JPEG")).read_bytes()
    classes = ("n00000001", "n00000002")
    inner = {f"{name}.tar": archive(tmp_path / name, {f"{name}_1.JPEG": picture}).read_bytes() for name in classes}
    train = archive(tmp_path / "train.tar", inner)
    val = archive(tmp_path / "val.tar", {f"ILSVRC2012_val_0000000{i}.JPEG": picture for i in (1, 2)})
    table = np.array(
        [(i, f"n0000000{i}", 0) for i in (1, 2)], [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    )
    savemat(tmp_path / "meta.mat", {"synsets": table})
    devkit = {
        "data/meta.mat": (tmp_path / "meta.mat").read_bytes(),
        "data/ILSVRC2012_validation_ground_truth.txt": b"1 2",
    }
    kit = archive(tmp_path / "devkit.tar", devkit)
    out = tmp_path / "imagenet"
    words = ["--train-tar", str(train), "--val-tar", str(val), "--devkit", str(kit), "--out", str(out)]
    assert main(["data", "prepare", "imagenet", *words]) == 3
    assert "it is another file or was damaged" in capsys.readouterr().err
    assert main(["data", "prepare", "imagenet", *words, "--no-md5"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert "2 classes, 2 train and 2 val files" in said.err
    assert (out / "val" / "n00000002" / "ILSVRC2012_val_00000002.JPEG").read_bytes() == picture


def sound() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(22_050)
        file.writeframes(bytes(44_100))
    return buffer.getvalue()


def speech_archive(path: Path) -> Path:
    lines = "".join(f"LJ001-000{number}|Number {number}.|a number\n" for number in range(1, 4))
    files = {f"LJSpeech-1.1/wavs/LJ001-000{number}.wav": sound() for number in range(1, 4)}
    return archive(path, {**files, "LJSpeech-1.1/metadata.csv": lines.encode()}, "w:bz2")


def test_a_speech_archive_becomes_a_set_that_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar, out = speech_archive(tmp_path / "LJSpeech-1.1.tar.bz2"), tmp_path / "ljspeech"
    words = ["data", "prepare", "ljspeech", "--tar", str(tar), "--out", str(out)]
    assert main([*words, "--no-md5"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert "3 clips, 4 files written now" in said.err
    assert main(["data", "verify", "ljspeech", str(out)]) == 0
    assert capsys.readouterr().out == "3 clips, 0:00:03 of audio\n"


def test_another_archive_than_the_published_one_is_refused_and_exits_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**12))
    tar = speech_archive(tmp_path / "LJSpeech-1.1.tar.bz2")
    assert main(["data", "prepare", "ljspeech", "--tar", str(tar), "--out", str(tmp_path / "out")]) == 3
    assert "not c4763be9595ddfa79c2fc6eaeb3b6c8e; it is another file or was damaged" in capsys.readouterr().err


def test_a_damaged_clip_is_named_and_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar, out = speech_archive(tmp_path / "tar"), tmp_path / "out"
    assert main(["data", "prepare", "ljspeech", "--tar", str(tar), "--out", str(out), "--no-md5"]) == 0
    capsys.readouterr()
    (out / "wavs" / "LJ001-0002.wav").write_bytes(sound()[:-10])
    (out / "wavs" / "LJ001-0003.wav").unlink()
    assert main(["data", "verify", "ljspeech", str(out), "--decode", "full", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["expected"], report["found"]) == (False, None, {"clips": 2, "seconds": 1.0})
    assert [finding["path"] for finding in report["problems"]] == ["wavs/LJ001-0003.wav", "wavs/LJ001-0002.wav"]
    assert main(["data", "verify", "ljspeech", str(out)]) == 3
    assert "wavs/LJ001-0002.wav: it is cut short" in capsys.readouterr().out


def test_a_made_speech_set_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    assert main(["data", "make", "ljspeech", "--out", str(out), "--clips", "9", "--seed", "5"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert main(["data", "verify", "ljspeech", str(out), "--decode", "full"]) == 0
    assert capsys.readouterr().out.startswith("9 clips, 0:00:")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["make", "ljspeech", "--out", "x", "--classes", "3"], "argument '--classes' is not known"),
        (["prepare", "ljspeech", "--out", "x"], "the following arguments are required: --tar"),
        (["prepare", "ljspeech", "--tar", "x"], "the following arguments are required: --out"),
        (["make", "ljspeech"], "the following arguments are required: --out"),
        (["verify", "ljspeech"], "the following arguments are required: DIR"),
        (["verify", "ljspeech", "x", "--decode", "ful"], "did you mean 'full'?"),
        (["verify", "ljspech", "x"], "set 'ljspech' is not known; did you mean 'ljspeech'?"),
        (["make"], "the following arguments are required: set"),
    ],
)
def test_a_word_out_of_place_is_one_sentence_and_exit_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_the_help_gives_the_makers_own_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "make", "ljspeech", "--help"]) == 0
    assert f"(default: {make.CLIPS})" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("make", "--clips"), ("prepare", "--tar"), ("verify", "--decode")])
def test_the_help_of_a_set_shows_its_own_words_only(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", words[0], "ljspeech", "--help"]) == 0
    said = capsys.readouterr().out
    assert words[1] in said
    assert not [word for word in ("--classes", "--devkit", "--train-tar", "--val-per-class") if word in said]


def test_the_embedded_sets_are_known_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path))
    assert synthetic.folder("imagenet").parent == synthetic.folder("ljspeech").parent == tmp_path
    assert synthetic.folder("imagenet") != synthetic.folder("ljspeech")
    with pytest.raises(UsageError, match="data set 'ljspech' is not known; did you mean 'ljspeech'"):
        synthetic.folder("ljspech")
