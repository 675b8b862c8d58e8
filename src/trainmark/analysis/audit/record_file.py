"""Checks on a record as a document: its shape, its name, its plan and what is said to differ from the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.precision import PRECISIONS
from trainmark.spec.recipe import Recipe

MOST_SHOWN = 5
SHORT = {field.name: field.metadata.get("short", "") for field in fields(Recipe)}


@check("document", "the file says nothing that the record does not hold, and nothing twice in two ways")
def document(case: RecordCase) -> Iterator[CheckResult]:
    if case.document is None:
        raise CannotCheckError("the record was not read from a file")
    unlike = list(_unlike(case.document, case.written, ""))
    if unlike:
        more = f" and {len(unlike) - MOST_SHOWN} more" if len(unlike) > MOST_SHOWN else ""
        yield wrong(
            "; ".join(unlike[:MOST_SHOWN]) + more,
            "the file holds what no run writes, or what does not follow from the series in it",
            "who changed the file after it was written",
        )


def _unlike(found: Any, written: Any, place: str) -> Iterator[str]:
    if isinstance(found, Mapping) and isinstance(written, Mapping):
        for name, value in found.items():
            where = f"{place}.{name}" if place else str(name)
            if name not in written:
                yield f"{where} is not known"
            else:
                yield from _unlike(value, written[name], where)
        for name in written:
            # an older plan has fewer fields, and a fingerprint that knows them
            if name not in found and not place.startswith("plan"):
                yield f"{place}.{name} is missing".lstrip(".")
    elif isinstance(found, list) and isinstance(written, list) and len(found) == len(written):
        if found != written:
            for index, (one, other) in enumerate(zip(found, written, strict=True)):
                yield from _unlike(one, other, f"{place}[{index}]")
    elif not (found == written and isinstance(found, bool) == isinstance(written, bool)):
        yield f"{place} is {_short(found)}, not {_short(written)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@check("name", "the run's id, its date and its plan agree")
def name(case: RecordCase) -> Iterator[CheckResult]:
    record, plan = case.record, case.record.plan
    created = datetime.fromisoformat(record.created.replace("Z", "+00:00"))
    beginning = f"{plan.workload}-{plan.recipe_name}-{plan.topology}-{plan.precision}-{created:%Y%m%dT%H%M%S}-"
    if not (record.run_id.startswith(beginning) and re.fullmatch("[0-9a-f]{6}", record.run_id[len(beginning) :])):
        yield doubtful(
            f"{record.run_id}, created {record.created}",
            f"a run of this plan and time would be called {beginning} and six hexadecimal digits",
            "whether the record was renamed, its date changed, or its plan exchanged",
        )
    version = record.environment.trainmark
    if version and version != record.trainmark:
        yield wrong(
            f"{record.trainmark} wrote the record, {version} the environment",
            "one run has one version of trainmark",
            "what was changed",
        )


@check("plan", "the plan is of words that exist, and its fingerprint is that of what it asks for")
def plan(case: RecordCase) -> Iterator[CheckResult]:
    asked = case.record.plan
    facts = case.facts
    for what, word, known in (
        ("precision", asked.precision, tuple(PRECISIONS)),
        ("recipe", asked.recipe_name, facts.recipes if facts else (asked.recipe_name,)),
    ):
        if word not in known:
            yield wrong(f"{what} {word!r}", f"there is no such {what}", "what was changed in the plan")
    if case.document is not None and case.document["plan"]["fingerprint"] != asked.fingerprint:
        yield wrong(
            f"{case.document['plan']['fingerprint'][:16]} on the record, {asked.fingerprint[:16]} computed",
            "the plan was changed after it was decided",
            "what was changed in the plan",
        )
    if (asked.init_from is None) != (asked.init_sha256 is None):
        yield wrong(
            f"init_from {asked.init_from!r}, init_sha256 {asked.init_sha256!r}",
            "weights to begin with have a file and a hash, or neither",
            "what was changed in the plan",
        )
    for what, value, least in (
        ("skip_bad", asked.skip_bad, 0),
        ("max_restarts", asked.max_restarts, len(case.record.restarts)),
        ("files left out", asked.skip_bad - len(case.record.skipped_files), 0),
        ("hang_timeout_s", 1.0 if asked.hang_timeout_s is None else asked.hang_timeout_s, 1e-9),
    ):
        if value < least:
            yield wrong(f"{what} {value:g}", f"it cannot be below {least:g} here", "what was changed in the plan")


@check("workload", "item, data set and quality are the workload's own")
def workload(case: RecordCase) -> Iterator[CheckResult]:
    record = case.record
    known = case.facts
    if known is None:
        raise CannotCheckError(f"nothing is known here of workload {record.plan.workload!r}")
    for what, found, expected in (
        ("item", record.item, known.item),
        ("data set", record.plan.data.name, known.data_set),
        ("quality", record.quality.name, known.quality.name),
        ("unit of quality", record.quality.unit, known.quality.unit),
        ("better", record.quality.better, known.quality.better),
    ):
        if found != expected:
            yield wrong(
                f"{what} {found!r}",
                f"{record.plan.workload} has {expected!r}",
                "what was changed, or which workload this really was",
            )


@check("deviations", "what is said to differ from the reference recipe differs as said")
def deviations(case: RecordCase) -> Iterator[CheckResult]:
    asked = case.record.plan
    said = {deviation.name: deviation for deviation in asked.deviations}
    if len(said) != len(asked.deviations):
        yield wrong(f"{len(asked.deviations)} deviations, {len(said)} names", "a field differs once", "the plan")
    for deviation in asked.deviations:
        actual = asked.recipe.get(deviation.name)
        if not same(actual, deviation.actual):
            yield wrong(
                f"{deviation.name} is {actual!r} in the recipe, {deviation.actual!r} among the deviations",
                "both name what the run was trained with",
                "what was changed in the plan",
            )
        if same(deviation.reference, deviation.actual) or _kind(deviation.reference) is not _kind(deviation.actual):
            yield wrong(
                f"{deviation.name}: reference {deviation.reference!r}, this run {deviation.actual!r}",
                "a deviation is a difference between two values of one kind",
                "what was changed in the plan",
            )
        if deviation.short != SHORT.get(deviation.name, ""):
            yield wrong(f"{deviation.name} called {deviation.short!r}", "it has another short name", "the plan")
    reference_facts = case.facts.reference if case.facts else None
    if reference_facts is None:
        return
    for field, reference in reference_facts.recipe.items():
        if field not in asked.recipe:  # older plans do not have every field
            continue
        differs = not same(asked.recipe.get(field), reference)
        stated = said[field].reference if field in said else None
        if differs != (field in said) or (field in said and not same(stated, reference)):
            yield wrong(
                f"{field} {asked.recipe.get(field)!r}; the reference recipe's is {reference!r}, on the record "
                f"{'none is said to differ' if stated is None else repr(stated)}",
                "fix_hp would tell a reader something else than what was run",
                "the deviations of the plan",
            )


def _kind(value: object) -> type:
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


CHECKS: tuple[Check[RecordCase], ...] = (document, name, plan, workload, deviations)
