"""The screen that a feature draws of the runs of one command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainmark import features
from trainmark.analysis.beside import find_published_rows
from trainmark.cli.terminal import open_console, screen_options
from trainmark.record import site
from trainmark.record.record import Record
from trainmark.record.store import Store


def find_screen(records: Sequence[Record]) -> Any:
    """The feature that shows these runs together; None where there is none."""
    return next((feature for feature in features.offers("run_screen") if feature.shows(records)), None)


def show_screen(screen: Any, records: Sequence[Record], store: Store, page: str | None) -> None:
    rows = find_published_rows(records, store.folder)
    console = open_console()
    text = screen.render(records, rows, page=page, price=site.load().price, **screen_options(console))
    console.file.write(text)
