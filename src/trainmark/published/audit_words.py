"""Checks on the words of a published page: units, and one thing called by two names, or two figures by one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmark import workloads
from trainmark.published.page import PublishedPage, Said
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.metrics import THROUGHPUTS
from trainmark.spec.published_row import PublishedRow

_KINDS = {
    "accuracy": r"acc|top.?1|准确",
    "loss": r"loss",
    "opinion score": r"mos|score",
}
NEEDING_UNITS = ("throughput", "time", "memory", "power")
APART = 0.05


@check("quality-named-once", "the quality is called by one name throughout the page")
def quality_named_once(page: PublishedPage) -> Iterator[CheckResult]:
    said = [entry for entry in _words(page) if entry.quantity in ("quality", "convergence")]
    kinds: dict[str, Said] = {}
    for entry in said:
        kind = next((kind for kind, pattern in _KINDS.items() if re.search(pattern, entry.word.lower())), None)
        if kind is not None:
            kinds.setdefault(kind, entry)
    if not said:
        raise CannotCheckError("the page names no quality beside its rows")
    if len({row.workload for row in page.rows}) > 1:
        raise CannotCheckError("the page is about several models, each with a quality of its own")
    if len(kinds) > 1:
        numbers = ", ".join(f"{entry.word} ({entry.place})" for entry in kinds.values())
        grade, why = wrong, "they are different quantities, and the page gives one result: one of the names is wrong"
        if {entry.value for entry in kinds.values()} == {next(iter(kinds.values())).value} != {None}:
            grade, why = note, "the same figure stands under names that mean different quantities"
        yield grade(numbers, why, "which of them the training script writes")


@check("one-throughput", "one run has one throughput of a kind")
def one_throughput(page: PublishedPage) -> Iterator[CheckResult]:
    said = [entry for entry in _words(page) if entry.quantity == "throughput" and entry.value is not None]
    free = [entry for entry in said if entry.word.strip().lower() not in THROUGHPUTS]
    if not said:
        raise CannotCheckError("the page gives no throughput beside its rows")
    for index, one in enumerate(free):
        for other in free[index + 1 :]:
            low, high = sorted((one.value or 0.0, other.value or 0.0))
            if one.word.lower() == other.word.lower() or high <= low * (1 + APART):
                continue
            times = f", {high / low:.2g} times as much" if low > 0 else ""
            units = "" if one.unit or other.unit else "; neither has a unit"
            yield doubtful(
                f"{one.word} {one.value:g} ({one.place}), {other.word} {other.value:g} ({other.place}){times}",
                f"two throughputs stand for what reads as the same run{units}",
                "whether one is of a single card and the other of all, and what each counts",
            )


@check("units", "every figure has a unit")
def units(page: PublishedPage) -> Iterator[CheckResult]:
    needing = [entry for entry in _words(page) if entry.quantity in NEEDING_UNITS]
    if not needing:
        raise CannotCheckError("the page's own words are not known, only its rows")
    without: dict[str, list[Said]] = {}
    for entry in needing:
        if any(other.unit for other in needing if other.word == entry.word):  # said once is said for all
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


@check("ratios", "a scalability is at most 1")
def ratios(page: PublishedPage) -> Iterator[CheckResult]:
    known = [entry for entry in _words(page) if entry.quantity == "scalability" and entry.value is not None]
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


@check("remarks", "there is nothing a reader has to be told beside the columns")
def remarks(page: PublishedPage) -> Iterator[CheckResult]:
    named: dict[str, list[str]] = {}
    for row in page.rows:
        if row.remark:
            named.setdefault(row.remark, []).append(row.name)
    for remark, names in named.items():
        also = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield note(names[0] + also, remark, "the page itself", page.title)


@check("read", "the whole page could be read")
def read(page: PublishedPage) -> Iterator[CheckResult]:
    for sentence in page.unread:
        yield note(sentence, "what could not be read was not checked either", "the line on the page")


def _words(page: PublishedPage) -> tuple[Said, ...]:
    if not page.said:
        raise CannotCheckError("the page's own words are not known, only its rows")
    return page.said


CHECKS: tuple[Check[PublishedPage], ...] = (quality_named_once, one_throughput, units, ratios, val_loss, remarks, read)
