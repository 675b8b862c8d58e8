"""Stores the rows of imported pages: one file per page, never overwritten."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trainmark.analysis import shipped
from trainmark.analysis.device_names import UNKNOWN
from trainmark.record.errors import NotReadyError, UsageError, WorkloadError
from trainmark.record.plan import Topology
from trainmark.record.published_row import PREFIX, PublishedRow

if TYPE_CHECKING:
    from trainmark.analysis.published_page import PublishedPage

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
    from trainmark.analysis.device_names import slugify
    from trainmark.record.atomic_files import write_once

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
        write_once(path, text.encode("utf-8", "backslashreplace"))
    except FileExistsError:
        if folder.is_dir():
            return SavedPage(path=path, new=False)  # imported concurrently
        raise NotReadyError(f"imported pages are kept in {folder}, which is a file; move it away") from None
    except OSError as error:
        kind = WorkloadError if error.errno in _FULL else NotReadyError
        raise kind(f"imported page {path} could not be written: {error.strerror}") from error
    return SavedPage(path=path, new=True)


def load_rows(store_folder: Path) -> tuple[PublishedRow, ...]:
    """Every imported row, oldest page first; `contents` also names the files that are damaged."""
    return load_pages(store_folder).rows


def load_pages(store_folder: Path) -> ImportedPages:
    found: list[tuple[str, str, list[PublishedRow]]] = []
    damaged = []
    for path in _files(store_folder):
        try:
            document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
            page = parse_rows(document)
            found.append((document["imported"], path.stem, page))
        except OSError as error:
            damaged.append(f"imported page {path} is left out: {error.strerror}")
        except (ValueError, RecursionError, UsageError) as error:
            damaged.append(f"imported page {path} is left out: it is damaged ({type(error).__name__}: {error})")
    taken = {row.name for row in shipped.load_rows()}
    named = []
    for _, stem, page in sorted(found, key=lambda entry: entry[:2]):
        for row in page:
            # of two pages with rows of one name, the later one's tell which file they are from
            name = row.name if row.name not in taken else f"{row.name}-{stem.rpartition('-')[2][:6]}"
            taken.add(name)
            named.append(replace(row, name=name))
    return ImportedPages(rows=tuple(named), damaged=tuple(damaged))


def is_imported(row: PublishedRow) -> bool:
    return (row.source.date or "").startswith(_IMPORTED)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_IMPORTED = "imported "


def _folder(store_folder: Path) -> Path:
    return store_folder / "imported"


def _files(store_folder: Path) -> list[Path]:
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
    try:
        page = msgspec.convert(document, _KeptPage)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    for row in page.rows:
        if row.topology != UNKNOWN:
            Topology.parse(row.topology)
        if not row.name.startswith(PREFIX):
            raise ValueError(f"name is {row.name!r}")
    return [replace(row, source=replace(row.source, date=f"{_IMPORTED}{page.imported}")) for row in page.rows]


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number JSON knows")
