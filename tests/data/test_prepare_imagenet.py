"""From archives to folders of classes: labels, checks beforehand, and going on after a kill."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.io import savemat

from trainmark.data.imagenet.prepare import prepare, read_devkit_labels
from trainmark.data.preparation import ReportProgress
from trainmark.record.errors import NotReadyError

CLASSES = ["n01440764", "n01443537", "n02105855"]
PER_CLASS = 5


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def content(*key: object) -> bytes:
    return hashlib.sha256(repr(key).encode()).digest() * 40


def val_name(place: int) -> str:
    return f"ILSVRC2012_val_{place:08d}.JPEG"


def write_devkit(path: Path, numbers: str, leave_out: str = "", meta: bytes | None = None) -> None:
    columns = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(float(i), wnid, "a fish", 0.0) for i, wnid in enumerate(CLASSES, start=1)]
    rows.append((4.0, "n00001740", "entity", 3.0))
    table, buffer = np.array(rows, dtype=columns), io.BytesIO()
    savemat(buffer, {"synsets": table.reshape(-1, 1)})
    files = {
        "ILSVRC2012_devkit_t12/readme.txt": b"hello",
        "ILSVRC2012_devkit_t12/data/meta.mat": meta if meta is not None else buffer.getvalue(),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": numbers.encode(),
    }
    path.write_bytes(gzip.compress(tar_of({name: data for name, data in files.items() if name != leave_out})))


class Archives:
    """A small set in the shape of the real one, below a folder."""

    def __init__(self, folder: Path) -> None:
        self.train, self.val, self.devkit = folder / "train.tar", folder / "val.tar", folder / "devkit.tar.gz"
        self.class_tars = {
            f"{wnid}.tar": tar_of({f"{wnid}_{i}.JPEG": content(wnid, i) for i in range(PER_CLASS)}) for wnid in CLASSES
        }
        self.val_files = {val_name(i): content("val", i) for i in range(1, 7)}
        self.numbers = "1 2 3 1 2 3"
        self.write()

    def write(self) -> None:
        self.train.write_bytes(tar_of(self.class_tars))
        self.val.write_bytes(tar_of(self.val_files))
        write_devkit(self.devkit, self.numbers)


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    return Archives(tmp_path)


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of the two splits, hidden ones too, with its content and mode."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode)
        for split in ("train", "val")
        for path in (root / split).rglob("*")
        if path.is_file()
    }


def run(archives: Archives, out: Path, *, any_archive: bool = True, progress: ReportProgress = lambda *_: None) -> int:
    """Number of files written."""
    said = prepare(
        out,
        any_archive=any_archive,
        progress=progress,
        train_tar=archives.train,
        val_tar=archives.val,
        devkit=archives.devkit,
    )
    assert said.startswith("3 classes, 15 train and 6 val files, ")
    return int(said.split()[-4])


def test_the_archives_become_folders_of_classes(archives: Archives, tmp_path: Path) -> None:
    assert run(archives, tmp_path / "out") == 21
    expected = {f"train/{w}/{w}_{i}.JPEG": content(w, i) for w in CLASSES for i in range(PER_CLASS)}
    expected |= {f"val/{CLASSES[i % 3]}/{val_name(i + 1)}": content("val", i + 1) for i in range(6)}
    assert {name: data for name, (data, _) in tree(tmp_path / "out").items()} == expected


def test_progress_ends_where_the_archive_does(archives: Archives, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    run(archives, tmp_path / "out", progress=lambda *at: seen.append(at))
    assert [phase for phase, done_bytes, total_bytes in seen if done_bytes == total_bytes] == ["train", "val"]
    assert all(done_bytes <= total_bytes for _, done_bytes, total_bytes in seen)


@pytest.mark.parametrize("damage", ["none", "missing file", "cut file"])
def test_prepared_twice_only_what_went_missing_is_written(archives: Archives, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    run(archives, out)
    whole = tree(out)
    image = out / "train/n01440764/n01440764_3.JPEG"
    if damage == "missing file":
        image.unlink()
    elif damage == "cut file":
        image.write_bytes(b"")
    assert run(archives, out) == int(damage != "none")
    assert tree(out) == whole


KILLED = """
import os, sys
from pathlib import Path
from trainmark.record import archives
from trainmark.data.imagenet.prepare import prepare

train, val, out, devkit, renames = sys.argv[1:]
rename, left = os.rename, int(renames)

def rename_until_told_to_wait(*args, **kwargs):
    global left
    left -= 1
    if left < 0:
        print("ready to be killed", flush=True)
        sys.stdin.read()
    rename(*args, **kwargs)

