"""Draws one record in brief: its headline, its table with notes, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record.index import format_tags
from trainmark.record.language import _
from trainmark.view import headline, table
from trainmark.view.terminal import TerminalWriter

if TYPE_CHECKING:
    from trainmark.record.published_row import PublishedRow
    from trainmark.record.record import Record
    from trainmark.record.store import Store


def describe_briefly(
    record: Record,
    rows: Sequence[PublishedRow],
    store: Store,
    *,
    path: Path,
    width: int = 80,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """The screen at the end of a run, then tags, note and files; `rows` are published rows of its workload, `path` is
    the record's."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    writer.put("")
    words = {"run_id": record.run_id, "status": _(record.status), "created": record.created}
    writer.put_unbroken(_("Run: {run_id} ({status}, {created})").format(**words))
    if record.group:
        writer.put_unbroken(_("Repeats: {group}").format(group=record.group))
    if record.tags:
        writer.put(_("Tags: {tags}").format(tags=", ".join(format_tags(record.tags))))
    if record.note:
        writer.put(_("Note: {note}").format(note=record.note))
    for line in _files(record, store, path):
        writer.put_unbroken(line)
    known_here = path in (store.path(record.run_id), store.runs / record.run_id)
    word = record.run_id.rpartition("-")[2] if known_here else path
    writer.put_unbroken(_("Everything there is to know: trainmark show {word} --all").format(word=word))
    headlines = headline.write_headlines([record], rows)
    return table.render([record], sentences=headlines, width=width, color=color, encoding=encoding) + writer.getvalue()


def _files(record: Record, store: Store, path: Path) -> Iterator[str]:
    folder = store.runs / record.run_id
    if path != folder:  # a run that was cut off left none
        yield _("Record: {path}").format(path=path)
    if folder.is_dir():
        yield _("Events and logs: {folder}").format(folder=folder)
    if (folder / "checkpoints").is_dir():
        yield _("Checkpoints: {folder}").format(folder=folder / "checkpoints")
    for artifact in record.artifacts:
        yield _("Sample: {file}").format(file=folder / artifact.file)
    if (page := store.folder / "reports" / f"{record.run_id}.html").is_file():
        yield _("Page: {page}").format(page=page)
