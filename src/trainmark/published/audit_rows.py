"""Checks on single rows of a published table: what no honest row can say, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Iterator

from trainmark.analysis import peaks
from trainmark.analysis.known import CLIP_FRAMES, KNOWN
from trainmark.published.page import Page
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.errors import UsageError
from trainmark.spec.format import number, quality_word
from trainmark.spec.metrics import THROUGHPUTS
from trainmark.spec.published_row import FLOPS_PER_ITEM, PublishedRow
from trainmark.spec.target import reached
from trainmark.spec.topology import Topology

NEAR_CAP = 0.01
"""Training within this share of the cap's epochs is taken to have been ended by it."""
_CLIP_WORDS = ("sample", "clip", "utterance", "样本")


def devices(row: PublishedRow) -> int | None:
    try:
        return Topology.parse(row.topology).devices
    except UsageError:
        return None


def epochs(row: PublishedRow) -> float | None:
    """How often a row went through its data set: at most this, as e2e_time also holds what came before."""
    known = KNOWN.get(row.workload)
    if known is None or row.e2e_time_s is None or row.p_whole is None:
        return None
    return row.e2e_time_s * row.p_whole / known.items_per_epoch


@check("possible-values", "every figure is one that can be measured")
def possible_values(page: Page) -> Iterator[CheckResult]:
    for row in page.rows:
        if devices(row) is None:
            yield wrong(f"configuration {row.topology!r}", "it is not nodes x devices", "the page's own line", row.name)
        for name in ("e2e_time_s", *THROUGHPUTS, "mem_used_gib", "mem_total_gib", "batch_per_device", "peak_tflops"):
            value = getattr(row, name)
            if value is not None and not 0 < value < float("inf"):
                yield wrong(
                    f"{name} {value:g}", "such a figure cannot be measured", "the page's own line, for a slip", row.name
                )
        if row.quality is not None and row.quality_unit == "%" and not 0 <= row.quality <= 100:
            yield wrong(
                f"{row.quality_name} {row.quality:g} %",
                "a share lies between 0 and 100 %",
                "whether the column is the one its head names",
                row.name,
            )
        if row.quality is not None and "loss" in (row.quality_name or "") and row.quality < 0:
            yield wrong(
                f"{row.quality_name} {row.quality:g}", "this loss is a sum of squares", "the page's own line", row.name
            )


@check("throughput-order", "p_whole <= p_train <= p_core")
def throughput_order(page: Page) -> Iterator[CheckResult]:
    compared = 0
    for row in page.rows:
        for low, high in (("p_whole", "p_train"), ("p_train", "p_core"), ("p_whole", "p_core")):
            less, more = getattr(row, low), getattr(row, high)
            compared += less is not None and more is not None
            if less is not None and more is not None and less > more:
                yield wrong(
                    f"{low} {less:g} > {high} {more:g}",
                    f"both count the same items, and {high} leaves time out that {low} holds",
                    "which timer was read for which column",
                    row.name,
                )
    _needed(compared, "no row gives two throughputs")


@check("mfu", "no card computes more than its peak in the precision a row is labelled with")
def mfu(page: Page) -> Iterator[CheckResult]:
    held = 0
    for row in page.rows:
        used = peaks.use(row) if devices(row) else None
        if used is None:
            continue
        held += 1
        percent = used.percent[used.label]
        shares = ", ".join(f"{value:.0f} % of {name}" for name, value in used.percent.items())
        numbers = f"{number(used.tflops)} TFLOP/s a card: {shares} ({used.source})"
        fitting = used.fitting
        instead = f"it is consistent with {fitting}" if fitting else "no precision of this card is known to reach it"
        if percent > 100:
            yield wrong(
                numbers,
                f"the row is labelled {row.precision}, and this is {percent / 100:.2g} times that peak; {instead}",
                "what the products were computed in: autocast and tf32 switches of the run",
                row.name,
            )
        elif percent > peaks.MOST_SEEN and fitting:
            yield doubtful(
                numbers,
                f"hardly any training reaches {percent:.0f} % of a data sheet's peak in {row.precision}; {instead}",
                "whether tf32 was allowed, as frameworks of the time did by default",
                row.name,
            )
    _needed(held, "no row has a rate and a card whose peak is known")


@check("memory-fits", "memory used is at most the card's")
def memory_fits(page: Page) -> Iterator[CheckResult]:
    compared = 0
    for row in page.rows:
        known = peaks.card(row.device)
        total = row.mem_total_gib or (known.memory_gib if known else None)
        if row.mem_used_gib is None or total is None:
            continue
        compared += 1
        if row.mem_used_gib > total:
            yield wrong(
                f"{row.mem_used_gib:g} of {total:g} GiB",
                "more memory was used than one card has",
                "whether the figure is of one card or of all",
                row.name,
            )
    _needed(compared, "no row gives memory used and the card's")


