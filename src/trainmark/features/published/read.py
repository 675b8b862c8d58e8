"""Reads published pages (UTF-8 or GB 18030, files or folders) into rows, and lists what it could not read."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trainmark import features
from trainmark.analysis import device_names as names
from trainmark.analysis.device_names import fold_key, tidy
from trainmark.analysis.published_library import FoundPage, PublishedPage
from trainmark.features.published.cells import VOCABULARY, is_blank, parse_place
from trainmark.features.published.heads import Head, parse_heads
from trainmark.features.published.markdown import Fact, Heading, Layout, Part, Table, parse_layout
from trainmark.features.published.results import TableReader, combine_tables, is_results
from trainmark.features.published.section import SAYS_SYNTHETIC, Section, quote
from trainmark.record.errors import UsageError
from trainmark.record.foreign_files import open_plain
from trainmark.record.published_row import Source

ENDINGS = (".md", ".markdown", ".txt")
"""Of files that are pages, in a folder or named by themselves."""
STANDARD_INPUT = "-"
MAX_BYTES = 8 * 2**20
"""A longer file is no page of results."""
ENCODINGS = ("utf-8-sig", "gb18030")
"""The second is what older Chinese pages are written in."""


def find_pages(words: Sequence[str]) -> Iterator[FoundPage]:
    """Every page and result named, in order."""
    for word in words:
        source = next((one for one in features.offers("import_source") if one.recognises(word)), None)
        yield from source.pages(word) if source else read_pages(word)


def read_pages(word: str) -> Iterator[FoundPage]:
    """A page, those of a folder, or one from standard input; one that cannot be read or is not text is an error."""
    path = Path(word)
    if word == STANDARD_INPUT:
        yield _read_content("standard input", sys.stdin.buffer.read(MAX_BYTES + 1))
    elif not path.is_dir():
        yield read_file(path, str(path))
    else:
        found = list_pages(path)
        if not found:
            raise UsageError(f"folder {path} has no pages, which end in {', '.join(ENDINGS)}")
        yield from (read_file(page, str(page)) for page in found)


def list_pages(folder: Path) -> list[Path]:
    """Pages below a folder, sorted by name, without hidden ones."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in ENDINGS and path.is_file())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def read_file(path: Path, name: str) -> FoundPage:
    """The page in a file; `name` is what its rows are named by."""
    try:
        with open_plain(path) as stream:
            return _read_content(name, stream.read(MAX_BYTES + 1))
    except OSError as error:
        raise UsageError(f"page {path} cannot be read: {error.strerror}") from error


def _read_content(name: str, content: bytes) -> FoundPage:
    if len(content) > MAX_BYTES:
        raise UsageError(f"page {name} has more than {MAX_BYTES // 2**20} MiB; give a page of results in Markdown")
    for encoding in ENCODINGS:
        with contextlib.suppress(UnicodeDecodeError):
            return FoundPage(name=name, page=read_page(content.decode(encoding), name=name), content=content)
    raise UsageError(f"page {name} is not text in UTF-8 or GB 18030; give a page in Markdown")


MAX_UNREAD = 200
"""Sentences listed per page."""

_WORDS = VOCABULARY["facts"]
_RESULTS = re.compile("|".join(_WORDS["results"]), re.IGNORECASE)
"""In the heading of tables of results."""


def read_page(text: str, *, name: str) -> PublishedPage:
    """Parses a page; `name` is its address or path. A page that is not of results has no rows."""
    found = parse_layout(text)
    sections = _read_sections(found, name, synthetic=bool(SAYS_SYNTHETIC.search(text)))
    rows = [row for section in sections for row in section.rows]
    source = Source(title=_find_title(found, sections, name), address=tidy(name), date=None)
    unread = [*found.unread, *(sentence for section in sections for sentence in section.unread)]
    for section in sections:
        if any(row.workload == names.UNKNOWN for row in section.rows):
            unread.append("the page does not name the model that was trained")
    if not any(isinstance(part, Table) for part in found.parts):
        unread.append("line 1: the page has no table")
    elif not rows:
        unread.append("line 1: no table of the page has rows of results")
    if len(unread) > MAX_UNREAD:
        unread = [*unread[:MAX_UNREAD], f"and {len(unread) - MAX_UNREAD} more"]
    framework = names.find_framework(re.sub(r"[/\\]", " ", name))
    rows = [replace(row, source=source, framework=framework or row.framework) for row in rows]
    return PublishedPage(
        title=source.title,
        rows=names.name_rows(rows, names.page_name(name)),
        said=tuple(said for section in sections for said in section.said),
        unread=tuple(unread),
        devices=tuple(dict.fromkeys(name for section in sections for name in section.devices)),
        data_sets=tuple(dict.fromkeys(section.data_set for section in sections if section.data_set)),
        was_read=True,
    )


