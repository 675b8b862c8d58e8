"""Results as rows of one sortable table, whether measured by trainmark or published elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainmark.analysis import device_names as names
from trainmark.analysis.beside import BY_WHICH, is_published_network
from trainmark.analysis.peaks import estimate_mfu
from trainmark.analysis.price_list import RowCost
from trainmark.record.audit import SEVERITIES, sort_by_gravity
from trainmark.record.checks import CheckResult
from trainmark.record.doubts import translate_doubt
from trainmark.record.format import NOTHING, device_name, drop_noisy, format_interval, format_quality, number, verdict
from trainmark.record.language import Say
from trainmark.record.plan import Topology
from trainmark.record.published_row import PREFIX, PublishedRow
from trainmark.record.recipe import fix_hp
from trainmark.record.record import Record
from trainmark.view.element import Attribute, Child, Markup, el
from trainmark.view.frame import filter_bar, number_cell, sortable_table
from trainmark.workloads import quality_word, title, title_of

LONGEST_WHOLE = 28
"""Letters of a setting that is kept on one line; a longer one would widen the table for all."""
MAX_FINDINGS = 4
"""Findings in a row's tooltip."""
MAX_CHIPS = 9
SEVERITY_ORDER = ("wrong", "doubtful", "note", "passed")


@dataclass(frozen=True, kw_only=True)
class ShownResult:
    """One result as a table shows it."""

    name: str
    """Short name."""
    link: str | None
    """Where its name leads: to its page, a part of this one, or the page it was published on."""
    aside: Child
    """Below the name: when, or from which page."""
    created: str
    workload: str
    title: str
    recipe: str = ""
    kind: str
    """`measured` or `published`."""
    status: str
    """A run's own, or `published`."""
    vendor: str
    device: str
    topology: str
    hosts: str = ""
    precision: str
    settings: str
    metric: str
    """Which throughput the rate is."""
    rate: float | None
    """Of all devices."""
    devices: int | None
    item: str
    spread: str = ""
    """The interval of a run's rate."""
    mfu: float | None
    quality: str
    quality_key: float | None
    verdict: str = ""
    e2e_s: float | None
    memory_gib: float | None
    cost: tuple[float, str] | None = None
    energy: tuple[float, str] | None = None
    priced: RowCost | None = None
    """By a list of prices; None without one."""
    findings: tuple[CheckResult, ...]
    """The most severe first."""
    doubts: tuple[str, ...] | None = None
    """As text; None for published rows."""
    findings_link: str | None = None
    """Where all of them are listed."""
    sound: bool
    """Whether a real device trained the workload's own network, its speed is known and nothing about it is wrong: only
    these are called fastest."""

    @property
    def severity(self) -> str:
        """The most severe finding's, or `passed`."""
        return SEVERITIES[self.findings[0].verdict] if self.findings else "passed"

    @property
    def unit(self) -> str:
        return f"{self.item}/s" if self.item else ""

    @property
    def valid_rate(self) -> float | None:
        return self.rate if self.status in ("valid", "published") else None

    @property
    def device_rate(self) -> float | None:
        return self.valid_rate / self.devices if self.valid_rate and self.devices else None


def make_run_result(record: Record, checks: Sequence[CheckResult], link: str, say: Say) -> ShownResult:
    quality, plan = record.quality, record.plan
    values = {name: (found.value, found.unit) for name, found in record.metrics.items() if found.value is not None}
    metric = next((name for name in BY_WHICH if name in values), "")
    found = tuple(sort_by_gravity(one for check in checks for one in check.findings))
    device, own = device_name(record), is_published_network(record) and not record.environment.device.stand_in
    interval = record.metrics[metric].interval if metric else None
    return ShownResult(
        name=record.run_id.rpartition("-")[2] or record.run_id,
        link=link,
        aside=record.created[:16].replace("T", " "),
        created=record.created,
        workload=plan.workload,
        title=title_of(record),
        recipe=plan.recipe_name,
        kind="measured",
        status=record.status,
        vendor=names.parse_device(device).vendor or plan.platform_word,
        device=device,
        topology=plan.topology,
        hosts=record.hosts[0] + (f" +{len(record.hosts) - 1}" if len(record.hosts) > 1 else ""),
        precision=record.precision,
        settings=fix_hp(plan.deviations),
        metric=metric,
        rate=values[metric][0] if metric else None,
        devices=Topology.parse(plan.topology).devices,
        item=record.item,
        spread=format_interval(interval, say("too noisy to say")),
        mfu=values.get("mfu", (None,))[0],
        quality="" if quality.value is None else f"{quality_word(quality.name)} {format_quality(quality)}",
        quality_key=quality.value,
        verdict=verdict(record) if quality.value is not None else "",
        e2e_s=values.get("e2e_time", (None,))[0],
        memory_gib=values.get("mem", (None,))[0],
        cost=values.get("cost"),
        energy=values.get("energy_kwh"),
        findings=found,
        doubts=tuple(translate_doubt(doubt, say) for doubt in record.doubts),
        sound=own
        and record.status == "valid"
        and drop_noisy(interval) is not None
        and not any(one.verdict == "failed" for one in found),
    )


