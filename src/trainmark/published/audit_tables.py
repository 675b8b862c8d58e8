"""Checks across the rows of one published page: a table can contradict itself where each row alone looks well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from trainmark import workloads
from trainmark.analysis.scaling_published import CONTRADICTION, published_scalings
from trainmark.published.audit_rows import devices
from trainmark.published.page import PublishedPage
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.metrics import THROUGHPUTS
from trainmark.spec.published_row import PublishedRow

UNLIKE_SHARES = 0.20
"""Rows of one training may differ by so much of all their time in what evaluation, or waiting for data, takes."""
ABOVE_IDEAL = 0.05
"""More devices may look so much better than ideal before it needs an explanation."""
FAR_ABOVE_IDEAL = 0.5

SHARES = (
    ("evaluation", "p_whole", "p_train"),
    ("waiting for data", "p_train", "p_core"),
)


@check("shares", "evaluation and data wait take a like share of the time in all rows of one training")
def shares(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    for rows in _alike(page, lambda row: (row.workload, row.device, _label(row))).values():
        for word, low, high in SHARES:
            known = [(share, row) for row in rows if (share := _share(row, low, high)) is not None]
            if len(known) < 2:
                continue
            compared += 1
            least, most = min(known, key=_first), max(known, key=_first)
            if most[0] - least[0] > UNLIKE_SHARES:
                yield doubtful(
                    f"{word} would take {100 * most[0]:.0f} % of the time in the {most[1].topology} row "
                    f"({low} {_plain(most[1], low)}, {high} {_plain(most[1], high)}), "
                    f"{100 * least[0]:.0f} % in the {least[1].topology} row",
                    f"one training spends a like share on {word} wherever it runs: a timer missed the wait for the "
                    "device, or the rows were set up differently",
                    f"where the timer of {high} stops and whether it waits for the device",
                    most[1].name,
                )
    if not compared:
        raise CannotCheckError("no two rows of one training give the throughputs")


@check("scaling", "more devices are at most as good as ideal, by every throughput alike")
def scaling(page: PublishedPage) -> Iterator[CheckResult]:
    found = published_scalings(row for row in page.rows if devices(row))
    if not found:
        raise CannotCheckError("no two rows differ in topology alone")
    for group in found:
        base = group.points[0].row
        for point in group.points[1:]:
            steps = f"{base.topology} to {point.row.topology}"
            known = {alias: value for alias, value in point.efficiency.items() if value is not None}
            numbers = f"{steps}: " + ", ".join(f"{value:.2f} by {alias}" for alias, value in known.items())
            best = max(known.values(), default=0.0)
            if best > 1 + ABOVE_IDEAL:
                grade = wrong if best > 1 + FAR_ABOVE_IDEAL else doubtful
                yield grade(
                    numbers,
                    "more devices cannot each be faster than one alone",
                    f"whether the {base.topology} row was measured as the others were",
                    point.row.name,
                )
            whole, core = known.get("p_whole"), known.get("p_core")
            if whole is not None and core is not None and whole - core > CONTRADICTION:
                yield doubtful(
                    numbers,
                    "scaling collapses by one throughput and not by the other, though waiting, evaluating and saving "
                    "do not shrink with more devices",
                    f"the p_whole of the {base.topology} row, and where the timer of p_core stops",
                    point.row.name,
                )


@check("one-recipe", "rows that look comparable were trained with one recipe")
def one_recipe(page: PublishedPage) -> Iterator[CheckResult]:
    groups = _alike(page, lambda row: (row.workload, row.device, _label(row)))
    several = [rows for rows in groups.values() if len({row.topology for row in rows}) > 1]
    if not several:
        raise CannotCheckError("no two rows of one training differ in topology")
    for rows in several:
        recipes: dict[tuple[object, object], list[PublishedRow]] = {}
        for row in rows:
            recipes.setdefault((row.batch_per_device, _learning_rate(row)), []).append(row)
        known = {key: members for key, members in recipes.items() if key[0] is not None}
        if len(known) > 1:
            listed = "; ".join(
                f"batch {batch}{'' if rate is None else f', learning rate {rate:g}'}: "
                + ", ".join(dict.fromkeys(row.topology for row in members))
                for (batch, rate), members in known.items()
            )
            yield note(
                listed,
                "scaling between rows of different batch or learning rate is not that of one training",
                "that only rows of one fix_hp are compared",
                f"{rows[0].workload} on {rows[0].device}, {rows[0].precision}",
            )
        missing = recipes.get((None, None), [])
        if missing and any(getattr(row, alias) is not None for row in missing for alias in THROUGHPUTS):
            yield note(
                ", ".join(row.topology for row in missing) + ": no batch",
                "the batch per device is not published, so it is not known whether like is compared with like",
                "the scripts beside the page",
                f"{rows[0].workload} on {rows[0].device}, {rows[0].precision}",
            )


@check("faster-when-narrower", "a narrower precision is not slower")
def faster_when_narrower(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    order = ("fp32", "tf32", "amp", "fp16", "bf16")
    groups = _alike(page, lambda row: (row.workload, row.device, row.topology))
    for rows in groups.values():
        rated = [(order.index(row.precision), row) for row in rows if row.precision in order and _rate(row)]
        for place, row in rated:
            for wider, other in rated:
                if min(place, 2) <= wider:
                    continue
                compared += 1
                if (_rate(row) or 0) < 0.98 * (_rate(other) or 0) and row.batch_per_device == other.batch_per_device:
                    yield note(
                        f"{row.precision} {_rate(row):g}, {other.precision} {_rate(other):g} {row.item or 'items'}/s",
                        "with the same batch the narrower precision is slower, so this training is not bound by "
                        "arithmetic",
                        "launches and data input, before anything is said of the card's arithmetic",
                        row.name,
                    )
    if not compared:
        raise CannotCheckError("no two rows differ in precision alone")


def _label(row: PublishedRow) -> str:
    return row.precision.strip().lower()


def _alike(
    page: PublishedPage, key: Callable[[PublishedRow], tuple[object, ...]]
) -> dict[tuple[object, ...], list[PublishedRow]]:
    groups: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in page.rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _share(row: PublishedRow, low: str, high: str) -> float | None:
    """The part of the time that `low` counts and `high` leaves out."""
    less, more = getattr(row, low), getattr(row, high)
    return None if less is None or not more else 1 - less / more


def _first(pair: tuple[float, PublishedRow]) -> float:
    return pair[0]


def _plain(row: PublishedRow, alias: str) -> str:
    return f"{getattr(row, alias):g}"


def _rate(row: PublishedRow) -> float | None:
    return row.p_core or row.p_train


def _learning_rate(row: PublishedRow) -> float | None:
    """As fix_hp says it, or where it does not speak of it, the reference recipe's."""
    said = re.search(r"\blr\s*=\s*([0-9.eE+-]+)", row.fix_hp or "")
    if said:
        try:
            return float(said[1])
        except ValueError:
            return None
    known = workloads.facts(row.workload)
    return known.reference.learning_rate if known and known.reference and row.fix_hp is not None else None


CHECKS: tuple[Check[PublishedPage], ...] = (shares, scaling, one_recipe, faster_when_narrower)
