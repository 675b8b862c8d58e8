"""Lists the differences of two results: those that make them unlike, and those compared on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trainmark import workloads
from trainmark.record.format import device_name

if TYPE_CHECKING:
    from trainmark.analysis.quantities import Compared
    from trainmark.record.published_row import PublishedRow
    from trainmark.record.record import Record
    from trainmark.record.store import Subject

ANY_VALUE = ("seed",)
"""Recipe values that may differ: a run does not become another training by them."""

ABSENT = "not on the record"

Facts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One fact that is not the same on both sides."""

    name: str
    a: str
    b: str
    unlike: bool
    """True where it makes the two different trainings, so that no verdict should rest on them."""

    def __str__(self) -> str:
        return f"{self.name} {self.a} and {self.b}"


def list_differences(a: Subject, b: Subject, compared: Compared) -> tuple[Difference, ...]:
    """All that differs; what makes the two unlike comes first, and no further than to the first that explains the
    rest: of two workloads everything differs, of two recipes their settings do."""
    sides = [_row_facts(side.row) if side.row else _run_facts(side.records, compared) for side in (a, b)]
    pages = a.row is not None or b.row is not None
    later = _later_settings(a, b)
    found = []
    for place, unlike in enumerate((True, False)):
        one, other = (side[place] for side in sides)
        for name in {**one, **other}:
            # a page says less than a record: what it leaves out cannot be held against it
            known = name in one and name in other
            if one.get(name, ABSENT) != other.get(name, ABSENT) and (known or not pages) and name not in later:
                found.append(Difference(name=name, a=one.get(name, ABSENT), b=other.get(name, ABSENT), unlike=unlike))
    return _keep_decisive(found, a, b)


def _later_settings(a: Subject, b: Subject) -> set[str]:
    """Settings that the trainmark of one side did not have yet, and that the other left as the reference has them."""
    plans = [side.records[0].plan for side in (a, b) if side.records]
    if len(plans) < 2:
        return set()
    deviating = {deviation.name for plan in plans for deviation in plan.deviations}
    return (set(plans[0].recipe) ^ set(plans[1].recipe)) - deviating


def _keep_decisive(found: Sequence[Difference], a: Subject, b: Subject) -> tuple[Difference, ...]:
    may = [difference for difference in found if not difference.unlike]
    unlike = [difference for difference in found if difference.unlike]
    if workload := [difference for difference in unlike if difference.name == "workload"]:
        return (*workload, *may)
    if a.records and b.records:
        plans = [side.records[0].plan for side in (a, b)]
        settings = {name for plan in plans for name in plan.recipe}
        names = [plan.recipe_name for plan in plans]
        if names[0] != names[1] and any(difference.name in settings for difference in unlike):
            others = [difference for difference in unlike if difference.name not in settings]
            return (Difference(name="recipe", a=names[0], b=names[1], unlike=True), *others, *may)
    return (*unlike, *may)


def _run_facts(records: tuple[Record, ...], compared: Compared) -> tuple[Facts, Facts]:
    """What must be the same, and what may differ."""
    plan = records[0].plan

    def all_of(fact: Callable[[Record], object]) -> str:
        return " or ".join(dict.fromkeys(str(fact(record)) for record in records))

    must = {
        "workload": plan.workload,
        "item": all_of(lambda record: record.item),
        "topology": plan.topology,
        "precision": all_of(lambda record: record.precision),
        "data": _data(plan.data.name, synthetic=plan.data.synthetic),
        "coverage": _coverage(full=plan.limits.full),
        **({"workload file": plan.workload_source.sha256[:12]} if plan.workload_source else {}),
        "initial weights": plan.init_sha256[:12] if plan.init_sha256 else "random",
        "start": "the first step" if plan.resume_from is None else "a checkpoint",
        **{name: str(value) for name, value in plan.recipe.items() if name not in ANY_VALUE},
    }
    may = {
        "device": all_of(device_name),
        "platform": plan.platform_word,
        **{name: all_of(partial(_software, name)) for name in _SOFTWARE},
        "trainmark": all_of(lambda record: record.trainmark),
        "restarts": all_of(lambda record: len(record.restarts)),
        **{name: str(plan.recipe[name]) for name in ANY_VALUE if name in plan.recipe},
    }
    (may if compared.same_at_any_length else must)["limits"] = str(plan.limits)
    return must, may


def _row_facts(row: PublishedRow) -> tuple[Facts, Facts]:
    """The same of a published row, by our words; such pages are of full runs on the real sets."""
    known = workloads.facts(row.workload)
    must = {
        "workload": row.workload,
        "item": row.item,
        "topology": row.topology,
        "precision": {"amp": "amp-fp16"}.get(row.precision, row.precision),
        "data": _data(known.data_set if known else "set", synthetic=False),
        "coverage": _coverage(full=True),
        "batch_per_device": None if row.batch_per_device is None else str(row.batch_per_device),
    }
    return {name: value for name, value in must.items() if value is not None}, {"device": row.device}


_SOFTWARE = ("python", "torch", "os", "threads")
"""Of a record's environment, what is known to change speed."""


def _software(name: str, record: Record) -> str:
    return str(getattr(record.environment, name) or ABSENT)


def _data(name: str, *, synthetic: bool) -> str:
    return f"{'synthetic' if synthetic else 'real'} {name}"


def _coverage(*, full: bool) -> str:
    return "all training steps" if full else "the steady part"
