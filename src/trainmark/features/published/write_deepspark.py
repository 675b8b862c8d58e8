"""Writes runs as a page with DeepSpark's sections and its six columns, each by DeepSpark's own definition."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

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
    list_machines,
    list_notes,
    make_row,
    make_section,
    round_digits,
    round_memory,
    write_sections,
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


def write(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`), with the units such pages leave out."""
    return write_sections(records, partial(_write_section, lang=lang, say=translator(lang)))


def _write_section(section: WrittenSection, lang: str, say: Say) -> Iterator[str]:
    runs = _group_runs(section.records)
    shown = make_section([run.record for run in runs])
    commands = dict.fromkeys(format_command(run.record.plan, repeat=len(run.repeats)) for run in runs)
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
        say("Notes:"): list_notes(shown, lang, SHOWN),
        "## " + say("References"): [
            "- " + say("Runs, whose records `trainmark audit` checks: {runs}").format(runs=listed)
        ],
    }
    for heading, lines in parts.items():
        yield from ("", heading, *(("", *lines) if lines else ()))


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
    releases = " / ".join(dict.fromkeys(f"trainmark {record.trainmark}" for record in section.records))
    found = (
        (machine.device, machine.vendor, machine.sdk, releases, machine.driver, machine.framework, machine.kernel)
        for machine in list_machines(section, say)
    )
    return format_table(heads, ([cell or UNKNOWN for cell in cells] for cells in found))


def _speed_table(section: WrittenSection, say: Say) -> list[str]:
    rate, score = f"FPS (p_train, {section.first.item}/s)", say("Score ({score})").format(score=_score_name(section))
    return format_table(("GPU", "FP16", rate, score), (_speed_cells(row) for row in section.rows))


def _speed_cells(row: PublishedRow) -> tuple[str, ...]:
    topology = Topology.parse(row.topology)
    count = f"x{topology.devices_per_node}" if topology.nodes == 1 else str(topology)
    return f"{row.device} {count}", str(is_half(row.precision)), format_exact(row.p_train), format_exact(row.quality)


def _score_name(section: WrittenSection) -> str:
    unit = section.first.quality_unit
    return f"{section.quality}, {unit}" if unit not in (None, "-") else section.quality


def _result_table(runs: Sequence[_Run], section: WrittenSection, say: Say) -> list[str]:
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
    return format_table(heads, ([cell or UNKNOWN for cell in _result_cells(run, section, say)] for run in runs))


def _result_cells(run: _Run, section: WrittenSection, say: Say) -> Iterator[str]:
    record, row, topology = run.record, make_row(run.record), Topology.parse(run.record.plan.topology)
    count = f"{topology.devices_per_node}x" if topology.nodes == 1 else str(topology)
    batch = f"bs:{row.batch_per_device}/device," if row.batch_per_device is not None else ""
    sign = "≥" if row.better == "higher" else "≤"
    speed, power, memory = (find_metric(record, alias) for alias in ("p_steady", "power_steady", "mem_steady"))
    yield f"{section.quality}{sign}{format_exact(row.target)}{'%' if row.quality_unit == '%' else ''}"
    yield f"trainmark {record.trainmark},{batch}{count},{row.precision}"
    yield "" if speed is None else format_exact(round_digits(speed))
    yield format_exact(row.quality)
    yield "" if power is None else f"{format_exact(round_digits(power))}*{topology.devices}"
    yield _format_scalability(run, section, say)
    yield "" if memory is None else f"{format_exact(round_memory(memory))}*{topology.devices}"
    yield format_exact(stability_of_repeats(run.repeats))


def _format_scalability(run: _Run, section: WrittenSection, say: Say) -> str:
    """`0.96 (card)`: relative to one card, or to one node where no single card was run alike."""
    own = Topology.parse(run.record.plan.topology)
    for found in find_scalings(section.records, "p_steady"):
        here = next((point for point in found.points if run.record.run_id in point.runs), None)
        if found.kind != "weak" or here is None or here.throughput.value is None:
            continue
        card, node = (Topology(nodes=1, devices_per_node=count) for count in (1, own.devices_per_node))
        for word, base in ((say("card"), card), (say("node"), node)):
            alone = next((point.throughput.value for point in found.points if point.topology == base), None)
            if alone and base != own:
                share = here.throughput.value * base.devices / own.devices / alone
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
