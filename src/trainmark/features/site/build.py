"""Writes a static site: an index, one table per workload, one page and one record per run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmark import __version__
from trainmark.analysis import device_names as names
from trainmark.features.report.document import render as run_page
from trainmark.features.report.inputs import ReportInputs
from trainmark.features.site.contents import SiteContents
from trainmark.features.site.rows import (
    SiteResult,
    draw_row,
    find_fastest,
    list_heads,
    make_row_result,
    make_run_result,
    translate_severity,
)
from trainmark.record.atomic_files import atomic_folder
from trainmark.record.audit import SEVERITIES
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.format import number
from trainmark.record.language import Say, translator
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import STYLE, build_page, filter_bar, page_footer, page_header, skip_link, sortable_table
from trainmark.workloads import facts, title

MARK = "trainmark-site.json"
"""Marks a folder as a site, which may be replaced."""
KIND = "trainmark site"
STYLES = (STYLE, ("trainmark.features.site", "site.css"))
NEWEST = 15
MAX_PLACES = 12
"""Workloads a table page links to; the index links to all."""
MAX_CHIPS = 9
SEVERITY_ORDER = ("passed", "note", "doubtful", "wrong")


@dataclass(frozen=True, kw_only=True)
class _Site:
    contents: SiteContents
    results: tuple[SiteResult, ...]
    names: dict[str, str]
    """The file of each workload's table."""
    title: str
    made: str
    language: str
    say: Say


def build(contents: SiteContents, out: Path, *, heading: str = "", made: str = "", language: str = "en") -> int:
    """Writes the whole site or nothing, replacing an existing one; returns the number of pages."""
    _check_out(out)
    say = translator(language)
    pages = _make_file_names([run.record.run_id for run in contents.runs], "run")
    tables = _make_file_names(contents.workloads, "workload")
    results = (
        *(
            make_run_result(run, f"r{index}", f"runs/{pages[index]}.html", say)
            for index, run in enumerate(contents.runs)
        ),
        *(make_row_result(entry, f"p{index}") for index, entry in enumerate(contents.rows)),
    )
    site = _Site(
        contents=contents,
        results=results,
        names={workload: f"{name}.html" for workload, name in zip(contents.workloads, tables, strict=True)},
        title=heading or say("Training results"),
        made=made,
        language=language,
        say=say,
    )
    written = 0
    try:
        with atomic_folder(out) as folder:
            for name, text in _render_files(site, pages):
                path = folder / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(text.encode("utf-8", "backslashreplace"))
                written += name.endswith(".html")
    except OSError as error:
        raise NotReadyError(f"{out} could not be written: {error.strerror}") from error
    return written


def _check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise UsageError(f"{out} exists and is not a trainmark site; name another folder with --out, or remove it")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; name a folder with --out")


def _render_files(site: _Site, pages: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "index.html", _draw_index(site)
    for workload, name in site.names.items():
        yield name, _draw_table_page(site, workload)
    rows = [entry.row for entry in site.contents.rows]
    for run, name in zip(site.contents.runs, pages, strict=True):
        record = run.record
        inputs = ReportInputs(
            records=(record,),
            beside=tuple(row for row in rows if row.workload == record.plan.workload),
            checks={record.run_id: run.checks},
            folders={record.run_id: run.folder} if run.folder else {},
            made=site.made,
            trainmark=__version__,
            language=site.language,
            home=f"../{site.names[record.plan.workload]}",
        )
        yield f"runs/{name}.html", run_page(inputs)
        yield f"runs/{name}.json", record.dumps() + "\n"
    counts = {"runs": len(site.contents.runs), "rows": len(rows)}
    yield MARK, json.dumps({"kind": KIND, "trainmark": __version__, "made": site.made, **counts}) + "\n"


def _make_file_names(words: Sequence[str], otherwise: str) -> list[str]:
    """A unique file name per word, never the index's."""
    found = ["index"]
    for text in words:
        plain = re.sub(r"[^a-z0-9]+", "-", names.slugify(text, otherwise)).strip("-") or otherwise
        name, count = plain, 1
        while name in found:
            count += 1
            name = f"{plain}-{count}"
        found.append(name)
    return found[1:]


# The pages


def _draw_index(site: _Site) -> str:
    say = site.say
    tiles = [_draw_tile(site, workload) for workload in site.names]
    newest = sorted(site.results, key=lambda one: (one.kind == "published", _sort_key(one)))[:NEWEST]
    lede = say(
        "Every row was measured by trainmark or read from a published page, and every row was audited: wrong means "
        "impossible, doubtful means implausible. Click a result for details."
    )
    table = el("section", el("h2", say("Newest results"), id="summary-title"), _draw_table(newest, site, workload=None))
    body = el("main", el("p", lede, class_="lede"), el("ul", tiles, class_="tiles"), table)
    return _draw_page(site, site.title, None, body)


def _sort_key(result: SiteResult) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in result.created)


def _draw_tile(site: _Site, workload: str) -> Markup:
    say, results = site.say, [one for one in site.results if one.workload == workload]
    best, known = find_fastest(results), facts(workload)
    task = known.task if known else ""
    measured = sum(one.kind == "measured" for one in results)
    tally = Counter(one.severity for one in results)
    counts = say("{measured} measured, {published} published")
    return el(
        "li",
        el("h2", el("a", title(workload), href=site.names[workload])),
        el("p", say(task), class_="note") if task else None,
        _draw_best(best, say) if best else None,
        el("p", counts.format(measured=measured, published=len(results) - measured), class_="note"),
        el("p", [_draw_chip(one, say, count=tally[one]) for one in SEVERITY_ORDER if tally[one]], class_="tally"),
        class_="tile",
    )


