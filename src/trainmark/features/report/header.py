"""The head of a run: its sentence, where and how it ran, its key figures and its validity."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from trainmark import __version__
from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.beside import PublishedSpeed
from trainmark.features.report import curves
from trainmark.features.report.results import translate_severity
from trainmark.record.audit import SEVERITIES, sort_by_gravity
from trainmark.record.checks import CheckResult
from trainmark.record.doubts import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.format import NOTHING, device_name, format_goal, format_interval, format_quality, number, verdict
from trainmark.record.language import Say, locale_language, translator
from trainmark.record.record import Record
from trainmark.view import headline
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import build_page
from trainmark.workloads import quality_word


def draw_head(record: Record, checks: Sequence[CheckResult], say: Say) -> list[Child]:
    """Where and how it ran, the key figures, where the time went, and whether to trust it."""
    plan = record.plan
    facts = [
        say("{topology} devices").format(topology=plan.topology),
        record.precision,
        say("recipe {name}").format(name=plan.recipe_name),
        say("synthetic data") if plan.data.synthetic else plan.data.name,
        record.created[:16].replace("T", " "),
    ]
    return [
        el("p", [el("span", fact) for fact in facts], el("code", record.run_id), class_="facts"),
        el("dl", [_draw_figure(*found) for found in _list_figures(record, say)], class_="figures"),
        el("div", curves.draw_time_spent(record, say), _draw_validity(record, checks, say), class_="pair"),
    ]


def write_sentence(record: Record, say: Say) -> str:
    """The run's main number in words, as on the terminal."""
    return headline.describe_speed(record, say, where=device_name(record))


def draw_lead(record: Record, published: Sequence[PublishedSpeed], say: Say) -> Markup | None:
    """Below the heading: comparison with published devices, and what the run learned."""
    parts = [headline.compare_with_published(record, published, say), headline.describe_learning(record, say)]
    sentence = say("; ").join(part for part in parts if part)
    if not sentence:
        return None
    return el("p", say("{sentence}.").format(sentence=sentence[0].upper() + sentence[1:]), class_="lead")


CARD_PX = 640
"""Height of a card; a narrower notebook scrolls in it."""


def draw_card(record: Record) -> str:
    """One run as a card for a notebook: its head in a frame of its own, so that no rule of the notebook reaches it,
    and without script."""
    say, language = translator(locale_language()), locale_language()
    sentence = write_sentence(record, say)
    body = el("main", el("section", el("h2", sentence), draw_head(record, audit_record(record), say), class_="run"))
    page = build_page(sentence, body, language=language, trainmark=__version__, scripted=False)
    style = f"width: 100%; height: {CARD_PX}px; border: 0"
    return f'<iframe sandbox="" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def _list_figures(record: Record, say: Say) -> Iterator[tuple[str, str, str, str]]:
    """Word, number, unit, remark; of what is not known, why."""
    total = record.metrics.get("mem_total")
    of_total = say("of {total} GiB").format(total=number(total.value)) if total and total.value is not None else ""
    remarks = {
        "p_core": say("computing only"),
        "p_train": say("with data wait"),
        "p_whole": say("with evaluation"),
        "quality": f"{say(verdict(record))}, {format_goal(record.quality)}",
        "e2e_time": say("all phases"),
        "mem": of_total,
        "mfu": say("of the peak"),
        "power": say("per device, mean"),
        "energy_kwh": say("of the devices, with the building's share"),
        "cost": say("of the run, at the reader's price"),
        "cost_per_million": say("at p_train and the reader's price"),
    }
    for alias, remark in remarks.items():
        quantity = record.metrics.get(alias)
        if alias == "quality":
            yield quality_word(record.quality.name), format_quality(record.quality), "", remark
        elif quantity is not None and quantity.value is not None:
            around = format_interval(quantity.interval, say("too noisy to say")) if alias.startswith("p_") else ""
            yield alias, number(quantity.value), quantity.unit, f"{remark} {around}".rstrip()
        elif alias not in ("energy_kwh", "cost", "cost_per_million"):
            reason = quantity.unavailable if quantity else None
            yield alias, NOTHING, "", say(reason) if reason else say("not on the record")


def _draw_figure(word: str, value: str, unit: str, remark: str) -> Markup:
    shown = el("dd", el("b", value), el("span", unit, class_="unit") if unit else None, class_="value")
    return el("div", el("dt", word), shown, el("dd", remark, class_="remark"), class_=word == "p_core" and "main")


# Validity: what was checked, what failed, what could not be checked


def _draw_validity(record: Record, checks: Sequence[CheckResult], say: Say) -> Markup:
    failed = [check for check in checks if check.findings]
    unseen = [check for check in checks if check.verdict == "unknown"]
    passed = [check for check in checks if check.verdict == "ok"]
    is_bad = record.status != "valid" or any(check.verdict == "failed" for check in failed)
    kind = "bad" if is_bad else "fair" if failed or record.doubts else "good"
    counted = (
        ("good", passed, say("passed")),
        ("bad", failed, say("failed")),
        ("fair", unseen, say("could not be checked")),
    )
    counts = [
        el("li", el("b", str(len(found))), el("span", word), class_=kind if found else "none")
        for kind, found, word in counted
    ]
    findings = sort_by_gravity(finding for check in failed for finding in check.findings)
    doubts = [el("li", translate_doubt(doubt, say)) for doubt in record.doubts]
    ended = el("span", say(record.status), class_=f"status {record.status}"), translate_ending(record.ended, say)
    return el(
        "section",
        el("h3", say("Can this be trusted?")),
        el("p", ended, class_="ended"),
        el("ul", counts, class_="counts") if checks else el("p", say("Nothing was checked.")),
        el("ul", [_draw_finding(finding, say) for finding in findings], class_="findings") if findings else None,
        [el("h4", say("Doubts")), el("ul", doubts, class_="doubts")]
        if doubts
        else el("p", say("The run itself has no doubts."), class_="note"),
        _draw_list(say("Could not be checked"), [f"{say(check.claim)}: {check.sentence}" for check in unseen]),
        _draw_list(say("Passed"), [say(check.claim) for check in passed]),
        class_=f"card validity {kind}",
    )


def _draw_finding(finding: CheckResult, say: Say) -> Markup:
    severity = SEVERITIES[finding.verdict]
    return el(
        "li",
        el("b", translate_severity(severity, say), class_=f"severity {severity}"),
        f" {finding.sentence} ",
        el("span", finding.evidence, class_="numbers"),
        el("small", say("Look at: {check}").format(check=finding.remedy)),
    )


def _draw_list(title: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    shown = el("ul", [el("li", sentence) for sentence in sentences])
    return el("details", el("summary", f"{title} ({len(sentences)})"), shown, class_="data")
