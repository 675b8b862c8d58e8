"""From the archive to a folder of speech: what is let in, what is checked, and going on after a kill."""

from __future__ import annotations

import bz2
import fcntl
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from trainmark.data.ljspeech import prepare as prepare_module
from trainmark.data.ljspeech.prepare import LJSPEECH_1_1, Release, prepare
from trainmark.data.ljspeech.reader import SpeechSize, read_metadata
from trainmark.data.preparation import ArchiveProgress, Prepared
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
    def expected(self) -> Release:
        return Release(md5=hashlib.md5(self.path.read_bytes()).hexdigest(), clips=CLIPS)

    @property
    def unpacked(self) -> dict[str, bytes]:
        return {name.removeprefix(f"{TOP}/"): data for name, data in self.files.items()}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def run(archive: Archive, out: Path, **options: object) -> Prepared[SpeechSize]:
    return prepare(archive.path, out, **({"expected": archive.expected} | options))  # type: ignore[arg-type]


def tree(root: Path) -> dict[str, bytes]:
    """Every file of the set, unfinished ones too, without the notes of the preparation."""
    files = (path for path in root.rglob("*") if path.is_file() and ".trainmark-prepare" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_the_archive_becomes_texts_and_sound_files_without_its_leading_folder(archive: Archive, tmp_path: Path) -> None:
    out = tmp_path / "数据 集"
    assert run(archive, out) == Prepared(found=SpeechSize(clips=CLIPS), written=CLIPS + 2)
    assert tree(out) == archive.unpacked
    assert len(read_metadata(out)) == CLIPS
    assert {path.stat().st_mode & 0o777 for path in (out / "wavs").iterdir()} == {0o644}


def test_prepared_twice_the_archive_is_neither_summed_nor_decompressed_again(archive: Archive, tmp_path: Path) -> None:
    phases: list[str] = []
    run(archive, tmp_path / "out", progress=lambda at: phases.append(at.phase))
    assert phases == ["checksum", "unpack"]
    phases.clear()
    again = run(archive, tmp_path / "out", progress=lambda at: phases.append(at.phase))
    assert again == Prepared(found=SpeechSize(clips=CLIPS), written=0)
    assert phases == []


def test_progress_ends_at_the_whole(archive: Archive, tmp_path: Path) -> None:
    seen: list[ArchiveProgress] = []
    run(archive, tmp_path / "out", progress=seen.append)
    assert [at.done_bytes for at in seen] == [at.total_bytes for at in seen]
    assert seen[-1].files == CLIPS + 2


@pytest.mark.parametrize("damage", ["missing wav", "cut wav", "no metadata", "damaged note", "touched archive"])
def test_what_went_missing_since_is_written_again(archive: Archive, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    run(archive, out)
    wav, note = out / "wavs/LJ001-0003.wav", out / ".trainmark-prepare/unpacked.json"
    if damage == "missing wav":
        wav.unlink()
    elif damage == "cut wav":
        wav.write_bytes(b"")
    elif damage == "no metadata":
        (out / "metadata.csv").unlink()
    elif damage == "damaged note":
        note.write_text("{")
    else:
        os.utime(archive.path, ns=(1, 1))
    assert run(archive, out).written == (damage in ("missing wav", "cut wav", "no metadata"))
    assert tree(out) == archive.unpacked


KILLED = """
import os, sys
from pathlib import Path
from trainmark.spec import archives
from trainmark.data.ljspeech.prepare import Release, prepare

tar, out, renames = sys.argv[1:]
rename, left = os.rename, int(renames)

def rename_until_told_to_wait(*args, **kwargs):
    global left
    left -= 1
    if left < 0:
        print("ready to be killed", flush=True)
        sys.stdin.read()
    rename(*args, **kwargs)

archives.os.rename = rename_until_told_to_wait
prepare(Path(tar), Path(out), expected=Release())
"""


@pytest.mark.parametrize("renames", [0, 5, CLIPS + 1])
def test_killed_half_way_and_started_again_it_ends_with_the_same_files(
    archive: Archive, tmp_path: Path, renames: int
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(archive.path), str(out), str(renames)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready to be killed\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    half = tree(out)
    assert sum(name.endswith(".part") for name in half) == 1
    kept = {path: path.stat().st_ino for path in (out / "wavs").glob("[!.]*")}
    assert run(archive, out).written == CLIPS + 2 - renames
    assert tree(out) == archive.unpacked
    assert {path: path.stat().st_ino for path in kept} == kept


def test_an_archive_with_another_md5_is_refused_unless_told_not_to_look(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"bz2 has md5 .*, not c4763be9595ddfa79c2fc6eaeb3b6c8e; .* fetch it again"):
        run(archive, tmp_path / "new" / "out", expected=LJSPEECH_1_1, free_bytes=lambda _: 10**12)
    assert not (tmp_path / "new").exists()  # a refused archive leaves nothing behind
    wrong = replace(archive.expected, md5="0" * 32)
    assert run(archive, tmp_path / "out", expected=wrong, verify_md5=False).found.clips == CLIPS


def test_the_wrong_set_is_known_by_its_counts(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="8 clips unpacked where 13100 were expected"):
        run(archive, tmp_path / "out", expected=Release(clips=13_100))
    del archive.files[f"{TOP}/wavs/LJ001-0002.wav"]
    archive.write()
    with pytest.raises(NotReadyError, match=r"lacks 1 of the 8 clips .*'LJ001-0002\.wav'"):
        run(archive, tmp_path / "lacking", expected=Release())
    archive.files[f"{TOP}/wavs/LJ001-0002.wav"] = archive.files[f"{TOP}/wavs/LJ001-0099.wav"] = b"1"
    archive.write()
    with pytest.raises(NotReadyError, match=r"holds 9 sound files and its metadata\.csv names 8"):
        run(archive, tmp_path / "more", expected=Release())
    del archive.files[f"{TOP}/metadata.csv"]
    archive.write()
    with pytest.raises(NotReadyError, match=r"has no LJSpeech-1\.1/metadata\.csv"):
        run(archive, tmp_path / "without", expected=Release())


@pytest.mark.parametrize(
    ("member", "complaint"),
    [
        (entry(f"{TOP}/wavs/evil.wav", tarfile.SYMTYPE, "/etc/passwd"), "is a symbolic link"),
        (entry(f"{TOP}/wavs/evil.wav", tarfile.LNKTYPE, f"{TOP}/README"), "is a hard link"),
        (entry(f"{TOP}/wavs/evil.wav", tarfile.FIFOTYPE), "is a named pipe"),
        (entry(f"{TOP}/wavs/../../../evil.wav"), r"has '\.\.' in its name"),
        (entry("/tmp/evil.wav"), "has an absolute name"),
        (entry("evil.wav"), "is not what LJSpeech holds"),
        (entry("Other-1.0/wavs/evil.wav"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/evil.sh"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/wavs/evil.sh"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/wavs/.evil.wav"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/wavs/deep/evil.wav"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/.trainmark-prepare/evil.json"), "is not what LJSpeech holds"),
        (entry(f"{TOP}/README"), "occurs twice"),
    ],
)
def test_a_trap_in_the_archive_is_named_and_not_written(
    archive: Archive, tmp_path: Path, member: tarfile.TarInfo, complaint: str
) -> None:
    archive.write(member)
    with pytest.raises(NotReadyError, match=complaint):
        run(archive, tmp_path / "out", expected=Release())
    assert list(tmp_path.rglob("*evil*")) == []


def test_more_files_or_bytes_than_any_such_set_has_are_refused(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "MAX_FILES", 5)
    with pytest.raises(NotReadyError, match=r"more than 5 files .* at member .*0006\.wav'; refused as too large"):
        run(archive, tmp_path / "out")
    monkeypatch.setattr(prepare_module, "MAX_FILES", 100)
    monkeypatch.setattr(prepare_module, "MAX_BYTES", 5000)
    with pytest.raises(NotReadyError, match=r"files or 5000 bytes, .* refused as too large"):
        run(archive, tmp_path / "out")


def test_an_archive_cut_off_is_refused_and_the_whole_one_goes_on_from_there(archive: Archive, tmp_path: Path) -> None:
    whole = archive.path.read_bytes()
    for data, complaint in ((whole[:-100], "is cut off or damaged"), (b"no archive" * 200, "or no tar archive")):
        archive.path.write_bytes(data)
        with pytest.raises(NotReadyError, match=complaint):
            run(archive, tmp_path / "out")
    archive.path.write_bytes(whole)
    run(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == archive.unpacked


def test_a_disk_too_small_is_refused_beforehand_and_what_is_there_counts(archive: Archive, tmp_path: Path) -> None:
    out = tmp_path / "out"
    expected = replace(archive.expected, disk_bytes=2_000_000_000)
    with pytest.raises(NotReadyError, match=r"1\.0 GB free and 2\.0 GB more are needed"):
        run(archive, out, expected=expected, free_bytes=lambda _: 10**9)
    assert not (out / "wavs").exists()
    run(archive, out, expected=expected, free_bytes=lambda _: 2 * 10**9)
    there = sum(path.stat().st_size for path in (out / "wavs").iterdir())
    assert run(archive, out, expected=expected, free_bytes=lambda _: 2 * 10**9 - there).written == 0


def test_a_second_preparation_of_the_same_folder_is_refused(archive: Archive, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    other = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(NotReadyError, match="another preparation"):
            run(archive, out)
    finally:
        os.close(other)
    assert run(archive, out).found.clips == CLIPS


def test_a_missing_archive_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"absent\.tar\.bz2 is not there; download it"):
        prepare(tmp_path / "absent.tar.bz2", tmp_path / "out")
    assert not (tmp_path / "out").exists()
