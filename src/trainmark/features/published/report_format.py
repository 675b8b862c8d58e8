"""Writes runs as pages in the forms that FlagPerf and DeepSpark publish."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from trainmark import workloads
from trainmark.analysis import device_names as names
from trainmark.analysis.beside import is_hand_written
from trainmark.analysis.comparison import stability_of_repeats
from trainmark.analysis.device_names import tidy
from trainmark.analysis.scaling import find_scalings
from trainmark.features.published.cells import is_half
from trainmark.record import escape, workload_facts
from trainmark.record.doubts import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.format import device_name, format_goal, format_quality, summarise_links
from trainmark.record.language import Say, translator
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.numbers import digits_to_tell_apart
from trainmark.record.plan import Plan, Topology
from trainmark.record.published_row import PublishedRow, Source
from trainmark.record.recipe import fix_hp, get_recipe_kind
from trainmark.record.record import Record, translate_coverage

NOT_GIVEN = "/"
"""What FlagPerf's pages write where nothing was measured or collected."""
FLOPS = "6 x parameters"
"""By which pages of language models count FLOPs."""
FLAGPERF_SHOWN = ("p_whole", "p_train", "p_core", "mem", "mem_total")
LAST = ("mem", "MFU")
"""Columns that stand at the end of the table of results."""
DEEPSPARK_SHOWN = ("p_train", "p_steady", "power_steady", "mem_steady")
NOT_MEASURED = "-"
"""What DeepSpark's pages write where nothing was measured."""
CODE = "```"
DATA = "DATA"
"""Placeholder for the reader's data folder."""
_PLAIN = re.compile(r"[\w.,=+/-]{1,60}", re.ASCII)


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
        return workloads.quality_word(self.records[0].quality.name)

    @property
    def column(self) -> str:
        """What published pages of the model call that column."""
        known = workloads.facts_of(self.records[0])
        return (known.quality_on_pages if known else "") or self.quality

    @property
    def goal(self) -> str:
        """`≥ 75.5 %`."""
        return format_goal(self.records[0].quality)


def make_section(records: Sequence[Record]) -> WrittenSection:
    return WrittenSection(records=tuple(records), rows=tuple(map(make_row, records)))


def write_sections(records: Sequence[Record], write: Callable[[WrittenSection], Iterable[str]]) -> str:
    """A page of one section for all runs that can share a table's heads, in the order they were given."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        quality = record.quality
        key = (record.plan.workload, record.item, quality.name, quality.unit, quality.goal, quality.better)
        groups.setdefault(key, []).append(record)
    return "\n".join(chain.from_iterable((*write(make_section(members)), "") for members in groups.values()))


class Strong(str):
    """Bold text in a table."""

    __slots__ = ()


def format_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table, cells escaped."""
    heads = list(heads)
    return [_format_line(heads), "| " + " | ".join("---" for _ in heads) + " |", *map(_format_line, rows)]


def _format_line(cells: Iterable[str]) -> str:
    texts = ((escape.markdown_cell(cell), isinstance(cell, Strong)) for cell in cells)
    return "| " + " | ".join(f"**{text}**" if strong else text for text, strong in texts) + " |"


def list_notes(
    section: WrittenSection, lang: str, shown: Sequence[str], more: Callable[[Record], Iterable[str]] = lambda _: ()
) -> list[str]:
    """Numbered notes with the rows they are about, including why a shown metric is missing."""
    say = translator(lang)
    about: dict[str, list[str]] = {}
    for index, record in enumerate(section.records, 1):
        for sentence in chain(_list_sentences(record, shown, say), more(record)):
            about.setdefault(sentence, []).append(str(index))
    lines = []
    for number, (sentence, rows) in enumerate(about.items(), 1):
        which = (say("row {rows}") if len(rows) == 1 else say("rows {rows}")).format(rows=", ".join(rows))
        lines.append(f"{number}. {which}: {escape.markdown_cell(sentence)}")
    return lines


