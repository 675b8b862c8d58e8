"""Works out which doubts a record must carry, and holds those it has against them: none hidden, none invented."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec.audit import Check, check, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.doubts import Facts, collect
from trainmark.spec.record import Doubt

OF_EVENTS = ("torn-events", "no-sample", "resumed")
"""Doubts about what only the run's events told: they may stand on a record, and nothing on it can confirm them."""
IN_OTHER_WORDS = ("init-from",)
"""Names a file, which a copy made to be shared calls otherwise."""


@check("doubts", "every doubt the numbers ask for stands on the record, with its figures, and no other")
def doubts(case: RecordCase) -> Iterator[CheckResult]:
    said = [doubt for doubt in case.record.doubts if doubt.code not in OF_EVENTS]
    wanted = [doubt for doubt in collect(_facts(case)) if doubt.code not in OF_EVENTS]
    if case.facts is None or case.facts.reference is None:  # without its reference the doubt is taken at its word
        said = [doubt for doubt in said if doubt.code != "small-batch"]
    for doubt in wanted:
        same = [other for other in said if other.code == doubt.code]
        if not same:
            yield wrong(
                f"{doubt.code}: {doubt.text}", "the numbers ask for this doubt, and it is not there", "who took it out"
            )
            continue
        found = next((other for other in same if _agree(other, doubt)), None)
        if found is None:
            yield wrong(f"{same[0].code}: {same[0].text}", f"it should say: {doubt.text}", "the doubts")
        said.remove(found or same[0])
    for doubt in said:
        yield wrong(f"{doubt.code}: {doubt.text}", "nothing on the record gives reason for it", "the doubts")
    told = [doubt.code for doubt in case.record.doubts if doubt.code in OF_EVENTS]
    if len(told) != len(set(told)):
        yield wrong(", ".join(told), "a doubt is said once", "the doubts")
    if "resumed" in told and not case.resumed:
        yield wrong("resumed", "the plan begins at the first step", "the doubts")
    if case.resumed and case.whole.steps and "resumed" not in told:
        yield wrong("resumed", "the plan goes on from a checkpoint, and no doubt says so", "who took it out")


def _facts(case: RecordCase) -> Facts:
    record = case.record
    reference = case.facts.reference if case.facts else None
    return Facts(
        plan=record.plan,
        status=record.status,
        timeline=record.timeline,
        metrics=record.metrics,
        quality=record.quality,
        environment=record.environment,
        telemetry=record.telemetry,
        reference_global_batch=reference.global_batch if reference else 0,
        restarts=record.restarts,
    )


def _agree(said: Doubt, wanted: Doubt) -> bool:
    """By their figures, as another version may put them in other words."""
    return said.code in IN_OTHER_WORDS or said.text == wanted.text or _figures(said.text) == _figures(wanted.text)


def _figures(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


CHECKS: tuple[Check[RecordCase], ...] = (doubts,)
