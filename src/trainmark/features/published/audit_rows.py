"""Checks on single rows of a published table: figures that are impossible or implausible on their own."""

from __future__ import annotations

from collections.abc import Iterator

from trainmark.analysis import device_names as names, peaks
from trainmark.analysis.device_names import UNKNOWN, fold_key
from trainmark.analysis.published_library import PublishedPage
from trainmark.record.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.format import number
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.numbers import meets_goal
from trainmark.record.published_row import PublishedRow
from trainmark.record.workload_facts import WorkloadFacts
from trainmark.workloads import all_facts, facts, quality_word

MAX_EPOCHS = 1000
"""Of a training whose recipe is not known."""
MEMORY_ALIKE = 0.07
"""Relative difference between the memory a tool reports and the data sheet."""
NEAR_CAP = 0.01
"""A training this close to the cap's epochs counts as ended by it."""


def count_epochs(row: PublishedRow, page: PublishedPage) -> float | None:
    """Epochs a row trained, at most: e2e_time also includes startup."""
    items = find_items_per_epoch(row, page)
    if items is None or row.e2e_time_s is None or row.p_whole is None:
        return None
    return row.e2e_time_s * row.p_whole / items


def find_items_per_epoch(row: PublishedRow, page: PublishedPage) -> float | None:
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


def find_epoch_cap(row: PublishedRow) -> int | None:
    """The epochs after which the reference recipe ends."""
    known = facts(row.workload)
    return known.reference.epochs if known and known.reference else None


@check("possible-values", "every figure is one that can be measured")
def possible_values(page: PublishedPage) -> Iterator[CheckResult]:
    for row in page.rows:
        if row.devices is None and row.topology != UNKNOWN:
            yield wrong(f"configuration {row.topology!r}", "it is not nodes x devices", "the page's own line", row.name)
        for name in ("e2e_time_s", *THROUGHPUTS, "mem_used_gib", "mem_total_gib", "batch_per_device"):
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
        if row.quality is not None and row.quality < 0 and "loss" in (row.quality_name or ""):
            yield wrong(
                f"{row.quality_name} {row.quality:g}", "this loss is a sum of squares", "the page's own line", row.name
            )


@check("page-device", "rows are of the page's own devices")
def page_device(page: PublishedPage) -> Iterator[CheckResult]:
    own = {names.parse_device(name).vendor: name for name in page.devices if names.parse_device(name).vendor}
    if not own or not any(row.vendor for row in page.rows):
        raise CannotCheckError("the page does not name its devices beside its rows")
    if any(row.vendor in own for row in page.rows):
        return  # others beside its own are there to compare with
    foreign: dict[str, list[PublishedRow]] = {}
    for row in page.rows:
        if row.vendor:
            foreign.setdefault(row.device, []).append(row)
    for device, rows in foreign.items():
        more = f", {len(rows)} rows" if len(rows) > 1 else ""
        yield doubtful(
            f"{device} in the table{more}, {', '.join(own.values())} above it",
            "the rows name another maker's card than their page, so some of it was copied from another page",
            "on which of the two the figures were measured",
            rows[0].name,
        )


@check("card-memory", "rows give the memory that such a card has")
def card_memory(page: PublishedPage) -> Iterator[CheckResult]:
    compared: dict[tuple[str, float], list[PublishedRow]] = {}
    for row in page.rows:
        if row.mem_total_gib is not None and peaks.find_memory_sizes(row.device):
            compared.setdefault((row.device, row.mem_total_gib), []).append(row)
    require(len(compared), "no row gives the memory of a card that is known")
    for (device, total), rows in compared.items():
        sizes = sorted(peaks.find_memory_sizes(device))
        if not any(abs(total / size - 1) <= MEMORY_ALIKE for size in sizes):
            more = f" in {len(rows)} rows" if len(rows) > 1 else ""
            yield doubtful(
                f"{total:g} GiB{more}, {device} has {' or '.join(f'{size:g}' for size in sizes)}",
                "no such card has this memory: the figures are of another one, or some of them were copied",
                "on which card they were measured",
                rows[0].name,
            )


