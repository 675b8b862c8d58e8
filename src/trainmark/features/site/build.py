"""Writes a static site: an index, one table per workload, one page and one record per run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trainmark import __version__
from trainmark.analysis import device_names as names
from trainmark.analysis.beside import is_published_network
from trainmark.analysis.price_list import PriceList
from trainmark.features.report import results as tables
from trainmark.features.report.results import SEVERITY_ORDER, ShownResult, translate_severity
from trainmark.features.report.run_page import ReportInputs, render as render_run
from trainmark.features.site.contents import SiteContents, SiteRow, SiteRun
from trainmark.record.atomic_files import atomic_folder
from trainmark.record.audit import SEVERITIES
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.format import NOTHING, number
from trainmark.record.language import Say, translator
from trainmark.view.element import Markup, el
from trainmark.view.frame import STYLE, build_page, number_cell, page_footer, page_header, skip_link
from trainmark.workloads import facts, title

MARK = "trainmark-site.json"
"""Marks a folder as a site, which may be replaced."""
KIND = "trainmark site"
STYLES = (STYLE, ("trainmark.features.site", "site.css"))
NEWEST = 15
MAX_PLACES = 12
"""Workloads a table page links to; the index links to all."""


@dataclass(frozen=True, kw_only=True)
class _Site:
    contents: SiteContents
    results: tuple[ShownResult, ...]
    names: dict[str, str]
    """The file of each workload's table."""
    title: str
    made: str
    language: str
    say: Say
    prices: PriceList | None


def build(
    contents: SiteContents,
    out: Path,
    *,
    heading: str = "",
    made: str = "",
    language: str = "en",
    prices: PriceList | None = None,
) -> int:
    """Writes the whole site or nothing, replacing an existing one; returns the number of pages."""
    _check_out(out)
    say = translator(language)
    pages = _make_file_names([run.record.run_id for run in contents.runs], "run")
    tables = _make_file_names(contents.workloads, "workload")
    results = (
        *(_make_run_result(run, f"runs/{name}", say) for run, name in zip(contents.runs, pages, strict=True)),
        *(_make_row_result(entry, f"p{index}") for index, entry in enumerate(contents.rows)),
    )
    if prices:
        costs = [prices.cost_of_run(run.record) for run in contents.runs]
        costs += [prices.cost(entry.row) for entry in contents.rows]
        results = tuple(replace(one, priced=cost) for one, cost in zip(results, costs, strict=True))
    site = _Site(
        contents=contents,
        results=results,
        names={workload: f"{name}.html" for workload, name in zip(contents.workloads, tables, strict=True)},
        title=heading or say("Training results"),
        made=made,
        language=language,
        say=say,
        prices=prices,
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
            language=site.language,
            home=f"../{site.names[record.plan.workload]}",
        )
        yield f"runs/{name}.html", render_run(inputs)
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


def _make_run_result(run: SiteRun, page: str, say: Say) -> ShownResult:
    record = run.record
    other = None if is_published_network(record) else say("another network than the published one")
    made = f"{record.plan.recipe_name}, {record.created[:10]} · "
    aside = [made, el("a", "JSON", href=f"{page}.json"), el("br") if other else None, other]  # to audit and compare
    found = tables.make_run_result(record, run.checks, f"{page}.html", say)
    return replace(found, aside=aside, recipe="", findings_link=f"#{Path(page).name}")


def _make_row_result(entry: SiteRow, anchor: str) -> ShownResult:
    found = tables.make_row_result(entry.row, entry.findings)
    remark = [el("br"), entry.row.remark] if entry.row.remark else None
    return replace(found, aside=[found.aside, remark], findings_link=f"#{anchor}")


# The pages


def _draw_index(site: _Site) -> str:
    say = site.say
    tiles = [_draw_tile(site, workload) for workload in site.names]
    newest = sorted(site.results, key=lambda one: (one.kind == "published", _sort_key(one)))[:NEWEST]
    lede = say(
        "Every row was measured by trainmark or read from a published page, and every row was audited: wrong means "
        "impossible, doubtful means implausible. Click a result for details."
    )
    table = el(
        "section", el("h2", say("Newest results"), id="summary-title"), _draw_table(newest, say, workloads=site.names)
    )
    body = el("main", el("p", lede, class_="lede"), el("ul", tiles, class_="tiles"), table)
    return _draw_page(site, site.title, None, body)


def _sort_key(result: ShownResult) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in result.created)


