"""Archives that mean well, and archives that do not."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from trainmark.record.archives import ArchiveLimits, Destination, tar_members
from trainmark.record.errors import NotReadyError

ROOMY = ArchiveLimits(files=100, total_bytes=1 << 20)


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o4777
    return info


def tar_of(*items: tuple[str | tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for what, content in items:
            info = entry(what) if isinstance(what, str) else what
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def listed(data: bytes, limits: ArchiveLimits = ROOMY) -> dict[str, bytes]:
    return {member.name: member.read(1 << 20) for member in tar_members(io.BytesIO(data), "a.tar", limits)}


def unpack(archive: Path, out: Path, limits: ArchiveLimits) -> int:
    with Destination(out) as destination:
        found = tar_members(archive, archive.name, limits)
        return len([destination.write(PurePosixPath(member.name), member, member.size) for member in found])


class Pipe:
    """Gives a few bytes at a time and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._buffer = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._buffer.read(min(size, 100))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_come_out_with_their_names_and_bytes_in_every_common_format(form: int) -> None:
    long = "/".join(["folder" * 10] * 3) + "/画像 1.JPEG" if form != tarfile.USTAR_FORMAT else "d/" + "x" * 90
    folder = entry("d", tarfile.DIRTYPE)
    data = tar_of((folder, b""), ("d/a", b"one"), (long, b"2" * 1000), ("./empty", b""), form=form)
    assert listed(data) == {"d/a": b"one", long: b"2" * 1000, "empty": b""}


def test_an_archive_can_be_read_from_a_pipe_and_its_members_passed_over() -> None:
    data = tar_of(("a", b"1" * 700), ("b", b"2" * 3000), ("c", b"3"))
    names = [(member.name, member.read(5)) for member in tar_members(Pipe(data), "a.tar", ROOMY)]
    assert names == [("a", b"11111"), ("b", b"22222"), ("c", b"3")]


def test_a_tar_within_a_tar_is_read_in_place() -> None:
    inner = tar_of(("x.JPEG", b"x" * 600), ("y.JPEG", b"y"))
    outer = tar_of(("n1.tar", inner), ("n2.tar", inner))
    found = {}
    for class_tar in tar_members(io.BytesIO(outer), "outer.tar", ROOMY):
        for image in tar_members(class_tar.content, class_tar.name, ROOMY):
            found[class_tar.name, image.name] = len(image.read(1 << 20))
    assert found == {
        (tar, name): size for tar in ("n1.tar", "n2.tar") for name, size in (("x.JPEG", 600), ("y.JPEG", 1))
    }


def test_large_members_that_nobody_reads_are_passed_over_without_reading() -> None:
    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.taken += len(data)
            return data

    source = Counting(tar_of(("big", bytes(5 << 20)), ("small", b"1")))
    names = [member.name for member in tar_members(source, "a.tar", ArchiveLimits(files=9, total_bytes=1 << 30))]
    assert names == ["big", "small"]
    assert source.taken < 10_000


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.FIFOTYPE, "named pipe"),
        (tarfile.GNUTYPE_SPARSE, "sparse"),
        (b"Z", "unknown kind"),
    ],
)
def test_whatever_is_no_plain_file_is_refused_and_named(kind: bytes, word: str) -> None:
    data = tar_of(("good", b"1"), (entry("evil", kind, "/etc/passwd"), b""))
    with pytest.raises(NotReadyError, match=rf"a\.tar: member 'evil' is .*{word}"):
        listed(data)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("../evil", r"'\.\.'"),
        ("a/../../evil", r"'\.\.'"),
        ("/etc/evil", "absolute"),
        ("new\nline", "control"),
        ("esc\x1b[31m", "control"),
        ("right-to-left\u202eGEPJ", "control"),
        ("undecodable\udcff", "control"),
        (".", "no name"),
        ("x" * 250, "too long"),
    ],
)
def test_names_that_lead_astray_are_refused_and_shown_harmlessly(name: str, word: str) -> None:
    with pytest.raises(NotReadyError, match=word) as caught:
        listed(tar_of((name, b"1"), form=tarfile.GNU_FORMAT))
    assert str(caught.value).isprintable()


def test_a_nul_in_an_extended_name_is_refused() -> None:
    info = entry("placeholder")
    info.pax_headers = {"path": "good.JPEG\0.sh"}
    with pytest.raises(NotReadyError, match="control"):
        listed(tar_of((info, b"1"), form=tarfile.PAX_FORMAT))


def test_more_files_than_allowed_are_refused() -> None:
    data = tar_of(*((f"f{i}", b"") for i in range(11)))
    assert len(listed(data, ArchiveLimits(files=11, total_bytes=0))) == 11
    with pytest.raises(NotReadyError, match=r"more than 10 files or .* at member 'f10'"):
        listed(data, ArchiveLimits(files=10, total_bytes=0))


def test_endless_folders_are_refused_too() -> None:
    data = tar_of(*((entry(f"d{i}", tarfile.DIRTYPE), b"") for i in range(200)))
    with pytest.raises(NotReadyError, match="headers"):
        listed(data, ArchiveLimits(files=1, total_bytes=0))


