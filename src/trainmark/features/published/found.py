"""Reads whatever published results a user points at: pages in UTF-8 or GB 18030, folders of them, logs of MLPerf."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmark import features
from trainmark.analysis.published_page import FoundPage
from trainmark.features.published import read
from trainmark.record.errors import UsageError

ENDINGS = (".md", ".markdown", ".txt")
"""Of files that are pages, in a folder or named by themselves."""
STANDARD_INPUT = "-"
MAX_BYTES = 8 * 2**20
"""A longer file is no page of results."""
MAX_PAGES = 5000

_ENCODINGS = ("utf-8-sig", "gb18030")
"""The second is what older Chinese pages are written in."""


@dataclass(frozen=True, kw_only=True)
class PageFile:
    name: str
    """As the user reaches it: its path, or `-`."""
    content: bytes
    text: str


def read_page_files(words: Sequence[str | Path]) -> Iterator[PageFile]:
    """Every page the words name. What cannot be read, or is no text, is an error; nothing is left out silently."""
    for word in words:
        if str(word) == STANDARD_INPUT:
            yield _decode_page("standard input", sys.stdin.buffer.read(MAX_BYTES + 1))
            continue
        path = Path(word)
        for found in _list_pages(path) if path.is_dir() else (path,):
            yield _decode_page(str(found), _read_bytes(found))


def has_pages(folder: Path) -> bool:
    return any(_list_pages(folder, wanted=False))


def _list_pages(folder: Path, *, wanted: bool = True) -> list[Path]:
    """Pages of a folder and of those in it, by name; hidden ones are none."""
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() in ENDINGS and path.is_file() and not any(part.startswith(".") for part in inside.parts):
            found.append(path)
    if wanted and not found:
        raise UsageError(f"folder {folder} has no pages, which end in {', '.join(ENDINGS)}")
    if len(found) > MAX_PAGES:
        raise UsageError(f"folder {folder} has {len(found)} pages, more than {MAX_PAGES}; name a folder inside it")
    return found


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"page {path} cannot be read: {error.strerror}") from error


def _decode_page(name: str, content: bytes) -> PageFile:
    if len(content) > MAX_BYTES:
        raise UsageError(f"page {name} has more than {MAX_BYTES // 2**20} MiB; give a page of results in Markdown")
    for encoding in _ENCODINGS:
        try:
            return PageFile(name=name, content=content, text=content.decode(encoding))
        except UnicodeDecodeError:
            continue
    raise UsageError(f"page {name} is not text in UTF-8 or GB 18030; give a page in Markdown")


def find_pages(words: Sequence[str | Path]) -> Iterator[FoundPage]:
    """Every page and every result the words name, in their order."""
    for word in words:
        source = next((one for one in features.offers("import_source") if one.recognises(word)), None)
        if source:
            yield from source.pages(word)
            continue
        for file in read_page_files([word]):
            yield FoundPage(name=file.name, page=read.read_page(file.text, name=file.name), content=file.content)
