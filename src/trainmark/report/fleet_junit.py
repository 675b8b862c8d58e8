"""The judgement of a fleet as JUnit XML: a test a host and a test a cable, by names that are the same every day."""

from __future__ import annotations

from dataclasses import replace
from xml.etree.ElementTree import Element, SubElement

from trainmark.analysis.fleet.links import FleetLinks
from trainmark.analysis.fleet.verdict import Fleet, FleetHost
from trainmark.report import fleet_text
from trainmark.report.formats import junit_document, junit_failure, xml_text
from trainmark.spec.format import number


def to_junit(fleet: Fleet) -> str:
    """Hosts name the tests, and not their runs, so that a server can follow a node from build to build."""
    plan = ".".join(part for part in (fleet.workload, fleet.recipe_name, fleet.topology, fleet.precision) if part)
    name = xml_text(f"trainmark.fleet.{plan}".rstrip("."))
    suite = Element("testsuite", name=name, timestamp=xml_text(fleet.created), time="0", errors="0")
    properties = SubElement(suite, "properties")
    facts = {"metric": fleet.metric, "outcome": fleet.outcome, "hosts": str(len(fleet.hosts)), "device": fleet.device}
    if fleet.median is not None:
        facts["median"] = f"{number(fleet.median, 6)} {fleet.unit}"
    for fact, value in facts.items():
        SubElement(properties, "property", name=fact, value=xml_text(value))
    _whole(_case(suite, "the fleet as a whole"), fleet)
    for one in sorted(fleet.hosts, key=lambda one: one.host):
        _host(_case(suite, f"host {one.host}"), one, fleet)
    if fleet.links:
        _cables(suite, fleet.links)
    _arithmetic(suite, fleet)
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(sum(1 for _ in suite.iter("failure"))))
    suite.set("skipped", str(sum(1 for _ in suite.iter("skipped"))))
    return junit_document([suite])


def _case(suite: Element, name: str) -> Element:
    return SubElement(suite, "testcase", classname=suite.get("name", ""), name=xml_text(name), time="0")


def _whole(case: Element, fleet: Fleet) -> None:
    if fleet.faults:
        junit_failure(case, "not accepted", fleet.faults)
    elif fleet.unsure:
        SubElement(case, "skipped", message=xml_text("; ".join(fleet.unsure)))
    else:
        SubElement(case, "system-out").text = xml_text(fleet_text.headline(fleet))


def _host(case: Element, one: FleetHost, fleet: Fleet) -> None:
    if one.verdict in ("slow", "failed"):
        junit_failure(case, one.verdict, [*one.reasons, *one.remarks])
    elif one.verdict == "unclear":
        SubElement(case, "skipped", message=xml_text(one.reasons[0]))
    else:
        value = "" if one.value is None else f"{number(one.value, 4)} {fleet.unit}"
        told = [value, fleet_text.away(one), fleet_text.interval(one), *one.reasons, *one.remarks]
        SubElement(case, "system-out").text = xml_text("; ".join(filter(None, told)))


def _cables(suite: Element, links: FleetLinks) -> None:
    """A doubtful way is skipped at both its ends: one pair is not enough to fail by."""
    for cable in sorted(links.cables, key=lambda one: one.host):
        case = _case(suite, f"cable of host {cable.host}")
        own = _only(links, cable.host)
        if said := fleet_text.slow_cables(own):
            junit_failure(case, "slow", said)
        elif doubts := fleet_text.slow_ways(own):
            SubElement(case, "skipped", message=xml_text("; ".join(doubts)))
        else:
            SubElement(case, "system-out").text = f"{number(cable.gigabytes_per_s)} GB/s"


def _arithmetic(suite: Element, fleet: Fleet) -> None:
    """A test a host that took part in a verify; of several the worst counts."""
    for host in sorted({one.host for one in fleet.proofs}):
        case = _case(suite, f"arithmetic of host {host}")
        if wrong := [said for one in fleet.proved("wrong") if one.host == host for said in one.wrong]:
            junit_failure(case, "wrong", wrong)
        elif open_ := [one.sentence for one in fleet.proved("unsettled", "incomplete") if one.host == host]:
            SubElement(case, "skipped", message=xml_text("; ".join(open_)))
        else:
            said = "; ".join(one.sentence for one in fleet.proofs if one.host == host)
            SubElement(case, "system-out").text = xml_text(said)


def _only(links: FleetLinks, host: str) -> FleetLinks:
    return replace(
        links,
        cables=tuple(one for one in links.cables if one.host == host),
        ways=tuple(one for one in links.ways if host in one.hosts),
    )
