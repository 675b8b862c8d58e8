"""What pages of both forms have in common when they are written: tables, sections, notes, and the environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.published.own_rows import own_row
from trainmark.spec import escape, links
from trainmark.spec.format import goal
from trainmark.spec.language import speaker
from trainmark.workloads import quality_word

if TYPE_CHECKING:
    from trainmark.spec.published_row import PublishedRow
    from trainmark.spec.record import Record


@dataclass(frozen=True, kw_only=True)
class WrittenSection:
    """One section of a page: runs that train one model to one target, with their rows."""

    records: tuple[Record, ...]
    rows: tuple[PublishedRow, ...]

    @property
    def first(self) -> PublishedRow:
        return self.rows[0]

    @property
    def quality(self) -> str:
        """The word the tables use, with nothing in it that could end a cell."""
        return quality_word(self.records[0].quality.name)

    @property
    def goal(self) -> str:
        """`≥ 75.5 %`."""
        return goal(self.records[0].quality)


def sections(records: Sequence[Record]) -> list[WrittenSection]:
    """Runs that can share a table's heads, in the order they were given."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        quality = record.quality
        key = (record.plan.workload, record.item, quality.name, quality.unit, quality.goal, quality.better)
        groups.setdefault(key, []).append(record)
    return [
        WrittenSection(records=tuple(members), rows=tuple(own_row(record) for record in members))
        for members in groups.values()
    ]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table whose cells hold what they are given and nothing more."""
    heads = list(heads)
    return [_line(heads), "| " + " | ".join("---" for _ in heads) + " |", *(_line(row) for row in rows)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape.markdown_cell(cell) for cell in cells) + " |"


def notes(section: WrittenSection, lang: str, shown: Sequence[str]) -> list[str]:
    """What to know before trusting a row, numbered, with the rows it is about; why one of the shown is missing, too."""
    say = speaker(lang)
    about: dict[str, list[int]] = {}
    for index, record in enumerate(section.records, 1):
        for sentence in _sentences(record, shown):
            about.setdefault(sentence, []).append(index)
    lines = []
    for number, (sentence, rows) in enumerate(about.items(), 1):
        listed = ", ".join(str(row) for row in rows)
        which = (say("row {rows}") if len(rows) == 1 else say("rows {rows}")).format(rows=listed)
        lines.append(f"{number}. {which}: {escape.markdown_cell(say(sentence))}")
    return lines


def _sentences(record: Record, shown: Sequence[str]) -> list[str]:
    found = [] if record.status == "valid" else [f"{record.status}: {record.ended}"]
    if record.precision != record.plan.precision:
        found.append(f"{record.plan.precision} was asked for, {record.precision} ran")
    missing: dict[str, list[str]] = {}
    for alias in shown:
        quantity = record.metrics.get(alias)
        if quantity is None or quantity.value is None:
            reason = (quantity.unavailable if quantity else None) or "not on the record"
            missing.setdefault(reason, []).append(alias)
    found += [f"no {', '.join(aliases)}: {reason}" for reason, aliases in missing.items()]
    found.append(f"throughputs cover {record.coverage}")
    return [*found, *(doubt.text for doubt in record.doubts)]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was collected of where a run ran, ready to be written; empty where it was not collected."""

    device: str
    cpu: str
    network: str
    system: str
    driver: str
    framework: str
    software: str


def machines(section: WrittenSection) -> list[Machine]:
    """Every machine the runs of a section ran on, each once."""
    found = [_machine(record, row) for record, row in zip(section.records, section.rows, strict=True)]
    return list(dict.fromkeys(found))


def _machine(record: Record, row: PublishedRow) -> Machine:
    environment = record.environment
    measured = environment.link
    hosts = len({trace.host for trace in record.timeline.ranks})
    cores = environment.cpu.logical_cores
    versions = {name: getattr(environment, name) for name in ("python", "numpy", "trainmark")}
    return Machine(
        device=row.device,
        cpu=f"{environment.cpu.name}{f', {cores} logical cores' if cores else ''}",
        network=links.summary(measured, ranks=len(record.timeline.ranks), hosts=max(hosts, 1)) if measured else "",
        system=environment.os,
        driver=environment.device.driver or "",
        framework=f"pytorch-{environment.torch}" if environment.torch else "",
        software=", ".join(f"{name} {version}" for name, version in versions.items() if version),
    )
