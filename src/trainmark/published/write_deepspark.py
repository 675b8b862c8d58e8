"""Writes runs as a page with a table of speed and score and one of everything else, in the form DeepSpark publishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainmark.published.own_rows import metric, rounded, written
from trainmark.published.write import WrittenSection, machines, notes, sections, table
from trainmark.spec import escape
from trainmark.spec.format import stability_percent
from trainmark.spec.language import Say, speaker
from trainmark.spec.precision import PRECISIONS
from trainmark.spec.topology import Topology

if TYPE_CHECKING:
    from trainmark.spec.published_row import PublishedRow
    from trainmark.spec.record import Record

SHOWN = ("p_train", "p_core", "power", "mem")


def write(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`), with the units such pages leave out."""
    return "\n".join(line for section in sections(records) for line in (*_section(section, lang, speaker(lang)), ""))


def _section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    rate, score = f"{section.first.item}/s", _score(section)
    yield f"# {escape.markdown_cell(section.first.workload)}"
    yield ""
    yield "## " + say("Supported Environments")
    yield ""
    yield from table(
        ("GPU", say("Vendor"), say("Driver"), say("Framework"), say("System")),
        _environments(section, say),
    )
    yield ""
    yield "## " + say("Model Results")
    yield ""
    yield from table(
        ("GPU", "FP16", f"FPS (p_train, {rate})", say("Score ({score})").format(score=score)),
        (_speed(row) for row in section.rows),
    )
    yield ""
    yield from table(_heads(section, say), (_whole(record, row, section) for record, row in _pairs(section)))
    if lines := notes(section, lang, SHOWN):
        yield ""
        yield say("Notes:")
        yield ""
        yield from lines


def _pairs(section: WrittenSection) -> list[tuple[Record, PublishedRow]]:
    return list(zip(section.records, section.rows, strict=True))


def _score(section: WrittenSection) -> str:
    unit = section.first.quality_unit
    return f"{section.quality}, {unit}" if unit not in (None, "-") else section.quality


def _heads(section: WrittenSection, say: Say) -> tuple[str, ...]:
    return (
        say("Convergence criteria"),
        say("Configuration (x denotes number of GPUs)"),
        say("Performance ({rate})").format(rate=f"p_core, {section.first.item}/s"),
        say("Accuracy ({score})").format(score=_score(section)),
        say("Power (W)"),
        say("Scalability (share of ideal by p_core)"),
        say("Memory utilization (GiB)"),
        say("Stability (spread of p_core over repeats, %)"),
    )


def _environments(section: WrittenSection, say: Say) -> list[tuple[str, ...]]:
    vendors = {row.device: row.vendor for row in section.rows}
    return [
        (machine.device, vendors[machine.device], machine.driver, machine.framework, machine.kernel)
        for machine in machines(section, say)
    ]


def _speed(row: PublishedRow) -> tuple[str, ...]:
    topology = Topology.parse(row.topology)
    count = f"x{topology.devices_per_node}" if topology.nodes == 1 else str(topology)
    return f"{row.device} {count}", str(_is_half(row.precision)), written(row.p_train), written(row.quality)


def _is_half(precision: str) -> bool:
    known = PRECISIONS.get(precision)
    return known is not None and known.family == "fp16"


def _whole(record: Record, row: PublishedRow, section: WrittenSection) -> tuple[str, ...]:
    topology = Topology.parse(row.topology)
    count = f"{topology.devices_per_node}x" if topology.nodes == 1 else str(topology)
    batch = f"bs:{row.batch_per_device}/device," if row.batch_per_device is not None else ""
    sign = "≥" if row.better == "higher" else "≤"
    power = metric(record, "power")
    return (
        f"{section.quality}{sign}{written(row.target)}{'%' if row.quality_unit == '%' else ''}",
        f"trainmark {record.trainmark},{batch}{count},{row.precision}",
        written(row.p_core),
        written(row.quality),
        "" if power is None else f"{written(rounded(power))}*{topology.devices}",
        written(_scalability(record, section)),
        "" if row.mem_used_gib is None else f"{written(row.mem_used_gib)}*{topology.devices}",
        written(_stability(record, section)),
    )


def _scalability(record: Record, section: WrittenSection) -> float | None:
    """Against the smallest topology that was run alike; none where there is no other."""
    from trainmark.analysis.scaling import all_scalings

    for found in all_scalings(section.records):
        for point in found.points[1:]:
            if record.run_id in point.runs and found.kind == "weak":
                return rounded(point.efficiency.value, 3)
    return None


def _stability(record: Record, section: WrittenSection) -> float | None:
    if record.group is None:
        return None
    values = [metric(other, "p_core") for other in section.records if other.group == record.group]
    spread = stability_percent([value for value in values if value is not None])
    return None if spread is None else rounded(spread, 3)
