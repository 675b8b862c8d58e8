"""One result as a row of a site's table, whether it was measured by trainmark or published elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmark.analysis import device_names as names
from trainmark.analysis.beside import BY_WHICH, is_published_network, rate_per_device
from trainmark.analysis.peaks import estimate_mfu
from trainmark.features.report.header import translate_verdict
from trainmark.features.site.contents import SiteRow, SiteRun
from trainmark.record.audit import SEVERITIES
from trainmark.record.checks import CheckResult
from trainmark.record.doubts import translate_doubt
from trainmark.record.format import NOTHING, device_name, format_interval, format_quality, number, verdict
from trainmark.record.language import Say
from trainmark.record.published_row import PREFIX
from trainmark.record.recipe import fix_hp
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import number_cell
from trainmark.workloads import quality_word

MAX_FINDINGS_SHOWN = 4
"""Findings in a row's tooltip; all of them are listed below the table."""


@dataclass(frozen=True, kw_only=True)
class SiteResult:
    """One result as a table shows it."""

    name: str
    """Short name."""
    anchor: str
    workload: str
    kind: str
    """`measured` or `published`."""
    aside: str
    """Below the name: when, or from which page."""
    vendor: str
    device: str
    topology: str
    precision: str
    settings: str
    metric: str
    """Which throughput the rates are."""
    rate: float | None
    """Of one device."""
    total: float | None
    """Of all devices."""
    item: str
    mfu: float | None
    quality: str
    quality_key: float | None
    e2e_s: float | None
    findings: tuple[CheckResult, ...]
    sound: bool
    """Whether it trained the workload's own network and nothing about it is wrong: only these are called fastest."""
    remark: str
    created: str
    page: str | None = None
    """Of a run, from the site's first folder."""
    address: str | None = None
    """Where a published row can be read."""
    spread: str = ""
    """The interval of a run's rate."""
    reached: str = ""
    reached_class: str = ""
    doubts: tuple[str, ...] | None = None
    """As text; None for published rows."""

    @property
    def severity(self) -> str:
        """The most severe finding's, or `passed`."""
        return SEVERITIES[self.findings[0].verdict] if self.findings else "passed"


def make_run_result(run: SiteRun, anchor: str, page: str, say: Say) -> SiteResult:
    record = run.record
    quality, plan = record.quality, record.plan
    metric = next((name for name in BY_WHICH if rate_per_device(record, name) is not None), "")
    quantity = record.metrics.get(metric)
    spread = format_interval(quantity.interval, say("too noisy to say")) if quantity else ""
    e2e, used = record.metrics.get("e2e_time"), record.metrics.get("mfu")
    device = device_name(record)
    own = is_published_network(record)
    return SiteResult(
        name=record.run_id.rpartition("-")[2] or record.run_id,
        anchor=anchor,
        workload=plan.workload,
        kind="measured",
        page=page,
        aside=f"{plan.recipe_name}, {record.created[:10]}",
        vendor=names.parse_device(device).vendor or plan.platform_word,
        device=device,
        topology=plan.topology,
        precision=record.precision,
        settings=fix_hp(plan.deviations),
        rate=rate_per_device(record, metric) if metric else None,
        metric=metric,
        item=record.item,
        spread=spread,
        total=quantity.value if quantity else None,
        mfu=used.value if used else None,
        quality="" if quality.value is None else f"{quality_word(quality.name)} {format_quality(quality)}",
        quality_key=quality.value,
        reached=translate_verdict(record, say) if quality.value is not None else "",
        reached_class=verdict(record).replace(" ", "-"),
        e2e_s=e2e.value if e2e else None,
        doubts=tuple(translate_doubt(doubt, say) for doubt in record.doubts),
        findings=run.findings,
        sound=own and record.status == "valid" and not any(one.verdict == "failed" for one in run.findings),
        remark="" if own else say("another network than the published one"),
        created=record.created,
    )


def make_row_result(entry: SiteRow, anchor: str) -> SiteResult:
    row = entry.row
    metric = next((name for name in BY_WHICH if getattr(row, name)), "")
    total = getattr(row, metric) if metric else None
    address = row.source.address if row.source.address.startswith(("https://", "http://")) else None
    unit = " %" if row.quality_unit == "%" else ""
    quality = "" if row.quality is None else f"{quality_word(row.quality_name or '')} {row.quality:g}{unit}".strip()
    return SiteResult(
        name=row.name.removeprefix(PREFIX),
        anchor=anchor,
        workload=row.workload,
        kind="published",
        aside=row.source.title,
        address=address,
        vendor=row.vendor or names.UNKNOWN,
        device=row.device,
        topology=row.topology,
        precision=row.precision,
        settings=row.fix_hp or NOTHING,
        rate=total / row.devices if total and row.devices else None,
        metric=metric,
        item=row.item or "",
        total=total,
        mfu=estimate_mfu(row),
        quality=quality,
        quality_key=row.quality,
        e2e_s=row.e2e_time_s,
        findings=entry.findings,
        sound=not any(one.verdict == "failed" for one in entry.findings),
        remark=row.remark or "",
        created=row.source.date or "",
    )


