"""Draws the page of runs: a summary, published rows beside it, then every run; and keeps it in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainmark import __version__, features
from trainmark.analysis import beside
from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.beside import PublishedSpeed, find_published_rows
from trainmark.analysis.quantities import add_cost
from trainmark.features.report import curves, header, results
from trainmark.features.report.artifacts import ByteBudget, draw_artifacts, draw_samples
from trainmark.features.report.trend import Trend, draw_trends
from trainmark.record.checks import CheckResult
from trainmark.record.format import device_name
from trainmark.record.language import Say, locale_language, translator
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.site import Price
from trainmark.record.store import Store
from trainmark.view import facts
from trainmark.view.element import Child, Markup, el
from trainmark.view.facts import build_profile
from trainmark.view.frame import build_page, page_footer, page_header, plain_table, save_page, skip_link
from trainmark.view.headline import name_network
from trainmark.view.terminal import FactSection
from trainmark.workloads import title_of

MAX_OPEN = 12
"""Runs a page shows in full from the start; of more, each is folded, and rendered only when opened."""
COLUMNS, FEWER_COLUMNS = 300, 120
"""Columns a long series is thinned to: a page of many runs must still open quickly."""
FOLDS = (
    *(facts.metrics, facts.plan, facts.bands, facts.data, facts.restarts, facts.checkpoints, facts.network),
    facts.environment,
)
"""Facts of a run that are folded below its charts."""


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    records: tuple[Record, ...]
    rows: tuple[PublishedRow, ...] = ()
    """Requested published rows, which are in the summary, too."""
    beside: tuple[PublishedRow, ...] = ()
    """Published rows to show the machines beside."""
    checks: Mapping[str, tuple[CheckResult, ...]] = field(default_factory=dict)
    """By run id; empty where nothing was checked."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """By run id, the run folder with its audio and images."""
    samples: Mapping[str, Path] = field(default_factory=dict)
    """By run id, the folder of samples made after the run."""
    facts: Mapping[str, Sequence[FactSection]] = field(default_factory=dict)
    """By run id, what features know of it beside its record."""
    trends: tuple[Trend, ...] = ()
    """Metrics followed from run to run."""
    made: str = ""
    """Date of the page."""
    language: str = "en"
    home: str = ""
    """Link back to the site."""


def leave_page(records: Sequence[Record], store: Store, price: Price | None = None, name: str | None = None) -> Path:
    """Draws the page that a run ends with, and keeps it: its checks need the record alone;
    `report` and `audit` also check its events."""
    checks = {record.run_id: audit_record(record) for record in records}
    inputs = collect_inputs(records, store, checks=checks, price=price, language=locale_language())
    return save_page(name or f"{records[-1].run_id}.html", render(inputs), store)


def collect_inputs(
    records: Sequence[Record],
    store: Store,
    rows: Sequence[PublishedRow] = (),
    *,
    price: Price | None,
    published: bool = False,
    **shown: Any,
) -> ReportInputs:
    """What the page of these runs shows today, beside what is given."""
    return ReportInputs(
        records=tuple(add_cost(record, price or Price()) for record in records),
        rows=tuple(rows),
        beside=tuple(find_published_rows(records, store.folder)),
        folders={record.run_id: store.runs / record.run_id for record in records},
        samples={} if published else {record.run_id: store.samples / record.run_id for record in records},
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        **shown,
    )


def collect_facts(records: Sequence[Record], store: Store, language: str) -> dict[str, list[FactSection]]:
    """By run id, what features know of the runs beside their records."""
    found: dict[str, list[FactSection]] = {}
    for feature in features.offers("record_facts"):
        for run_id, section in feature.sections(records, store, translator(language)).items():
            found.setdefault(run_id, []).append(section)
    return found


def render(inputs: ReportInputs) -> str:
    """The whole page as text, to be written as UTF-8."""
    say, records = translator(inputs.language), inputs.records
    room, published = ByteBudget(), beside.list_speeds(inputs.beside)
    if len(records) == 1:
        title = say("{workload} on {device}").format(workload=name_network(records[0]), device=device_name(records[0]))
        shown = []
    else:
        title = say("{count} training runs").format(count=len(records))
        machines = list(dict.fromkeys(device_name(record) for record in records))
        shown = [*dict.fromkeys(title_of(record) for record in records), *machines[:4]]
    made = say("made {date}").format(date=inputs.made) if inputs.made else ""
    brand = el("a", say("All results"), href=inputs.home) if inputs.home else "trainmark"
    body = [
        skip_link(say),
        page_header(title, (*shown, made), say, brand=brand),
        el(
            "main",
            draw_trends(inputs.trends, say),
            _draw_summary(inputs, say),
            [feature.draw(records, inputs.beside, say) for feature in features.offers("page_section")],
            [_draw_run(record, place, inputs, room, published, say) for place, record in enumerate(records, 1)],
        ),
        page_footer(__version__, say, say("What a word means: trainmark explain p_core")),
    ]
    return build_page(f"{title} · trainmark", body, language=inputs.language, trainmark=__version__)


def _draw_summary(inputs: ReportInputs, say: Say) -> Markup:
    """The table of all runs, with its filter."""
    # records from elsewhere may share an id, so runs are numbered
    found = [
        results.make_run_result(record, inputs.checks.get(record.run_id, ()), f"#run-{place}", say)
        for place, record in enumerate(inputs.records, 1)
    ]
    found += [results.make_row_result(row) for row in inputs.rows]
    priced = "cost" if any(one.cost for one in found) else "energy" if any(one.energy for one in found) else None
    known = results.list_columns(say)
    names = ("workload", "rate", "machine", "precision", "settings", "mfu", "quality", "e2e_time", "mem", priced)
    columns = [known[name] for name in (*names, "doubts", "status") if name]
    return el(
        "section",
        el("h2", say("Summary"), id="summary-title"),
        results.draw_filter(found, ("workload", "status"), say("Filter runs"), say) if len(found) > 1 else None,
        results.draw_results(found, say("Run"), columns, caption=say("All runs; click a column header to sort")),
        class_="summary",
    )


def _draw_run(
    record: Record, place: int, inputs: ReportInputs, room: ByteBudget, published: Sequence[PublishedSpeed], say: Say
) -> Markup:
    folded = len(inputs.records) > MAX_OPEN
    columns = FEWER_COLUMNS if folded else COLUMNS
    heading = el("h2", header.write_sentence(record, say))
    cards = [
        facts.ranks(record, say),
        build_profile(record, say),
        facts.precision(record, say),
        facts.fill(record, say),
    ]
    cards += inputs.facts.get(record.run_id, ())
    body: list[Child] = [
        header.draw_lead(record, published, say),
        header.draw_head(record, inputs.checks.get(record.run_id, ()), say),
        el(
            "div",
            curves.draw_step_times(record, say, columns),
            curves.draw_loss(record, say, columns),
            curves.draw_quality(record, say),
            [el("section", el("h3", *_draw_title(card)), _draw_facts(card), class_="card") for card in cards if card],
            class_="charts",
        ),
        draw_artifacts(record.artifacts, inputs.folders.get(record.run_id), room, say),
        draw_samples(inputs.samples.get(record.run_id), room, say),
        curves.draw_telemetry(record, say, columns),
        el(
            "div",
            [
                el("details", el("summary", *_draw_title(section)), _draw_facts(section), class_="fold")
                for fold in FOLDS
                if (section := fold(record, say))
            ],
        ),
    ]
    if folded:
        # a browser skips a script's text, and renders it only when the run is opened
        later = el("script", body, type="text/html", class_="later")
        none = el("noscript", say("Opening a run needs the page's script; a page of up to 12 runs does not."))
        fold = el("details", el("summary", heading), later, none, class_="run-fold")
        return el("section", fold, class_="run", id=f"run-{place}")
    return el("section", heading, body, class_="run", id=f"run-{place}")


def _draw_title(section: FactSection) -> tuple[Child, ...]:
    return section.title, el("small", f" {section.remark}") if section.remark else None


def _draw_facts(section: FactSection) -> list[Child]:
    """A section's sentence, named values and table; without what lies on this machine."""
    pairs = [el("div", el("dt", fact.name), el("dd", fact.value)) for fact in section.facts if not fact.local]
    return [
        el("p", section.sentence, class_="note") if section.sentence else None,
        el("dl", pairs, class_="pairs") if pairs else None,
        plain_table(section.heads, section.rows, section.left) if section.rows else None,
    ]
