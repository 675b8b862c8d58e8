"""Writes runs as a page with a table of metrics and a row for each run, in the form FlagPerf publishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainmark import workloads
from trainmark.published import flagperf_language, names
from trainmark.published.own_rows import written
from trainmark.published.write import Machine, Strong, WrittenSection, data_set, machines, notes, sections, table
from trainmark.spec import escape
from trainmark.spec.language import Say, speaker
from trainmark.spec.topology import Topology

if TYPE_CHECKING:
    from trainmark.spec.published_row import PublishedRow
    from trainmark.spec.record import Record

UNKNOWN = "/"
"""What such pages write where nothing was measured or collected."""
SHOWN = ("p_whole", "p_train", "p_core", "mem", "mem_total")


def write(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`): a section for each model and target."""
    say = speaker(lang, "flagperf")
    return "\n".join(line for section in sections(records) for line in (*_section(section, lang, say), ""))


def _section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    yield "### " + say("Data set")
    yield data_set(section.records[0], say)
    yield ""
    devices = " / ".join(dict.fromkeys(f"{row.vendor} {row.device}" for row in section.rows))
    yield "### " + say("{devices}: configuration and results").format(devices=escape.markdown_cell(devices))
    yield "#### " + say("Environment")
    for machine in machines(section, say):
        yield from _environment(machine, say)
    yield ""
    yield "### " + say("Results")
    yield "* " + say("General metrics")
    yield ""
    language = flagperf_language.is_meant(section)
    metrics = flagperf_language.metrics(section, say) if language else _metrics(section, say)
    yield from table((say("Metric"), say("Value"), say("Notes")), metrics)
    yield ""
    yield "* " + say("Performance")
    yield ""
    if language:
        yield from flagperf_language.performance(
            section, lambda row: _configuration(_shown(row, section), Topology.parse(row.topology), say), _memory, say
        )
    else:
        yield from _performance(section, say)
    if lines := notes(section, lang, SHOWN):
        yield ""
        yield say("Notes:")
        yield ""
        yield from lines


def _performance(section: WrittenSection, say: Say) -> Iterator[str]:
    yield from table(
        (
            say("Configuration"), "precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core",
            section.column, "mem",
        ),
        (_row(row, section, say) for row in section.rows),
    )  # fmt: skip


def _environment(machine: Machine, say: Say) -> Iterator[str]:
    def item(name: str, value: str) -> str:
        return f"    - {name}: {escape.markdown_cell(value) or UNKNOWN}"

    yield "- ##### " + say("Hardware")
    yield item(say("Machine model"), machine.model)
    yield item(say("Accelerator model"), machine.device)
    yield item(say("CPU model"), machine.cpu)
    yield item(say("Network between nodes, measured"), machine.network)
    yield "- ##### " + say("Software")
    yield item(say("OS version"), machine.distribution)
    yield item(say("OS kernel version"), machine.kernel)
    yield item(say("Driver of the device"), machine.driver)
    yield item(say("Docker version"), _container(machine, say))
    yield item(say("Framework"), machine.framework)
    yield item(say("Other software"), machine.software)


def _metrics(section: WrittenSection, say: Say) -> Iterator[tuple[str, str, str]]:
    """Every row of the table of metrics: its name, where its value stands, what it means."""

    def see(word: str) -> str:
        return say("{word}, see Performance").format(word=word)

    first, record = section.first, section.records[0]
    rate = say("unit: {item}/s").format(item=first.item)
    known = workloads.facts_of(record)
    task = (known.task if known else "") or "/"
    data = record.plan.data
    kind = say("synthetic, not the real set") if data.synthetic else ""
    yield say("Task category"), say(task), ""
    yield say("Model"), first.workload, ""
    yield say("Data set"), data.name, kind
    yield say("Data precision"), see("precision"), say("read back from what ran")
    yield (
        say("Hyper-parameter changes"),
        see("fix_hp"),
        say("computed against the reference recipe; / where none"),
    )
    for name in dict.fromkeys(f"{row.vendor} {_shown(row, section)}" for row in section.rows):
        yield say("Device name"), name, ""
    yield (
        say("Device memory"),
        see("mem"),
        say("unit: GiB; peak of the worst rank / memory of one device"),
    )
    yield (
        say("End-to-end time"),
        see("e2e_time"),
        say("unit: s; from launch to the end, of full runs"),
    )
    yield (
        say("Overall throughput"),
        see("p_whole"),
        say("{unit}; evaluation and data wait included").format(unit=rate),
    )
    yield (
        say("Training throughput"),
        see("p_train"),
        say("{unit}; without evaluation").format(unit=rate),
    )
    yield (
        Strong(say("Compute throughput")),
        Strong(see("p_core")),
        say("{unit}; without evaluation and data wait").format(unit=rate),
    )
    yield say("Training result"), see(section.column), say("target {goal}").format(goal=section.goal)
    yield say("Further changes"), say("; ").join(_changes(section, say)) or say("none"), ""


def _container(machine: Machine, say: Say) -> str:
    """Inside a container its runtime's version is not known."""
    if machine.container == "none":
        return say("no container was used")
    return say("{runtime}, version not known inside").format(runtime=machine.container) if machine.container else ""


def _changes(section: WrittenSection, say: Say) -> Iterator[str]:
    """What was done otherwise than a plain training and stands in no other row of the table."""
    if any(record.plan.init_from for record in section.records):
        yield say("training began with given weights")
    if any(record.plan.resume_from for record in section.records):
        yield say("training went on from a checkpoint")
    if any(record.restarts for record in section.records):
        yield say("ranks were started again after failures")
    if left := sum(len(record.skipped_files) for record in section.records):
        yield say("{count} unreadable data files were left out").format(count=left)


def _row(row: PublishedRow, section: WrittenSection, say: Say) -> tuple[str, ...]:
    topology = Topology.parse(row.topology)
    unit = row.quality_unit if row.quality_unit not in (None, "-") else ""
    return (
        _configuration(_shown(row, section), topology, say),
        row.precision,
        row.fix_hp or "",
        written(row.e2e_time_s) or UNKNOWN,
        written(row.p_whole) or UNKNOWN,
        written(row.p_train) or UNKNOWN,
        written(row.p_core) or UNKNOWN,
        written(row.quality, unit or "") or UNKNOWN,
        _memory(row),
    )


def _shown(row: PublishedRow, section: WrittenSection) -> str:
    """The short name of a row's device, or all of it where another device of the section has the same."""
    short = names.short_device(row.device)
    alike = {other.device for other in section.rows if names.short_device(other.device) == short}
    return short if len(alike) == 1 else row.device


def _configuration(device: str, topology: Topology, say: Say) -> str:
    few = {1: say("1 node"), 2: say("2 nodes")}
    nodes = few.get(topology.nodes) or say("{count} nodes").format(count=topology.nodes)
    each = topology.devices_per_node
    devices = say("1 device") if each == 1 else say("{count} devices").format(count=each)
    return say("{device} {nodes}, {devices} ({topology})").format(
        device=device, nodes=nodes, devices=devices, topology=topology
    )


def _memory(row: PublishedRow) -> str:
    if row.mem_used_gib is None and row.mem_total_gib is None:
        return UNKNOWN
    return "/".join(_decimal(value) for value in (row.mem_used_gib, row.mem_total_gib))


def _decimal(value: float | None) -> str:
    text = written(value)
    return f"{text}.0" if text and "." not in text else text
