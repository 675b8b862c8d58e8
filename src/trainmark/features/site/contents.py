"""Finds the records, imported pages, published pages and MLPerf results below a folder, and audits each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainmark import features
from trainmark.analysis import published_library as library, published_lookup as imported
from trainmark.analysis.audit_record import audit_record
from trainmark.features.published import audit
from trainmark.features.published.read import read_file
from trainmark.record.checks import CheckResult
from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.foreign_files import read_plain
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import KIND, Record, list_repeats, parse
from trainmark.record.store import read_record
from trainmark.view.publish import make_publishable

MAX_FILES = 20_000
MAX_BYTES = 64 << 20
PAGES = (".md", ".markdown")


@dataclass(frozen=True, kw_only=True)
class SiteRun:
    record: Record
    checks: tuple[CheckResult, ...]
    folder: Path | None
    """The run's own, where its events and artifacts lie."""


@dataclass(frozen=True, kw_only=True)
class SiteRow:
    """A published row with what the audit found about it."""

    row: PublishedRow
    findings: tuple[CheckResult, ...]


@dataclass(frozen=True, kw_only=True)
class SiteContents:
    runs: tuple[SiteRun, ...]
    """The newest first."""
    rows: tuple[SiteRow, ...]
    left_out: tuple[str, ...] = ()
    """One sentence per file that could not be read."""

    @property
    def workloads(self) -> list[str]:
        """Those with the most results first."""
        names = [run.record.plan.workload for run in self.runs] + [entry.row.workload for entry in self.rows]
        return sorted(dict.fromkeys(names), key=lambda name: (-names.count(name), name))


def find_contents(folder: Path, *, out: Path | None = None, with_library: bool = True) -> SiteContents:
    """All results below a folder; UsageError where there are none."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name one with records and published pages")
    left_out: list[str] = []
    records: dict[str, tuple[Record, Path | None]] = {}
    rows: list[PublishedRow] = []
    for path in _find_files(folder, out):
        try:
            if path.suffix.lower() in PAGES:
                rows += read_file(path, str(path.relative_to(folder))).page.rows
            else:
                for found in _read_documents(path):
                    if isinstance(found, Record):
                        records.setdefault(found.run_id, (found, _find_run_folder(path, found)))
                    else:
                        rows.append(found)
        except TrainmarkError as error:
            left_out.append(f"{path} is left out: {error}")
    audited = [
        SiteRow(row=row, findings=found)
        for source in features.offers("import_source")
        for row, found in source.audit_rows(folder)
    ]
    if not records and not rows and not audited:
        raise UsageError(f"folder {folder} holds no record, no page of results and no MLPerf log")
    # findings stored with rows do not distinguish them
    known = [replace(row, findings=()) for row in (*(library.load_rows() if with_library else ()), *rows)]
    everything = _number_duplicates(known)
    doubted = audit.find_doubts(audit.group_by_source(everything))
    return SiteContents(
        runs=tuple(
            SiteRun(record=record, checks=audit_record(record, place), folder=place)
            for record, place in sorted(records.values(), key=lambda one: one[0].created, reverse=True)
        ),
        rows=(
            *(
                SiteRow(row=row, findings=doubted.get(row.name, ()))
                for row in audit.attach_findings(everything, doubted)
            ),
            *audited,
        ),
        left_out=tuple(left_out),
    )


def _number_duplicates(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Numbers rows of one name; identical rows are merged."""
    found: dict[str, PublishedRow] = {}
    for row in rows:
        name, number = row.name, 1
        while name in found and replace(found[name], name=row.name) != row:
            number += 1
            name = f"{row.name}-{number}"
        found.setdefault(name, replace(row, name=name))
    return list(found.values())


def _find_files(folder: Path, out: Path | None) -> Iterator[Path]:
    """Records and pages by name; not what is hidden, what a site or a run's own folder holds."""
    skipped = {path.resolve() for path in (out, folder / "runs" if (folder / "records").is_dir() else None) if path}
    count = 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() not in (".json", *PAGES) or any(part.startswith(".") for part in inside.parts):
            continue
        if not path.is_file() or any(parent.resolve() in skipped for parent in path.parents):
            continue
        count += 1
        if count > MAX_FILES:
            raise UsageError(f"folder {folder} has more than {MAX_FILES} files; name a folder inside it")
        yield path


def _read_documents(path: Path) -> Iterator[Record | PublishedRow]:
    """Records and rows of a JSON file; empty for other documents."""
    try:
        document = list_repeats(parse(read_plain(path, MAX_BYTES)))
    except OSError as error:
        raise UsageError(str(error.strerror)) from error
    if isinstance(document, list):
        yield from (Record.from_json(entry) for entry in document if _is_record(entry))
    elif _is_record(document):
        yield read_record(path)
    elif isinstance(document, dict) and document.get("kind") == imported.KIND:
        try:
            yield from imported.parse_rows(document)
        except ValueError as error:
            raise UsageError(f"it is damaged ({error})") from error


def _is_record(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == KIND


def _find_run_folder(path: Path, record: Record) -> Path | None:
    place = path.absolute().parent.parent / "runs" / record.run_id
    ours = path.parent.name == "records" and Path(record.run_id).name == record.run_id
    return place if ours and place.is_dir() else None


def publish_contents(contents: SiteContents) -> tuple[SiteContents, Sequence[str]]:
    """The same with copies of the records that are safe to share, and what was replaced in them."""
    safe = make_publishable([run.record for run in contents.runs])
    runs = tuple(
        replace(run, record=record, checks=audit_record(record), folder=None)
        for run, record in zip(contents.runs, safe.records, strict=True)
    )
    return replace(contents, runs=runs), safe.replaced
