"""Audits published pages: each row alone, rows of one training together, and the page's words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, product
from operator import itemgetter
from typing import Any

from trainmark.analysis import device_names as names, peaks
from trainmark.analysis.device_names import UNKNOWN, fold_key
from trainmark.analysis.published_library import PageStatement, PublishedPage
from trainmark.analysis.scaling import CONTRADICTION, find_published_scalings
from trainmark.features.published.cells import is_unit
from trainmark.features.published.heads import WORDS
from trainmark.record.audit import (
    SEVERITIES,
    Audit,
    CannotCheckError,
    Check,
    check,
    collect_findings,
    doubtful,
    mark_unchecked,
    note,
    run_checks,
    wrong,
)
from trainmark.record.checks import CheckResult
from trainmark.record.format import number
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.numbers import meets_goal
from trainmark.record.published_row import PublishedRow, RowFinding
from trainmark.workloads import all_facts, facts, quality_word

MAX_EPOCHS = 1000
"""Of a training whose recipe is not known."""
MEMORY_ALIKE = 0.07
"""Relative difference between the memory a tool reports and the data sheet."""
NEAR_CAP = 0.01
"""A training this close to the cap's epochs counts as ended by it."""
UNLIKE_SHARES = 0.20
"""Rows of one training may differ by this share of their time in evaluation or data wait."""
ABOVE_IDEAL = 0.05
"""Scaling efficiency may exceed 1 by this before it needs an explanation."""
FAR_ABOVE_IDEAL = 0.5
GROWS_ALIKE = 0.12
"""Items that grow like the devices to within this share grow because of them."""
MFU_ALIKE = 0.5
"""Most that rounded parameter counts, attention and recomputation change."""
APART = 0.05
"""Two throughputs that differ by a larger share are not one."""
SHARES = (("evaluation", "p_whole", "p_train"), ("waiting for data", "p_train", "p_core"))
ORDER = ("fp32", "tf32", "amp", "fp16", "bf16")
"""Precisions, of which the last three are equally narrow."""
KINDS = {"accuracy": r"acc|top.?1|准确", "loss": r"loss", "opinion score": r"mos|score"}
"""Of a quality, by the words in its name."""
NEEDING_UNITS = ("throughput", "time", "memory", "power")
NO_WORDS = "the page's own words are not known, only its rows"

_RATES = {fold_key(word) for kind in ("fps", "performance") for word in WORDS[kind]}
_WAY = re.compile(r"(TP|PP|DP|EP)([0-9]{1,5})", re.IGNORECASE)
_PARALLEL = re.compile(r"(?:(?:TP|PP|DP|EP)[0-9]{1,5}){2,6}", re.IGNORECASE)

Rows = Sequence[PublishedRow]


def check_parts(
    code: str, title: str, parts: Callable[[PublishedPage], Iterable[Any]]
) -> Callable[[Callable[[Any, PublishedPage], Iterable[CheckResult]]], Check[PublishedPage]]:
    """Turns a function into a check of every part of a page; it cannot be made where it cannot be of any part."""

    def decorate(function: Callable[[Any, PublishedPage], Iterable[CheckResult]]) -> Check[PublishedPage]:
        def run(page: PublishedPage) -> list[CheckResult]:
            results, reasons = [], []
            for part in parts(page):
                try:
                    found = list(function(part, page))
                    subject = part.name if isinstance(part, PublishedRow) else ""
                    results.append([replace(one, subject=one.subject or subject) for one in found])
                except CannotCheckError as reason:
                    reasons.append(reason)
            if reasons and not results:
                raise reasons[0]
            return [one for found in results for one in found]

        return Check(code=code, title=title, run=run)

    return decorate


check_rows = partial(check_parts, parts=lambda page: page.rows)


def group_by(*keys: str | Callable[[PublishedRow], object]) -> Callable[[PublishedPage], Iterable[Rows]]:
    """Groups the rows of a page by what they have in common."""

    def group(page: PublishedPage) -> Iterable[Rows]:
        groups: dict[tuple[object, ...], list[PublishedRow]] = {}
        for row in page.rows:
            key = tuple(getattr(row, one) if isinstance(one, str) else one(row) for one in keys)
            groups.setdefault(key, []).append(row)
        return groups.values()

    return group


