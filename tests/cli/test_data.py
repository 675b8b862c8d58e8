"""`trainmark data` makes, prepares and verifies a set as a user would ask for it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from trainmark.cli.main import main


def test_a_made_set_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    words = ["--classes", "2", "--train-per-class", "3", "--val-per-class", "1", "--seed", "5"]
    assert main(["data", "make", "imagenet", "--out", str(out), *words]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert main(["data", "verify", "imagenet", str(out), "--decode", "full"]) == 0
    assert capsys.readouterr().out == "2 classes, 6 train and 2 val files\n"


def test_a_set_is_never_made_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "make", "imagenet", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} is there already" in capsys.readouterr().err


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


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
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
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"ILSVRC2012_val_0000000{i}.JPEG n0000000{i}" for i in (1, 2)), encoding="utf-8")
    out = tmp_path / "imagenet"
    words = ["--train-tar", str(train), "--val-tar", str(val), "--val-labels", str(labels), "--out", str(out)]
    assert main(["data", "prepare", "imagenet", *words]) == 3
    assert "is it the right archive?" in capsys.readouterr().err
    assert main(["data", "prepare", "imagenet", *words, "--no-md5"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert "2 classes, 2 train and 2 val pictures" in said.err
    assert (out / "val" / "n00000002" / "ILSVRC2012_val_00000002.JPEG").read_bytes() == picture