def list_heads(say: Say, *, with_workload: bool) -> list[tuple[str, bool]]:
    """Each column's name, and whether it holds numbers."""
    return [
        (say("Result"), False),
        *([(say("Workload"), False)] if with_workload else []),
        (say("Machine"), False),
        (say("Precision"), False),
        (say("Per device"), True),
        (say("All devices"), True),
        ("mfu", True),
        (say("Quality"), True),
        ("e2e_time", True),
        ("fix_hp", False),
        (say("Doubts"), True),
        (say("Audit"), False),
    ]


def draw_row(result: SiteResult, say: Say, *, workload: Markup | None, below: bool) -> Markup:
    """`workload` is what a table of several shows; `below` is whether the page lists findings."""
    return el(
        "tr",
        el("th", _draw_name(result), scope="row"),
        el("td", workload) if workload is not None else None,
        el("td", result.device, el("small", result.topology)),
        el("td", result.precision),
        _draw_rate(result),
        _draw_number(result.total, f"{result.item}/s" if result.item else ""),
        _draw_number(result.mfu, "%", bad=(result.mfu or 0) > 100),
        _draw_quality(result),
        _draw_number(result.e2e_s, "s"),
        el("td", [[el("span", part, class_="whole"), " "] for part in result.settings.replace(",", ", ").split()]),
        _draw_doubts(result),
        el("td", _draw_audit(result, say, below=below), data_key=_ORDER[result.severity] + result.name),
        data_kind=result.kind,
        data_vendor=result.vendor,
        data_precision=result.precision,
        data_severity=result.severity,
        id=None if below else result.anchor,
    )


_ORDER = {"wrong": "0", "doubtful": "1", "note": "2", "passed": "3"}


def _draw_name(result: SiteResult) -> Child:
    if result.page is not None:
        shown: Child = el("a", result.name, href=result.page)
    elif result.address is not None:
        shown = el("a", result.name, href=result.address, rel="noreferrer noopener")
    else:
        shown = result.name
    aside: Child = result.aside
    if result.page is not None:  # the record itself, to audit and compare
        aside = [result.aside, " · ", el("a", "JSON", href=f"{result.page.removesuffix('.html')}.json")]
    return [shown, el("small", aside), el("small", result.remark) if result.remark else None]


def _draw_quality(result: SiteResult) -> Markup:
    reached = el("span", result.reached, class_=f"verdict {result.reached_class}")
    shown = [result.quality or NOTHING, [el("br"), reached] if result.reached else None]
    return number_cell(shown, result.quality_key)


def _draw_rate(result: SiteResult) -> Markup:
    if result.rate is None:
        return number_cell(NOTHING, None)
    lesser = result.metric if result.metric != BY_WHICH[0] else ""
    beside = (f"{result.item}/s" if result.item else "", result.spread, lesser)
    return number_cell([number(result.rate), el("small", " ".join(filter(None, beside)))], result.rate)


def _draw_number(value: float | None, unit: str, *, bad: bool = False) -> Markup:
    if value is None:
        return number_cell(NOTHING, None)
    small = el("small", unit) if len(unit) > 3 else None
    shown = number(value) if small or not unit else f"{number(value)} {unit}"
    return number_cell([shown, small], value, "number bad" if bad else "number")


def _draw_doubts(result: SiteResult) -> Markup:
    if result.doubts is None:
        return number_cell(NOTHING, None)
    tip = "\n".join(result.doubts) or None
    count = el("span", str(len(result.doubts)), data_tip=tip, tabindex=0 if tip else None)
    return number_cell(count, len(result.doubts))


def _draw_audit(result: SiteResult, say: Say, *, below: bool) -> Markup:
    shown = translate_severity(result.severity, say)
    if not result.findings:
        return el("span", shown, class_="severity passed")
    count = f"{shown} +{len(result.findings) - 1}" if len(result.findings) > 1 else shown
    shown_findings = [
        f"{SEVERITIES[one.verdict]}: {one.sentence} ({one.evidence})" for one in result.findings[:MAX_FINDINGS_SHOWN]
    ]
    more = len(result.findings) - MAX_FINDINGS_SHOWN
    tip = "\n".join([*shown_findings, *([say("and {count} more").format(count=more)] if more > 0 else [])])
    place = f"#{result.anchor}" if below else None
    return el(
        "a" if place else "span", count, href=place, class_=f"severity {result.severity}", data_tip=tip, tabindex=0
    )


def translate_severity(severity: str, say: Say) -> str:
    words = {"wrong": say("wrong"), "doubtful": say("doubtful"), "note": say("note"), "passed": say("no findings")}
    return words[severity]


def find_fastest(results: Sequence[SiteResult]) -> SiteResult | None:
    """The fastest sound result per device."""
    found = [one for one in results if one.sound and one.rate is not None]
    return max(found, key=lambda one: one.rate or 0, default=None)
