"""Checks across the rows of one published page: rows that are plausible alone can contradict each other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from operator import itemgetter

from trainmark import workloads
from trainmark.analysis import peaks
from trainmark.analysis.published_library import PublishedPage
from trainmark.analysis.scaling import CONTRADICTION, find_published_scalings
from trainmark.features.published.audit_rows import require
from trainmark.record.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.format import number
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.published_row import PublishedRow

UNLIKE_SHARES = 0.20
"""Rows of one training may differ by this share of their time in evaluation or data wait."""
ABOVE_IDEAL = 0.05
"""Scaling efficiency may exceed 1 by this before it needs an explanation."""
FAR_ABOVE_IDEAL = 0.5
GROWS_ALIKE = 0.12
"""Items that grow like the devices to within this share grow because of them."""
MFU_ALIKE = 0.5
"""Most that rounded parameter counts, attention and recomputation change."""

_WAY = re.compile(r"(TP|PP|DP|EP)([0-9]{1,5})", re.IGNORECASE)
_PARALLEL = re.compile(r"(?:(?:TP|PP|DP|EP)[0-9]{1,5}){2,6}", re.IGNORECASE)

SHARES = (
    ("evaluation", "p_whole", "p_train"),
    ("waiting for data", "p_train", "p_core"),
)


@check("shares", "evaluation and data wait take shares of the time that rows of one training explain together")
def shares(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    for rows in _group_rows(page, lambda row: (row.workload, row.device, _label(row), _recipe(row))).values():
        for word, low, high in SHARES:
            known = [(row.devices or 0, share, row) for row in rows if (share := _share(row, low, high)) is not None]
            if len({count for count, _, _ in known}) < 2:
                continue
            compared += 1
            few, least, base = min(known, key=itemgetter(0))
            for many, most, row in sorted(known, key=itemgetter(0)):
                falls, grows = least - most, most - _max_share(least, many / few) if few else 0.0
                if many <= few or max(falls, grows) <= UNLIKE_SHARES:
                    continue
                larger, smaller = ((least, base), (most, row)) if least > most else ((most, row), (least, base))
                yield doubtful(
                    f"{word} would take {100 * larger[0]:.0f} % of the time in the {larger[1].topology} row "
                    f"({low} {getattr(larger[1], low):g}, {high} {getattr(larger[1], high):g}), "
                    f"{100 * smaller[0]:.0f} % in the {smaller[1].topology} row",
                    f"with more devices the share of {word} does not fall, and grows at most as training gets faster: "
                    "a timer missed the wait for the device, or the rows were set up differently",
                    f"where the timer of {high} stops and whether it waits for the device",
                    larger[1].name,
                )
                break
    require(compared, "no two rows of one training give the throughputs")


def _max_share(share: float, times: float) -> float:
    """The share of a fixed cost once everything else runs `times` as fast."""
    return times * share / (1 - share + times * share) if 0 < share < 1 else share


@check("scaling", "more devices are at most as good as ideal, by every throughput alike")
def scaling(page: PublishedPage) -> Iterator[CheckResult]:
    found = [
        group for group in find_published_scalings(page.rows) if group.points[-1].devices > group.points[0].devices
    ]
    if not found:
        raise CannotCheckError("no two rows differ in topology alone")
    for group in found:
        base = group.points[0].row
        for point in group.points[1:]:
            if point.devices == group.points[0].devices:
                continue
            steps = f"{base.topology} to {point.row.topology}"
            known = {alias: value for alias, value in point.efficiency.items() if value is not None}
            numbers = f"{steps}: " + ", ".join(f"{value:.2f} by {alias}" for alias, value in known.items())
            # p_whole may gain where fewer evaluations were made; the others have no such way
            timed = [value for alias, value in known.items() if alias != "p_whole"]
            best = max(timed, default=known.get("p_whole", 0.0))
            if best > 1 + ABOVE_IDEAL:
                certain = best > 1 + FAR_ABOVE_IDEAL and base.batch_per_device is not None
                grade = wrong if certain else doubtful
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


@check("samples-once", "e2e_time x p_whole does not grow with the devices")
def samples_once(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    for rows in _group_rows(page, lambda row: (row.workload, row.device, _label(row))).values():
        timed = [
            (row.devices, row.e2e_time_s * row.p_whole, row)
            for row in rows
            if row.devices and row.e2e_time_s and row.p_whole
        ]
        timed.sort(key=itemgetter(0))
        if len({count for count, _, _ in timed}) < 2:
            continue
        compared += 1
        few, least, _ = timed[0]
        grown = [(count, items, row) for count, items, row in timed if count > few]
        if all(abs(items / least * few / count - 1) <= GROWS_ALIKE for count, items, _ in grown):
            shown = ", ".join(f"{row.topology} {number(items)}" for _, items, row in timed)
            times = " and ".join(f"{items / least:.2g}" for _, items, _ in grown)
            yield doubtful(
                f"e2e_time x p_whole: {shown} items",
                f"the items of one training grow {times} times as the devices do: they are counted once a card, or "
                "each row ran for as many steps",
                "whether p_whole is of one card or of all, and what ended each row",
                grown[-1][2].name,
            )
    require(compared, "no two rows of unlike topology give e2e_time and p_whole")


@check("parallel", "the parallelism degrees multiply to the devices")
def parallel(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    for row in page.rows:
        text = next((detail.text for detail in row.details if _PARALLEL.fullmatch(detail.text)), None)
        if text is None or row.devices is None:
            continue
        compared += 1
        # experts are spread over the ranks of data parallelism
        ways = math.prod(int(size) for kind, size in _WAY.findall(text) if kind.upper() != "EP")
        if ways != row.devices:
            yield doubtful(
                f"{text} is {ways} ranks, {row.topology} is {row.devices} devices",
                "so many ranks do not run on so many devices, unless one card is several",
                "how many processes the log shows",
                row.name,
            )
    require(compared, "no row gives its parallelism")


@check("tokens-mfu", "token/p/s and MFU agree")
def tokens_mfu(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    for row in page.rows:
        rate, share, size = (
            _find_detail(row, "tokenps", "tokensps"),
            _find_detail(row, "mfu"),
            parse_parameters(row.workload),
        )
        if not rate or not share or not size:
            continue
        compared += 1
        percent = share if share > 1 else 100 * share
        used = 6 * size * rate / 1e12
        implied = 100 * used / percent
        card = peaks.find_card(row.device)
        peak = card.tflops.get(peaks.precision_family(row.precision) or "") if card else None
        numbers = (
            f"{number(rate)} tokens/s x 6 x {number(size / 1e9)} billion parameters = {number(used)} TFLOP/s, "
            f"MFU {percent:g} %"
        )
        if peak is not None and not _fits(implied / peak):
            yield doubtful(
                f"{numbers}; the card has {peak:g}",
                f"by 6 FLOPs a parameter and token this is {100 * used / peak:.0f} % of its peak",
                "whether tokens are counted on one card or on all, and which peak was taken",
                row.name,
            )
        elif peak is None and implied / 3 > peaks.highest_peak():  # a third where most weights are frozen
            yield doubtful(
                f"{numbers}; of a card with {number(implied)} TFLOP/s",
                "no card is known that has such a peak",
                "whether tokens are counted on one card or on all",
                row.name,
            )
    require(compared, "no row gives token/p/s and MFU of a model whose name gives its size")


def parse_parameters(model: str) -> float | None:
    """Parameters by a model's name, at least: 7e9 for `llama2_7b`; for `mixtral_8x7B` those of one expert."""
    match = re.search(r"(?<![0-9.])([0-9]{1,4}(?:\.[0-9]{1,2})?)\s?([bm])(?![a-z0-9])", model.casefold())
    return float(match[1]) * (1e9 if match[2] == "b" else 1e6) if match else None


