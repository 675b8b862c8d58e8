"""The head of a run: its sentence, where and how it ran, its key figures and its validity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmark.analysis.beside import PublishedSpeed
from trainmark.record.audit import SEVERITIES, sort_by_gravity
from trainmark.record.checks import CheckResult
from trainmark.record.doubts import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.format import NOTHING, device_name, format_goal, format_interval, format_quality, number, verdict
from trainmark.record.language import Say
from trainmark.record.record import Doubt, Record
from trainmark.view import headline
from trainmark.view.element import Child, Markup, el
from trainmark.workloads import quality_word


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


def draw_facts(record: Record, say: Say) -> Markup:
    """Where, how and when, in one line."""
    plan = record.plan
    data = say("synthetic data") if plan.data.synthetic else plan.data.name
    words = [
        say("{topology} devices").format(topology=plan.topology),
        record.precision,
        say("recipe {name}").format(name=plan.recipe_name),
        data,
        record.created[:16].replace("T", " "),
    ]
    return el("p", [el("span", word) for word in words], el("code", record.run_id), class_="facts")


def draw_figures(record: Record, say: Say) -> Markup:
    """The key figures."""
    return el("dl", [_draw_figure(*found) for found in _list_figures(record, say)], class_="figures")


def translate_verdict(record: Record, say: Say) -> str:
    words = {
        "reached": say("reached"),
        "missed": say("missed"),
        "short run": say("short run"),
        "not finite": say("not finite"),
        "not evaluated": say("not evaluated"),
        "interrupted": say("interrupted"),
        "unfinished": say("unfinished"),
    }
    return words[verdict(record)]


def translate_status(status: str, say: Say) -> str:
    return {"valid": say("valid"), "invalid": say("invalid"), "incomplete": say("incomplete")}.get(status, status)


def _list_figures(record: Record, say: Say) -> Iterator[tuple[str, str, str, str]]:
    """Word, number, unit, remark."""
    for alias, remark in (
        ("p_core", say("computing only")),
        ("p_train", say("with data wait")),
        ("p_whole", say("with evaluation")),
    ):
        quantity = record.metrics.get(alias)
        known = quantity is not None and quantity.value is not None
        around = format_interval(quantity.interval, say("too noisy to say")) if quantity is not None and known else ""
        yield (
            alias,
            *_format_number(record, alias),
            f"{remark} {around}".rstrip() if known else _explain_missing(record, alias, say),
        )
    reached = f"{translate_verdict(record, say)}, {format_goal(record.quality)}"
    yield quality_word(record.quality.name), format_quality(record.quality), "", reached
    yield "e2e_time", *_format_number(record, "e2e_time"), say("all phases")
    memory, total = _format_number(record, "mem"), _format_number(record, "mem_total")
    of_total = say("of {total} GiB").format(total=total[0]) if total[1] else ""
    yield "mem", *memory, of_total if memory[1] else _explain_missing(record, "mem", say)
    yield (
        "mfu",
        *_format_number(record, "mfu"),
        say("of the peak") if has_value(record, "mfu") else _explain_missing(record, "mfu", say),
    )
    mean = say("per device, mean")
    yield (
        "power",
        *_format_number(record, "power"),
        mean if has_value(record, "power") else _explain_missing(record, "power", say),
    )
    for alias, remark in (
        ("energy_kwh", say("of the devices, with the building's share")),
        ("cost", say("of the run, at the reader's price")),
        ("cost_per_million", say("at p_train and the reader's price")),
    ):
        if has_value(record, alias):
            yield alias, *_format_number(record, alias), remark


def _draw_figure(word: str, value: str, unit: str, remark: str) -> Markup:
    main = "main" if word == "p_core" else None
    shown = el("dd", el("b", value), el("span", unit, class_="unit") if unit else None, class_="value")
    return el("div", el("dt", word), shown, el("dd", remark, class_="remark"), class_=main)


def has_value(record: Record, alias: str) -> bool:
    quantity = record.metrics.get(alias)
    return quantity is not None and quantity.value is not None


def _format_number(record: Record, alias: str) -> tuple[str, str]:
    quantity = record.metrics.get(alias)
    if quantity is None or quantity.value is None:
        return NOTHING, ""
    return number(quantity.value), quantity.unit


def _explain_missing(record: Record, alias: str, say: Say) -> str:
    quantity = record.metrics.get(alias)
    reason = quantity.unavailable if quantity else None
    return say(reason) if reason else say("not on the record")


# Validity: what was checked, what failed, what could not be checked


MAX_FINDINGS = 3


def draw_validity(record: Record, checks: Sequence[CheckResult], say: Say) -> Markup:
    failed = [check for check in checks if check.findings]
    unseen = [check for check in checks if check.verdict == "unknown"]
    passed = [check for check in checks if check.verdict == "ok"]
    is_bad = record.status != "valid" or any(check.verdict == "failed" for check in failed)
    kind = "bad" if is_bad else "fair" if failed or record.doubts else "good"
    return el(
        "section",
        el("h3", say("Can this be trusted?")),
        el(
            "p",
            el("span", translate_status(record.status, say), class_=f"status {record.status}"),
            translate_ending(record.ended, say),
            class_="ended",
        ),
        _draw_counts(len(passed), len(failed), len(unseen), say) if checks else el("p", say("Nothing was checked.")),
        _draw_findings([finding for check in failed for finding in check.findings], say),
        _draw_doubts(record.doubts, say),
        _draw_list(say("Could not be checked"), [f"{say(check.claim)}: {check.sentence}" for check in unseen]),
        _draw_list(say("Passed"), [say(check.claim) for check in passed]),
        class_=f"card validity {kind}",
    )


def _draw_counts(passed: int, failed: int, unseen: int, say: Say) -> Markup:
    counted = (
        ("good", passed, say("passed")),
        ("bad" if failed else "none", failed, say("failed")),
        ("fair" if unseen else "none", unseen, say("could not be checked")),
    )
    return el(
        "ul", [el("li", el("b", str(count)), el("span", word), class_=kind) for kind, count, word in counted],
        class_="counts",
    )  # fmt: skip


def _draw_findings(found: Sequence[CheckResult], say: Say) -> list[Child]:
    """The most severe first; the rest is folded."""
    ordered = sort_by_gravity(found)
    first, rest = ordered[:MAX_FINDINGS], ordered[MAX_FINDINGS:]
    shown: list[Child] = (
        [el("ul", [_draw_finding(finding, say) for finding in first], class_="findings")] if first else []
    )
    if rest:
        shown.append(
            el(
                "details",
                el("summary", say("{count} more findings").format(count=len(rest))),
                el("ul", [_draw_finding(finding, say) for finding in rest], class_="findings"),
                class_="data",
            )
        )
    return shown


def _draw_finding(finding: CheckResult, say: Say) -> Markup:
    severities = {"failed": say("wrong"), "doubt": say("doubtful"), "note": say("note")}
    return el(
        "li",
        el("b", severities[finding.verdict], class_=f"severity {SEVERITIES[finding.verdict]}"),
        f" {finding.sentence} ",
        el("span", finding.evidence, class_="numbers"),
        el("small", say("Look at: {check}").format(check=finding.remedy)),
    )


def _draw_doubts(doubts: Sequence[Doubt], say: Say) -> list[Child]:
    if not doubts:
        return [el("p", say("The run itself has no doubts."), class_="note")]
    return [
        el("h4", say("Doubts")),
        el(
            "ul",
            [el("li", translate_doubt(doubt, say)) for doubt in doubts],
            class_="doubts",
        ),
    ]


def _draw_list(title: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return el(
        "details",
        el("summary", f"{title} ({len(sentences)})"),
        el("ul", [el("li", sentence) for sentence in sentences]),
        class_="data",
    )