def make_row_result(row: PublishedRow, findings: Sequence[CheckResult] = ()) -> ShownResult:
    metric = next((name for name in BY_WHICH if getattr(row, name)), "")
    unit = " %" if row.quality_unit == "%" else ""
    return ShownResult(
        name=row.name.removeprefix(PREFIX),
        link=row.source.address if row.source.address.startswith(("https://", "http://")) else None,
        aside=row.source.title,
        created=row.source.date or "",
        workload=row.workload,
        title=title(row.workload),
        kind="published",
        status="published",
        vendor=row.vendor or names.UNKNOWN,
        device=row.device,
        topology=row.topology,
        precision=row.precision,
        settings=row.fix_hp or NOTHING,
        metric=metric,
        rate=getattr(row, metric) if metric else None,
        devices=row.devices,
        item=row.item or "",
        mfu=estimate_mfu(row),
        quality="" if row.quality is None else f"{quality_word(row.quality_name or '')} {row.quality:g}{unit}".strip(),
        quality_key=row.quality,
        e2e_s=row.e2e_time_s,
        memory_gib=row.mem_used_gib,
        findings=tuple(findings),
        sound=not any(one.verdict == "failed" for one in findings),
    )


# The table


@dataclass(frozen=True, kw_only=True)
class ResultColumn:
    head: str
    numeric: bool = False
    draw: Callable[[ShownResult], Markup]
    """The cell."""


def list_columns(say: Say) -> dict[str, ResultColumn]:
    """All that a table may show of results, by a word for each."""

    def column(head: str, draw: Callable[[ShownResult], Child]) -> ResultColumn:
        return ResultColumn(head=head, draw=lambda result: el("td", draw(result)))

    def figure(head: str, draw: Callable[[ShownResult], Markup]) -> ResultColumn:
        return ResultColumn(head=head, numeric=True, draw=draw)

    return {
        "workload": column(say("Workload"), lambda one: [one.title, _small(one.recipe)]),
        "machine": column(say("Machine"), lambda one: [one.device, _small(one.topology), _small(one.hosts)]),
        "precision": column(say("Precision"), lambda one: one.precision),
        "settings": column("fix_hp", _draw_settings),
        "rate": figure("p_core", lambda one: _draw_rate(one, one.rate)),
        "device_rate": figure(say("Per device"), lambda one: _draw_rate(one, one.device_rate)),
        "all_rate": figure(say("All devices"), lambda one: _draw_figure(one.valid_rate, one.unit)),
        "mfu": figure("mfu", lambda one: _draw_figure(one.mfu, "%", bad=(one.mfu or 0) > 100)),
        "quality": figure(say("Quality"), lambda one: _draw_quality(one, say)),
        "e2e_time": figure("e2e_time", lambda one: _draw_figure(one.e2e_s, "s")),
        "mem": figure("mem", lambda one: _draw_figure(one.memory_gib, "GiB")),
        "cost": figure("cost", _draw_cost),
        "energy": figure("energy_kwh", lambda one: _draw_figure(*(one.energy or (None, "")))),
        "doubts": figure(say("Doubts"), _draw_doubts),
        "status": column(say("Status"), lambda one: _draw_status(one, say)),
        "audit": ResultColumn(
            head=say("Audit"),
            draw=lambda one: el("td", draw_audit(one, say), data_key=f"{SEVERITY_ORDER.index(one.severity)}{one.name}"),
        ),
    }


def draw_results(
    results: Sequence[ShownResult],
    first: str,
    columns: Sequence[ResultColumn],
    *,
    caption: str,
    kind: str | None = None,
    sorted_by: int | None = None,
) -> Markup:
    """The table; `first` is the head of the names' column."""
    heads = [(first, False), *((column.head, column.numeric) for column in columns)]
    rows = [_draw_row(result, columns) for result in results]
    return sortable_table(heads, rows, caption=caption, kind=kind, sorted_by=sorted_by)


