"""What is trained: one folder a workload; its facts are for everybody, and only `load` imports torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record.errors import UsageError, nearest

if TYPE_CHECKING:
    from trainmark.record.plan import Plan, WorkloadSource
    from trainmark.record.record import Record
    from trainmark.record.workload_facts import QualityFacts, WorkloadFacts
    from trainmark.workloads.workload import Workload


@cache
def names() -> tuple[str, ...]:
    """Every workload that has a folder here."""
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/facts.py")))


@cache
def all_facts() -> tuple[WorkloadFacts, ...]:
    return tuple(importlib.import_module(f"{__name__}.{name}.facts").FACTS for name in names())


def facts(name: str) -> WorkloadFacts | None:
    """What is known here of a workload, without torch; None of one that is not ours."""
    return next((known for known in all_facts() if known.name == name), None)


def facts_of(record: Record) -> WorkloadFacts | None:
    """What a record is judged by: what is known here of its workload, else what it carries, else nothing."""
    return facts(record.plan.workload) or record.workload_facts


def title(name: str) -> str:
    """How people write a workload's name."""
    known = facts(name)
    return known.title if known else name


def title_of(record: Record) -> str:
    """The same of a record, whose workload may be known by the record alone."""
    known = facts_of(record)
    return known.title if known else record.plan.workload


def quality_word(name: str) -> str:
    """What tables call a quality."""
    return next((quality.word for quality in qualities() if quality.name == name), name)


def qualities() -> Iterator[QualityFacts]:
    """Every quality of every workload; one name may come twice."""
    return (quality for known in all_facts() for quality in known.qualities)


def load(name: str) -> Workload:
    """One of our workloads by name. Its module is imported here, and torch with it."""
    return find(name)[0]


def find(word: str) -> tuple[Workload, WorkloadSource | None]:
    """What a user means: a workload of ours, one that an installed package offers, or a file that defines one."""
    from trainmark.workloads import outside

    if word in names():
        workload: Workload = importlib.import_module(f"{__name__}.{word}.workload").WORKLOAD
        return workload, None
    if outside.is_file(word):
        return outside.from_file(word)
    offered = outside.offered()
    if word not in offered:
        raise UsageError(f"workload {word!r} is not known; {nearest(word, [*names(), *offered])}")
    return outside.from_package(offered[word])


def of_plan(plan: Plan) -> Workload:
    """What a plan trains; a workload from outside must be what it was when the plan was made."""
    from trainmark.workloads import outside

    return load(plan.workload) if plan.workload_source is None else outside.again(plan.workload_source)


def word_of(plan: Plan) -> str:
    """The word by which a plan's workload is found again."""
    source = plan.workload_source
    return (source.file or source.entry) if source else plan.workload