def _list_sentences(record: Record, shown: Sequence[str], say: Say) -> Iterator[str]:
    if record.status != "valid":
        statuses = {"invalid": say("invalid"), "incomplete": say("incomplete")}
        yield f"{statuses[record.status]}: {translate_ending(record.ended, say)}"
    if record.precision != record.plan.precision:
        yield say("{asked} was requested, {ran} ran").format(asked=record.plan.precision, ran=record.precision)
    if is_hand_written(record):
        yield say("some gradients are hand-written (implementation=fast); published runs are of the plain network")
    missing: dict[str, list[str]] = {}
    for alias in shown:
        if find_metric(record, alias) is None:
            reason = record.metrics[alias].unavailable if alias in record.metrics else None
            missing.setdefault(say(reason) if reason else say("not on the record"), []).append(alias)
    for why, aliases in missing.items():
        yield say("no {metrics}: {reason}").format(metrics=", ".join(aliases), reason=why)
    yield say("throughputs cover {coverage}").format(coverage=translate_coverage(record, say))
    yield from (translate_doubt(doubt, say) for doubt in record.doubts)


def describe_data_set(record: Record, say: Say) -> str:
    """Where the data comes from."""
    name = escape.markdown_cell(record.plan.data.name)
    if record.plan.data.synthetic:
        return say("{name}, synthetic: `trainmark data make {name}` makes it; it is not the real set").format(name=name)
    return say("{name}: `trainmark data prepare {name}` makes it of the files its publisher offers").format(name=name)


def list_machines(section: WrittenSection, say: Say) -> Iterator[dict[str, str]]:
    """The environment of every machine of a section once, with all its link measurements; empty where not collected."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for record, row in zip(section.records, section.rows, strict=True):
        measured, ranks = record.environment.link, record.timeline.ranks
        hosts = max(len({trace.host for trace in ranks}), 1)
        links = [summarise_links(measured, ranks=len(ranks), hosts=hosts, say=say)] if measured else []
        found.setdefault(tuple(_describe_machine(record, row, say).items()), []).extend(links)
    for machine, links in found.items():
        yield {**dict(machine), "network": say("; ").join(dict.fromkeys(links))}


def _describe_machine(record: Record, row: PublishedRow, say: Say) -> dict[str, str]:
    environment, platform = record.environment, record.environment.platform
    cores = environment.cpu.logical_cores
    versions = {name: getattr(environment, name) for name in ("python", "numpy", "trainmark")}
    plugin = f"{platform.plugin} {platform.plugin_version or ''}".strip() if platform.plugin else ""
    return {
        "model": environment.machine,
        "device": row.device,
        "vendor": row.vendor,
        "cpu": environment.cpu.name + (say(", {cores} logical cores").format(cores=cores) if cores else ""),
        "distribution": environment.distribution,
        "kernel": environment.os,
        "driver": environment.device.driver or "",
        # the device's PyTorch plugin, or what PyTorch was built with
        "sdk": plugin or environment.torch.partition("+")[2],
        "framework": f"pytorch-{environment.torch}" if environment.torch else "",
        "container": environment.container,
        "software": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }


# A run as a row of a published table, rounded as written


def make_row(record: Record) -> PublishedRow:
    """A run as a published row; time and quality only for a full training, as on published pages."""
    plan, quality = record.plan, record.quality
    vendor, device = tidy(plan.platform_word), tidy(device_name(record))
    if device.casefold().startswith(f"{vendor.casefold()} "):
        device = device[len(vendor) :].strip()
    value = quality.value if plan.limits.full else None
    if value is not None:
        value = round_digits(value, digits_to_tell_apart(value, quality.goal, quality.better, least=5))
    return PublishedRow(
        name=record.run_id,
        source=Source(title=record.run_id, address="", date=record.created[:10]),
        vendor=vendor,
        device=names.parse_device(device.rstrip(" ,") or vendor).name,
        workload=tidy(plan.workload),
        topology=plan.topology,
        precision=tidy(record.precision),
        fix_hp=tidy(fix_hp(plan.deviations, most=len(plan.deviations))),
        batch_per_device=int(plan.recipe["batch_per_device"]) if "batch_per_device" in plan.recipe else None,
        item=tidy(record.item),
        e2e_time_s=_round_metric(record, "e2e_time") if plan.limits.full else None,
        p_whole=_round_speed(record, "p_whole"),
        p_train=_round_speed(record, "p_train"),
        p_core=_round_speed(record, "p_core"),
        quality_name=quality.name,
        quality_unit=quality.unit or "-",
        quality=value,
        target=quality.goal,
        better=quality.better,
        mem_used_gib=round_memory(find_metric(record, "mem")),
        mem_total_gib=round_memory(find_metric(record, "mem_total")),
        remark=None,
    )


def round_digits(value: float, digits: int = 5) -> float:
    """Rounds to significant digits; the integer part is kept."""
    return float(round(value)) if abs(value) >= 10 ** (digits - 1) else float(f"{value:.{digits}g}")


def format_exact(value: float | None, unit: str = "") -> str:
    """A figure that parses back to the same value, without an exponent."""
    if value is None:
        return ""
    text = format(Decimal(repr(value)), "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit


def find_metric(record: Record, alias: str) -> float | None:
    quantity = record.metrics.get(alias)
    return quantity.value if quantity else None


def _round_metric(record: Record, alias: str) -> float | None:
    value = find_metric(record, alias)
    return None if value is None else round_digits(value)


def _round_speed(record: Record, alias: str, devices: int = 1) -> float | None:
    """To a tenth of the widest interval's half-width: all throughputs to one digit, so that their order stays."""
    value = find_metric(record, alias)
    if not value:
        return value
    speeds = (record.metrics.get(each) for each in (*THROUGHPUTS, alias))
    intervals = [speed.interval for speed in speeds if speed and speed.interval]
    error = max(((high - low) / 2 / devices for low, high in intervals), default=0.0)
    value /= devices
    if not 0 < error < math.inf:
        return round_digits(value)
    last = min(math.floor(math.log10(error / 10)), math.floor(math.log10(value)) - 1)
    return round_digits(round(value, -last))


