"""Formats values for people: significant digits, units, verdicts, short device names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from trainmark.record import endings
from trainmark.record.language import ENGLISH, Say
from trainmark.record.links import AllReduce, PairLink, best_pairs, format_size
from trainmark.record.numbers import Bounds, digits_to_tell_apart, is_too_noisy, number as number, share

if TYPE_CHECKING:
    from trainmark.record.record import Quality, Record

NOTHING = "—"
"""Shown where there is no number; a note says why."""

TOO_NOISY_WORDS = "too noisy to say"
"""Shown instead of an interval wider than ±50 %."""

VERDICT_STYLES = {"reached": "green", "missed": "yellow"}


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    return f"{number(value, digits)} {unit}" if unit not in ("", "-") else number(value, digits)


def format_interval(interval: Bounds | None, noisy: str = TOO_NOISY_WORDS) -> str:
    """`±0.4 %`: the value times or divided by 1.004; `noisy` beyond ±50 %, empty without an interval."""
    if interval is None:
        return ""
    return noisy if is_too_noisy(interval) else f"±{number(100 * share(interval), 2)} %"


def drop_noisy(interval: Bounds | None) -> Bounds | None:
    """The interval; None where it is too noisy to draw."""
    return None if interval is None or is_too_noisy(interval) else interval


def format_quality(quality: Quality) -> str:
    """The value with enough digits not to round a miss onto the target."""
    if quality.value is None:
        return NOTHING
    return with_unit(quality.value, quality.unit, digits_to_tell_apart(quality.value, quality.goal, quality.better))


def format_goal(quality: Quality) -> str:
    unit = f" {quality.unit}" if quality.unit not in ("", "-") else ""
    return f"{'≥' if quality.better == 'higher' else '≤'} {quality.goal:g}{unit}"


def verdict(record: Record) -> str:
    """Whether the target was reached; a short or unfinished run is not judged by it."""
    if record.status == "incomplete":
        return "interrupted" if endings.is_signal_ending(record.ended) else "unfinished"
    if record.quality.value is None:
        return "not finite" if record.quality.history else "not evaluated"
    if record.quality.reached:
        return "reached"
    return "missed" if record.plan.limits.full else "short run"


def device_name(record: Record) -> str:
    return short_device(record.environment.device.name) or record.plan.platform_word


def short_device(name: str) -> str:
    """A device's name without trademarks and clock: `Intel Xeon Platinum 8370C`, `AMD EPYC 7763`."""
    name = re.sub(r"\((?:R|TM|C)\)|®|™|\s@.*$|\bCPU\b|\b\d+-Core\b|\bProcessor\b", " ", name, flags=re.IGNORECASE)
    return " ".join(name.split())


def spread_percent(values: Sequence[float]) -> float | None:
    """Spread of repeats: (max - min) / median, in percent."""
    return 100 * (max(values) - min(values)) / median(values) if len(values) > 1 and median(values) else None


def summarise_links(measured: Sequence[AllReduce], *, ranks: int, hosts: int, say: Say = ENGLISH) -> str:
    """One sentence: latency of the smallest message, bandwidth of the largest."""
    smallest, largest = measured[0], measured[-1]
    where = say("{ranks} ranks on {hosts} host") if hosts == 1 else say("{ranks} ranks on {hosts} hosts")
    return say("all-reduce among {where}: {latency} ms for {smallest}, {bandwidth} GB/s for {largest}").format(
        where=where.format(ranks=ranks, hosts=hosts),
        latency=number(smallest.median_s * 1e3, 2),
        smallest=format_size(smallest.size_bytes),
        bandwidth=number(largest.bus_gigabytes_per_s, 2),
        largest=format_size(largest.size_bytes),
    )


def summarise_pairs(measured: Sequence[PairLink], rounds: int) -> str:
    """One sentence: the number of pairs, the bandwidth of the slowest and of the median one."""
    ordered = sorted(best_pairs(measured), key=lambda pair: pair.bus_gigabytes_per_s)
    slowest = ordered[0]
    if len(ordered) == 1:
        return f"nodes {slowest.first} and {slowest.second} carry {number(slowest.bus_gigabytes_per_s, 2)} GB/s"
    return (
        f"{len(ordered)} pairs of nodes in {rounds} rounds: the median one carries "
        f"{number(median(pair.bus_gigabytes_per_s for pair in ordered), 2)} GB/s, the slowest, nodes {slowest.first} "
        f"and {slowest.second}, {number(slowest.bus_gigabytes_per_s, 2)} GB/s"
    )