archives.os.rename = rename_until_told_to_wait
prepare(
    Path(out), any_archive=True, progress=lambda *_: None,
    train_tar=Path(train), val_tar=Path(val), devkit=Path(devkit),
)
"""


@pytest.mark.parametrize("renames", [0, 7, 18])
def test_killed_half_way_and_started_again_it_ends_with_the_same_files(
    archives: Archives, tmp_path: Path, renames: int
) -> None:
    clean, out = tmp_path / "clean", tmp_path / "out"
    run(archives, clean)
    command = [sys.executable, "-c", KILLED, *map(str, (archives.train, archives.val, out, archives.devkit, renames))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready to be killed\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    half = tree(out)
    assert any(name.endswith(".part") for name in half)
    assert half != tree(clean)
    written = run(archives, out)
    assert tree(out) == tree(clean)
    assert written == 21 - sum(not name.endswith(".part") for name in half)


def test_a_wrong_devkit_is_refused_in_a_sentence(archives: Archives, tmp_path: Path) -> None:
    devkit = tmp_path / "devkit.tar.gz"
    write_devkit(devkit, "1\n9\n")
    with pytest.raises(NotReadyError, match="no class number"):
        read_devkit_labels(devkit)
    write_devkit(devkit, "1\n4\n")  # a group of classes is no class
    with pytest.raises(NotReadyError, match="no class number"):
        read_devkit_labels(devkit)
    write_devkit(devkit, "1", leave_out="ILSVRC2012_devkit_t12/data/meta.mat")
    with pytest.raises(NotReadyError, match=r"has no data/meta\.mat"):
        read_devkit_labels(devkit)
    for garbage in (b"", b"garbage" * 100, b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + os.urandom(500)):
        write_devkit(devkit, "1", meta=garbage)
        with pytest.raises(NotReadyError, match=r"meta\.mat cannot be read"):
            read_devkit_labels(devkit)
    archives.devkit.unlink()
    with pytest.raises(NotReadyError, match="cannot read"):
        run(archives, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labels_and_archives_that_do_not_belong_together_are_refused(archives: Archives, tmp_path: Path) -> None:
    def refuse(numbers: str, sentence: str) -> None:
        write_devkit(archives.devkit, numbers)
        with pytest.raises(NotReadyError, match=sentence):
            run(archives, tmp_path / "out")

    del archives.class_tars["n02105855.tar"]
    archives.write()
    refuse("1 2 3", "does not have: n02105855")
    assert not (tmp_path / "out").exists()
    refuse("1 2 1 2 1", r"00000006\.JPEG' has no label")
    refuse("1 2 1 2 1 2 1", "6 images and there are 7 labels")


def test_an_archive_with_another_md5_is_refused(archives: Archives, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for out in (tmp_path / "mine", tmp_path / "new"):
        with pytest.raises(NotReadyError, match=r"devkit\.tar\.gz has md5 .* fetch it again"):
            run(archives, out, any_archive=False)
    assert list((tmp_path / "mine").iterdir()) == []  # nothing is left, and nothing that was there is taken
    assert not (tmp_path / "new").exists()


def test_a_disk_too_small_is_refused_beforehand_and_what_is_there_counts(
    archives: Archives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def leave_free(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    leave_free(1000)
    with pytest.raises(NotReadyError, match="GB free"):
        run(archives, out)
    assert not (out / "train").exists()
    needed = archives.train.stat().st_size + archives.val.stat().st_size
    leave_free(2 * needed)
    run(archives, out)
    leave_free(int(1.02 * needed) - sum(len(data) for data, _ in tree(out).values()))
    assert run(archives, out) == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"n01440764.tar": b"garbage" * 300}, r"train\.tar/n01440764\.tar is cut off or damaged"),
        ({"n01440764.tar": b""}, r"train\.tar/n01440764\.tar is cut off"),
        ({"n01440764.tar": tar_of({"a.JPEG": bytes(5000)})[:3000]}, r"n01440764\.tar: member 'a\.JPEG' is cut off"),
        ({"n01440764.tar": tar_of({"../evil.JPEG": b"1"})}, r"member '\.\./evil\.JPEG'"),
        ({"n01440764.tar": tar_of({"sub/evil.JPEG": b"1"})}, "is no JPEG file"),
        ({"n01440764.tar": tar_of({"evil.sh": b"1"})}, "is no JPEG file"),
        ({"n01440764.tar": tar_of({".JPEG": b"1"})}, "is no JPEG file"),
        ({"sub/n01440764.tar": b""}, "no tar of a class"),
        ({"image.JPEG": b""}, "no tar of a class"),
    ],
)
def test_garbage_and_traps_among_the_class_archives_are_named(
    archives: Archives, tmp_path: Path, change: dict[str, bytes], complaint: str
) -> None:
    archives.class_tars |= change
    archives.write()
    with pytest.raises(NotReadyError, match=complaint):
        run(archives, tmp_path / "out")
    assert list(tmp_path.rglob("evil*")) == []


def test_a_second_preparation_of_the_same_folder_is_refused(archives: Archives, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    other = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(NotReadyError, match="another preparation"):
            run(archives, out)
    finally:
        os.close(other)
    assert run(archives, out) == 21


def test_a_missing_archive_is_said_at_once(archives: Archives, tmp_path: Path) -> None:
    archives.val.unlink()
    with pytest.raises(NotReadyError, match=r"val\.tar does not exist"):
        run(archives, tmp_path / "out")
