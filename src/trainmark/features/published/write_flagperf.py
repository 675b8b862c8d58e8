"""Writes runs as a page with a table of metrics and a row for each run, in the form FlagPerf publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from trainmark import workloads
from trainmark.analysis import device_names as names
from trainmark.features.published.write import (
    Machine,
    Strong,
    WrittenSection,
    describe_data_set,
    find_metric,
    format_exact,
    format_table,
    list_machines,
    list_notes,
    round_digits,
    write_sections,
)
from trainmark.record import escape, workload_facts
from trainmark.record.language import Say, translator
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record

UNKNOWN = "/"
"""What such pages write where nothing was measured or collected."""
FLOPS = "6 x parameters"
"""By which pages of language models count FLOPs."""
SHOWN = ("p_whole", "p_train", "p_core", "mem", "mem_total")
LAST = ("mem", "MFU")
"""Columns that stand at the end of the table of results."""


class _Column(NamedTuple):
    """A column of the results, and the row that explains it in the table of metrics."""

    head: str
    write: Callable[[PublishedRow, Record], str]
    name: str = ""
    """Empty where the table of metrics does not list it."""
    note: str = ""
    strong: bool = False


def write(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`): a section for each model and target."""
    return write_sections(records, partial(_write_section, lang=lang, say=translator(lang, "flagperf")))


def _write_section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    record = section.records[0]
    yield "### " + say("Data set")
    yield describe_data_set(record, say)
    yield ""
    devices = " / ".join(dict.fromkeys(f"{row.vendor} {row.device}" for row in section.rows))
    yield "### " + say("{devices}: configuration and results").format(devices=escape.markdown_cell(devices))
    yield "#### " + say("Environment")
    for machine, network in list_machines(section, say).items():
        yield from _write_environment(machine, network, say)
    yield ""
    yield "### " + say("Results")
    yield "* " + say("General metrics")
    yield ""
    columns = _list_columns(section, say)
    metrics = [*_describe_runs(section, say), *(_describe_column(one, say) for one in columns if one.name)]
    metrics.append((say("Further changes"), say("; ").join(_list_changes(section, say)) or say("none"), ""))
    yield from format_table((say("Metric"), say("Value"), say("Notes")), metrics)
    yield ""
    yield "* " + say("Performance")
    yield ""
    ordered = sorted(columns, key=lambda column: column.head in LAST)
    rows = (
        (_format_configuration(row, section, say), *(column.write(row, record) for column in ordered))
        for row, record in zip(section.rows, section.records, strict=True)
    )
    yield from format_table((say("Configuration"), *(column.head for column in ordered)), rows)
    if lines := list_notes(section, lang, SHOWN):
        yield from ("", say("Notes:"), "", *lines)


def _write_environment(machine: Machine, network: str, say: Say) -> Iterator[str]:
    container = say("{runtime}, version not known inside").format(runtime=machine.container)
    if machine.container in ("", "none"):
        container = say("no container was used") if machine.container else ""
    hardware = {
        say("Machine model"): machine.model,
        say("Accelerator model"): machine.device,
        say("CPU model"): machine.cpu,
        say("Network between nodes, measured"): network,
    }
    software = {
        say("OS version"): machine.distribution,
        say("OS kernel version"): machine.kernel,
        say("Driver of the device"): machine.driver,
        say("Docker version"): container,
        say("Framework"): machine.framework,
        say("Other software"): machine.software,
    }
    for heading, entries in ((say("Hardware"), hardware), (say("Software"), software)):
        yield f"- ##### {heading}"
        yield from (f"    - {name}: {escape.markdown_cell(value) or UNKNOWN}" for name, value in entries.items())


def _describe_runs(section: WrittenSection, say: Say) -> Iterator[tuple[str, str, str]]:
    """Rows of the table of metrics that say what was trained on what."""
    record = section.records[0]
    known, data = workloads.facts_of(record), record.plan.data
    yield say("Task category"), say((known.task if known else "") or UNKNOWN), ""
    yield say("Model"), section.first.workload, ""
    yield say("Data set"), data.name, say("synthetic, not the real set") if data.synthetic else ""
    for name in dict.fromkeys(f"{row.vendor} {_label_device(row, section)}" for row in section.rows):
        yield say("Device name"), name, ""


def _describe_column(column: _Column, say: Say) -> tuple[str, str, str]:
    text = Strong if column.strong else str
    return text(column.name), text(say("{word}, see Performance").format(word=column.head)), column.note


