"""Draws one record in full: plan, metrics with intervals, phases, steps, quality, doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record import escape
from trainmark.record.doubts import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.format import NOTHING, VERDICT_STYLES, device_name, format_goal, format_quality, number, verdict
from trainmark.record.language import _
from trainmark.record.sample import documents
from trainmark.view import facts, profile_facts
from trainmark.view.breakdown import (
    MAX_RANKS,
    format_rate,
    list_evaluations,
    list_rank_times,
    name_time_step,
    split_time,
)
from trainmark.view.sections import FactSection, draw_section
from trainmark.view.terminal import TerminalWriter
from trainmark.workloads import quality_word

if TYPE_CHECKING:
    from trainmark.record.record import Record

SPARKS = "▁▂▃▄▅▆▇█"
PLAIN_SPARKS = "_.-=+*%#"
"""The same heights where the stream has no block signs."""

_SPARK_COLUMNS = 64
_BAR_COLUMNS = 24
_MAX_EVALUATIONS = 12
_MAX_MACHINES = 4


def describe(
    record: Record,
    *,
    path: Path | None = None,
    run_folder: Path | None = None,
    sections: Sequence[FactSection] = (),
    width: int = 80,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """The whole record as text of the given width. `path` is where its file lies, `run_folder` where its run worked,
    `sections` what features know of it beside its record."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    _draw_identity(writer, record)
    for section in (facts.plan, facts.metrics, facts.precision, facts.fill):
        draw_section(writer, section(record, _))
    for more in sections:
        draw_section(writer, more)
    _draw_phases(writer, record)
    draw_section(writer, profile_facts.build_profile(record, _))
    _draw_steps(writer, record)
    _draw_telemetry(writer, record)
    _draw_quality(writer, record)
    _draw_artifacts(writer, record, run_folder)
    last = (facts.bands, facts.restarts, facts.checkpoints, facts.data, facts.network, facts.environment)
    for section in last:
        draw_section(writer, section(record, _))
    _draw_doubts(writer, record)
    writer.put("", _("What a word means: trainmark explain p_core"))
    if path is not None:
        writer.put_unbroken(_("Record: {path}").format(path=path))
    return writer.getvalue()