@check("target", "the quality reaches the target")
def target(page: Page) -> Iterator[CheckResult]:
    judged = 0
    for row in page.rows:
        if row.quality is None or row.target is None or row.better is None:
            continue
        judged += 1
        word, unit = quality_word(row.quality_name or "quality"), (row.quality_unit or "").strip("-")
        numbers = f"{word} {row.quality:g} {unit}".rstrip() + f", target {row.target:g} {unit}".rstrip()
        if not reached(row.quality, row.target, row.better):
            done, known = epochs(row), KNOWN.get(row.workload)
            ended = ""
            if done is not None and known is not None and abs(done / known.epochs - 1) <= NEAR_CAP:
                ended = f", and its {number(done)} epochs are the recipe's cap of {known.epochs}"
            yield note(
                numbers,
                f"the target was missed{ended}: its time is not a time to target",
                "whether throughput was bought with accuracy: batch, learning rate, precision",
                row.name,
            )
        elif row.quality == row.target and row.quality_name not in (None, "acc1", "val_loss"):
            yield note(
                numbers,
                "the result equals the criterion to the last digit, so it may be the criterion written twice",
                "the log of the run",
                row.name,
            )
    _needed(judged, "no row gives a quality and its target")


@check("epochs", "e2e_time x p_whole is a number of epochs the recipe allows")
def whole_epochs(page: Page) -> Iterator[CheckResult]:
    counted = 0
    for row in page.rows:
        done, known = epochs(row), KNOWN.get(row.workload)
        if done is None or known is None:
            continue
        counted += 1
        product = f"{number(row.e2e_time_s or 0)} s x {number(row.p_whole or 0)} {known.item}/s"
        numbers = f"{product} / {number(known.items_per_epoch)} = {done:.1f} epochs"
        if done > known.epochs * (1 + 3 * NEAR_CAP):
            yield doubtful(
                numbers,
                f"the recipe ends after {known.epochs}, so its figures are not of one run, or the cap was moved",
                "how many epochs the log shows",
                row.name,
            )
        elif abs(done / known.epochs - 1) <= NEAR_CAP:
            yield note(
                numbers,
                f"the run was ended by the recipe's cap of {known.epochs} epochs, not by its target",
                "the quality beside it",
                row.name,
            )
        elif done < 1:
            yield doubtful(
                numbers,
                "less than one pass over the training set has no quality to speak of",
                "whether e2e_time and p_whole are of one run",
                row.name,
            )
    _needed(counted, "no row gives e2e_time and p_whole of a training whose data set is known")


@check("item", "throughput counts what its word says")
def item(page: Page) -> Iterator[CheckResult]:
    counted, beyond = 0, []
    for row in page.rows:
        rate, each, known = row.p_core or row.p_train or row.p_whole, devices(row), KNOWN.get(row.workload)
        if rate is None or each is None or known is None:
            continue
        counted += 1
        card = peaks.card(row.device)
        able = max(card.tflops.values()) if card else row.peak_tflops
        needed = rate / each * FLOPS_PER_ITEM[row.workload] * CLIP_FRAMES / 1e12
        if known.item == "mel frames" and able is not None and needed > able:
            beyond.append((rate / each, needed, able, row))
    _needed(counted, "no row gives a throughput of a training whose items are known")
    if not beyond:
        return
    rate, needed, able, row = max(beyond, key=lambda entry: entry[0])
    called = next((entry[3].item for entry in beyond if _is_clip_word(entry[3].item or "")), None) or _page_word(page)
    numbers = f"{number(rate)} a second and card; as clips {number(needed)} TFLOP/s, and the card has {able:g}"
    more = f"in {len(beyond)} rows " if len(beyond) > 1 else ""
    if called:
        yield doubtful(
            numbers,
            f"what the page calls {called} {more}can only be mel frames, about {CLIP_FRAMES} of which make a clip",
            "whether a page beside it counts frames or clips, before comparing",
            row.name,
        )
    else:
        yield note(
            numbers,
            f"these can {more}only be mel frames, about {CLIP_FRAMES} of which make a clip, by whatever word they go",
            "whether a page beside it counts frames or clips, before comparing",
            row.name,
        )


def _is_clip_word(text: str) -> bool:
    return any(word in text.lower() for word in _CLIP_WORDS)


def _page_word(page: Page) -> str | None:
    """The page's own word for what it counts, if that means clips."""
    units = (said.unit for said in page.said if said.quantity == "throughput" and said.unit)
    return next((unit for unit in units if _is_clip_word(unit)), None)


def _needed(count: int, why_not: str) -> None:
    if not count:
        raise CannotCheckError(why_not)


CHECKS: tuple[Check[Page], ...] = (
    possible_values,
    throughput_order,
    mfu,
    memory_fits,
    target,
    whole_epochs,
    item,
)
