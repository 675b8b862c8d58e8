"""Workloads: one folder each; facts need no torch, only `load` imports it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.record.errors import UsageError, nearest
from trainmark.record.recipe import AnyRecipe, from_values
from trainmark.record.trust import trust_file
from trainmark.record.workload_facts import QualityFacts, WorkloadFacts

if TYPE_CHECKING:
    from trainmark.record.plan import Plan, WorkloadSource
    from trainmark.record.record import Record
    from trainmark.workloads.workload import Workload

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


ROOM = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """Every workload that has a folder here."""
    return tuple(sorted(path.parent.name for path in ROOM.glob("*/facts.toml")))


@cache
def all_facts() -> tuple[WorkloadFacts, ...]:
    return tuple(read_facts(name) for name in names())


def facts(name: str) -> WorkloadFacts | None:
    """Facts of a built-in workload, without torch; None for others."""
    return next((known for known in all_facts() if known.name == name), None)


def read_facts(name: str) -> WorkloadFacts:
    """Facts of a built-in workload, from its `facts.toml` and the file of its family."""
    document = _read_toml(ROOM / name / "facts.toml")
    shared = family_facts(document.pop("family")) if "family" in document else {}
    return WorkloadFacts.from_json({**shared, "name": name, **document})


def read_recipes(name: str, kind: type[AnyRecipe]) -> tuple[dict[str, AnyRecipe], dict[str, dict[str, int | float]]]:
    """Recipes of a built-in workload, from its `recipes.toml`, and the fields of each that are larger on an
    accelerator."""
    tables = read_recipe_tables(name)
    larger = {word: table.pop("on_accelerators") for word, table in tables.items() if "on_accelerators" in table}
    published = read_facts(name).reference
    reference = {**(published.recipe if published else {}), **tables["reference"]}
    return {word: from_values(kind, {**reference, **table}) for word, table in tables.items()}, larger


def read_recipe_tables(name: str) -> dict[str, dict[str, Any]]:
    """What each recipe of a built-in workload changes in the reference recipe, without torch."""
    return _read_toml(ROOM / name / "recipes.toml")


def family_facts(family: str) -> dict[str, Any]:
    """Facts that several workloads share."""
    return _read_toml(ROOM / f"{family}.toml")


def _read_toml(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return document


def facts_of(record: Record) -> WorkloadFacts | None:
    """Facts of a record's workload: built-in ones, else those in the record, else None."""
    return facts(record.plan.workload) or record.workload_facts


def title(name: str) -> str:
    """Display name of a workload."""
    known = facts(name)
    return known.title if known else name


def title_of(record: Record) -> str:
    """Display name of a record's workload, which may be known by the record alone."""
    known = facts_of(record)
    return known.title if known else record.plan.workload


def quality_word(name: str) -> str:
    """A quality's name in tables."""
    return next((quality.word for quality in qualities() if quality.name == name), name)


def qualities() -> Iterator[QualityFacts]:
    """Every quality of every workload; a name may occur twice."""
    return (quality for known in all_facts() for quality in known.qualities)


def load(name: str) -> Workload:
    """A built-in workload by name, wherever the name comes from; imports torch."""
    if name not in names():
        raise UsageError(f"workload {name!r} is not known; {nearest(name, names())}")
    workload: Workload = importlib.import_module(f"{__name__}.{name}.workload").WORKLOAD
    return workload


def find(word: str) -> tuple[Workload, WorkloadSource | None]:
    """The workload a user types: built-in, of an installed package, or a file that defines one."""
    from trainmark.workloads import outside

    if word in names():
        return load(word), None
    if outside.is_file(word):
        trust_file(Path(word).expanduser())
        return outside.from_file(word)
    offered = outside.list_entry_points()
    if word not in offered:
        raise UsageError(f"workload {word!r} is not known; {nearest(word, [*names(), *offered])}")
    return outside.from_package(offered[word])


def of_plan(plan: Plan) -> Workload:
    """A plan's workload; an external one must be unchanged since the plan was made."""
    from trainmark.workloads import outside

    return load(plan.workload) if plan.workload_source is None else outside.reload(plan.workload_source)


def word_of(plan: Plan) -> str:
    """The argument of `find` for a plan's workload."""
    source = plan.workload_source
    return (source.file or source.entry) if source else plan.workload
