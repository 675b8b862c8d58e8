"""Runs as OpenMetrics text, for Prometheus by way of node_exporter's textfile folder, and for merge-request widgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from trainmark.record import escape
from trainmark.record.format import device_name
from trainmark.record.index import parse_instant
from trainmark.record.metrics import METRICS
from trainmark.record.record import Record

BASE_UNITS = {
    "s": ("seconds", 1.0),
    "%": ("ratio", 0.01),
    "GiB": ("bytes", 2.0**30),
    "W": ("watts", 1.0),
    "J": ("joules", 1.0),
    "J/item": ("joules_per_item", 1.0),
    "°C": ("celsius", 1.0),
    "{item}/s": ("items_per_second", 1.0),
    "{item}/J": ("items_per_joule", 1.0),
}
"""Prometheus' names of our units, and the factor of a value; the item is a label."""
_ENDS = ("", "low", "high")
"""A value, and the ends of its 95 % interval."""


class _Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class _Family(NamedTuple):
    name: str
    unit: str
    help: str
    samples: list[_Sample]


def to_openmetrics(records: Sequence[Record]) -> str:
    """Every metric as a gauge. Of runs with the same labels the newest counts; without timestamps, which node_exporter
    refuses."""
    newest: dict[tuple[str, ...], tuple[Record, dict[str, str]]] = {}
    for record in sorted(records, key=lambda record: (parse_instant(record.created), record.run_id)):
        labels = _make_labels(record)
        newest[tuple(labels.values())] = record, labels
    lines: list[str] = []
    for family in _list_families(list(newest.values())):
        if family.samples:
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} gauge"]
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            lines += [f"{family.name}{{{_format_labels(sample.labels)}}} {sample.value!r}" for sample in family.samples]
    return "\n".join([*lines, "# EOF", ""])


def _list_families(runs: Sequence[tuple[Record, dict[str, str]]]) -> Iterator[_Family]:
    for alias, metric in METRICS.items():
        unit, times = BASE_UNITS[metric.unit]
        for index, end in enumerate(_ENDS):
            name = "_".join(filter(None, ("trainmark", alias.removesuffix(unit), end, unit)))
            first = " ".join(metric.definition.partition(".")[0].split())
            text = (f"The {end} end of the 95 % interval: " if end else "") + f"{first}."
            samples = []
            for record, labels in runs:
                quantity = record.metrics.get(alias)
                shown = _interval_end(quantity.value, quantity.interval, index) if quantity else None
                if shown is not None:
                    item = {"item": record.item} if "item" in unit else {}
                    samples.append(_Sample({**labels, **item}, float(shown * times)))
            yield _Family(name, unit, text, samples)
    yield _Family(
        "trainmark_quality",
        "",
        "How good the trained model was at its last evaluation.",
        [
            _Sample(labels | {"quality": record.quality.name, "unit": record.quality.unit}, record.quality.value)
            for record, labels in runs
            if record.quality.value is not None
        ],
    )
    values: tuple[tuple[str, str, str, Callable[[Record], float]], ...] = (
        ("target_reached", "", "1 where the target was reached.", lambda record: record.quality.reached),
        ("valid", "", "1 where the result is valid.", lambda record: record.status == "valid"),
        ("doubts", "", "Reasons to trust the result less.", lambda record: len(record.doubts)),
        ("created_timestamp_seconds", "seconds", "When the run began.", lambda record: parse_instant(record.created)),
    )
    for name, unit, text, value in values:
        yield _Family(f"trainmark_{name}", unit, text, [_Sample(labels, float(value(run))) for run, labels in runs])


def _interval_end(value: float | None, interval: tuple[float, float] | None, index: int) -> float | None:
    if index == 0:
        return value
    return None if interval is None else interval[index - 1]


def _make_labels(record: Record) -> dict[str, str]:
    plan = record.plan
    return {
        "workload": plan.workload,
        "recipe": plan.recipe_name,
        "topology": plan.topology,
        "precision": record.precision,
        "device": device_name(record),
        "host": ", ".join(record.hosts),
    }


def _format_labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(text: str) -> str:
    """Within quotes; control characters are spelled out, as in every other form."""
    return escape.terminal(text).replace("\\", "\\\\").replace('"', '\\"')