def _draw_tile(site: _Site, workload: str) -> Markup:
    say, results = site.say, [one for one in site.results if one.workload == workload]
    fast = [one for one in results if one.sound and one.device_rate]
    best, known = max(fast, key=lambda one: one.device_rate or 0, default=None), facts(workload)
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
        el(
            "p",
            [_draw_chip(one, say, count=tally[one]) for one in reversed(SEVERITY_ORDER) if tally[one]],
            class_="tally",
        ),
        class_="tile",
    )


def _draw_best(best: ShownResult, say: Say) -> Markup:
    rate = el("b", number(best.device_rate or 0), el("span", f" {best.unit}") if best.unit else None)
    where = f"{best.device} {best.topology}, {best.precision}"
    return el("p", say("fastest sound result, one device"), rate, where, class_="best")


def _draw_chip(severity: str, say: Say, count: int | None = None) -> Markup:
    shown = translate_severity(severity, say)
    return el("span", shown if count is None else f"{count} {shown}", class_=f"severity {severity}")


def _draw_table_page(site: _Site, workload: str) -> str:
    say = site.say
    results = sorted(
        (one for one in site.results if one.workload == workload),
        key=lambda one: -(one.device_rate or 0),
    )
    note = say("Click a column header to sort. Compare cards by the rate per device, machines by that of all devices.")
    table = el(
        "section",
        el("h2", say("All results"), id="summary-title"),
        el("p", note, class_="note"),
        tables.draw_filter(results, ("kind", "severity", "vendor", "precision"), say("Filter results"), say),
        _draw_table(results, say, prices=site.prices),
    )
    body = el("main", table, _draw_findings(results, say))
    return _draw_page(site, title(workload), workload, body)


def _draw_table(
    results: Sequence[ShownResult],
    say: Say,
    *,
    workloads: Mapping[str, str] | None = None,
    prices: PriceList | None = None,
) -> Markup:
    """`workloads` has the page of each, where the table shows several."""
    columns = tables.list_columns(say)
    names = (
        "machine",
        "precision",
        "device_rate",
        "all_rate",
        "audit",
        "mfu",
        "quality",
        "e2e_time",
        "doubts",
        "settings",
    )
    shown = [columns[name] for name in names]
    if prices:  # beside speed and verdict, where they are in sight
        place = names.index("audit") + 1
        shown[place:place] = _list_cost_columns(prices, say)
    if workloads is not None:
        results = [replace(one, findings_link=None) for one in results]
        links = {name: el("td", el("a", title(name), href=page)) for name, page in workloads.items()}
        shown.insert(0, replace(columns["workload"], draw=lambda one: links[one.workload]))
    return tables.draw_results(
        results,
        say("Result"),
        shown,
        caption=say("Results; click a column header to sort"),
        sorted_by=3 if workloads is None else None,
        kind=None if workloads is None else "newest",
    )


def _list_cost_columns(prices: PriceList, say: Say) -> Iterator[tables.ResultColumn]:
    for name, head in (("per_million", say("Cost per million")), ("to_target", say("Cost to target"))):
        yield tables.ResultColumn(
            head=f"{head} {prices.currency}".strip(), numeric=True, draw=partial(_draw_cost, name=name, say=say)
        )


def _draw_cost(result: ShownResult, name: str, say: Say) -> Markup:
    if result.priced is None or result.priced.device_hour is None:
        return number_cell(say("no price"), None)
    value: float | None = getattr(result.priced, name)
    return number_cell(NOTHING if value is None else number(value), value)


def _draw_findings(results: Sequence[ShownResult], say: Say) -> Markup | None:
    found = [one for one in results if one.findings]
    if not found:
        return None
    return el(
        "section",
        el("h2", say("What the audit found")),
        el("p", say("Findings are about what is written there, not about the cards."), class_="note"),
        el("ul", [_draw_result_findings(result, say) for result in found], class_="found"),
    )


def _draw_result_findings(result: ShownResult, say: Say) -> Markup:
    sentences = [
        el(
            "li",
            f"{translate_severity(SEVERITIES[one.verdict], say)}: {one.sentence}",
            el("span", one.evidence, class_="numbers"),
        )
        for one in result.findings
    ]
    return el(
        "li",
        el("h3", result.name, " ", _draw_chip(result.severity, say)),
        el("ul", sentences),
        id=(result.findings_link or "")[1:],
    )


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