def test_more_bytes_than_allowed_are_refused_before_they_are_written(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.tar.gz"
    archive.write_bytes(gzip.compress(tar_of(("small", b"1"), ("bomb", bytes(1 << 20)))))
    with pytest.raises(NotReadyError, match="1000 bytes, at member 'bomb'"):
        unpack(archive, tmp_path / "out", ArchiveLimits(files=10, total_bytes=1000))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["small"]


def test_a_size_that_is_a_lie_is_found_out() -> None:
    header = entry("lie")
    header.size = 1 << 40
    data = header.tobuf(tarfile.GNU_FORMAT) + b"short"
    member = next(tar_members(io.BytesIO(data), "a.tar", ArchiveLimits(files=1, total_bytes=1 << 50)))
    with pytest.raises(NotReadyError, match="member 'lie' is cut off"):
        member.read(100)
    negative = bytearray(entry("negative").tobuf(tarfile.GNU_FORMAT))
    negative[124:136] = b"\xff" * 12
    negative[148:156] = b" " * 8
    negative[148:156] = b"%06o\0 " % sum(negative[:512])
    with pytest.raises(NotReadyError, match="size -1"):
        listed(bytes(negative))


def test_a_header_that_would_fill_the_memory_is_refused() -> None:
    header = entry("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    header.size = 1 << 40
    with pytest.raises(NotReadyError, match="no honest archive"):
        listed(header.tobuf(tarfile.GNU_FORMAT))


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(NotReadyError, match="member 'a/b' occurs twice"):
        listed(tar_of(("a/b", b"1"), ("./a//b", b"2")))


def test_an_archive_cut_off_anywhere_is_refused() -> None:
    data = tar_of(("a", b"1" * 600), ("b", b"2" * 600))
    end_mark = 2 * (512 + 1024)
    assert len(listed(data[: end_mark + 512])) == 2
    for cut in range(0, end_mark + 512, 61):
        with pytest.raises(NotReadyError, match="cut off"):
            listed(data[:cut])


def test_garbage_at_the_start_or_in_the_middle_is_no_end_of_archive() -> None:
    data = tar_of(("a", b"1"), ("b", b"2"))
    with pytest.raises(NotReadyError, match="no tar archive"):
        listed(b"garbage" * 500)
    with pytest.raises(NotReadyError, match="damaged after member 'a'"):
        listed(data[:1024] + b"garbage!" * 64 + data[1536:])


@pytest.mark.parametrize("compress", [lambda data: data, gzip.compress, bz2.compress, lzma.compress])
def test_compressed_archives_are_known_by_their_content(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    archive = tmp_path / "set.tar"
    archive.write_bytes(compress(tar_of(("d/a", b"one"), ("b", os.urandom(3000)))))
    assert unpack(archive, tmp_path / "out", ROOMY) == 2
    assert (tmp_path / "out/d/a").read_bytes() == b"one"
    whole = compress(tar_of(("a", os.urandom(3000))))
    archive.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(NotReadyError, match=r"set\.tar"):
        unpack(archive, tmp_path / "out2", ROOMY)


def test_files_are_written_with_mode_0644_whatever_the_archive_and_the_umask_say(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of(("d/a", b"one")))
    previous = os.umask(0o077)
    try:
        unpack(archive, tmp_path / "out", ROOMY)
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "out/d/a").stat().st_mode) == 0o644


def test_a_file_of_the_right_size_is_kept_and_any_other_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    (tmp_path / "replaced").write_bytes(b"cut")
    (tmp_path / ".new.part").write_bytes(b"left by a kill, longer than the file")
    with Destination(tmp_path) as destination:
        wrote = {
            name: destination.write(PurePosixPath(name), io.BytesIO(content), len(content))
            for name, content in (("kept", b"new"), ("replaced", b"whole"), ("new", b"1"))
        }
    assert wrote == {"kept": False, "replaced": True, "new": True}
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"kept": b"old", "replaced": b"whole", "new": b"1"}


def test_a_file_whose_content_ends_early_leaves_nothing_behind(tmp_path: Path) -> None:
    with Destination(tmp_path) as destination, pytest.raises(NotReadyError, match="ends 4 bytes early"):
        destination.write(PurePosixPath("a"), io.BytesIO(b"123"), 7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("planted", ["train", "train/n1", "train/n1/a.JPEG", "train/n1/.a.JPEG.part"])
def test_a_link_planted_in_the_destination_is_never_followed(tmp_path: Path, planted: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "a.JPEG").write_bytes(b"precious")
    (root / planted).parent.mkdir(parents=True)
    (root / planted).symlink_to(outside / "a.JPEG" if "JPEG" in planted else outside)
    with Destination(root) as destination, pytest.raises(NotReadyError, match="remove it"):
        destination.write(PurePosixPath("train/n1/a.JPEG"), io.BytesIO(b"evil!"), 5)
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"a.JPEG": b"precious"}


def test_the_destination_itself_may_be_a_link_the_user_made(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data set 数据").symlink_to(tmp_path / "disk")
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of(("a", b"1")))
    assert unpack(archive, tmp_path / "data set 数据", ROOMY) == 1
    assert (tmp_path / "disk/a").read_bytes() == b"1"


def test_an_archive_or_a_destination_that_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="cannot read the archive"):
        unpack(tmp_path / "absent.tar", tmp_path / "out", ROOMY)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotReadyError, match="cannot write to the folder"):
        Destination(tmp_path / "file")


def test_a_full_disk_is_said_in_a_sentence_that_promises_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with Destination(tmp_path) as destination:
        monkeypatch.setattr("trainmark.record.archives.os.fchmod", full)
        with pytest.raises(NotReadyError, match=r"disk is full .* to continue"):
            destination.write(PurePosixPath("a"), io.BytesIO(b"1"), 1)
    assert list(tmp_path.iterdir()) == []


def test_unpacking_leaks_no_file_descriptors(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of(*((f"d{i}/e/f", b"1") for i in range(50)), (entry("evil", tarfile.SYMTYPE, "x"), b"")))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(NotReadyError):
        unpack(archive, tmp_path / "out", ROOMY)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
