"""Checks on the text of a published page: missing units, two names for one quantity, two figures under one name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from trainmark import workloads
from trainmark.analysis import peaks
from trainmark.analysis.device_names import fold_key
from trainmark.analysis.published_library import PageStatement, PublishedPage
from trainmark.features.published.cells import is_unit
from trainmark.features.published.heads import WORDS
from trainmark.record.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.published_row import PublishedRow

_KINDS = {
    "accuracy": r"acc|top.?1|准确",
    "loss": r"loss",
    "opinion score": r"mos|score",
}
_RATES = {fold_key(word) for kind in ("fps", "performance") for word in WORDS[kind]}
NEEDING_UNITS = ("throughput", "time", "memory", "power")
APART = 0.05


@check("configuration", "text and brackets give the same number of devices")
def configuration(page: PublishedPage) -> Iterator[CheckResult]:
    if not page.was_read:
        raise CannotCheckError("the page's own words are not known, only its rows")
    for entry in page.said:
        if entry.quantity == "configuration":
            worded, bracketed = (entry.unit or ", ").split(", ")
            yield wrong(
                f"{entry.word!r} ({entry.place})",
                f"its words say {worded} and its bracket {bracketed}: one of them is wrong, and with it whatever is "
                "reckoned for one device",
                "on how many devices the row was measured",
            )


@check("quality-named-once", "the quality is called by one name throughout the page")
def quality_named_once(page: PublishedPage) -> Iterator[CheckResult]:
    said = [entry for entry in _require_words(page) if entry.quantity in ("quality", "convergence")]
    kinds: dict[str, dict[str, PageStatement]] = {}
    for entry in said:
        kind = next((kind for kind, pattern in _KINDS.items() if re.search(pattern, entry.word.lower())), None)
        if kind is not None:
            kinds.setdefault(entry.place.partition(",")[0], {}).setdefault(kind, entry)
    if not said:
        raise CannotCheckError("the page names no quality beside its rows")
    if len({row.workload for row in page.rows}) > 1:
        raise CannotCheckError("the page is about several models, each with a quality of its own")
    # one table may well give several; two that have none in common speak of one result by two names
    tables = list(kinds.values())
    for one, other in pairwise(tables):
        if one.keys() & other.keys():
            continue
        entries = (*one.values(), *other.values())
        numbers = ", ".join(f"{entry.word} ({entry.place})" for entry in entries)
        grade, why = wrong, "they are different quantities, and the page gives one result: one of the names is wrong"
        if {entry.value for entry in entries} == {entries[0].value} != {None}:
            grade, why = note, "the same figure stands under names that mean different quantities"
        yield grade(numbers, why, "which of them the training script writes")
        break


@check("one-throughput", "one run has one throughput of a kind")
def one_throughput(page: PublishedPage) -> Iterator[CheckResult]:
    rated = [
        (row, detail) for row in page.rows for detail in row.details if detail.value and fold_key(detail.name) in _RATES
    ]
    if not rated:
        raise CannotCheckError("the page gives no throughput beside p_whole, p_train and p_core")
    for index, (row, one) in enumerate(rated):
        for other_row, other in rated[index + 1 :]:
            low, high = sorted((one.value or 0.0, other.value or 0.0))
            if (
                fold_key(one.name) == fold_key(other.name)
                or high <= low * (1 + APART)
                or not _is_same_run(row, other_row)
            ):
                continue
            units = "" if one.unit or other.unit else "; neither has a unit"
            times = f", {high / low:.2g} times as much" if low > 0 else ""
            yield doubtful(
                f"{one.name} {one.text} (line {row.line}), {other.name} {other.text} (line {other_row.line}){times}",
                f"two throughputs stand for what reads as the same run{units}",
                "whether one is of a single card and the other of all, and what each counts",
            )


def _is_same_run(row: PublishedRow, other: PublishedRow) -> bool:
    """Whether two rows do not differ in anything they state."""
    if row is other:
        return True
    families = [peaks.precision_family(one.precision) for one in (row, other)]
    alike = (row.topology, row.device, row.workload) == (other.topology, other.device, other.workload)
    same_batch = row.fix_hp is None or other.fix_hp is None or row.fix_hp == other.fix_hp
    same_quality = row.quality is not None and row.quality == other.quality
    return alike and same_batch and same_quality and families[0] is not None and families[0] == families[1]


@check("units", "every figure has a unit")
def units(page: PublishedPage) -> Iterator[CheckResult]:
    needing = [entry for entry in _require_words(page) if entry.quantity in NEEDING_UNITS and _is_given(entry, page)]
    if not needing:
        raise CannotCheckError("the page gives no figure that needs one")
    without: dict[str, list[PageStatement]] = {}
    for entry in needing:
        # a unit given once holds for all; a name such as token/p/s is a unit itself
        if ("/" in entry.word and is_unit(entry.word)) or any(
            other.unit for other in needing if other.word == entry.word
        ):
            continue
        without.setdefault(entry.quantity, []).append(entry)
    for quantity, entries in without.items():
        shown = list(
            dict.fromkeys(f"{entry.word}{'' if entry.value is None else f' {entry.value:g}'}" for entry in entries)
        )
        more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
        yield note(
            ", ".join(shown[:4]) + more,
            f"no unit of {quantity} is given anywhere on the page",
            "what is counted, per second of what, on how many cards",
        )


def _is_given(entry: PageStatement, page: PublishedPage) -> bool:
    """Whether the page gives a figure of this quantity, not only its name."""
    fields = {"time": ("e2e_time_s",), "memory": ("mem_used_gib",), "throughput": THROUGHPUTS}
    given = any(getattr(row, name) is not None for row in page.rows for name in fields.get(entry.quantity, ()))
    kept = {fold_key(detail.name) for row in page.rows for detail in row.details if detail.value is not None}
    return entry.value is not None or given or fold_key(entry.word) in kept or not page.was_read


@check("ratios", "a scalability is at most 1")
def ratios(page: PublishedPage) -> Iterator[CheckResult]:
    known = [entry for entry in _require_words(page) if entry.quantity == "scalability" and entry.value is not None]
    if not known:
        raise CannotCheckError("the page gives no scalability of its own")
    for entry in known:
        if entry.value is not None and not 0 < entry.value <= 1 + APART:
            yield doubtful(
                f"{entry.word} {entry.value:g} ({entry.place})",
                "more devices cannot each be faster than one alone",
                "what was divided by what",
            )


@check("val-loss", "a validation loss means the same in every row")
def val_loss(page: PublishedPage) -> Iterator[CheckResult]:
    rows = [row for row in page.rows if row.quality is not None and row.quality_name == "val_loss"]
    if not rows:
        raise CannotCheckError("no row gives a validation loss")
    moving: dict[str, list[PublishedRow]] = {}
    for row in rows:
        moving.setdefault(row.workload, []).append(row)
    for workload, alike in moving.items():
        known = workloads.facts(workload)
        quality = known.find_quality("val_loss") if known else None
        if quality is None or not quality.caution:
            continue
        shown = ", ".join(f"val_loss {row.quality:g} ({row.device} {row.topology})" for row in alike)
        yield note(shown, quality.caution, quality.beware, alike[0].name)


@check("remarks", "the page needs no remarks beside its columns")
def remarks(page: PublishedPage) -> Iterator[CheckResult]:
    named: dict[str, list[str]] = {}
    for row in page.rows:
        if row.remark:
            named.setdefault(row.remark, []).append(row.name)
    for remark, names in named.items():
        also = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield note(names[0] + also, remark, "the page itself", page.title)


@check("read", "the whole page could be read")
def unread_lines(page: PublishedPage) -> Iterator[CheckResult]:
    if not page.was_read and not page.unread:
        raise CannotCheckError("the page's own words are not known, only its rows")
    for sentence in page.unread:
        yield note(sentence, "what could not be read was not checked either", "the line on the page")


def _require_words(page: PublishedPage) -> tuple[PageStatement, ...]:
    if not page.said:
        raise CannotCheckError("the page's own words are not known, only its rows")
    return page.said


CHECKS: tuple[Check[PublishedPage], ...] = (
    configuration, quality_named_once, one_throughput, units, ratios, val_loss, remarks, unread_lines,
)  # fmt: skip
