"""From the archive to a folder of speech: what is let in, what is checked, and going on after a kill."""

from __future__ import annotations

import bz2
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from trainmark.data.ljspeech import prepare as prepare_module
from trainmark.data.ljspeech.reader import read_metadata
from trainmark.data.preparation import ReportProgress
from trainmark.record.errors import NotReadyError

TOP = "LJSpeech-1.1"
CLIPS = 8


def content(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest() * (40 + number)


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


class Archive:
    """A small set in the shape of the real one, below a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "LJSpeech-1.1.tar.bz2"
        names = [f"LJ001-{number:04}" for number in range(1, CLIPS + 1)]
        metadata = "".join(f'{name}|He said "{name}|text\n' for name in names)
        self.files = {f"{TOP}/wavs/{name}.wav": content(number) for number, name in enumerate(names)}
        self.files |= {f"{TOP}/README": b"Read me", f"{TOP}/metadata.csv": metadata.encode()}
        self.write()

    def write(self, *more: tarfile.TarInfo) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            tar.addfile(entry(TOP, tarfile.DIRTYPE))
            tar.addfile(entry(f"{TOP}/wavs", tarfile.DIRTYPE))
            for name, data in self.files.items():
                info = entry(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            for info in more:
                tar.addfile(info)
        self.path.write_bytes(bz2.compress(buffer.getvalue()))

    @property
    def unpacked(self) -> dict[str, bytes]:
        return {name.removeprefix(f"{TOP}/"): data for name, data in self.files.items()}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def run(archive: Archive, out: Path, *, any_archive: bool = True, progress: ReportProgress = lambda *_: None) -> str:
    return prepare_module.prepare(out, any_archive=any_archive, progress=progress, tar=archive.path)


def tree(root: Path) -> dict[str, bytes]:
    """Every file of the set, unfinished ones too."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_archive_becomes_texts_and_sound_files_without_its_leading_folder(archive: Archive, tmp_path: Path) -> None:
    out = tmp_path / "数据 集"
    assert run(archive, out) == "8 clips, 10 files written now"
    assert tree(out) == archive.unpacked
    assert len(read_metadata(out)) == CLIPS
    assert {path.stat().st_mode & 0o777 for path in (out / "wavs").iterdir()} == {0o644}


def test_the_wrong_set_is_known_by_its_counts(archive: Archive, tmp_path: Path) -> None:
    del archive.files[f"{TOP}/wavs/LJ001-0002.wav"]
    archive.write()
    with pytest.raises(NotReadyError, match=r"lacks 1 of the 8 clips .*'LJ001-0002\.wav'"):
        run(archive, tmp_path / "lacking")
    archive.files[f"{TOP}/wavs/LJ001-0002.wav"] = archive.files[f"{TOP}/wavs/LJ001-0099.wav"] = b"1"
    archive.write()
    with pytest.raises(NotReadyError, match=r"holds 9 audio files and its metadata\.csv names 8"):
        run(archive, tmp_path / "more")
    del archive.files[f"{TOP}/metadata.csv"]
    archive.write()
    with pytest.raises(NotReadyError, match=r"has no LJSpeech-1\.1/metadata\.csv"):
        run(archive, tmp_path / "without")


@pytest.mark.parametrize(
    ("member", "complaint"),
    [
        (entry("evil.wav"), "is not what LJSpeech holds"),
        (entry("Other-1.0/wavs/evil.wav"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/evil.sh"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/wavs/evil.sh"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/wavs/.evil.wav"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/wavs/deep/evil.wav"), "is not what LJSpeech holds"),
    ],
)
def test_a_trap_in_the_archive_is_named_and_not_written(
    archive: Archive, tmp_path: Path, member: tarfile.TarInfo, complaint: str
) -> None:
    archive.write(member)
    with pytest.raises(NotReadyError, match=complaint):
        run(archive, tmp_path / "out")
    assert list(tmp_path.rglob("*evil*")) == []