def draw_spark(
    values: Sequence[float],
    columns: int = _SPARK_COLUMNS,
    heights: str = SPARKS,
    *,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """A series in one line, each sign the mean of equally many neighbours, cut off at low and high."""
    means = [sum(part) / len(part) for part in _split(values, columns)]
    if not means:
        return ""
    low, high = min(means) if low is None else low, max(means) if high is None else high
    shares = [(min(max(mean, low), high) - low) / (high - low) if high > low else 0.0 for mean in means]
    return "".join(heights[round((len(heights) - 1) * share)] for share in shares)


def _split(values: Sequence[float], columns: int) -> Iterator[Sequence[float]]:
    count = min(columns, len(values))
    for index in range(count):
        yield values[index * len(values) // count : (index + 1) * len(values) // count]


def _draw_identity(writer: TerminalWriter, record: Record) -> None:
    plan = record.plan
    style = {"valid": "bold green", "incomplete": "bold yellow"}.get(record.status, "bold red")
    what = f"{plan.workload} · {plan.recipe_name} · {device_name(record)} {plan.topology} · {record.precision}"
    writer.put(
        writer.text(what, "bold"),
        writer.text(
            _("{status}: {ended}").format(status=_(record.status), ended=translate_ending(record.ended, _)), style
        ),
    )
    writer.put_pairs(
        [
            (_("run"), record.run_id),
            (_("created"), record.created),
            ("trainmark", f"{record.trainmark} ({record.revision})" if record.revision else record.trainmark),
            *([(_("repeats"), record.group)] if record.group else []),
        ],
        indent=0,
    )


def _draw_phases(writer: TerminalWriter, record: Record) -> None:
    found = split_time(record)
    if not found:
        return
    whole, columns = found[0].ns or 1, max(6, min(_BAR_COLUMNS, writer.width - 58))
    writer.put_title(_("Where the time went"), _("as the slowest rank saw it"))
    drawn = writer.table(heads=False)
    drawn.add_column(no_wrap=True)
    for _column in range(2):
        drawn.add_column(no_wrap=True, justify="right")
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold", style="dim")
    for step in found:
        before = " " * round(columns * step.start_ns / whole)
        bar = "█" * round(columns * step.ns / whole) or ("▏" if step.ns else "")
        name = f"  {name_time_step(step, _)}" if step.kind == "part" else name_time_step(step, _)
        cells = (name, f"{number(step.ns / 1e9)} s", f"{100 * step.ns / whole:.1f} %")
        style = "bold" if step.kind == "total" else ""
        drawn.add_row(
            *(writer.text(cell, style) for cell in cells),
            writer.text(before + bar, "cyan"),
            writer.text(format_rate(step, record)),
        )
    writer.put(drawn, indent=2)


def _draw_steps(writer: TerminalWriter, record: Record) -> None:
    timeline = record.timeline
    if not timeline.ranks or not timeline.steps:
        return
    import numpy as np

    slowest, warmup = timeline.slowest, timeline.warmup_steps
    every_s = [(wait + compute) / 1e9 for wait, compute in zip(slowest.wait_ns, slowest.compute_ns, strict=False)]
    counted_steps = max(0, timeline.steps - warmup)
    remark = _("{steps} done, {counted} counted").format(steps=len(every_s), counted=counted_steps)
    writer.put_title(_("Steps"), remark)
    columns = min(_SPARK_COLUMNS, writer.width - 14)
    heights = SPARKS if escape.can_encode(writer.encoding, SPARKS) else PLAIN_SPARKS
    counted = timeline.step_s if timeline.step_s.size else np.asarray(every_s)
    lowest, fifth, middle, last, highest = (float(value) for value in np.percentile(counted, [0, 5, 50, 95, 100]))
    # at least a tenth around the median is shown, so that a steady series looks steady; warm-up may stick out
    low, high = min(lowest, 0.9 * middle), max(highest, 1.1 * middle)
    pairs = [(_("step time"), draw_spark(every_s, columns, heights, low=low, high=high))]
    if warmup:
        marked = max(1, round(min(columns, len(every_s)) * min(warmup, len(every_s)) / len(every_s)))
        pairs.append(("", "^" * marked + " " + _("warm-up, {warmup} steps").format(warmup=warmup)))
    if record.means_only:
        pairs.append(("", _("means of neighbouring steps: {reason}").format(reason=record.means_only)))
    else:
        spread = _("5th percentile {fifth} s, 95th {last} s").format(fifth=number(fifth), last=number(last))
        text = _("median {middle} s, {spread}, from {lowest} s to {highest} s").format(
            middle=number(middle), spread=spread, lowest=number(lowest), highest=number(highest)
        )
        pairs.append(("", text))
    if len(held := np.unique(timeline.step_items)) > 1:
        text = _("median {median} {item} a step, from {low} to {high}").format(
            median=number(float(np.median(timeline.step_items)), 4),
            item=record.item,
            low=number(float(held[0]), 4),
            high=number(float(held[-1]), 4),
        )
        pairs.append((_("items"), text))
    loss = [float(value) for value in record.loss if value is not None and value == value]
    if loss:
        pairs += [
            (_("loss"), draw_spark(loss, columns, heights)),
            ("", f"{number(loss[0], 4)} → {number(loss[-1], 4)}"),
        ]
    writer.put_pairs(pairs)
    if len(timeline.ranks) > 1:
        _draw_ranks(writer, record)


def _draw_ranks(writer: TerminalWriter, record: Record) -> None:
    found = list_rank_times(record)
    known = found[0].exchange_ns is not None
    writer.put_title(_("Ranks"), _("slowest first") + (_(", by their own computing") if known else ""))
    rows = [
        (
            str(one.rank),
            one.host,
            number(one.own_ns / 1e9),
            NOTHING if one.exchange_ns is None else number(one.exchange_ns / 1e9),
            f"+{100 * one.over_fastest:.1f} %",
            number(one.items),
            NOTHING if one.memory_bytes is None else number(one.memory_bytes / 2**30),
        )
        for one in found[:MAX_RANKS]
    ]
    heads = (
        "rank",
        _("host"),
        _("computing s"),
        _("exchange s"),
        _("over the fastest"),
        record.item,
        "mem GiB",
    )
    drawn = writer.table()
    for index, head in enumerate(heads):
        drawn.add_column(writer.text(head), justify="left" if index == 1 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(writer.text(cell) for cell in row))
    writer.put(drawn, indent=2)
    if len(found) > MAX_RANKS:
        writer.put(_("and {count} faster ones").format(count=len(found) - MAX_RANKS), indent=2)


def _draw_telemetry(writer: TerminalWriter, record: Record) -> None:
    columns = min(_SPARK_COLUMNS, writer.width - 26)
    heights = SPARKS if escape.can_encode(writer.encoding, SPARKS) else PLAIN_SPARKS
    for machine in record.telemetry.machines[:_MAX_MACHINES]:
        writer.put_title(_("Telemetry"), facts.telemetry_remark(machine, _))
        pairs = []
        for curve in facts.telemetry_curves(machine, _):
            several = ""
            if curve.device is not None and len(machine.devices) > 1:
                several = _(", device {device}").format(device=curve.device)
            pairs.append((curve.word + several, draw_spark(curve.values, columns, heights, low=0.0)))
            pairs.append(("", facts.telemetry_summary(curve.values, curve.unit, _)))
        if (more := len(machine.devices) - facts.MAX_DEVICES) > 0:
            pairs.append(("", _("and {more} more devices").format(more=more)))
        missing = facts.telemetry_missing(machine, _)
        writer.put_pairs(pairs + [(_("Unavailable"), f"{', '.join(names)}: {why}") for why, names in missing.items()])
    if (left := len(record.telemetry.machines) - _MAX_MACHINES) > 0:
        writer.put(_("and {left} more machines").format(left=left), indent=2)


def _draw_quality(writer: TerminalWriter, record: Record) -> None:
    quality = record.quality
    reached = verdict(record)
    writer.put_title(_("Quality"))
    shown = _("{quality} {value}, target {goal}: {verdict}").format(
        quality=quality_word(quality.name), value=format_quality(quality), goal=format_goal(quality), verdict=_(reached)
    )
    writer.put(writer.text(shown, VERDICT_STYLES.get(reached, "")), indent=2)
    if not quality.history:
        return
    writer.put("")
    every = list_evaluations(record, _)
    rows = list(every.rows)
    if (left_out := len(rows) - _MAX_EVALUATIONS) > 0:
        middle = ("…", *[""] * (len(every.heads) - 2), _("{count} more").format(count=left_out))
        rows = [*rows[: _MAX_EVALUATIONS // 2], middle, *rows[-(_MAX_EVALUATIONS // 2) :]]
    writer.put(writer.grid(every.heads, rows), indent=2)


def _draw_artifacts(writer: TerminalWriter, record: Record, run_folder: Path | None) -> None:
    if not record.artifacts:
        return
    writer.put_title(_("Artifacts"), _("left by the trained model"))
    for artifact in record.artifacts:
        writer.put(artifact.caption, indent=2)
        writer.put_unbroken(f"    {run_folder / artifact.file if run_folder else artifact.file}")
    for document in documents(run_folder) if run_folder else ():
        if scores := document.scores:
            rows = [(row.of, *row.cells()) for row in scores.rows]
            writer.put(writer.grid(("sound", "predicted MOS", "WER", "heard"), rows), indent=2)
            writer.put(f"{scores.note}: {scores.predictor}; words by {scores.recogniser}", indent=2)


def _draw_doubts(writer: TerminalWriter, record: Record) -> None:
    writer.put_title(_("Doubts"), "" if record.doubts else _("none"))
    if record.doubts:
        writer.put(writer.numbered_list(translate_doubt(doubt, _) for doubt in record.doubts), indent=2)