def _find_title(found: Layout, sections: list[Section], name: str) -> str:
    """The page's own title, else its subject, such as `bert on nvidia A100`."""
    title = next((tidy(part.text) for part in found.parts if isinstance(part, Heading) and part.level == 1), "")
    section = next((section for section in sections if section.model and section.rows), None)
    if title or section is None:
        return title or tidy(name)
    row = section.rows[0]
    short = names.short_device(row.device)
    spelt = (text for text in section.abbreviations if fold_key(text).endswith(fold_key(short)))
    return f"{section.model} on {next(spelt, f'{row.vendor} {short}'.strip())}"


def _read_sections(found: Layout, page: str, *, synthetic: bool) -> list[Section]:
    """Text after results belongs to the next ones; `synthetic` is what the page says of sections without a data set."""
    sections = [Section(page=page)]
    for part in found.parts:
        section = sections[-1]
        is_metrics, columns = False, []
        if isinstance(part, Table):
            columns = parse_heads(part.heads.cells, section.quality_word)
            is_metrics = {"metric", "value"} <= {head.kind for head in columns}
        begins = is_metrics or (isinstance(part, Heading) and part.level == 1) or _is_accelerator(part)
        if begins and section.results:
            section = Section(page=page)
            sections.append(section)
        if isinstance(part, Heading):
            section.latest = part.text
            if part.level == 1 and section.title is None:
                section.title = tidy(part.text) or None
            elif section.heading is None and names.find_workload(part.text):
                section.heading = part.text
        elif isinstance(part, Fact):
            if _is_accelerator(part):
                section.add_device(tidy(part.value))
            elif any(word in fold_key(part.key) for word in _WORDS["framework"]):
                section.framework = section.framework or names.find_framework(part.value)
        elif is_metrics:
            for line in part.rows:
                section.learn_metric(part, columns, line)
        else:
            _read_table(section, part, columns)
    for section in sections:
        section.synthetic |= synthetic and not section.data_set
        for run in combine_tables(section.speeds, section.wholes):
            section.add_row(run)
    return sections


def _read_table(section: Section, table: Table, columns: list[Head]) -> None:
    others = [head for head in columns if head.kind not in ("device", "vendor", "mem")]
    has_device = any(head.kind == "device" for head in columns)
    # a list of machines: devices, what runs on them, and nothing that was measured
    is_environment = has_device and bool(others) and all(head.is_software or not head.word for head in others)
    if not is_environment and is_results(columns, table.rows, under_results=bool(_RESULTS.search(section.latest))):
        reader = TableReader(section=section, table=table, columns=columns)
        runs = section.wholes if reader.whole else section.speeds
        runs += reader.read()
        section.results += 1
        return
    for line in table.rows if has_device else ():
        cells = dict(zip([head.kind for head in columns], line.cells, strict=False))
        if not is_blank(whole := tidy(cells.get("device", ""))):
            name = parse_place(whole).device or whole
            section.add_device(name)
            if not is_blank(vendor := tidy(cells.get("vendor", ""))):
                section.vendors |= {name: vendor, whole: vendor}
    if not is_environment:
        shown = ", ".join(quote(cell, 20) for cell in table.heads.cells[:8])
        section.add_unread(table.heads.number, f"this table has no columns that are known: {shown}")


def _is_accelerator(part: Part) -> bool:
    if not isinstance(part, Fact) or is_blank(part.value):
        return False
    word = fold_key(part.key)
    return any(known in word for known in _WORDS["accelerator"]) and not any(
        other in word for other in _WORDS["no_accelerator"]
    )