@check("throughput-order", "p_whole <= p_train <= p_core")
def throughput_order(page: PublishedPage) -> Iterator[CheckResult]:
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
    require(compared, "no row gives two throughputs")


@check("mfu", "no card computes more than its peak in the precision a row is labelled with")
def mfu(page: PublishedPage) -> Iterator[CheckResult]:
    held = 0
    for row in page.rows:
        used = peaks.estimate_use(row) if row.devices else None
        if used is None:
            continue
        held += 1
        percent = used.percent[used.label]
        shares = ", ".join(f"{value:.0f} % of {name}" for name, value in used.percent.items())
        numbers = f"{number(used.tflops)} TFLOP/s per card: {shares} ({used.source})"
        fitting = used.fitting
        instead = f"it is consistent with {fitting}" if fitting else "no precision of this card is known to reach it"
        if percent > 100:
            yield wrong(
                numbers,
                f"the row is labelled {row.precision}, and this is {percent / 100:.2g} times that peak; {instead}",
                "in which type the matmuls ran: the run's autocast and tf32 settings",
                row.name,
            )
        elif percent > peaks.MAX_SEEN and fitting:
            yield doubtful(
                numbers,
                f"hardly any training reaches {percent:.0f} % of a data sheet's peak in {row.precision}; {instead}",
                "whether tf32 was allowed, as frameworks of the time did by default",
                row.name,
            )
    require(held, "no row has a rate and a card whose peak is known")


@check("memory-fits", "memory used is at most the card's")
def memory_fits(page: PublishedPage) -> Iterator[CheckResult]:
    compared = 0
    for row in page.rows:
        known = peaks.find_card(row.device)
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
    require(compared, "no row gives memory used and the card's")


@check("target", "the quality reaches the target")
def target(page: PublishedPage) -> Iterator[CheckResult]:
    judged = 0
    for row in page.rows:
        if row.quality is None or row.target is None or row.better is None:
            continue
        judged += 1
        word, unit = quality_word(row.quality_name or "quality"), (row.quality_unit or "").strip("-")
        numbers = f"{word} {row.quality:g} {unit}".rstrip() + f", target {row.target:g} {unit}".rstrip()
        if not meets_goal(row.quality, row.target, row.better):
            done, most, ended = count_epochs(row, page), find_epoch_cap(row), ""
            if done is not None and most is not None and abs(done / most - 1) <= NEAR_CAP:
                ended = f", and its {number(done)} epochs are the recipe's cap of {most}"
            yield note(
                numbers,
                f"the target was missed{ended}: its time is not a time to target",
                "whether throughput was bought with accuracy: batch, learning rate, precision",
                row.name,
            )
        elif row.quality == row.target and row.quality_name is not None and not _is_measured(row, page):
            yield note(
                numbers,
                "the result equals the criterion to the last digit, so it may be the criterion written twice",
                "the log of the run",
                row.name,
            )
    require(judged, "no row gives a quality and its target")


