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
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.io import savemat

from trainmark.data.image_sets import Counts
from trainmark.data.imagenet import prepare as prepare_module
from trainmark.data.imagenet.prepare import ILSVRC2012, ArchiveSet, read_devkit_labels, read_val_labels
from trainmark.data.preparation import ArchiveProgress, ReportProgress
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


class Archives:
    """A small set in the shape of the real one, below a folder."""

    def __init__(self, folder: Path) -> None:
        self.train, self.val, self.labels = folder / "train.tar", folder / "val.tar", folder / "labels.txt"
        self.class_tars = {
            f"{wnid}.tar": tar_of({f"{wnid}_{i}.JPEG": content(wnid, i) for i in range(PER_CLASS)}) for wnid in CLASSES
        }
        self.val_files = {val_name(i): content("val", i) for i in range(1, 7)}
        self.wnids = [CLASSES[i % 3] for i in range(6)]
        self.write()

    def write(self) -> None:
        self.train.write_bytes(tar_of(self.class_tars))
        self.val.write_bytes(tar_of(self.val_files))
        self.labels.write_text("\n".join(self.wnids))

    @property
    def expected(self) -> ArchiveSet:
        return ArchiveSet(
            train_md5=hashlib.md5(self.train.read_bytes()).hexdigest(),
            val_md5=hashlib.md5(self.val.read_bytes()).hexdigest(),
            counts=Counts(classes=3, train=3 * PER_CLASS, val=6),
        )


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


def run(
    archives: Archives,
    out: Path,
    *,
    expected: ArchiveSet | None = None,
    devkit: Path | None = None,
    has_labels: bool = True,
    progress: ReportProgress = lambda _: None,
) -> int:
    """Number of files written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "ILSVRC2012", expected or archives.expected)
        said = prepare_module.prepare(
            out,
            any_archive=False,
            progress=progress,
            train_tar=archives.train,
            val_tar=archives.val,
            devkit=devkit,
            val_labels=archives.labels if has_labels else None,
        )
    assert said.startswith("3 classes, 15 train and 6 val files, ")
    return int(said.split()[-4])


def test_the_archives_become_folders_of_classes(archives: Archives, tmp_path: Path) -> None:
    assert run(archives, tmp_path / "out") == 21
    expected = {f"train/{w}/{w}_{i}.JPEG": content(w, i) for w in CLASSES for i in range(PER_CLASS)}
    expected |= {f"val/{CLASSES[i % 3]}/{val_name(i + 1)}": content("val", i + 1) for i in range(6)}
    assert {name: data for name, (data, _) in tree(tmp_path / "out").items()} == expected


def test_progress_ends_where_the_archive_does(archives: Archives, tmp_path: Path) -> None:
    seen: list[ArchiveProgress] = []
    run(archives, tmp_path / "out", progress=seen.append)
    checksums = [at for at in seen if at.phase == "checksum"]
    assert [at.done_bytes for at in checksums] == [at.total_bytes for at in checksums]
    assert len(checksums) == 2
    assert {at.phase for at in seen[2:]} == {"train", "val"}
    assert all(at.done_bytes <= at.total_bytes for at in seen)


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

train, val, out, labels, renames = sys.argv[1:]
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
    Path(out), any_archive=True, progress=lambda _: None,
    train_tar=Path(train), val_tar=Path(val), val_labels=Path(labels),
)
"""


@pytest.mark.parametrize("renames", [0, 7, 18])
def test_killed_half_way_and_started_again_it_ends_with_the_same_files(
    archives: Archives, tmp_path: Path, renames: int
) -> None:
    clean, out = tmp_path / "clean", tmp_path / "out"
    run(archives, clean)
    command = [sys.executable, "-c", KILLED, *map(str, (archives.train, archives.val, out, archives.labels, renames))]
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


