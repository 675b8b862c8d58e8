"""JUnit XML, as build servers read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from trainmark.record import escape


def junit_document(suites: Sequence[Element]) -> str:
    """The whole file, with the counts of all suites on top."""
    root = Element("testsuites", name="trainmark")
    root.extend(suites)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


class JunitCase(NamedTuple):
    name: str
    verdict: Literal["passed", "failed", "skipped"]
    sentences: Sequence[str] = ()
    kind: str = ""
    """Of a failure."""
    seconds: str = "0"


def junit_suite(
    name: str, *, created: str, properties: Mapping[str, str], cases: Sequence[JunitCase], seconds: str = "0"
) -> Element:
    where = escape_xml(name)
    suite = Element("testsuite", name=where, timestamp=escape_xml(created), time=seconds, errors="0")
    facts = SubElement(suite, "properties")
    for fact, value in properties.items():
        SubElement(facts, "property", name=fact, value=escape_xml(value))
    for case in cases:
        element = SubElement(suite, "testcase", classname=where, name=escape_xml(case.name), time=case.seconds)
        text = escape_xml("\n".join(case.sentences))
        if case.verdict == "failed":
            message = escape_xml(case.sentences[0])
            SubElement(element, "failure", type=escape_xml(case.kind), message=message).text = text
        elif case.verdict == "skipped":
            SubElement(element, "skipped", message=text)
        elif text:
            SubElement(element, "system-out").text = text
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.verdict == "failed" for case in cases)))
    suite.set("skipped", str(sum(case.verdict == "skipped" for case in cases)))
    return suite


def escape_xml(text: str) -> str:
    """Text XML may hold: control characters spelled out, as a parser would refuse the whole file for one of them."""
    lines = (escape.terminal(line) for line in text.split("\n"))
    return "\n".join(lines).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
