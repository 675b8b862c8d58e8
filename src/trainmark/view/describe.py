"""Draws one record in full, with phases, steps, quality and doubts; or in brief, with its table and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record import escape
from trainmark.record.doubts import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.format import device_name, format_goal, format_quality, number, verdict
from trainmark.record.index import format_tags
from trainmark.record.language import _
from trainmark.record.sample import documents
from trainmark.view import facts, headline, table
from trainmark.view.terminal import FactSection, RecordFact, TerminalWriter, draw_section
from trainmark.workloads import quality_word

if TYPE_CHECKING:
    from trainmark.record.machine import MachineTelemetry
    from trainmark.record.published_row import PublishedRow
    from trainmark.record.record import Record
    from trainmark.record.store import Store

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
    heights = SPARKS if escape.can_encode(encoding, SPARKS) else PLAIN_SPARKS
    spark = partial(draw_spark, columns=min(_SPARK_COLUMNS, writer.width - 26), heights=heights)
    for section in (
        *(build(record, _) for build in (facts.plan, facts.metrics, facts.precision, facts.fill)),
        *sections,
        _build_phases(record, max(6, min(_BAR_COLUMNS, writer.width - 58))),
        facts.build_profile(record, _, run_folder),
        _build_steps(record, spark),
        facts.ranks(record, _),
        *(_build_telemetry(machine, spark) for machine in record.telemetry.machines[:_MAX_MACHINES]),
    ):
        draw_section(writer, section)
    if (left := len(record.telemetry.machines) - _MAX_MACHINES) > 0:
        writer.put(_("and {left} more machines").format(left=left), indent=2)
    draw_section(writer, _build_quality(record))
    _draw_artifacts(writer, record, run_folder)
    last = (facts.bands, facts.restarts, facts.checkpoints, facts.data, facts.network, facts.environment)
    for build in last:
        draw_section(writer, build(record, _))
    writer.put_title(_("Doubts"), "" if record.doubts else _("none"))
    if record.doubts:
        writer.put(writer.numbered_list(translate_doubt(doubt, _) for doubt in record.doubts), indent=2)
    writer.put("", _("What a word means: trainmark explain p_core"))
    if path is not None:
        writer.put_unbroken(_("Record: {path}").format(path=path))
    if run_folder is not None:
        writer.put_unbroken(_describe_weights(record, run_folder))
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
    count = min(columns, len(values))
    parts = (values[index * len(values) // count : (index + 1) * len(values) // count] for index in range(count))
    means = [sum(part) / len(part) for part in parts]
    if not means:
        return ""
    low, high = min(means) if low is None else low, max(means) if high is None else high
    shares = [(min(max(mean, low), high) - low) / (high - low) if high > low else 0.0 for mean in means]
    return "".join(heights[round((len(heights) - 1) * share)] for share in shares)


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


def _build_phases(record: Record, columns: int) -> FactSection | None:
    found = facts.split_time(record)
    if not found:
        return None
    whole = found[0].ns or 1
    rows = []
    for step in found:
        before = " " * round(columns * step.start_ns / whole)
        bar = "█" * round(columns * step.ns / whole) or ("▏" if step.ns else "")
        name = f"  {facts.name_time_step(step, _)}" if step.kind == "part" else facts.name_time_step(step, _)
        share = f"{100 * step.ns / whole:.1f} %"
        rows.append((name, f"{number(step.ns / 1e9)} s", share, before + bar, facts.format_rate(step, record)))
    return FactSection(
        title=_("Where the time went"),
        remark=_("as the slowest rank saw it"),
        heads=(_("Phase"), _("Time"), _("Share"), "", ""),
        rows=rows,
        left=frozenset({0, 3, 4}),
    )


def _build_steps(record: Record, spark: Callable[..., str]) -> FactSection | None:
    timeline = record.timeline
    if not timeline.ranks or not timeline.steps:
        return None
    import numpy as np

    slowest, warmup = timeline.slowest, timeline.warmup_steps
    every_s = [(wait + compute) / 1e9 for wait, compute in zip(slowest.wait_ns, slowest.compute_ns, strict=False)]
    counted = timeline.step_s if timeline.step_s.size else np.asarray(every_s)
    lowest, fifth, middle, last, highest = (float(value) for value in np.percentile(counted, [0, 5, 50, 95, 100]))
    # at least a tenth around the median is shown, so that a steady series looks steady; warm-up may stick out
    curve = spark(every_s, low=min(lowest, 0.9 * middle), high=max(highest, 1.1 * middle))
    pairs = [(_("step time"), curve)]
    if warmup:
        marked = max(1, round(len(curve) * min(warmup, len(every_s)) / len(every_s)))
        pairs.append(("", "^" * marked + " " + _("warm-up, {warmup} steps").format(warmup=warmup)))
    if record.means_only:
        pairs.append(("", _("means of neighbouring steps: {reason}").format(reason=record.means_only)))
    else:
        spread = _("5th percentile {fifth} s, 95th {last} s").format(fifth=number(fifth), last=number(last))
        text = _("median {middle} s, {spread}, from {lowest} s to {highest} s")
        ends = {"lowest": number(lowest), "highest": number(highest)}
        pairs.append(("", text.format(middle=number(middle), spread=spread, **ends)))
    if len(held := np.unique(timeline.step_items)) > 1:
        low, median, high = (float(value) for value in (held[0], np.median(timeline.step_items), held[-1]))
        text = _("median {median} {item} a step, from {low} to {high}")
        ends = {"low": number(low, 4), "high": number(high, 4)}
        pairs.append((_("items"), text.format(median=number(median, 4), item=record.item, **ends)))
    if loss := [float(value) for value in record.loss if value is not None and value == value]:
        pairs += [(_("loss"), spark(loss)), ("", f"{number(loss[0], 4)} → {number(loss[-1], 4)}")]
    remark = _("{steps} done, {counted} counted")
    return FactSection(
        title=_("Steps"),
        remark=remark.format(steps=len(every_s), counted=max(0, timeline.steps - warmup)),
        facts=[RecordFact(*pair) for pair in pairs],
    )


def _build_telemetry(machine: MachineTelemetry, spark: Callable[..., str]) -> FactSection:
    pairs = []
    for curve in facts.telemetry_curves(machine, _):
        several = curve.device is not None and len(machine.devices) > 1
        device = _(", device {device}").format(device=curve.device) if several else ""
        pairs.append((curve.word + device, spark(curve.values, low=0.0)))
        pairs.append(("", facts.telemetry_summary(curve.values, curve.unit, _)))
    if (more := len(machine.devices) - facts.MAX_DEVICES) > 0:
        pairs.append(("", _("and {more} more devices").format(more=more)))
    missing = facts.telemetry_missing(machine, _)
    pairs += [(_("Unavailable"), f"{', '.join(names)}: {why}") for why, names in missing.items()]
    return FactSection(
        title=_("Telemetry"),
        remark=facts.telemetry_remark(machine, _),
        facts=[RecordFact(*pair) for pair in pairs],
    )


def _build_quality(record: Record) -> FactSection:
    quality, (heads, rows) = record.quality, facts.list_evaluations(record, _)
    shown = _("{quality} {value}, target {goal}: {verdict}").format(
        quality=quality_word(quality.name),
        value=format_quality(quality),
        goal=format_goal(quality),
        verdict=_(verdict(record)),
    )
    if (left_out := len(rows) - _MAX_EVALUATIONS) > 0:
        middle = ("…", *[""] * (len(heads) - 2), _("{count} more").format(count=left_out))
        rows = [*rows[: _MAX_EVALUATIONS // 2], middle, *rows[-(_MAX_EVALUATIONS // 2) :]]
    return FactSection(title=_("Quality"), sentence=shown, heads=heads, rows=rows)


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


# In brief


def describe_briefly(
    record: Record,
    rows: Sequence[PublishedRow],
    store: Store,
    *,
    path: Path,
    width: int = 80,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """The screen at the end of a run, then tags, note and files; `rows` are published rows of its workload, `path` is
    the record's."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    writer.put("")
    words = {"run_id": record.run_id, "status": _(record.status), "created": record.created}
    writer.put_unbroken(_("Run: {run_id} ({status}, {created})").format(**words))
    if record.group:
        writer.put_unbroken(_("Repeats: {group}").format(group=record.group))
    if record.tags:
        writer.put(_("Tags: {tags}").format(tags=", ".join(format_tags(record.tags))))
    if record.note:
        writer.put(_("Note: {note}").format(note=record.note))
    for line in _files(record, store, path):
        writer.put_unbroken(line)
    known_here = path in (store.path(record.run_id), store.runs / record.run_id)
    word = record.run_id.rpartition("-")[2] if known_here else path
    writer.put_unbroken(_("Everything there is to know: trainmark show {word} --all").format(word=word))
    headlines = headline.write_headlines([record], rows)
    return table.render([record], sentences=headlines, width=width, color=color, encoding=encoding) + writer.getvalue()


def _describe_weights(record: Record, run_folder: Path) -> str:
    kept = sorted(path for path in (run_folder / "checkpoints").glob("step-*") if path.suffix != ".corrupt")
    if not kept:
        return _("Weights: none were kept; --set checkpoint_every=end keeps them")
    return _("Weights: {folder}; for other packages: trainmark export {word}").format(
        folder=kept[-1], word=record.run_id.rpartition("-")[2]
    )


def _files(record: Record, store: Store, path: Path) -> Iterator[str]:
    folder = store.runs / record.run_id
    if path != folder:  # a run that was cut off left none
        yield _("Record: {path}").format(path=path)
    if folder.is_dir():
        yield _("Events and logs: {folder}").format(folder=folder)
        yield _describe_weights(record, folder)
    for artifact in record.artifacts:
        yield _("Sample: {file}").format(file=folder / artifact.file)
    if (page := store.folder / "reports" / f"{record.run_id}.html").is_file():
        yield _("Page: {page}").format(page=page)