def test_labels_may_name_their_files(archives: Archives, tmp_path: Path) -> None:
    pairs = [f"{val_name(i + 1)}\t{wnid}\n" for i, wnid in enumerate(archives.wnids)]
    archives.labels.write_text("\n".join(reversed(pairs)))
    run(archives, tmp_path / "named")
    archives.labels.write_text("\n".join(archives.wnids))
    run(archives, tmp_path / "in order")
    assert tree(tmp_path / "named") == tree(tmp_path / "in order")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("n01440764\nn0144\n", "line 2: 'n0144' is neither"),
        ("a.JPEG n01440764 tench\n", "line 1"),
        ("a.JPEG ../../etc\n", "line 1"),
        ("a.JPEG n01440764\na.JPEG n01443537\n", "'a.JPEG' has a label already"),
    ],
)
def test_a_wrong_line_of_labels_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "labels.txt"
    path.write_text(text)
    with pytest.raises(NotReadyError, match=complaint):
        read_val_labels(path)
    with pytest.raises(NotReadyError, match="cannot read the labels"):
        read_val_labels(tmp_path)


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


def test_the_devkit_gives_the_same_labels_as_the_text_file(archives: Archives, tmp_path: Path) -> None:
    devkit = tmp_path / "devkit.tar.gz"
    write_devkit(devkit, "1\n2\n3\n1\n2\n3\n")
    assert read_devkit_labels(devkit) == read_val_labels(archives.labels)
    run(archives, tmp_path / "by devkit", has_labels=False, devkit=devkit)
    run(archives, tmp_path / "by text")
    assert tree(tmp_path / "by devkit") == tree(tmp_path / "by text")


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
    with pytest.raises(NotReadyError, match="md5"):
        run(archives, tmp_path / "out", has_labels=False, devkit=devkit, expected=replace(ArchiveSet(), devkit_md5="0"))
    with pytest.raises(NotReadyError, match="cannot read"):
        run(archives, tmp_path / "out", has_labels=False, devkit=tmp_path / "absent")


def test_missing_labels_are_asked_for_before_anything_is_written(archives: Archives, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"--devkit .*--val-labels"):
        run(archives, tmp_path / "out", has_labels=False)
    assert not (tmp_path / "out").exists()


def test_labels_and_archives_that_do_not_belong_together_are_refused(archives: Archives, tmp_path: Path) -> None:
    archives.labels.write_text("\n".join([*archives.wnids[:5], "n09999999"]))
    with pytest.raises(NotReadyError, match="does not have: n09999999"):
        run(archives, tmp_path / "out")
    archives.labels.write_text("\n".join(archives.wnids[:5]))
    with pytest.raises(NotReadyError, match="val: 5 where 6"):
        run(archives, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(NotReadyError, match=r"00000006\.JPEG' has no label"):
        run(archives, tmp_path / "out", expected=ArchiveSet())
    archives.labels.write_text("\n".join([*archives.wnids, CLASSES[0]]))
    with pytest.raises(NotReadyError, match="6 images and there are 7 labels"):
        run(archives, tmp_path / "out", expected=ArchiveSet())


def test_an_archive_with_another_md5_is_refused(archives: Archives, tmp_path: Path) -> None:
    wrong = replace(archives.expected, train_md5="0" * 32)
    (tmp_path / "mine").mkdir()
    with pytest.raises(NotReadyError, match=r"train\.tar has md5 .* fetch it again"):
        run(archives, tmp_path / "mine", expected=wrong)
    assert list((tmp_path / "mine").iterdir()) == []  # nothing is left, and nothing that was there is taken
    wrong = replace(archives.expected, val_md5="0" * 32)
    with pytest.raises(NotReadyError, match=r"val\.tar has md5 .* fetch it again"):
        run(archives, tmp_path / "out", expected=wrong)
    assert not (tmp_path / "out/train").exists()


def test_the_wrong_set_is_known_by_its_counts(archives: Archives, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="classes: 3 where 1000"):
        run(archives, tmp_path / "out", expected=ILSVRC2012)
    with pytest.raises(NotReadyError, match="train: 15 where 16"):
        run(archives, tmp_path / "out", expected=ArchiveSet(counts=Counts(classes=3, train=16, val=6)))


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
        run(archives, tmp_path / "out", expected=ArchiveSet())
    assert list(tmp_path.rglob("evil*")) == []


def test_a_train_archive_cut_off_is_refused_before_anything_is_written(archives: Archives, tmp_path: Path) -> None:
    archives.train.write_bytes(archives.train.read_bytes()[:-20_000])
    with pytest.raises(NotReadyError, match="cut off"):
        run(archives, tmp_path / "out", expected=ArchiveSet())
    assert not (tmp_path / "out").exists()


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
        run(archives, tmp_path / "out", expected=ArchiveSet())