@check("epochs", "e2e_time x p_whole is a number of epochs the recipe allows")
def whole_epochs(page: PublishedPage) -> Iterator[CheckResult]:
    counted = 0
    for row in page.rows:
        done, most = count_epochs(row, page), find_epoch_cap(row)
        if done is None:
            continue
        counted += 1
        product = f"{number(row.e2e_time_s or 0)} s x {number(row.p_whole or 0)} {row.item or 'items'}/s"
        numbers = f"{product} / {number(find_items_per_epoch(row, page) or 0)} = {done:.1f} epochs"
        if most is None and done > MAX_EPOCHS:
            yield doubtful(
                numbers,
                "hardly anybody trains so long on this set, so its figures are not of one run, or items are counted "
                "more than once",
                "how many epochs the log shows",
                row.name,
            )
        elif most is not None and done > most * (1 + 3 * NEAR_CAP):
            yield doubtful(
                numbers,
                f"the recipe ends after {most}, so its figures are not of one run, or the cap was moved",
                "how many epochs the log shows",
                row.name,
            )
        elif most is not None and abs(done / most - 1) <= NEAR_CAP:
            yield note(
                numbers,
                f"the run was ended by the recipe's cap of {most} epochs, not by its target",
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
    require(counted, "no row gives e2e_time and p_whole of a training whose data set is known")


@check("item", "throughput counts what its word says")
def item(page: PublishedPage) -> Iterator[CheckResult]:
    counted, beyond = 0, []
    for row in page.rows:
        rate, each, known = row.p_core or row.p_train or row.p_whole, row.devices, facts(row.workload)
        if rate is None or each is None or known is None:
            continue
        counted += 1
        card = peaks.find_card(row.device)
        able = max(card.tflops.values()) if card else None
        if known.flops_per_item is None or able is None or (known.items_per_sample or 1) <= 1:
            continue
        needed = rate / each * known.flops_per_item * (known.items_per_sample or 1) / 1e12
        if needed > able:
            beyond.append((rate / each, needed, able, row, known))
    require(counted, "no row gives a throughput of a training whose items are known")
    if not beyond:
        return
    rate, needed, able, row, known = max(beyond, key=lambda entry: entry[0])
    called = next((entry[3].item for entry in beyond if _means_samples(entry[3].item or "", known)), None)
    called = called or _find_page_word(page, known)
    numbers = (
        f"{number(rate)} per second and card; as {known.sample}s {number(needed)} TFLOP/s, and the card has {able:g}"
    )
    about = f"about {known.items_per_sample:g} of which make a {known.sample}"
    remedy = f"whether a page beside it counts {known.item.split()[-1]} or {known.sample}s, before comparing"
    more = f"in {len(beyond)} rows " if len(beyond) > 1 else ""
    if called:
        yield doubtful(
            numbers,
            f"what the page calls {called} {more}can only be {known.item}, {about}",
            remedy,
            row.name,
        )
    else:
        yield note(
            numbers,
            f"these can {more}only be {known.item}, {about}, by whatever word they go",
            remedy,
            row.name,
        )


def _means_samples(text: str, known: WorkloadFacts) -> bool:
    return any(word in text.lower() for word in known.sample_words)


def _find_page_word(page: PublishedPage, known: WorkloadFacts) -> str | None:
    """The page's name for what it counts, where that means samples."""
    units = (said.unit for said in page.said if said.quantity == "throughput" and said.unit)
    return next((unit for unit in units if _means_samples(unit, known)), None)


@check("opinion", "an opinion score is one that listeners gave such a model")
def opinion(page: PublishedPage) -> Iterator[CheckResult]:
    """A mean opinion score comes from listeners: no training script computes one, and listening tests differ."""
    scored = [row for row in page.rows if row.quality is not None and row.quality_name == "MOS"]
    if not scored:
        raise CannotCheckError("no row gives an opinion score")
    for row in scored:
        known = facts(row.workload)
        test = known.listening_test if known else None
        if test is None or test.quality != row.quality_name or (row.quality or 0.0) <= test.value + test.margin:
            continue
        yield doubtful(
            f"{row.quality_name} {row.quality:g}; listening test {test.value:.2f} ±{test.margin:.2f} by {test.by}",
            "it lies above the public listening test of this model, and no published code computes it: the page names "
            "neither listeners nor sentences, and a training stops by its loss",
            "who listened to what, and how the score was computed; a predicted score does not count",
            row.name,
        )


def _is_measured(row: PublishedRow, page: PublishedPage) -> bool:
    """Whether the workload's evaluation measures this quality, or rows of one target differ in it."""
    known = facts(row.workload)
    alike = (other for other in page.rows if (other.workload, other.target) == (row.workload, row.target))
    ours = known is not None and known.find_quality(row.quality_name) is not None
    return ours or any(other.quality not in (None, row.quality) for other in alike)


def require(count: int, why_not: str) -> None:
    """Ends a check that found nothing to compare."""
    if not count:
        raise CannotCheckError(why_not)


CHECKS: tuple[Check[PublishedPage], ...] = (
    possible_values, page_device, card_memory, throughput_order, mfu, memory_fits, target, whole_epochs, item, opinion,
)  # fmt: skip
