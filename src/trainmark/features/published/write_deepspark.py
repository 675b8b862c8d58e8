"""Writes runs as a page with DeepSpark's sections and its six columns, each by DeepSpark's own definition."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trainmark import workloads
from trainmark.analysis.scaling import find_scalings
from trainmark.analysis.stability import stability_of_repeats
from trainmark.features.published.cells import is_half
from trainmark.features.published.write import (
    WrittenSection,
    describe_data_set,
    find_metric,
    format_exact,
    format_table,
    group_sections,
    list_machines,
    list_notes,
    make_row,
    round_digits,
    round_memory,
)
from trainmark.record import escape
from trainmark.record.format import format_quality
from trainmark.record.language import Say, translator
from trainmark.record.plan import Plan, Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record

SHOWN = ("p_train", "p_steady", "power_steady", "mem_steady")
UNKNOWN = "-"
"""What such pages write where nothing was measured."""
CODE = "```"
DATA = "DATA"
"""Placeholder for the reader's data folder."""
_PLAIN = re.compile(r"[\w.,=+/-]{1,60}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A row of the page: a run, or of its repeats the one whose quality is the median."""

    record: Record
    repeats: tuple[Record, ...]

    @property
    def row(self) -> PublishedRow:
        return make_row(self.record)

    @property
    def topology(self) -> Topology:
        return Topology.parse(self.record.plan.topology)


def write(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`), with the units such pages leave out."""
    return "\n".join(
        line for section in group_sections(records) for line in (*_write_section(section, lang, translator(lang)), "")
    )


def _write_section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    runs = _group_runs(section.records)
    shown = replace(section, records=tuple(run.record for run in runs), rows=tuple(run.row for run in runs))
    yield f"# {escape.markdown_cell(workloads.title_of(section.records[0]))}"
    yield from _write_heading("## " + say("Model Description"), _describe_model(section, say))
    yield from _write_heading("## " + say("Supported Environments"), *_environment_table(shown, say))
    yield from _write_heading("## " + say("Model Preparation"))
    yield from _write_heading("### " + say("Prepare Resources"), describe_data_set(section.records[0], say))
    yield from _write_heading(
        "### " + say("Install Dependencies"), f"{CODE}sh", "pip3 install -c constraints.txt .", CODE
    )
    lines = dict.fromkeys(format_command(run.record.plan, repeat=len(run.repeats)) for run in runs)
    yield from _write_heading("## " + say("Model Training"), f"{CODE}sh", *lines, CODE)
    yield from _write_heading("## " + say("Model Results"), *_speed_table(shown, say))
    yield ""
    yield from format_table(_result_heads(section, say), (_result_cells(run, section, say) for run in runs))
    yield from _write_heading(
        say("By DeepSpark's definitions:"), *(f"- {line}" for line in _list_definitions(runs, say))
    )
    if lines_of_notes := list_notes(shown, lang, SHOWN):
        yield from _write_heading(say("Notes:"), *lines_of_notes)
    yield from _write_heading("## " + say("References"), *_list_references(section, say))


def _write_heading(head: str, *lines: str) -> Iterator[str]:
    yield ""
    yield head
    if lines:
        yield ""
        yield from lines


def _group_runs(records: Sequence[Record]) -> list[_Run]:
    groups: dict[object, list[Record]] = {}
    for index, record in enumerate(records):
        alike = (record.group, record.plan.topology) if record.group else index
        groups.setdefault(alike, []).append(record)
    return [_Run(record=_find_median(repeats), repeats=tuple(repeats)) for repeats in groups.values()]


def _find_median(repeats: Sequence[Record]) -> Record:
    ordered = sorted(repeats, key=lambda record: (record.quality.value is None, record.quality.value or 0.0))
    known = [record for record in ordered if record.quality.value is not None] or ordered
    return known[(len(known) - 1) // 2]


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
    vendors = {row.device: row.vendor for row in section.rows}
    releases = " / ".join(dict.fromkeys(f"trainmark {record.trainmark}" for record in section.records))
    found = (
        (
            machine.device,
            vendors[machine.device],
            machine.sdk or UNKNOWN,
            releases,
            machine.driver or UNKNOWN,
            machine.framework or UNKNOWN,
            machine.kernel or UNKNOWN,
        )
        for machine in list_machines(section, say)
    )
    return format_table(heads, found)


def _speed_table(section: WrittenSection, say: Say) -> list[str]:
    heads = (
        "GPU",
        "FP16",
        f"FPS (p_train, {section.first.item}/s)",
        say("Score ({score})").format(score=_score_name(section)),
    )
    return format_table(heads, (_speed_cells(row) for row in section.rows))


def _speed_cells(row: PublishedRow) -> tuple[str, ...]:
    topology = Topology.parse(row.topology)
    count = f"x{topology.devices_per_node}" if topology.nodes == 1 else str(topology)
    return f"{row.device} {count}", str(is_half(row.precision)), format_exact(row.p_train), format_exact(row.quality)


def _score_name(section: WrittenSection) -> str:
    unit = section.first.quality_unit
    return f"{section.quality}, {unit}" if unit not in (None, "-") else section.quality


def _result_heads(section: WrittenSection, say: Say) -> tuple[str, ...]:
    return (
        say("Convergence criteria"),
        say("Configuration (x denotes number of GPUs)"),
        say("Performance ({rate})").format(rate=f"p_steady, {section.first.item}/s"),
        say("Accuracy ({score})").format(score=_score_name(section)),
        say("Power (W)"),
        say("Scalability"),
        say("Memory utilization (GiB)"),
        say("Stability"),
    )


def _result_cells(run: _Run, section: WrittenSection, say: Say) -> tuple[str, ...]:
    record, row, topology = run.record, run.row, run.topology
    count = f"{topology.devices_per_node}x" if topology.nodes == 1 else str(topology)
    batch = f"bs:{row.batch_per_device}/device," if row.batch_per_device is not None else ""
    sign = "≥" if row.better == "higher" else "≤"
    speed, power, memory = (find_metric(record, alias) for alias in ("p_steady", "power_steady", "mem_steady"))
    return (
        f"{section.quality}{sign}{format_exact(row.target)}{'%' if row.quality_unit == '%' else ''}",
        f"trainmark {record.trainmark},{batch}{count},{row.precision}",
        UNKNOWN if speed is None else format_exact(round_digits(speed)),
        format_exact(row.quality) or UNKNOWN,
        UNKNOWN if power is None else f"{format_exact(round_digits(power))}*{topology.devices}",
        _format_scalability(run, section, say) or UNKNOWN,
        UNKNOWN if memory is None else f"{format_exact(round_memory(memory))}*{topology.devices}",
        format_exact(stability_of_repeats(run.repeats)) or UNKNOWN,
    )


def _format_scalability(run: _Run, section: WrittenSection, say: Say) -> str:
    """`0.96 (card)`: relative to one card, or to one node where no single card was run alike."""
    for found in find_scalings(section.records, "p_steady"):
        here = next((point for point in found.points if run.record.run_id in point.runs), None)
        if found.kind != "weak" or here is None or here.throughput.value is None:
            continue
        card, node = (Topology(nodes=1, devices_per_node=count) for count in (1, run.topology.devices_per_node))
        for word, base in ((say("card"), card), (say("node"), node)):
            alone = next((point.throughput.value for point in found.points if point.topology == base), None)
            if alone and base != run.topology:
                share = here.throughput.value * base.devices / run.topology.devices / alone
                return f"{format_exact(round_digits(share, 3))} ({word})"
    return ""


def _list_definitions(runs: Sequence[_Run], say: Say) -> Iterator[str]:
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
    for number, run in enumerate(runs, 1):
        if len(run.repeats) > 1:
            values = " / ".join(format_quality(record.quality) for record in run.repeats)
            yield say("Row {row} is the repeat with the median quality of {values}.").format(
                row=number, values=escape.markdown_cell(values)
            )


def _list_references(section: WrittenSection, say: Say) -> Iterator[str]:
    yield "- " + say("Runs, whose records `trainmark audit` checks: {runs}").format(
        runs=", ".join(escape.markdown_cell(record.run_id) for record in section.records)
    )


# The command that runs a plan again


def format_command(plan: Plan, *, repeat: int = 1) -> str:
    """Relative to the reference recipe, so that every deviation is an argument."""
    return " ".join(shlex.quote(word) for word in _list_arguments(plan, repeat))


def _list_arguments(plan: Plan, repeat: int) -> Iterator[str]:
    yield from ("trainmark", "run", plan.workload, "--recipe", "reference")
    for deviation in plan.deviations:
        setting = f"{deviation.name}={_format_value(deviation.actual)}"
        if _PLAIN.fullmatch(setting):
            yield from ("--set", setting)
    yield from ("--topology", plan.topology, "--precision", plan.precision, "--platform", plan.platform_word)
    if not plan.data.synthetic:
        yield from ("--data", DATA)
    for name in ("steps", "seconds", "epochs", "items"):
        if (limit := getattr(plan.limits, name)) is not None:
            yield from (f"--{name}", f"{limit:g}" if isinstance(limit, float) else str(limit))
    if repeat > 1:
        yield from ("--repeat", str(repeat))


def _format_value(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
