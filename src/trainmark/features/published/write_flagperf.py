"""Writes runs as a page with a table of metrics and a row for each run, in the form FlagPerf publishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmark import workloads
from trainmark.analysis import device_names as names
from trainmark.features.published.write import (
    Machine,
    Strong,
    WrittenSection,
    describe_data_set,
    format_exact,
    format_table,
    group_sections,
    list_machines,
    list_notes,
    round_digits,
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


def write(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`): a section for each model and target."""
    say = translator(lang, "flagperf")
    return "\n".join(line for section in group_sections(records) for line in (*_write_section(section, lang, say), ""))


def _write_section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    yield "### " + say("Data set")
    yield describe_data_set(section.records[0], say)
    yield ""
    devices = " / ".join(dict.fromkeys(f"{row.vendor} {row.device}" for row in section.rows))
    yield "### " + say("{devices}: configuration and results").format(devices=escape.markdown_cell(devices))
    yield "#### " + say("Environment")
    for machine in list_machines(section, say):
        yield from _write_environment(machine, say)
    yield ""
    yield "### " + say("Results")
    yield "* " + say("General metrics")
    yield ""
    language = _is_language(section)
    metrics = [*_common_metrics(section, say, language=language)]
    metrics += _language_metrics(say) if language else _metrics(section, say)
    yield from format_table((say("Metric"), say("Value"), say("Notes")), metrics)
    yield ""
    yield "* " + say("Performance")
    yield ""
    heads = _language_heads(say) if language else _heads(section)
    cells = _language_cells if language else _cells
    rows = (
        (_format_configuration(row, section, say), row.precision, *cells(row, record))
        for row, record in zip(section.rows, section.records, strict=True)
    )
    yield from format_table((say("Configuration"), "precision", *heads), rows)
    if lines := list_notes(section, lang, SHOWN):
        yield ""
        yield say("Notes:")
        yield ""
        yield from lines


def _write_environment(machine: Machine, say: Say) -> Iterator[str]:
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
    yield item(say("Docker version"), _describe_container(machine, say))
    yield item(say("Framework"), machine.framework)
    yield item(say("Other software"), machine.software)


def _refer_to(word: str, say: Say) -> str:
    return say("{word}, see Performance").format(word=word)


def _common_metrics(section: WrittenSection, say: Say, *, language: bool) -> Iterator[tuple[str, str, str]]:
    """Rows of the table of metrics: a name, where its value stands, what it means."""
    record = section.records[0]
    known, data = workloads.facts_of(record), record.plan.data
    task = (known.task if known else "") or UNKNOWN
    yield say("Task category"), say(task), ""
    yield say("Model"), section.first.workload, ""
    yield say("Data set"), data.name, say("synthetic, not the real set") if data.synthetic else ""
    yield say("Data precision"), _refer_to("precision", say), say("read back from what ran")
    if language:
        yield say("Hyper-parameter changes"), _refer_to("parallel", say), say("how ranks share the network")
    changes = say("computed against the reference recipe; / where none")
    yield say("Hyper-parameter changes"), _refer_to("fix_hp", say), changes
    shown = (row.device if language else _device_label(row, section) for row in section.rows)
    for name in dict.fromkeys(f"{row.vendor} {name}" for row, name in zip(section.rows, shown, strict=True)):
        yield say("Device name"), name, ""
    yield say("Device memory"), _refer_to("mem", say), say("unit: GiB; peak of the worst rank / memory of one device")


def _metrics(section: WrittenSection, say: Say) -> Iterator[tuple[str, str, str]]:
    rate = say("unit: {item}/s").format(item=section.first.item)
    whole, train = say("{unit}; evaluation and data wait included"), say("{unit}; without evaluation")
    core = say("{unit}; without evaluation and data wait").format(unit=rate)
    yield say("End-to-end time"), _refer_to("e2e_time", say), say("unit: s; from launch to the end, of full runs")
    yield say("Overall throughput"), _refer_to("p_whole", say), whole.format(unit=rate)
    yield say("Training throughput"), _refer_to("p_train", say), train.format(unit=rate)
    yield Strong(say("Compute throughput")), Strong(_refer_to("p_core", say)), core
    yield say("Training result"), _refer_to(section.column, say), say("target {goal}").format(goal=section.goal)
    yield say("Further changes"), say("; ").join(_list_changes(section, say)) or say("none"), ""


def _describe_container(machine: Machine, say: Say) -> str:
    """Inside a container its runtime's version is not known."""
    if machine.container == "none":
        return say("no container was used")
    return say("{runtime}, version not known inside").format(runtime=machine.container) if machine.container else ""


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


def _heads(section: WrittenSection) -> tuple[str, ...]:
    return "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", section.column, "mem"


def _cells(row: PublishedRow, _: Record) -> tuple[str, ...]:
    unit = row.quality_unit if row.quality_unit not in (None, "-") else ""
    measured = (row.e2e_time_s, row.p_whole, row.p_train, row.p_core)
    rates = (format_exact(value) or UNKNOWN for value in measured)
    return row.fix_hp or "", *rates, format_exact(row.quality, unit or "") or UNKNOWN, _format_memory(row)


def _device_label(row: PublishedRow, section: WrittenSection) -> str:
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
        device=_device_label(row, section), nodes=nodes, devices=devices, topology=topology
    )


def _format_memory(row: PublishedRow) -> str:
    if row.mem_used_gib is None and row.mem_total_gib is None:
        return UNKNOWN
    return "/".join(_format_decimal(value) for value in (row.mem_used_gib, row.mem_total_gib))


def _format_decimal(value: float | None) -> str:
    text = format_exact(value)
    return f"{text}.0" if text and "." not in text else text


# Language models: tokens per second and device, how ranks share the network, MFU


def _is_language(section: WrittenSection) -> bool:
    known = workloads.facts_of(section.records[0])
    return known is not None and known.item == "tokens"


def _language_metrics(say: Say) -> Iterator[tuple[str, str, str]]:
    yield say("Compute utilisation"), _refer_to("MFU", say), say("6 FLOPs for each parameter and token")
    yield (
        Strong(say("Throughput")),
        Strong(_refer_to("token/p/s", say)),
        say("tokens per second and device, p_train"),
    )


def _language_heads(say: Say) -> tuple[str, ...]:
    return "parallel", "fix_hp", "token/p/s", "loss", say("Loss aligned"), "mem", "MFU"


def _language_cells(row: PublishedRow, record: Record) -> tuple[str, ...]:
    rate, quality = _format_token_rate(row), format_exact(row.quality) or UNKNOWN
    return (
        describe_parallelism(record),
        row.fix_hp or "",
        rate,
        quality,
        describe_alignment(record),
        _format_memory(row),
        _format_mfu(record),
    )


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
    used, flops = record.metrics.get("mfu"), record.environment.flops
    if used is None or used.value is None or flops is None or FLOPS not in flops.otherwise:
        return UNKNOWN
    return f"{format_exact(round_digits(used.value * flops.otherwise[FLOPS] / flops.per_item, 3))}%"