def round_memory(value: float | None) -> float | None:
    return None if value is None else round(value, 1) if value >= 10 else round_digits(value, 3)


# FlagPerf: a table of metrics and a row for each run


class _Column(NamedTuple):
    """A column of the results, and the row that explains it in the table of metrics."""

    head: str
    write: Callable[[PublishedRow, Record], str]
    name: str = ""
    """Empty where the table of metrics does not list it."""
    note: str = ""
    strong: bool = False


def write_flagperf(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`): a section for each model and target."""
    return write_sections(records, partial(_write_flagperf_section, lang=lang, say=translator(lang, "flagperf")))


def _write_flagperf_section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    record = section.records[0]
    yield "### " + say("Data set")
    yield describe_data_set(record, say)
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
    columns = _list_columns(section, say)
    metrics = list(_describe_runs(section, say))
    for column in filter(lambda column: column.name, columns):
        text = Strong if column.strong else str
        shown = text(say("{word}, see Performance").format(word=column.head))
        metrics.append((text(column.name), shown, column.note))
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
    if lines := list_notes(section, lang, FLAGPERF_SHOWN):
        yield from ("", say("Notes:"), "", *lines)


def _write_environment(machine: dict[str, str], say: Say) -> Iterator[str]:
    container = say("{runtime}, version not known inside").format(runtime=machine["container"])
    if machine["container"] in ("", "none"):
        container = say("no container was used") if machine["container"] else ""
    hardware = {
        say("Machine model"): machine["model"],
        say("Accelerator model"): machine["device"],
        say("CPU model"): machine["cpu"],
        say("Network between nodes, measured"): machine["network"],
    }
    software = {
        say("OS version"): machine["distribution"],
        say("OS kernel version"): machine["kernel"],
        say("Driver of the device"): machine["driver"],
        say("Docker version"): container,
        say("Framework"): machine["framework"],
        say("Other software"): machine["software"],
    }
    for heading, entries in ((say("Hardware"), hardware), (say("Software"), software)):
        yield f"- ##### {heading}"
        yield from (f"    - {name}: {escape.markdown_cell(value) or NOT_GIVEN}" for name, value in entries.items())


def _describe_runs(section: WrittenSection, say: Say) -> Iterator[tuple[str, str, str]]:
    """Rows of the table of metrics that say what was trained on what."""
    record = section.records[0]
    known, data = workloads.facts_of(record), record.plan.data
    yield say("Task category"), say((known.task if known else "") or NOT_GIVEN), ""
    yield say("Model"), section.first.workload, ""
    yield say("Data set"), data.name, say("synthetic, not the real set") if data.synthetic else ""
    for name in dict.fromkeys(f"{row.vendor} {_label_device(row, section)}" for row in section.rows):
        yield say("Device name"), name, ""


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
            _Column("token/p/s", _format_token_rate, say("Throughput"), rate, strong=True),
            _Column("loss", lambda row, _: format_exact(row.quality) or NOT_GIVEN),
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
    return _Column(head, lambda row, _: format_exact(getattr(row, field), unit) or NOT_GIVEN, name, note)


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
        return NOT_GIVEN
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
    return str(all(place == "in the band" for place in places)) if places else NOT_GIVEN


def _format_token_rate(row: PublishedRow, record: Record) -> str:
    devices = Topology.parse(row.topology).devices
    return format_exact(_round_speed(record, "p_train", devices)) or NOT_GIVEN


def _format_mfu(record: Record) -> str:
    used, flops = find_metric(record, "mfu"), record.environment.flops
    if used is None or flops is None or FLOPS not in flops.otherwise:
        return NOT_GIVEN
    return f"{format_exact(round_digits(used * flops.otherwise[FLOPS] / flops.per_item, 3))}%"


# DeepSpark: its sections and its six columns, each by its own definition


def write_deepspark(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`), with the units such pages leave out."""
    return write_sections(records, partial(_write_deepspark_section, lang=lang, say=translator(lang)))


def _write_deepspark_section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    runs = _group_repeats(section.records)
    shown = make_section(list(map(_find_median, runs)))
    commands = dict.fromkeys(
        format_command(record.plan, repeat=len(repeats), device_type=record.environment.device.type)
        for record, repeats in zip(shown.records, runs, strict=True)
    )
    listed = ", ".join(escape.markdown_cell(record.run_id) for record in section.records)
    yield f"# {escape.markdown_cell(workloads.title_of(section.records[0]))}"
    parts = {
        "## " + say("Model Description"): [_describe_model(section, say)],
        "## " + say("Supported Environments"): _environment_table(shown, say),
        "## " + say("Model Preparation"): [],
        "### " + say("Prepare Resources"): [describe_data_set(section.records[0], say)],
        "### " + say("Install Dependencies"): [f"{CODE}sh", "pip3 install -c constraints.txt .", CODE],
        "## " + say("Model Training"): [f"{CODE}sh", *commands, CODE],
        "## " + say("Model Results"): [*_speed_table(shown, say), "", *_result_table(runs, section, say)],
        say("By DeepSpark's definitions:"): [f"- {line}" for line in _list_definitions(runs, say)],
        say("Notes:"): list_notes(
            shown, lang, DEEPSPARK_SHOWN, lambda record: _explain_no_scalability(record, section, say)
        ),
        "## " + say("References"): [
            "- " + say("Runs, whose records `trainmark audit` checks: {runs}").format(runs=listed)
        ],
    }
    for heading, lines in parts.items():
        yield from ("", heading, *(("", *lines) if lines else ()))


def _group_repeats(records: Sequence[Record]) -> list[list[Record]]:
    """The runs of every row of the page, which shows the one whose quality is the median."""
    groups: dict[object, list[Record]] = {}
    for index, record in enumerate(records):
        groups.setdefault((record.group, record.plan.topology) if record.group else index, []).append(record)
    return list(groups.values())


def _find_median(repeats: Sequence[Record]) -> Record:
    known = sorted((one for one in repeats if one.quality.value is not None), key=lambda one: one.quality.value or 0.0)
    return (known or repeats)[(len(known or repeats) - 1) // 2]


def _describe_model(section: WrittenSection, say: Say) -> str:
    record = section.records[0]
    known = workloads.facts_of(record)
    task = known.task if known else ""
    return say("{title}: {task}, trained on {data}. Throughput counts {item}; quality is {quality} ({goal}).").format(
        title=escape.markdown_cell(workloads.title_of(record)),
        task=escape.markdown_cell(say(task) if task else section.first.workload),
        data=escape.markdown_cell(record.plan.data.name),
        item=escape.markdown_cell(record.item),
        quality=escape.markdown_cell(section.quality),
        goal=escape.markdown_cell(section.goal),
    )


def _environment_table(section: WrittenSection, say: Say) -> list[str]:
    heads = ("GPU", say("Vendor"), "SDK", "Release", say("Driver"), say("Framework"), say("System"))
    releases = " / ".join(dict.fromkeys(f"trainmark {record.trainmark}" for record in section.records))
    names = ("device", "vendor", "sdk", "release", "driver", "framework", "kernel")
    found = ({**machine, "release": releases} for machine in list_machines(section, say))
    return format_table(heads, ([machine[name] or NOT_MEASURED for name in names] for machine in found))


def _speed_table(section: WrittenSection, say: Say) -> list[str]:
    rate, score = f"FPS (p_train, {section.first.item}/s)", say("Score ({score})").format(score=_score_name(section))
    rows = []
    for row in section.rows:
        count = row.topology.replace("1x", "x", 1) if row.topology.startswith("1x") else row.topology
        figures = (format_exact(row.p_train), format_exact(row.quality))
        rows.append((f"{row.device} {count}", str(is_half(row.precision)), *figures))
    return format_table(("GPU", "FP16", rate, score), rows)


def _score_name(section: WrittenSection) -> str:
    unit = section.first.quality_unit
    return f"{section.quality}, {unit}" if unit not in (None, "-") else section.quality


def _result_table(runs: Sequence[Sequence[Record]], section: WrittenSection, say: Say) -> list[str]:
    heads = (
        say("Convergence criteria"),
        say("Configuration (x denotes number of GPUs)"),
        say("Performance ({rate})").format(rate=f"p_steady, {section.first.item}/s"),
        say("Accuracy ({score})").format(score=_score_name(section)),
        say("Power (W)"),
        say("Scalability"),
        say("Memory utilization (GiB)"),
        say("Stability"),
    )
    return format_table(heads, ([cell or NOT_MEASURED for cell in _result_cells(run, section, say)] for run in runs))


def _result_cells(repeats: Sequence[Record], section: WrittenSection, say: Say) -> Iterator[str]:
    record = _find_median(repeats)
    row, topology = make_row(record), Topology.parse(record.plan.topology)
    count = f"{topology.devices_per_node}x" if topology.nodes == 1 else str(topology)
    batch = f"bs:{row.batch_per_device}/device," if row.batch_per_device is not None else ""
    sign = "≥" if row.better == "higher" else "≤"
    speed = _round_speed(record, "p_steady")
    power, memory = (find_metric(record, alias) for alias in ("power_steady", "mem_steady"))
    # ranks on processors share those of their node, and its memory
    metered = topology.nodes if record.environment.device.type == "cpu" else topology.devices
    yield f"{section.quality}{sign}{format_exact(row.target)}{'%' if row.quality_unit == '%' else ''}"
    yield f"trainmark {record.trainmark},{batch}{count},{row.precision}"
    yield format_exact(speed)
    yield format_exact(row.quality)
    yield "" if power is None else f"{format_exact(round_digits(power))}*{metered}"
    yield _format_scalability(record, section, say)
    yield "" if memory is None else f"{format_exact(round_memory(memory))}*{metered}"
    yield format_exact(stability_of_repeats(repeats))


def _format_scalability(record: Record, section: WrittenSection, say: Say) -> str:
    """`0.96 (card)`: relative to one card, or to one node where no single card was run alike."""
    own = Topology.parse(record.plan.topology)
    for found in find_scalings(section.records, "p_steady"):
        here = next((point for point in found.points if record.run_id in point.runs), None)
        if found.kind != "weak" or here is None or here.throughput.value is None:
            continue
        card, node = (Topology(nodes=1, devices_per_node=count) for count in (1, own.devices_per_node))
        for word, base in ((say("card"), card), (say("node"), node)):
            alone = next((point.throughput.value for point in found.points if point.topology == base), None)
            if alone and base != own:
                share = here.throughput.value * base.devices / own.devices / alone
                return f"{format_exact(round_digits(share, 3))} ({word})"
    return ""


def _explain_no_scalability(record: Record, section: WrittenSection, say: Say) -> Iterator[str]:
    if _format_scalability(record, section, say):
        return
    if Topology.parse(record.plan.topology).devices == 1:
        yield say("no scalability: it is one card, with which the others are compared")
    elif get_recipe_kind(record.plan.recipe_name).shares_batch:
        yield say("no scalability: its recipe divides one batch over the cards; DeepSpark's batch grows with them")
    else:
        yield say("no scalability: no run of one card or one node with the same batch per card is on this page")


def _list_definitions(runs: Sequence[Sequence[Record]], say: Say) -> Iterator[str]:
    """How the columns are computed, which differs from our metrics of similar names."""
    yield say(
        "Performance is p_steady: the mean of the middle 3 of 5 equal parts of steady training, data loading included, "
        "evaluation left out, over all cards."
    )
    yield say("Power and Memory are means per card over steady training, by the device's tool, times cards.")
    yield say("Scalability is Performance by cards (or nodes) over Performance of one card (or node).")
    yield say(
        "Stability is 1 - 0.2 for each of 5 trainings to the criterion that ended further than 1 % from their median; "
        "- where not all 5 reached it, or fewer were made."
    )
    for number, repeats in enumerate(runs, 1):
        if len(repeats) > 1:
            values = " / ".join(format_quality(record.quality) for record in repeats)
            yield say("Row {row} is the repeat with the median quality of {values}.").format(
                row=number, values=escape.markdown_cell(values)
            )


# The command that runs a plan again


def format_command(plan: Plan, *, repeat: int = 1, device_type: str = "cpu") -> str:
    """With what differs from the plan's recipe as arguments; one line without control characters."""
    return escape.terminal(shlex.join(_list_arguments(plan, repeat, device_type)))