def _fits(ratio: float) -> bool:
    """Whether a peak is the card's; where most weights are frozen only the forward pass counts, a third."""
    return any(abs(ratio / fits - 1) <= MFU_ALIKE for fits in (1, 3))


def _find_detail(row: PublishedRow, *names: str) -> float | None:
    plain = ((re.sub(r"[^a-z]", "", detail.name.casefold()), detail.value) for detail in row.details)
    return next((value for name, value in plain if name in names and value is not None), None)


@check("one-recipe", "rows that look comparable were trained with one recipe")
def one_recipe(page: PublishedPage) -> Iterator[CheckResult]:
    groups = _group_rows(page, lambda row: (row.workload, row.device, _label(row)))
    rated = ([row for row in rows if _rate(row) or row.p_whole] for rows in groups.values())
    several = [rows for rows in rated if len({row.topology for row in rows}) > 1]
    if not several:
        raise CannotCheckError("no two rows of one training differ in topology")
    for rows in several:
        recipes: dict[tuple[object, object], list[PublishedRow]] = {}
        for row in rows:
            recipes.setdefault((row.batch_per_device, _find_learning_rate(row)), []).append(row)
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
    groups = _group_rows(page, lambda row: (row.workload, row.device, row.topology))
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
                        "kernel launches and data input, before judging the card's arithmetic",
                        row.name,
                    )
    require(compared, "no two rows differ in precision alone")


def _label(row: PublishedRow) -> str:
    return row.precision.strip().lower()


def _recipe(row: PublishedRow) -> object:
    """Rows with another batch are another training; `/` stands for one recipe, too."""
    return row.batch_per_device if row.batch_per_device is not None else row.fix_hp


def _group_rows(
    page: PublishedPage, key: Callable[[PublishedRow], tuple[object, ...]]
) -> dict[tuple[object, ...], list[PublishedRow]]:
    groups: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in page.rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _share(row: PublishedRow, low: str, high: str) -> float | None:
    """The share of time that `low` includes and `high` leaves out."""
    less, more = getattr(row, low), getattr(row, high)
    return None if less is None or not more else 1 - less / more


def _rate(row: PublishedRow) -> float | None:
    return row.p_core or row.p_train


def _find_learning_rate(row: PublishedRow) -> float | None:
    """From fix_hp, else the reference recipe's."""
    match = re.search(r"\blr\s*=\s*([0-9.eE+-]+)", row.fix_hp or "")
    if match:
        try:
            return float(match[1])
        except ValueError:
            return None
    known = workloads.facts(row.workload)
    return known.reference.learning_rate if known and known.reference and row.fix_hp is not None else None


CHECKS: tuple[Check[PublishedPage], ...] = (
    shares, scaling, samples_once, parallel, tokens_mfu, one_recipe, faster_when_narrower,
)  # fmt: skip
