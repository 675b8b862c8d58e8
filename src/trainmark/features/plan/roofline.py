"""The least time a card could take for a counted step: no operator is faster than its FLOPs or its memory allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainmark.analysis import peaks
from trainmark.platforms import files
from trainmark.platforms.files import Peak
from trainmark.record.errors import UsageError, nearest
from trainmark.record.precision import E4M3, E5M2, FAMILIES_OF_TYPES, Precision
from trainmark.record.step_count import CountedStep


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a card's data sheet allows."""

    card: str
    platform: str
    tflops: float
    """In the step's precision."""
    memory_gb_s: float | None
    products_s: float
    """All matmuls at the card's peaks, and nothing else."""
    least_s: float | None
    """Each operator as long as its FLOPs or its memory take, whichever is longer, one after the other; None where
    no memory bandwidth is known."""
    memory_percent: float | None
    """Of that time, in operators that wait for memory."""
    most_mfu: float | None
    """Percent of the peak that the network's own FLOPs would be in that time."""
    source: str


def bounds(step: CountedStep, precision: Precision, platform: str, card: str | None = None) -> list[Bound]:
    """Of every card whose data sheet has the precision, fastest first; or of those that `card` may mean.

    A sheet that lacks the type of some matmuls lends them its highest peak: what is found is still a bound.
    """
    sheets = list(_sheets(platform))
    if card is not None:
        meant = peaks.find_cards(card)
        sheets = [(file, sheet) for file, sheet in sheets if sheet in meant or sheet.fits(card)]
        if not sheets:
            names = [_name(sheet) for _, sheet in _sheets(platform)]
            raise UsageError(f"card {card!r} has no data sheet here; {nearest(card, names)}")
    able = [(file, sheet) for file, sheet in sheets if precision.family in sheet.tflops]
    if card is not None and not able:
        _, sheet = sheets[0]
        raise UsageError(
            f"the data sheet of {_name(sheet)} has no peak in {precision.family}; "
            f"it has {', '.join(sheet.tflops)}: take one of these by --precision"
        )
    found = [_bound(step, precision, file, sheet) for file, sheet in able]
    return sorted(found, key=lambda bound: (bound.least_s is None, bound.least_s or bound.products_s))


def _sheets(platform: str) -> Iterator[tuple[str, Peak]]:
    """Those of all platform files, and of the user's own where it is one."""
    for word in dict.fromkeys((platform, *files.names())):
        file = files.load(word)
        yield from ((file.title, sheet) for sheet in file.peaks)


def _bound(step: CountedStep, precision: Precision, platform: str, sheet: Peak) -> Bound:
    peak = sheet.tflops[precision.family]
    products_s = least_s = by_memory_s = 0.0
    for launch, count in step.count.launches:
        multiplying = launch.flops * count / (_rate(sheet, launch.type, precision) * 1e12)
        moving = launch.bytes * count / (sheet.memory_gb_s * 1e9) if sheet.memory_gb_s else 0.0
        products_s += multiplying
        least_s += max(multiplying, moving)
        by_memory_s += moving if moving > multiplying else 0.0
    known = bool(sheet.memory_gb_s) and least_s > 0
    return Bound(
        card=_name(sheet),
        platform=platform,
        tflops=peak,
        memory_gb_s=sheet.memory_gb_s,
        products_s=products_s,
        least_s=least_s if known else None,
        memory_percent=100 * by_memory_s / least_s if known else None,
        most_mfu=100 * step.stated_flops / (least_s * peak * 1e12) if known else None,
        source=sheet.source,
    )


def _name(sheet: Peak) -> str:
    """As people write it."""
    return sheet.names[0].replace(".", "-")


def _rate(sheet: Peak, factors: str, precision: Precision) -> float:
    """TFLOP/s for matmuls of a type."""
    if factors == "float32" and precision.allows_tf32:
        factors = "tf32"
    family = FAMILIES_OF_TYPES.get(E4M3 if factors == E5M2 else factors, "")
    return sheet.tflops.get(family) or max(sheet.tflops.values())