def _find_usual(plan: Plan, device_type: str) -> tuple[str, dict[str, Any]]:
    """The recipe that was typed, with its values; the reference recipe, as then, where that one is not known here."""
    usual: dict[str, Any] = {deviation.name: deviation.reference for deviation in plan.deviations}
    tables = workloads.read_recipe_tables(plan.workload) if plan.workload in workloads.names() else {}
    if plan.recipe_name == "reference" or plan.recipe_name not in tables or plan.workload_source:
        return "reference", usual
    own = tables[plan.recipe_name]
    usual |= {**own, **(own.get("on_accelerators", {}) if device_type != "cpu" else {})}
    batch = usual.get("batch_per_device", plan.recipe.get("batch_per_device"))
    if get_recipe_kind(plan.recipe_name).shares_batch and batch:
        usual["batch_per_device"] = math.ceil(batch / Topology.parse(plan.topology).devices)
    return plan.recipe_name, usual


def _list_arguments(plan: Plan, repeat: int, device_type: str) -> Iterator[str]:
    recipe, usual = _find_usual(plan, device_type)
    yield from ("trainmark", "run", plan.workload, "--recipe", recipe)
    for name, actual in plan.recipe.items():
        value = {True: "yes", False: "no"}[actual] if isinstance(actual, bool) else actual
        setting = f"{name}={value}"
        if name in usual and usual[name] != actual and _PLAIN.fullmatch(setting):
            yield from ("--set", setting)
    yield from ("--topology", plan.topology, "--precision", plan.precision, "--platform", plan.platform_word)
    if not plan.data.synthetic:
        yield from ("--data", DATA)
    for name in ("steps", "seconds", "epochs", "items"):
        if (limit := getattr(plan.limits, name)) is not None:
            yield from (f"--{name}", f"{limit:g}" if isinstance(limit, float) else str(limit))
    if repeat > 1:
        yield from ("--repeat", str(repeat))


FORMATS = {
    "flagperf": lambda records, *, language, folders: write_flagperf(records, lang=language),
    "deepspark": lambda records, *, language, folders: write_deepspark(records, lang=language),
}