def _label(row: PublishedRow) -> str:
    return row.precision.strip().lower()


_BY_TRAINING = group_by("workload", "device", _label)


def _recipe(row: PublishedRow) -> object:
    """Rows with another batch are another training; `/` stands for one recipe, too."""
    return row.batch_per_device if row.batch_per_device is not None else row.fix_hp


def _rate(row: PublishedRow) -> float | None:
    return row.p_core or row.p_train


# Each row alone


@check_rows("possible-values", "every figure is one that can be measured")
def possible_values(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    line = "the page's own line, for a slip"
    if row.devices is None and row.topology != UNKNOWN:
        yield wrong(f"configuration {row.topology!r}", "it is not nodes x devices", line)
    for name in ("e2e_time_s", *THROUGHPUTS, "mem_used_gib", "mem_total_gib", "batch_per_device"):
        value = getattr(row, name)
        if value is not None and not 0 < value < float("inf"):
            yield wrong(f"{name} {value:g}", "such a figure cannot be measured", line)
    if row.quality is not None and row.quality_unit == "%" and not 0 <= row.quality <= 100:
        shown, remedy = f"{row.quality_name} {row.quality:g} %", "whether the column is the one its head names"
        yield wrong(shown, "a share lies between 0 and 100 %", remedy)
    if row.quality is not None and row.quality < 0 and "loss" in (row.quality_name or ""):
        yield wrong(f"{row.quality_name} {row.quality:g}", "this loss is a sum of squares", line)


@check_rows("throughput-order", "p_whole <= p_train <= p_core")
def throughput_order(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    given = [(alias, getattr(row, alias)) for alias in THROUGHPUTS if getattr(row, alias) is not None]
    if len(given) < 2:
        raise CannotCheckError("no row gives two throughputs")
    for (low, less), (high, more) in combinations(given, 2):
        if less > more:
            why = f"both count the same items, and {high} leaves time out that {low} holds"
            yield wrong(f"{low} {less:g} > {high} {more:g}", why, "which timer was read for which column")


@check_rows("mfu", "no card computes more than its peak in the precision a row is labelled with")
def mfu(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    used = peaks.estimate_use(row)
    if used is None:
        raise CannotCheckError("no row has a rate and a card whose peak is known")
    percent, fitting = used.percent[used.label], used.fitting
    shares = ", ".join(f"{value:.0f} % of {name}" for name, value in used.percent.items())
    numbers = f"{number(used.tflops)} TFLOP/s per card: {shares} ({used.source})"
    instead = f"it is consistent with {fitting}" if fitting else "no precision of this card is known to reach it"
    if percent > 100:
        why = f"the row is labelled {row.precision}, and this is {percent / 100:.2g} times that peak; {instead}"
        yield wrong(numbers, why, "in which type the matmuls ran: the run's autocast and tf32 settings")
    elif percent > peaks.MAX_SEEN and fitting:
        why = f"hardly any training reaches {percent:.0f} % of a data sheet's peak in {row.precision}; {instead}"
        yield doubtful(numbers, why, "whether tf32 was allowed, as frameworks of the time did by default")


@check_rows("memory-fits", "memory used is at most the card's")
def memory_fits(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    known = peaks.find_card(row.device)
    total = row.mem_total_gib or (known.memory_gib if known else None)
    if row.mem_used_gib is None or total is None:
        raise CannotCheckError("no row gives memory used and the card's")
    if row.mem_used_gib > total:
        numbers, remedy = f"{row.mem_used_gib:g} of {total:g} GiB", "whether the figure is of one card or of all"
        yield wrong(numbers, "more memory was used than one card has", remedy)


@check_rows("target", "the quality reaches the target")
def target(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    if row.quality is None or row.target is None or row.better is None:
        raise CannotCheckError("no row gives a quality and its target")
    word, unit = quality_word(row.quality_name or "quality"), (row.quality_unit or "").strip("-")
    numbers = f"{word} {row.quality:g} {unit}".rstrip() + f", target {row.target:g} {unit}".rstrip()
    if not meets_goal(row.quality, row.target, row.better):
        done, most = _count_epochs(row, page), _find_epoch_cap(row)
        at_cap = done is not None and most is not None and abs(done / most - 1) <= NEAR_CAP
        ended = f", and its {number(done or 0)} epochs are the recipe's cap of {most}" if at_cap else ""
        why = f"the target was missed{ended}: its time is not a time to target"
        yield note(numbers, why, "whether throughput was bought with accuracy: batch, learning rate, precision")
    elif row.quality == row.target and row.quality_name is not None and not _is_measured(row, page):
        why = "the result equals the criterion to the last digit, so it may be the criterion written twice"
        yield note(numbers, why, "the log of the run")


def _is_measured(row: PublishedRow, page: PublishedPage) -> bool:
    """Whether the workload's evaluation measures this quality, or rows of one target differ in it."""
    known = facts(row.workload)
    alike = (other for other in page.rows if (other.workload, other.target) == (row.workload, row.target))
    ours = known is not None and known.find_quality(row.quality_name) is not None
    return ours or any(other.quality not in (None, row.quality) for other in alike)


@check_rows("epochs", "e2e_time x p_whole is a number of epochs the recipe allows")
def whole_epochs(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    done, most = _count_epochs(row, page), _find_epoch_cap(row)
    if done is None:
        raise CannotCheckError("no row gives e2e_time and p_whole of a training on a real data set that is known")
    items = f"{number(row.e2e_time_s or 0)} s x {number(row.p_whole or 0)} {row.item or 'items'}/s"
    numbers = f"{items} / {number(_find_items_per_epoch(row, page) or 0)} = {done:.1f} epochs"
    log = "how many epochs the log shows"
    if most is None and done > MAX_EPOCHS:
        why = "hardly anybody trains so long on this set, so its figures are not of one run, or items are counted "
        yield doubtful(numbers, f"{why}more than once", log)
    elif most is not None and done > most * (1 + 3 * NEAR_CAP):
        why = f"the recipe ends after {most}, so its figures are not of one run, or the cap was moved"
        yield doubtful(numbers, why, log)
    elif most is not None and abs(done / most - 1) <= NEAR_CAP:
        why = f"the run was ended by the recipe's cap of {most} epochs, not by its target"
        yield note(numbers, why, "the quality beside it")
    elif done < 1:
        why = "less than one pass over the training set has no quality to speak of"
        yield doubtful(numbers, why, "whether e2e_time and p_whole are of one run")


def _count_epochs(row: PublishedRow, page: PublishedPage) -> float | None:
    """Epochs a row trained, at most: e2e_time also includes startup."""
    items = _find_items_per_epoch(row, page)
    if items is None or row.e2e_time_s is None or row.p_whole is None or row.is_synthetic:
        return None
    return row.e2e_time_s * row.p_whole / items


def _find_items_per_epoch(row: PublishedRow, page: PublishedPage) -> float | None:
    """By the workload, else by the data set the page names, where a known workload trains on it."""
    known = facts(row.workload)
    if known is not None:
        return known.items_per_epoch
    named = [fold_key(name) for name in page.data_sets]
    for other in all_facts():
        plain = other.items_per_sample == 1 and row.item in (other.item, "samples")
        if len(named) == 1 and plain and named[0].startswith(fold_key(other.data_set)):
            return other.items_per_epoch
    return None


def _find_epoch_cap(row: PublishedRow) -> int | None:
    """The epochs after which the reference recipe ends."""
    known = facts(row.workload)
    return known.reference.epochs if known and known.reference else None


@check_rows("opinion", "an opinion score is one that listeners gave such a model")
def opinion(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    """A mean opinion score comes from listeners: no training script computes one, and listening tests differ."""
    if row.quality is None or row.quality_name != "MOS":
        raise CannotCheckError("no row gives an opinion score")
    known = facts(row.workload)
    test = known.listening_test if known else None
    if test and test.quality == row.quality_name and row.quality > test.value + test.margin:
        yield doubtful(
            f"{row.quality_name} {row.quality:g}; listening test {test.value:.2f} ±{test.margin:.2f} by {test.by}",
            "it lies above the public listening test of this model, and no published code computes it: the page names "
            "neither listeners nor sentences, and a training stops by its loss",
            "who listened to what, and how the score was computed; a predicted score does not count",
        )


@check_rows("parallel", "the parallelism degrees multiply to the devices")
def parallel(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    text = next((detail.text for detail in row.details if _PARALLEL.fullmatch(detail.text)), None)
    if text is None or row.devices is None:
        raise CannotCheckError("no row gives its parallelism")
    # experts are spread over the ranks of data parallelism
    ways = math.prod(int(size) for kind, size in _WAY.findall(text) if kind.upper() != "EP")
    if ways != row.devices:
        numbers = f"{text} is {ways} ranks, {row.topology} is {row.devices} devices"
        why = "so many ranks do not run on so many devices, unless one card is several"
        yield doubtful(numbers, why, "how many processes the log shows")


@check_rows("tokens-mfu", "token/p/s and MFU agree")
def tokens_mfu(row: PublishedRow, page: PublishedPage) -> Iterator[CheckResult]:
    rate, share = _find_detail(row, "tokenps", "tokensps"), _find_detail(row, "mfu")
    size = parse_parameters(row.workload)
    if not rate or not share or not size:
        raise CannotCheckError("no row gives token/p/s, MFU and the size of its model")
    percent = share if share > 1 else 100 * share
    used = 6 * size * rate / 1e12
    implied = 100 * used / percent
    card = peaks.find_card(row.device)
    peak = card.tflops.get(peaks.precision_family(row.precision) or "") if card else None
    factors = f"{number(rate)} tokens/s x 6 x {number(size / 1e9)} billion parameters"
    numbers = f"{factors} = {number(used)} TFLOP/s, MFU {percent:g} %"
    # where most weights are frozen only the forward pass counts, a third
    if peak is not None and not any(abs(implied / peak / fits - 1) <= MFU_ALIKE for fits in (1, 3)):
        why = f"by 6 FLOPs a parameter and token this is {100 * used / peak:.0f} % of its peak"
        remedy = "whether tokens are counted on one card or on all, and which peak was taken"
        yield doubtful(f"{numbers}; the card has {peak:g}", why, remedy)
    elif peak is None and implied / 3 > peaks.highest_peak():
        numbers = f"{numbers}; of a card with {number(implied)} TFLOP/s"
        remedy = "whether tokens are counted on one card or on all"
        yield doubtful(numbers, "no card is known that has such a peak", remedy)


def parse_parameters(model: str) -> float | None:
    """Parameters by a model's name, at least: 7e9 for `llama2_7b`; for `mixtral_8x7B` those of one expert."""
    match = re.search(r"(?<![0-9.])([0-9]{1,4}(?:\.[0-9]{1,2})?)\s?([bm])(?![a-z0-9])", model.casefold())
    return float(match[1]) * (1e9 if match[2] == "b" else 1e6) if match else None


def _find_detail(row: PublishedRow, *names: str) -> float | None:
    plain = ((re.sub(r"[^a-z]", "", detail.name.casefold()), detail.value) for detail in row.details)
    return next((value for name, value in plain if name in names and value is not None), None)


# Rows together


@check("page-device", "rows are of the page's own devices")
def page_device(page: PublishedPage) -> Iterator[CheckResult]:
    own = {names.parse_device(name).vendor: name for name in page.devices if names.parse_device(name).vendor}
    if not own or not any(row.vendor for row in page.rows):
        raise CannotCheckError("the page does not name its devices beside its rows")
    if any(row.vendor in own for row in page.rows):
        return  # others beside its own are there to compare with
    for rows in group_by("device")(replace(page, rows=tuple(row for row in page.rows if row.vendor))):
        more = f", {len(rows)} rows" if len(rows) > 1 else ""
        numbers = f"{rows[0].device} in the table{more}, {', '.join(own.values())} above it"
        why = "the rows name another maker's card than their page, so some of it was copied from another page"
        yield doubtful(numbers, why, "on which of the two the figures were measured", rows[0].name)


@check_parts("card-memory", "rows give the memory that such a card has", group_by("device", "mem_total_gib"))
def card_memory(rows: Rows, page: PublishedPage) -> Iterator[CheckResult]:
    device, total = rows[0].device, rows[0].mem_total_gib
    sizes = sorted(peaks.find_memory_sizes(device))
    if total is None or not sizes:
        raise CannotCheckError("no row gives the memory of a card that is known")
    if not any(abs(total / size - 1) <= MEMORY_ALIKE for size in sizes):
        more = f" in {len(rows)} rows" if len(rows) > 1 else ""
        numbers = f"{total:g} GiB{more}, {device} has {' or '.join(f'{size:g}' for size in sizes)}"
        why = "no such card has this memory: the figures are of another one, or some of them were copied"
        yield doubtful(numbers, why, "on which card they were measured", rows[0].name)


@check_parts("item", "throughput counts what its word says", group_by("workload"))
def item(rows: Rows, page: PublishedPage) -> Iterator[CheckResult]:
    """Where the rate allows one answer only: nothing computes so many whole samples."""
    known = facts(rows[0].workload)
    rated = [(rate / row.devices, row) for row in rows if row.devices and (rate := _rate(row) or row.p_whole)]
    if known is None or not rated:
        raise CannotCheckError("no row gives a throughput of a training whose items are known")
    beyond = []
    for rate, row in rated if known.flops_per_item is not None and (known.items_per_sample or 1) > 1 else ():
        card = peaks.find_card(row.device)
        needed = rate * (known.flops_per_item or 0) * (known.items_per_sample or 1) / 1e12
        if card and needed > max(card.tflops.values()):
            beyond.append((rate, needed, max(card.tflops.values()), row))
    if not beyond:
        return
    rate, needed, able, row = max(beyond, key=itemgetter(0))
    said = (*(entry[3].item for entry in beyond), *(one.unit for one in page.said if one.quantity == "throughput"))
    called = next((one for one in said if one and any(word in one.lower() for word in known.sample_words)), None)
    numbers = f"{number(rate)} per second and card; as {known.sample}s {number(needed)} TFLOP/s, "
    numbers += f"and the card has {able:g}"
    about = f"about {known.items_per_sample:g} of which make a {known.sample}"
    remedy = f"whether a page beside it counts {known.item.split()[-1]} or {known.sample}s, before comparing"
    more = f"in {len(beyond)} rows " if len(beyond) > 1 else ""
    if called:
        why = f"what the page calls {called} {more}can only be {known.item}, {about}"
        yield doubtful(numbers, why, remedy, row.name)
    else:
        why = f"these can {more}only be {known.item}, {about}, by whatever word they go"
        yield note(numbers, why, remedy, row.name)


@check("shares", "evaluation and data wait take shares of the time that rows of one training explain together")
def shares(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    groups = group_by("workload", "device", _label, _recipe)(page)
    for rows, (word, low, high) in product(groups, SHARES):
        known = [
            (row.devices or 0, 1 - less / more, row)
            for row in rows
            if (less := getattr(row, low)) is not None and (more := getattr(row, high))
        ]
        few, least, base = min(known, key=itemgetter(0), default=(0, 0.0, rows[0]))
        larger = [(count, share, row) for count, share, row in known if count > few > 0]
        compared += bool(larger)
        for many, most, row in sorted(larger, key=itemgetter(0)):
            if max(least - most, most - _max_share(least, many / few)) <= UNLIKE_SHARES:
                continue
            (more, one), (less, other) = sorted([(least, base), (most, row)], key=itemgetter(0), reverse=True)
            yield doubtful(
                f"{word} would take {100 * more:.0f} % of the time in the {one.topology} row "
                f"({low} {getattr(one, low):g}, {high} {getattr(one, high):g}), "
                f"{100 * less:.0f} % in the {other.topology} row",
                f"with more devices the share of {word} does not fall, and grows at most as training gets faster: "
                "a timer missed the wait for the device, or the rows were set up differently",
                f"where the timer of {high} stops and whether it waits for the device",
                one.name,
            )
            break
    if not compared:
        raise CannotCheckError("no two rows of one training give the throughputs")


def _max_share(share: float, times: float) -> float:
    """The share of a fixed cost once everything else runs `times` as fast."""
    return times * share / (1 - share + times * share) if 0 < share < 1 else share


@check("scaling", "more devices are at most as good as ideal, by every throughput alike")
def scaling(page: PublishedPage) -> Iterator[CheckResult]:
    points = [
        (group.base, point)
        for group in find_published_scalings(page.rows)
        for point in group.points
        if point.devices > group.points[0].devices
    ]
    if not points:
        raise CannotCheckError("no two rows differ in topology alone")
    for base, point in points:
        known = {alias: value for alias, value in point.efficiency.items() if value is not None}
        shown = ", ".join(f"{value:.2f} by {alias}" for alias, value in known.items())
        numbers = f"{base.topology} to {point.row.topology}: {shown}"
        # p_whole may gain where fewer evaluations were made; the others have no such way
        timed = [value for alias, value in known.items() if alias != "p_whole"]
        best = max(timed, default=known.get("p_whole", 0.0))
        if best > 1 + ABOVE_IDEAL:
            certain = best > 1 + FAR_ABOVE_IDEAL and base.batch_per_device is not None
            remedy = f"whether the {base.topology} row was measured as the others were"
            why = "more devices cannot each be faster than one alone"
            yield (wrong if certain else doubtful)(numbers, why, remedy, point.row.name)
        whole, core = known.get("p_whole"), known.get("p_core")
        if whole is not None and core is not None and whole - core > CONTRADICTION:
            yield doubtful(
                numbers,
                "scaling collapses by one throughput and not by the other, though waiting, evaluating and saving "
                "do not shrink with more devices",
                f"the p_whole of the {base.topology} row, and where the timer of p_core stops",
                point.row.name,
            )


@check_parts("samples-once", "e2e_time x p_whole does not grow with the devices", _BY_TRAINING)
def samples_once(rows: Rows, page: PublishedPage) -> Iterator[CheckResult]:
    timed = [
        (row.devices, row.e2e_time_s * row.p_whole, row)
        for row in rows
        if row.devices and row.e2e_time_s and row.p_whole
    ]
    timed.sort(key=itemgetter(0))
    if len({count for count, _, _ in timed}) < 2:
        raise CannotCheckError("no two rows of unlike topology give e2e_time and p_whole")
    few, least, _ = timed[0]
    grown = [(count, items, row) for count, items, row in timed if count > few]
    if all(abs(items / least * few / count - 1) <= GROWS_ALIKE for count, items, _ in grown):
        shown = ", ".join(f"{row.topology} {number(items)}" for _, items, row in timed)
        times = " and ".join(f"{items / least:.2g}" for _, items, _ in grown)
        why = f"the items of one training grow {times} times as the devices do: they are counted once a card, or "
        yield doubtful(
            f"e2e_time x p_whole: {shown} items",
            f"{why}each row ran for as many steps",
            "whether p_whole is of one card or of all, and what ended each row",
            grown[-1][2].name,
        )


@check_parts("one-recipe", "rows that look comparable were trained with one recipe", _BY_TRAINING)
def one_recipe(group: Rows, page: PublishedPage) -> Iterator[CheckResult]:
    rows = [row for row in group if _rate(row) or row.p_whole]
    if len({row.topology for row in rows}) < 2:
        raise CannotCheckError("no two rows of one training differ in topology")
    recipes: dict[tuple[object, object], list[str]] = {}
    for row in rows:
        recipes.setdefault((row.batch_per_device, _find_learning_rate(row)), []).append(row.topology)
    subject = f"{rows[0].workload} on {rows[0].device}, {rows[0].precision}"
    known = {key: topologies for key, topologies in recipes.items() if key[0] is not None}
    if len(known) > 1:
        listed = "; ".join(
            f"batch {batch}{'' if rate is None else f', learning rate {rate:g}'}: {', '.join(dict.fromkeys(where))}"
            for (batch, rate), where in known.items()
        )
        why = "scaling between rows of different batch or learning rate is not that of one training"
        yield note(listed, why, "that only rows of one fix_hp are compared", subject)
    if missing := recipes.get((None, None)):
        why = "the batch per device is not published, so it is not known whether like is compared with like"
        yield note(f"{', '.join(missing)}: no batch", why, "the scripts beside the page", subject)


def _find_learning_rate(row: PublishedRow) -> float | None:
    """From fix_hp, else the reference recipe's."""
    if match := re.search(r"\blr\s*=\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)", row.fix_hp or ""):
        return float(match[1])
    known = facts(row.workload)
    return known.reference.learning_rate if known and known.reference and row.fix_hp is not None else None


@check_parts("faster-when-narrower", "a narrower precision is not slower", group_by("workload", "device", "topology"))
def faster_when_narrower(rows: Rows, page: PublishedPage) -> Iterator[CheckResult]:
    rated = [(ORDER.index(row.precision), row, rate) for row in rows if row.precision in ORDER and (rate := _rate(row))]
    pairs = [(one, other) for one in rated for other in rated if min(one[0], 2) > other[0]]
    if not pairs:
        raise CannotCheckError("no two rows differ in precision alone")
    for (_, row, rate), (_, wide, wide_rate) in pairs:
        if rate < 0.98 * wide_rate and row.batch_per_device == wide.batch_per_device:
            numbers = f"{row.precision} {rate:g}, {wide.precision} {wide_rate:g} {row.item or 'items'}/s"
            why = "with the same batch the narrower precision is slower, so this training is not bound by arithmetic"
            yield note(numbers, why, "kernel launches and data input, before judging the card's arithmetic", row.name)


# The page's words


@check("configuration", "text and brackets give the same number of devices")
def configuration(page: PublishedPage) -> Iterator[CheckResult]:
    if not page.was_read:
        raise CannotCheckError(NO_WORDS)
    for entry in page.said:
        if entry.quantity == "configuration":
            worded, bracketed = (entry.unit or ", ").split(", ")
            why = f"its words say {worded} and its bracket {bracketed}: one of them is wrong, and with it whatever is "
            remedy = "on how many devices the row was measured"
            yield wrong(f"{entry.word!r} ({entry.place})", f"{why}reckoned for one device", remedy)


@check("quality-named-once", "the quality is called by one name throughout the page")
def quality_named_once(page: PublishedPage) -> Iterator[CheckResult]:
    said = _require_words(page, ("quality", "convergence"), "the page names no quality beside its rows")
    if len({row.workload for row in page.rows}) > 1:
        raise CannotCheckError("the page is about several models, each with a quality of its own")
    tables: dict[str, dict[str, PageStatement]] = {}
    for entry in said:
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, entry.word.lower())), None)
        if kind is not None:
            tables.setdefault(entry.place.partition(",")[0], {}).setdefault(kind, entry)
    # one table may well give several; two that have none in common speak of one result by two names
    for one, other in pairwise(tables.values()):
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
        (row, detail, detail.value)
        for row in page.rows
        for detail in row.details
        if detail.value and fold_key(detail.name) in _RATES
    ]
    if not rated:
        raise CannotCheckError("the page gives no throughput beside p_whole, p_train and p_core")
    for (row, one, rate), (other_row, other, other_rate) in combinations(rated, 2):
        low, high = sorted((rate, other_rate))
        unlike = fold_key(one.name) != fold_key(other.name) and high > low * (1 + APART)
        if unlike and _is_same_run(row, other_row):
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
    said = _require_words(page, NEEDING_UNITS, "the page gives no figure that needs one")
    needing = [entry for entry in said if _is_given(entry, page)]
    if not needing:
        raise CannotCheckError("the page gives no figure that needs one")
    # a unit given once holds for all; a name such as token/p/s is a unit itself
    known = {entry.word for entry in needing if entry.unit or ("/" in entry.word and is_unit(entry.word))}
    for quantity in dict.fromkeys(entry.quantity for entry in needing if entry.word not in known):
        without = [entry for entry in needing if entry.quantity == quantity and entry.word not in known]
        shown = list(dict.fromkeys(f"{one.word}{'' if one.value is None else f' {one.value:g}'}" for one in without))
        more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
        why = f"no unit of {quantity} is given anywhere on the page"
        yield note(", ".join(shown[:4]) + more, why, "what is counted, per second of what, on how many cards")


def _is_given(entry: PageStatement, page: PublishedPage) -> bool:
    """Whether the page gives a figure of this quantity, not only its name."""
    fields = {"time": ("e2e_time_s",), "memory": ("mem_used_gib",), "throughput": THROUGHPUTS}
    given = any(getattr(row, name) is not None for row in page.rows for name in fields.get(entry.quantity, ()))
    kept = {fold_key(detail.name) for row in page.rows for detail in row.details if detail.value is not None}
    return entry.value is not None or given or fold_key(entry.word) in kept or not page.was_read


@check("ratios", "a scalability is at most 1")
def ratios(page: PublishedPage) -> Iterator[CheckResult]:
    for entry in _require_words(page, ("scalability",), "the page gives no scalability of its own"):
        if entry.value is not None and not 0 < entry.value <= 1 + APART:
            why = "more devices cannot each be faster than one alone"
            yield doubtful(f"{entry.word} {entry.value:g} ({entry.place})", why, "what was divided by what")


@check_parts("val-loss", "a validation loss means the same in every row", group_by("workload"))
def val_loss(rows: Rows, page: PublishedPage) -> Iterator[CheckResult]:
    known = facts(rows[0].workload)
    quality = known.find_quality("val_loss") if known else None
    alike = [row for row in rows if row.quality is not None and row.quality_name == "val_loss"]
    if not alike:
        raise CannotCheckError("no row gives a validation loss")
    shown = ", ".join(f"val_loss {row.quality:g} ({row.device} {row.topology})" for row in alike)
    if quality and quality.caution:
        yield note(shown, quality.caution, quality.beware, alike[0].name)


@check("remarks", "the page needs no remarks beside its columns")
def remarks(page: PublishedPage) -> Iterator[CheckResult]:
    for rows in group_by("remark")(page):
        if rows[0].remark:
            also = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            yield note(rows[0].name + also, rows[0].remark, "the page itself", page.title)


@check("read", "the whole page could be read")
def unread_lines(page: PublishedPage) -> Iterator[CheckResult]:
    if not page.was_read and not page.unread:
        raise CannotCheckError(NO_WORDS)
    for sentence in page.unread:
        yield note(sentence, "what could not be read was not checked either", "the line on the page")


def _require_words(page: PublishedPage, quantities: Sequence[str], unless: str) -> list[PageStatement]:
    if not page.said:
        raise CannotCheckError(NO_WORDS)
    said = [entry for entry in page.said if entry.quantity in quantities]
    if not said:
        raise CannotCheckError(unless)
    return said


CHECKS: tuple[Check[PublishedPage], ...] = (
    possible_values, page_device, card_memory, throughput_order, mfu, memory_fits, target, whole_epochs, item, opinion,
    shares, scaling, samples_once, parallel, tokens_mfu, one_recipe, faster_when_narrower,
    configuration, quality_named_once, one_throughput, units, ratios, val_loss, remarks, unread_lines,
)  # fmt: skip


# The audit of a page


def audit(page: PublishedPage) -> Audit:
    """All findings on a page; a page without figures is empty."""
    if any(row.has_figures for row in page.rows):
        return Audit(title=page.title, checks=run_checks(CHECKS, page, page.title))
    why = "no row of the page holds a figure" if page.rows else "no row of results was read"
    left = [mark_unchecked(entry.code, entry.title, why) for entry in CHECKS if entry is not unread_lines]
    return Audit(title=page.title, checks=(*left, *run_checks([unread_lines], page, page.title)), empty=True)


def group_by_source(rows: Iterable[PublishedRow]) -> list[PublishedPage]:
    """Groups rows by the page they were read from; of its text, only the rows are known."""
    pages: dict[tuple[str, str], list[PublishedRow]] = {}
    for row in rows:
        pages.setdefault((row.source.title, row.source.address), []).append(row)
    return [PublishedPage(title=title, rows=tuple(members)) for (title, _), members in pages.items()]


def find_doubts(pages: Iterable[PublishedPage]) -> Mapping[str, tuple[CheckResult, ...]]:
    """What is wrong or doubtful, by row name, most severe first."""
    found: dict[str, tuple[CheckResult, ...]] = {}
    for finding in collect_findings(map(audit, pages)):
        if finding.verdict in ("failed", "doubt"):
            found[finding.subject] = (*found.get(finding.subject, ()), finding)
    return found


def add_findings(page: PublishedPage) -> PublishedPage:
    """The page with its audit's findings stored on each row, so that readers need not audit it again."""
    return replace(page, rows=attach_findings(page.rows, find_doubts([page])))


def attach_findings(
    rows: Sequence[PublishedRow], doubts: Mapping[str, tuple[CheckResult, ...]]
) -> tuple[PublishedRow, ...]:
    return tuple(
        replace(
            row,
            findings=tuple(
                RowFinding(verdict=SEVERITIES[one.verdict], check=one.name, sentence=one.sentence)
                for one in doubts.get(row.name, ())
            ),
        )
        for row in rows
    )
