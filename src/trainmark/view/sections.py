"""A section of facts about a run: a title, named values and a table, for a terminal or a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainmark.view.terminal import TerminalWriter


class RecordFact(NamedTuple):
    name: str
    value: str
    local: bool = False
    """Says where something lies on this machine: for its owner's terminal, not for a page that may be handed on."""


@dataclass(frozen=True, kw_only=True)
class FactSection:
    title: str
    remark: str = ""
    """Beside the title."""
    sentence: str = ""
    facts: Sequence[RecordFact] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """A table below the facts."""
    left: frozenset[int] = frozenset()
    """Columns of the table that hold words; numbers stand at the right."""


def draw_section(writer: TerminalWriter, section: FactSection | None, *, indent: int = 2) -> None:
    """Title, sentence, named values and table, of what there is of them."""
    if section is None:
        return
    writer.put_title(section.title, section.remark)
    if section.sentence:
        writer.put(section.sentence, "", indent=indent)
    if section.facts:
        writer.put_pairs([(fact.name, fact.value) for fact in section.facts], indent=indent)
    if section.rows:
        writer.put(writer.grid(section.heads, section.rows, section.left), indent=indent)