def _list_columns(section: WrittenSection, say: Say) -> list[_Column]:
    """In the order of the table of metrics; language models give tokens per second and device, and MFU."""
    note = say("computed against the reference recipe; / where none")
    memory = say("unit: GiB; peak of the worst rank / memory of one device")
    precision = _Column(
        "precision", lambda row, _: row.precision, say("Data precision"), say("read back from what ran")
    )
    fix_hp = _Column("fix_hp", lambda row, _: row.fix_hp or "", say("Hyper-parameter changes"), note)
    mem = _Column("mem", lambda row, _: _format_memory(row), say("Device memory"), memory)
    known = workloads.facts_of(section.records[0])
    if known is not None and known.item == "tokens":
        way, how = say("Hyper-parameter changes"), say("how ranks share the network")
        used, rate = say("6 FLOPs for each parameter and token"), say("tokens per second and device, p_train")
        return [
            precision,
            _Column("parallel", lambda _, record: describe_parallelism(record), way, how),
            fix_hp,
            mem,
            _Column("MFU", lambda _, record: _format_mfu(record), say("Compute utilisation"), used),
            _Column("token/p/s", lambda row, _: _format_token_rate(row), say("Throughput"), rate, strong=True),
            _Column("loss", lambda row, _: format_exact(row.quality) or UNKNOWN),
            _Column(say("Loss aligned"), lambda _, record: describe_alignment(record)),
        ]
    unit = say("unit: {item}/s").format(item=section.first.item)
    time = say("unit: s; from launch to the end, of full runs")
    whole = say("{unit}; evaluation and data wait included").format(unit=unit)
    train = say("{unit}; without evaluation").format(unit=unit)
    core = say("{unit}; without evaluation and data wait").format(unit=unit)
    target = say("target {goal}").format(goal=section.goal)
    share = (section.first.quality_unit or "").strip("-")
    return [
        precision,
        fix_hp,
        mem,
        _show_figure("e2e_time", "e2e_time_s", say("End-to-end time"), time),
        _show_figure("p_whole", "p_whole", say("Overall throughput"), whole),
        _show_figure("p_train", "p_train", say("Training throughput"), train),
        _show_figure("p_core", "p_core", say("Compute throughput"), core)._replace(strong=True),
        _show_figure(section.column, "quality", say("Training result"), target, share),
    ]


def _show_figure(head: str, field: str, name: str, note: str, unit: str = "") -> _Column:
    return _Column(head, lambda row, _: format_exact(getattr(row, field), unit) or UNKNOWN, name, note)


def _list_changes(section: WrittenSection, say: Say) -> Iterator[str]:
    """Deviations from a plain training that no other row of the table lists."""
    if any(record.plan.init_from for record in section.records):
        yield say("training began with given weights")
    if any(record.plan.resume_from for record in section.records):
        yield say("training went on from a checkpoint")
    if any(record.restarts for record in section.records):
        yield say("ranks were started again after failures")
    if left := sum(len(record.skipped_files) for record in section.records):
        yield say("{count} unreadable data files were left out").format(count=left)


def _label_device(row: PublishedRow, section: WrittenSection) -> str:
    """The short name of a row's device, or all of it where another device of the section has the same."""
    short = names.short_device(row.device)
    alike = {other.device for other in section.rows if names.short_device(other.device) == short}
    return short if len(alike) == 1 else row.device


def _format_configuration(row: PublishedRow, section: WrittenSection, say: Say) -> str:
    topology = Topology.parse(row.topology)
    few = {1: say("1 node"), 2: say("2 nodes")}
    nodes = few.get(topology.nodes) or say("{count} nodes").format(count=topology.nodes)
    each = topology.devices_per_node
    devices = say("1 device") if each == 1 else say("{count} devices").format(count=each)
    return say("{device} {nodes}, {devices} ({topology})").format(
        device=_label_device(row, section), nodes=nodes, devices=devices, topology=topology
    )


def _format_memory(row: PublishedRow) -> str:
    if row.mem_used_gib is None and row.mem_total_gib is None:
        return UNKNOWN
    texts = (format_exact(value) for value in (row.mem_used_gib, row.mem_total_gib))
    return "/".join(f"{text}.0" if text and "." not in text else text for text in texts)


# Language models


def describe_parallelism(record: Record) -> str:
    """How ranks share the network, in the pages' letters: DP for replicas, FSDP for shards, TP for tensor
    parallelism."""
    topology, way = Topology.parse(record.plan.topology), record.plan.recipe.get("parallel", "ddp")
    tensor = int(record.plan.recipe.get("tensor_parallel", 1))
    blocks = f"TP{tensor}" if tensor > 1 else ""
    if way == "fsdp":
        return f"FSDP{topology.devices // tensor}{blocks}"
    if way == "hsdp":
        return f"DP{topology.nodes}FSDP{topology.devices_per_node // tensor}{blocks}"
    return f"PP1DP{topology.devices}TP1"


def describe_alignment(record: Record) -> str:
    """Whether every evaluation lies in the band of public runs; unknown where there is no band."""
    known = workloads.facts_of(record)
    band = workload_facts.find_band(record.plan, known.bands) if known else None
    places = [one.place for one in workload_facts.compare_to_band(band, record.quality.history)] if band else []
    return str(all(place == "in the band" for place in places)) if places else UNKNOWN


def _format_token_rate(row: PublishedRow) -> str:
    if row.p_train is None:
        return UNKNOWN
    return format_exact(round_digits(row.p_train / Topology.parse(row.topology).devices))


def _format_mfu(record: Record) -> str:
    used, flops = find_metric(record, "mfu"), record.environment.flops
    if used is None or flops is None or FLOPS not in flops.otherwise:
        return UNKNOWN
    return f"{format_exact(round_digits(used * flops.otherwise[FLOPS] / flops.per_item, 3))}%"
