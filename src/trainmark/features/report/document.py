"""Renders the page of runs: a summary, published rows beside it, then every run."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark import features
from trainmark.analysis import beside
from trainmark.analysis.beside import PublishedSpeed
from trainmark.features.report import artifacts, curves, details, header, summary, trend
from trainmark.features.report.inputs import COLUMNS, FEWER_COLUMNS, MAX_OPEN, ReportInputs
from trainmark.record.format import device_name
from trainmark.record.language import Say, translator
from trainmark.record.record import Record
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import build_page, page_footer, page_header, skip_link
from trainmark.view.headline import name_network
from trainmark.workloads import title_of


def render(contents: ReportInputs) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = translator(contents.language)
    # records from elsewhere may share an id, so runs are numbered
    anchors = [f"run-{index}" for index, _ in enumerate(contents.records, 1)]
    room = artifacts.ByteBudget()
    published = beside.list_speeds(contents.beside)
    runs = [
        _draw_run(record, anchor, contents, room, published, say)
        for record, anchor in zip(contents.records, anchors, strict=True)
    ]
    title = _make_title(contents, say)
    body = [
        skip_link(say),
        _draw_header(title, contents, say),
        el(
            "main",
            trend.draw_trends(contents.trends, say),
            summary.draw_summary(contents, say, anchors),
            [feature.draw(contents.records, contents.beside, say) for feature in features.offers("page_section")],
            runs,
        ),
        page_footer(contents.trainmark, say, say("What a word means: trainmark explain p_core")),
    ]
    return build_page(f"{title} · trainmark", body, language=contents.language, trainmark=contents.trainmark)


def _make_title(contents: ReportInputs, say: Say) -> str:
    records = contents.records
    if len(records) == 1:
        return say("{workload} on {device}").format(workload=name_network(records[0]), device=device_name(records[0]))
    return say("{count} training runs").format(count=len(records))


def _draw_header(title: str, contents: ReportInputs, say: Say) -> Markup:
    machines = list(dict.fromkeys(device_name(record) for record in contents.records))
    workloads = list(dict.fromkeys(title_of(record) for record in contents.records))
    facts = [*workloads, *machines[:4]] if len(contents.records) > 1 else []
    made = say("made {date}").format(date=contents.made) if contents.made else ""
    brand = el("a", say("All results"), href=contents.home) if contents.home else "trainmark"
    return page_header(title, (*facts, made), say, brand=brand)


def _draw_run(
    record: Record,
    anchor: str,
    contents: ReportInputs,
    room: artifacts.ByteBudget,
    published: Sequence[PublishedSpeed],
    say: Say,
) -> Markup:
    folded = len(contents.records) > MAX_OPEN
    columns = FEWER_COLUMNS if folded else COLUMNS
    heading = el("h2", header.write_sentence(record, say))
    body: list[Child] = [
        header.draw_lead(record, published, say),
        header.draw_facts(record, say),
        header.draw_figures(record, say),
        el(
            "div",
            curves.draw_time_spent(record, say),
            header.draw_validity(record, contents.checks.get(record.run_id, ()), say),
            class_="pair",
        ),
        el(
            "div",
            curves.draw_step_times(record, say, columns),
            curves.draw_loss(record, say, columns),
            curves.draw_quality(record, say),
            details.draw_fill(record, say),
            curves.draw_ranks(record, say),
            details.draw_profile(record, say),
            details.draw_precision(record, say),
            [details.draw_card(section) for section in contents.facts.get(record.run_id, ())],
            class_="charts",
        ),
        artifacts.draw_artifacts(record.artifacts, contents.folders.get(record.run_id), room, say),
        artifacts.draw_samples(contents.samples.get(record.run_id), room, say),
        details.draw_telemetry(record, say, columns),
        el("div", details.draw_folds(record, say)),
    ]
    if folded:
        # a browser skips a script's text, and renders it only when the run is opened
        later = el("script", body, type="text/html", class_="later")
        none = el("noscript", say("Opening a run needs the page's script; a page of up to 12 runs does not."))
        fold = el("details", el("summary", heading), later, none, class_="run-fold")
        return el("section", fold, class_="run", id=anchor)
    return el("section", heading, body, class_="run", id=anchor)