def draw_filter(results: Sequence[ShownResult], fields: Sequence[str], placeholder: str, say: Say) -> Markup:
    """Chips for the most common values of the fields in which results differ."""
    words = {
        **{one.workload: one.title for one in results},
        **{one.status: say(one.status) for one in results},
        "measured": say("measured"),
        "published": say("published"),
        **{severity: translate_severity(severity, say) for severity in SEVERITY_ORDER},
    }
    chips = []
    for field in fields:
        counts = Counter(value for one in results if (value := str(getattr(one, field))) != names.UNKNOWN)
        if len(counts) > 1:
            chips += [(field, value, words.get(value, value)) for value, _ in counts.most_common(MAX_CHIPS)]
    return filter_bar(placeholder, chips, say)


def translate_severity(severity: str, say: Say) -> str:
    words = {"wrong": say("wrong"), "doubtful": say("doubtful"), "note": say("note"), "passed": say("no findings")}
    return words[severity]


def draw_audit(result: ShownResult, say: Say) -> Markup:
    """The most severe finding's word and how many more there are; pointing at it tells them."""
    shown = translate_severity(result.severity, say)
    count = f"{shown} +{len(result.findings) - 1}" if len(result.findings) > 1 else shown
    tips = [f"{SEVERITIES[one.verdict]}: {one.sentence} ({one.evidence})" for one in result.findings[:MAX_FINDINGS]]
    if (more := len(result.findings) - MAX_FINDINGS) > 0:
        tips.append(say("and {count} more").format(count=more))
    name, link = ("a", result.findings_link) if result.findings and result.findings_link else ("span", None)
    return el(name, count, href=link, class_=f"severity {result.severity}", **_tip(tips))


def _draw_row(result: ShownResult, columns: Sequence[ResultColumn]) -> Markup:
    shown: Child = result.name
    if result.link is not None:
        outside = None if result.kind == "measured" else "noreferrer"
        shown = el("a", result.name, href=result.link, rel=outside)
    return el(
        "tr",
        el("th", shown, _small(result.aside), scope="row", data_key=result.created or None),
        [column.draw(result) for column in columns],
        data_kind=result.kind,
        data_workload=result.workload,
        data_status=result.status,
        data_vendor=result.vendor,
        data_precision=result.precision,
        data_severity=result.severity,
        data_run=result.link[1:] if result.link and result.link.startswith("#") else None,
    )


def _small(text: Child) -> Markup | None:
    return el("small", text) if text else None


def _tip(lines: Sequence[str]) -> dict[str, Attribute]:
    return {"data_tip": "\n".join(lines), "tabindex": 0} if lines else {}


def _draw_settings(result: ShownResult) -> Child:
    """Settings one by one, none broken across lines."""
    parts = result.settings.replace(",", ", ").split()
    return [[el("span", part, class_="whole" if len(part) <= LONGEST_WHOLE else None), " "] for part in parts]


def _draw_rate(result: ShownResult, rate: float | None) -> Markup:
    if rate is None:
        return number_cell(NOTHING, None)
    lesser = result.metric if result.metric != BY_WHICH[0] else ""
    beside = (result.unit, result.spread, lesser)
    return number_cell([number(rate), el("small", " ".join(filter(None, beside)))], rate)


def _draw_figure(value: float | None, unit: str, *, bad: bool = False) -> Markup:
    if value is None:
        return number_cell(NOTHING, None)
    small = el("small", unit) if len(unit) > 3 else None
    shown = number(value) if small or not unit else f"{number(value)} {unit}"
    return number_cell([shown, small], value, "number bad" if bad else "number")


def _draw_quality(result: ShownResult, say: Say) -> Markup:
    kind = f"verdict {result.verdict.replace(' ', '-')}"
    reached = [el("br"), el("span", say(result.verdict), class_=kind)] if result.verdict else None
    return number_cell([result.quality or NOTHING, " ", reached], result.quality_key)


def _draw_cost(result: ShownResult) -> Markup:
    """With the energy beside it, where measured."""
    if result.cost is None:
        return number_cell(NOTHING, None)
    value, unit = result.cost
    energy = f"{number(result.energy[0])} {result.energy[1]}" if result.energy else ""
    return number_cell([number(value), el("small", ", ".join(filter(None, (unit, energy))))], value)


def _draw_doubts(result: ShownResult) -> Markup:
    if result.doubts is None:
        return number_cell(NOTHING, None)
    return number_cell(el("span", str(len(result.doubts)), **_tip(result.doubts)), len(result.doubts))


def _draw_status(result: ShownResult, say: Say) -> Child:
    status = el("span", say(result.status), class_=f"status {result.status}")
    return [status, draw_audit(result, say) if result.findings else None]
