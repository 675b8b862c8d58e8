"""Bounds the time of a counted step on a card: no operator is faster than its FLOPs or its memory traffic allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainmark.analysis import peaks
from trainmark.features.flops.step_count import CountedStep
from trainmark.platforms import files
from trainmark.platforms.files import Peak
from trainmark.record.errors import UsageError, nearest
from trainmark.record.precision import E4M3, E5M2, FAMILIES_OF_TYPES, Precision


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The bound by a card's data sheet."""

    card: str
    platform: str
    tflops: float
    """In the step's precision."""
    memory_gb_s: float | None
    products_s: float
    """All matmuls at the card's peak, nothing else."""
    least_s: float | None
    """Sum over operators of the longer of compute and memory time; None where the memory bandwidth is unknown."""
    memory_percent: float | None
    """Share of that time in memory-bound operators."""
    most_mfu: float | None
    """MFU of the network's stated FLOPs in that time, in percent."""
    source: str


def find_bounds(step: CountedStep, precision: Precision, platform: str, card: str | None = None) -> list[Bound]:
    """Bounds of every card whose data sheet has the precision, fastest first, or of those that match `card`.

    Matmuls of a type that a sheet lacks get its highest peak: still a bound.
    """
    sheets = list(_list_sheets(platform))
    if card is not None:
        meant = peaks.find_cards(card)
        sheets = [(file, sheet) for file, sheet in sheets if sheet in meant or sheet.fits(card)]
        if not sheets:
            names = [_name(sheet) for _, sheet in _list_sheets(platform)]
            raise UsageError(f"card {card!r} has no data sheet here; {nearest(card, names)}")
    able = [(file, sheet) for file, sheet in sheets if precision.family in sheet.tflops]
    if card is not None and not able:
        _, sheet = sheets[0]
        raise UsageError(
            f"the data sheet of {_name(sheet)} has no peak in {precision.family}; "
            f"it has {', '.join(sheet.tflops)}; choose one with --precision"
        )
    found = [_make_bound(step, precision, file, sheet) for file, sheet in able]
    return sorted(found, key=lambda bound: (bound.least_s is None, bound.least_s or bound.products_s))


def _list_sheets(platform: str) -> Iterator[tuple[str, Peak]]:
    """The sheets of all platform files, and of the user's own."""
    for word in dict.fromkeys((platform, *files.names())):
        file = files.load(word)
        yield from ((file.title, sheet) for sheet in file.peaks)


def _make_bound(step: CountedStep, precision: Precision, platform: str, sheet: Peak) -> Bound:
    peak = sheet.tflops[precision.family]
    products_s = least_s = by_memory_s = 0.0
    for launch, count in step.count.launches:
        multiplying = launch.flops * count / (_find_rate(sheet, launch.type, precision) * 1e12)
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
    """The name as commonly written."""
    return sheet.names[0].replace(".", "-")


def _find_rate(sheet: Peak, factors: str, precision: Precision) -> float:
    """TFLOP/s for matmuls of a type."""
    if factors == "float32" and precision.allows_tf32:
        factors = "tf32"
    family = FAMILIES_OF_TYPES.get(E4M3 if factors == E5M2 else factors, "")
    return sheet.tflops.get(family) or max(sheet.tflops.values())
