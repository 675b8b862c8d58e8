"""Files that are there whole or not at all, and places a user names that are no files."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path

import pytest

from trainmark.record.atomic_files import atomic_folder, is_stream, write_atomic, write_user_file
from trainmark.record.errors import NotReadyError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_named_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for content in (b"first", b"second"):
        write_user_file(path, content)
        assert path.read_bytes() == content
    assert names(tmp_path) == ["page.html"]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_user_file(path, b"a page")
    reader.join(10)
    assert read == [b"a page"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container makes no device nodes")
    with contextlib.suppress(NotReadyError):  # a disk may be mounted so that its devices cannot be opened
        write_user_file(path, b"a page")
    assert stat.S_ISCHR(path.stat().st_mode)


def test_a_full_device_is_a_sentence() -> None:
    with pytest.raises(NotReadyError, match="cannot write /dev/full: No space left on device"):
        write_user_file(Path("/dev/full"), b"a page")


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real.html").write_bytes(b"before")
    (tmp_path / "link.html").symlink_to("there/real.html")
    (tmp_path / "new.html").symlink_to("there/not-yet.html")
    write_user_file(tmp_path / "link.html", b"after")
    write_user_file(tmp_path / "new.html", b"new")
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "new.html").is_symlink()
    assert (tmp_path / "there" / "real.html").read_bytes() == b"after"
    assert (tmp_path / "there" / "not-yet.html").read_bytes() == b"new"


def test_links_that_lead_to_each_other_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(NotReadyError, match="cannot write"):
        write_user_file(tmp_path / "a", b"a page")


def test_no_folder_is_made_for_a_named_file(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=f"folder {tmp_path}/typo/folder does not exist; create it"):
        write_user_file(tmp_path / "typo" / "folder" / "page.html", b"a page")
    assert names(tmp_path) == []


def test_what_a_shell_opened_for_us_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as stream:
        stream.write("before\n")
        stream.flush()
        name = Path(f"/dev/fd/{stream.fileno()}")
        assert is_stream(name)
        write_user_file(name, b"a page\n")
        assert os.fstat(stream.fileno()).st_ino == path.stat().st_ino
    assert path.read_text() == "before\na page\n"


def test_a_file_that_cannot_be_written_leaves_nothing_unfinished(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomic(tmp_path / "folder", b"content")
    assert names(tmp_path) == ["folder"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "final") as unfinished:
        (unfinished / "half").write_bytes(b"1")
        raise RuntimeError
    assert names(tmp_path) == []
    for content in (b"1", b"2"):
        with atomic_folder(tmp_path / "final") as unfinished:
            (unfinished / "file").write_bytes(content)
            assert unfinished.name.startswith(".")
        assert (tmp_path / "final" / "file").read_bytes() == content
    assert names(tmp_path) == ["final"]
