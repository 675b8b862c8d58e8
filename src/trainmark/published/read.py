"""Turns a published page into rows: finds its tables, recognises their form, and says what it could not read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from trainmark.published import names, read_deepspark, read_flagperf
from trainmark.published.cells import is_blank, key, place, tidy
from trainmark.published.heads import Head, heads
from trainmark.published.markdown import Fact, Heading, Layout, Table, layout
from trainmark.published.page import PublishedPage
from trainmark.published.section import Section, quoted
from trainmark.spec.published_row import Source

MOST_UNREAD = 200
"""More sentences than this help nobody."""

_ACCELERATOR = ("加速卡型号", "acceleratormodel", "accelerator", "gpumodel", "加速卡")
_NOT_ACCELERATOR = ("驱动", "driver")


def read(text: str, *, name: str) -> PublishedPage:
    """What a page says. `name` is the file's, which is all that tells two untitled pages apart. Junk has no rows."""
    found = layout(text)
    page = PurePath(name).stem or name
    sections = _sections(found, page)
    source = Source(title=_title(found, sections, name), address=tidy(name), date=None)
    unread = [*found.unread, *(sentence for section in sections for sentence in section.unread)]
    rows = [replace(row, source=source) for section in sections for row in section.rows]
    for section in sections:
        if any(row.workload == names.UNKNOWN for row in section.rows):
            unread.append("the page does not say which model was trained")
    if not any(isinstance(part, Table) for part in found.parts):
        unread.append("line 1: the page has no table")
    elif not rows:
        unread.append("line 1: no table of the page has rows of results")
    if len(unread) > MOST_UNREAD:
        unread = [*unread[:MOST_UNREAD], f"and {len(unread) - MOST_UNREAD} more"]
    return PublishedPage(
        title=source.title,
        rows=names.named(rows, page),
        said=tuple(said for section in sections for said in section.said),
        unread=tuple(unread),
    )


def _title(found: Layout, sections: list[Section], name: str) -> str:
    """The page's own, or what it is about: pages of results are often cut out of larger ones."""
    first = next((part.text for part in found.parts if isinstance(part, Heading) and part.level == 1), "")
    about = next(
        (
            f"{section.model} on {section.abbreviations[0]}"
            for section in sections
            if section.model and section.abbreviations
        ),
        "",
    )
    return tidy(first) or about or tidy(name)


def _sections(found: Layout, page: str) -> list[Section]:
    sections = [Section(page=page)]
    speeds: list[read_deepspark.TableRow] = []
    wholes: list[read_deepspark.TableRow] = []

    def begin() -> Section:
        """What is said after results is about the next ones."""
        read_deepspark.combine(sections[-1], speeds, wholes)
        speeds.clear()
        wholes.clear()
        if sections[-1].results:
            sections.append(Section(page=page))
        return sections[-1]

    for part in found.parts:
        section = sections[-1]
        if isinstance(part, Heading):
            _head_section(begin() if part.level == 1 else section, part)
        elif isinstance(part, Fact):
            if _tells_accelerator(part):
                (begin() if section.results else section).add_device(tidy(part.value))
        else:
            columns = heads(part.heads.cells, section.quality_word)
            if {"metric", "value"} <= {head.kind for head in columns}:
                section = begin() if section.results else section
                for line in part.rows:
                    section.learn(part, columns, line)
            elif _take(section, part, columns, speeds, wholes):
                section.results += 1
    begin()
    return sections


def _take(
    section: Section,
    table: Table,
    columns: list[Head],
    speeds: list[read_deepspark.TableRow],
    wholes: list[read_deepspark.TableRow],
) -> bool:
    """Whether the table held results."""
    kinds = {head.kind for head in columns}
    if "configuration" in kinds and kinds & read_flagperf.MARKS:
        read_flagperf.take(section, table, columns)
    elif "configuration" in kinds and kinds & read_deepspark.WHOLE_MARKS:
        wholes += read_deepspark.take(section, table, columns)
    elif "device" in kinds and kinds & read_deepspark.SPEED_MARKS:
        speeds += read_deepspark.take(section, table, columns)
    elif "device" in kinds:
        _learn_devices(section, table, columns)
        return False
    else:
        shown = ", ".join(quoted(cell, 20) for cell in table.heads.cells[:8])
        section.complain(table.heads.number, f"this table has no columns that are known: {shown}")
        return False
    for head in columns:
        if head.kind is None and head.word:
            section.complain(table.heads.number, f"column {quoted(head.word)} is not known")
    for line in table.rows:
        if any(not is_blank(cell) for cell in line.cells[len(columns) :]):
            section.complain(line.number, f"it has {len(line.cells)} cells for {len(columns)} columns")
    return True


def _head_section(section: Section, part: Heading) -> None:
    if part.level == 1 and section.title is None:
        section.title = tidy(part.text) or None
    elif section.heading is None and names.workload(part.text):
        section.heading = part.text


def _tells_accelerator(part: Fact) -> bool:
    word = key(part.key)
    return (
        any(known in word for known in _ACCELERATOR)
        and not any(other in word for other in _NOT_ACCELERATOR)
        and not is_blank(part.value)
    )


def _learn_devices(section: Section, table: Table, columns: list[Head]) -> None:
    for line in table.rows:
        cells = dict(zip([head.kind for head in columns], line.cells, strict=False))
        whole = tidy(cells.get("device", ""))
        if is_blank(whole):
            continue
        name = place(whole).device or whole
        section.add_device(name)
        if not is_blank(cells.get("vendor", "")):
            section.vendors.update(dict.fromkeys((name, whole), tidy(cells["vendor"])))
