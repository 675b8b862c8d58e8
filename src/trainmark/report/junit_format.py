"""The report as JUnit XML, so that a build server shows runs and their checks as it shows tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from trainmark.spec import escape
from trainmark.spec.audit import SEVERITIES
from trainmark.spec.checks import CheckResult
from trainmark.spec.format import device_name, number
from trainmark.spec.record import Record

Check = Callable[[Record], Sequence[CheckResult]]


def render(records: Sequence[Record], check: Check) -> str:
    """A suite for each run: the run itself, then every check on it."""
    suites = [_suite(record, check(record)) for record in records]
    root = Element("testsuites", name="trainmark")
    root.extend(suites)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _suite(record: Record, checks: Sequence[CheckResult]) -> Element:
    e2e = record.metrics.get("e2e_time")
    seconds = f"{e2e.value:.3f}" if e2e is not None and e2e.value is not None else "0"
    suite = Element("testsuite", name=_clean(record.run_id), timestamp=_clean(record.created), time=seconds)
    suite.set("errors", "0")
    properties = SubElement(suite, "properties")
    for name, value in _facts(record):
        SubElement(properties, "property", name=name, value=_clean(value))
    where = f"trainmark.{_clean(record.plan.workload)}.{_clean(record.run_id)}"
    run = SubElement(suite, "testcase", classname=where, name="the run is valid", time=seconds)
    if record.status != "valid":
        _failure(run, record.status, [record.ended])
    elif record.doubts:
        SubElement(run, "system-out").text = _clean("doubts: " + "; ".join(doubt.text for doubt in record.doubts))
    for check in checks:
        _case(SubElement(suite, "testcase", classname=where, name=_clean(check.claim), time="0"), check)
    suite.set("tests", str(1 + len(checks)))
    suite.set("failures", str(sum(1 for _ in suite.iter("failure"))))
    suite.set("skipped", str(sum(1 for _ in suite.iter("skipped"))))
    return suite


def _case(case: Element, check: CheckResult) -> None:
    said = [
        f"{SEVERITIES[found.verdict]}: {found.sentence} ({found.evidence}; look at: {found.remedy})"
        for found in check.findings
    ]
    if check.verdict == "unknown":
        SubElement(case, "skipped", message=_clean(check.sentence or "not checked"))
    elif check.verdict in ("failed", "doubt"):
        _failure(case, SEVERITIES[check.findings[0].verdict], said)
    elif said:  # what a reader has to know, but no build should stop at
        SubElement(case, "system-out").text = _clean("\n".join(said))


def _failure(case: Element, kind: str, sentences: Sequence[str]) -> None:
    failure = SubElement(case, "failure", type=_clean(kind), message=_clean(sentences[0]))
    failure.text = _clean("\n".join(sentences))


def _facts(record: Record) -> list[tuple[str, str]]:
    plan = record.plan
    p_core = record.metrics.get("p_core")
    facts = [
        ("device", device_name(record)),
        ("recipe", plan.recipe_name),
        ("topology", plan.topology),
        ("precision", record.precision),
        ("fingerprint", plan.fingerprint),
    ]
    if p_core is not None and p_core.value is not None:
        facts.append(("p_core", f"{number(p_core.value, 6)} {p_core.unit}"))
    return facts


def _clean(text: str) -> str:
    """Text XML may hold: control characters spelled out, as a parser would refuse the whole file for one of them."""
    lines = (escape.terminal(line) for line in text.split("\n"))
    return "\n".join(lines).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