def _draw_best(best: SiteResult, say: Say) -> Markup:
    rate = el("b", number(best.rate or 0), el("span", f" {best.item}/s") if best.item else None)
    where = f"{best.device} {best.topology}, {best.precision}"
    return el("p", say("fastest sound result, one device"), rate, where, class_="best")


def _draw_chip(severity: str, say: Say, *, count: int | None = None) -> Markup:
    shown = translate_severity(severity, say)
    return el("span", shown if count is None else f"{count} {shown}", class_=f"severity {severity}")


def _draw_table_page(site: _Site, workload: str) -> str:
    say = site.say
    results = sorted(
        (one for one in site.results if one.workload == workload),
        key=lambda one: (one.rate is None, -(one.rate or 0)),
    )
    note = say("Click a column header to sort. Compare cards by the rate per device, machines by that of all devices.")
    table = el(
        "section",
        el("h2", say("All results"), id="summary-title"),
        el("p", note, class_="note"),
        _draw_filter(results, say),
        _draw_table(results, site, workload=workload),
    )
    body = el("main", table, _draw_findings(results, say), _draw_sources(results, say))
    return _draw_page(site, title(workload), workload, body)


def _draw_table(results: Sequence[SiteResult], site: _Site, *, workload: str | None) -> Markup:
    shown = []
    for result in results:
        link = None if workload else el("a", title(result.workload), href=site.names[result.workload])
        shown.append(draw_row(result, site.say, workload=link, below=workload is not None))
    return sortable_table(
        list_heads(site.say, with_workload=workload is None),
        shown,
        caption=site.say("Results; click a column header to sort"),
        sorted_by=3 if workload else None,
        kind=None if workload else "newest",
    )


def _draw_filter(results: Sequence[SiteResult], say: Say) -> Markup:
    kinds = {"measured": say("measured"), "published": say("published")}
    severities = {severity: translate_severity(severity, say) for severity in SEVERITY_ORDER}
    chips = [
        *(("kind", kind, shown) for kind, shown in kinds.items() if _is_split_by(results, "kind", kind)),
        *(("severity", name, shown) for name, shown in severities.items() if _is_split_by(results, "severity", name)),
        *_list_common_chips(results, "vendor"),
        *_list_common_chips(results, "precision"),
    ]
    return filter_bar(say("Filter results"), chips, say)


def _is_split_by(results: Sequence[SiteResult], field: str, value: str) -> bool:
    """Whether some results have the value, and some do not."""
    of_it = [one for one in results if getattr(one, field) == value]
    return 0 < len(of_it) < len(results)


def _list_common_chips(results: Sequence[SiteResult], field: str) -> list[tuple[str, str, str]]:
    counts = Counter(value for one in results if (value := str(getattr(one, field))) != names.UNKNOWN)
    return [(field, name, name) for name, _ in counts.most_common(MAX_CHIPS)] if len(counts) > 1 else []


def _draw_findings(results: Sequence[SiteResult], say: Say) -> Markup | None:
    found = [one for one in results if one.findings]
    if not found:
        return None
    return el(
        "section",
        el("h2", say("What the audit found")),
        el("p", say("Findings are about what is written there, not about the cards."), class_="note"),
        el("ul", [_draw_result_findings(result, say) for result in found], class_="found"),
    )


def _draw_result_findings(result: SiteResult, say: Say) -> Markup:
    sentences = [
        el(
            "li",
            f"{translate_severity(SEVERITIES[one.verdict], say)}: {one.sentence}",
            el("span", one.evidence, class_="numbers"),
        )
        for one in result.findings
    ]
    return el("li", el("h3", result.name, " ", _draw_chip(result.severity, say)), el("ul", sentences), id=result.anchor)


def _draw_sources(results: Sequence[SiteResult], say: Say) -> Markup | None:
    pages = dict.fromkeys((one.aside, one.address) for one in results if one.kind == "published")
    if not pages:
        return None
    entries: list[Child] = [
        el("li", el("a", name, href=address, rel="noreferrer noopener") if address else name) for name, address in pages
    ]
    return el("section", el("h2", say("Pages these rows were read from")), el("ol", entries, class_="origins"))


def _draw_page(site: _Site, heading: str, workload: str | None, body: Markup) -> str:
    say = site.say
    made = say("made {date}").format(date=site.made) if site.made else ""
    counts = say("{count} results").format(count=sum(workload in (None, one.workload) for one in site.results))
    near = [name for index, name in enumerate(site.names) if index < MAX_PLACES or name == workload]
    places = [
        el("a", say("All workloads"), href="index.html"),
        *(
            el("a", title(name), href=site.names[name], aria_current="page" if name == workload else None)
            for name in near
        ),
    ]
    nav = el("nav", places, class_="places", aria_label=say("Workloads")) if workload else None
    inside = [
        skip_link(say),
        page_header(heading, (counts, made), say, brand=site.title if workload else "trainmark"),
        nav,
        body,
        page_footer(__version__, say, say("What a word means: trainmark explain p_core")),
    ]
    return build_page(
        f"{heading} · {site.title}", inside, language=site.language, trainmark=__version__, styles=STYLES, class_="site"
    )
