"""Reads whatever published results a user points at: pages, or the logs of MLPerf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmark.published import read
from trainmark.published.mlperf import folder as mlperf, rows as mlperf_rows
from trainmark.published.mlperf.log import is_log
from trainmark.published.page import PublishedPage
from trainmark.published.page_files import page_files


@dataclass(frozen=True, kw_only=True)
class FoundPage:
    name: str
    """As the user reaches it."""
    page: PublishedPage
    content: bytes
    """What tells it from other pages."""


def is_mlperf(path: Path) -> bool:
    """Whether a file is a result log, or a folder has some."""
    return mlperf.holds_logs(path) if path.is_dir() else path.is_file() and is_log(path)


def found_pages(words: Sequence[str | Path]) -> Iterator[FoundPage]:
    """Every page and every result the words name, in their order."""
    for word in words:
        if is_mlperf(Path(word)):
            for result in mlperf.result_folders(Path(word)):
                content = mlperf_rows.content(result)
                yield FoundPage(name=str(result.path), page=mlperf_rows.page(result), content=content)
        else:
            for file in page_files([word]):
                yield FoundPage(name=file.name, page=read.read(file.text, name=file.name), content=file.content)
