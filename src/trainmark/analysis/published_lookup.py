"""Finds published rows, those that come with trainmark and those of imported pages, and what an argument names.

Imported pages are kept one file per page, and never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from trainmark.analysis import published_library as library
from trainmark.analysis.device_names import UNKNOWN, slugify
from trainmark.analysis.published_library import PublishedPage
from trainmark.record.atomic_files import write_once
from trainmark.record.errors import NotReadyError, UsageError, WorkloadError, nearest
from trainmark.record.foreign_files import read_plain
from trainmark.record.plan import Topology
from trainmark.record.published_row import PREFIX, PublishedRow
from trainmark.record.store import Store, Subject, find_runs

KIND = "trainmark imported page"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class SavedPage:
    path: Path
    new: bool
    """False where this very page was imported before."""


@dataclass(frozen=True, kw_only=True)
class ImportedPages:
    rows: tuple[PublishedRow, ...]
    damaged: tuple[str, ...]
    """A sentence for each file that is left out."""


def save_page(store_folder: Path, page: PublishedPage, *, content: bytes, day: str) -> SavedPage:
    """Saves what was read from a page. A page is known by its content: a changed one is kept beside the first."""
    folder, digest = _folder(store_folder), hashlib.sha256(content).hexdigest()
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"*-{digest[:12]}.json")):
            return SavedPage(path=path, new=False)
    document = {
        "kind": KIND,
        "schema": SCHEMA,
        "sha256": digest,
        "imported": day,
        "title": page.title,
        "rows": [asdict(row) for row in page.rows],
        "unread": list(page.unread),
    }
    source = page.rows[0].source.address if page.rows else page.title
    path = folder / f"{slugify(Path(source).stem, 'page')}-{digest[:12]}.json"
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_once(path, text.encode("utf-8", "replace"))
    except FileExistsError:
        if folder.is_dir():
            return SavedPage(path=path, new=False)  # imported concurrently
        raise NotReadyError(f"imported pages are kept in {folder}, which is a file; move it away") from None
    except OSError as error:
        kind = WorkloadError if error.errno in _FULL else NotReadyError
        raise kind(f"imported page {path} could not be written: {error.strerror}") from error
    return SavedPage(path=path, new=True)


def load_rows(store_folder: Path) -> tuple[PublishedRow, ...]:
    """Every imported row, oldest page first; `load_pages` also names the files that are damaged."""
    return load_pages(store_folder).rows


def load_pages(store_folder: Path) -> ImportedPages:
    found: list[tuple[str, list[PublishedRow]]] = []
    damaged = []
    for path in _list_files(store_folder):
        try:
            document = msgspec.json.decode(read_plain(path))
            found.append((path.stem, parse_rows(document)))
        except OSError as error:
            damaged.append(f"imported page {path} is left out: {error.strerror}")
        except (ValueError, RecursionError, UsageError) as error:
            damaged.append(f"imported page {path} is left out: it is damaged ({type(error).__name__}: {error})")
    taken = {row.name for row in library.load_rows()}
    named = []
    for stem, page in sorted(found, key=lambda entry: (entry[1][0].source.date if entry[1] else "", entry[0])):
        for row in page:
            # of two pages with rows of one name, the later one's tell which file they are from
            name = row.name if row.name not in taken else f"{row.name}-{stem.rpartition('-')[2][:6]}"
            taken.add(name)
            named.append(replace(row, name=name))
    return ImportedPages(rows=tuple(named), damaged=tuple(damaged))


def is_imported(row: PublishedRow) -> bool:
    return (row.source.date or "").startswith(_IMPORTED)


Choose = Callable[[Sequence[PublishedRow]], PublishedRow | None]
_FULL = (errno.ENOSPC, errno.EDQUOT)
_IMPORTED = "imported "


def _folder(store_folder: Path) -> Path:
    return store_folder / "imported"


def _list_files(store_folder: Path) -> list[Path]:
    try:
        return sorted(path for path in _folder(store_folder).glob("*.json") if not path.name.startswith("."))
    except OSError:
        return []


class _KeptPage(msgspec.Struct, frozen=True):
    kind: Literal["trainmark imported page"]
    schema: Literal[1]
    imported: str
    rows: tuple[PublishedRow, ...]


def parse_rows(document: Any) -> list[PublishedRow]:
    """The rows of one file; ValueError where it is damaged."""
    page = msgspec.convert(document, _KeptPage)
    for row in page.rows:
        if row.topology != UNKNOWN:
            Topology.parse(row.topology)
        if not row.name.startswith(PREFIX):
            raise ValueError(f"name is {row.name!r}")
    return [replace(row, source=replace(row.source, date=f"{_IMPORTED}{page.imported}")) for row in page.rows]


def find_subject(word: str, store: Store, choose: Choose | None = None) -> Subject:
    """The published row or the runs that an argument names; `choose` takes one of several rows that a word fits."""
    return _find_published(word, store, choose) if word.startswith(PREFIX) else find_runs(word, store)


def _find_published(word: str, store: Store, choose: Choose | None) -> Subject:
    rows = {row.name: row for row in (*load_published_rows(store), *library.load_other_rows())}
    workload = word.removeprefix(PREFIX).casefold()
    matches = [name for name, row in rows.items() if name.startswith(word) or row.workload == workload]
    if word not in rows and len(matches) > 1:
        if choose and (chosen := choose([rows[name] for name in matches])):
            label = f"{chosen.name}, the most like the run of {len(matches)} rows"
            return Subject(word=word, label=label, row=chosen)
        shown = ", ".join(matches[:5]) + (f" and {len(matches) - 5} more" if len(matches) > 5 else "")
        raise UsageError(f"{word!r} could be any of {len(matches)} published rows: {shown}")
    if not matches:
        close = nearest(word, rows, otherwise="'trainmark published' lists them")
        raise UsageError(f"no published row {word!r}; {close}")
    row = rows[word] if word in rows else rows[matches[0]]
    return Subject(word=word, label=row.name, row=row)


def load_published_rows(store: Store) -> tuple[PublishedRow, ...]:
    """The rows that come with trainmark, and those a user imported into the store."""
    return (*library.load_rows(), *load_rows(store.folder))
