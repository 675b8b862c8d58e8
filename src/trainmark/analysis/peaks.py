"""Peak FLOP/s of cards per precision, and the share of it a published row used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

import msgspec

from trainmark import workloads
from trainmark.platforms import files
from trainmark.platforms.files import Peak
from trainmark.record.precision import FAMILIES
from trainmark.record.published_row import PublishedRow

MAX_SEEN = 70.0
"""Percent of a data sheet's peak above which hardly any whole training step was ever seen."""

_LABELS = {**{word: word for word in ("fp32", "tf32", "fp16", "bf16", "fp8")}, "float32": "fp32", "amp": "fp16"}


@dataclass(frozen=True, kw_only=True)
class PeakUse:
    """What a row's rate means for its card."""

    label: str
    """The precision it is labelled with, by the data sheet's word."""
    tflops: float
    """What one device would have computed each second."""
    percent: Mapping[str, float]
    """Of the peak, by precision."""
    source: str

    @property
    def fitting(self) -> str:
        """The precisions with the lowest peak that holds the rate comfortably; empty where none does."""
        able = {name: percent for name, percent in self.percent.items() if percent <= MAX_SEEN}
        widest = [name for name, percent in able.items() if percent == max(able.values())]
        return " or ".join([*widest, *(["narrower"] if len(able) > len(widest) else [])])


@lru_cache(maxsize=1000)
def find_card(device: str) -> Peak | None:
    """The data sheet of the platform files that a device's name means.

    Pages write less than torch does: `A100` is any A100, as long as all of them reach the same; `V100` is none.
    """
    fitting = find_cards(device)
    if not fitting or any(sheet.tflops != fitting[0].tflops for sheet in fitting):
        return None
    sizes, speeds = {sheet.memory_gib for sheet in fitting}, {sheet.memory_gb_s for sheet in fitting}
    return msgspec.structs.replace(
        fitting[0],
        memory_gib=sizes.pop() if len(sizes) == 1 else None,
        memory_gb_s=speeds.pop() if len(speeds) == 1 else None,
    )


def find_cards(device: str) -> list[Peak]:
    """Every data sheet that a device's name may mean: one where it says all, several where it says less."""
    sheets = _sheets()
    for sheet in sheets:
        if sheet.fits(device) or any(words <= _words(device) for words in map(_words, sheet.names)):
            return [sheet]
    asked = _words(device) - _vendors()
    return [sheet for sheet in sheets if asked and any(asked <= words for words in map(_words, sheet.names))]


def find_memory_sizes(device: str) -> set[float]:
    """What memory a card of this name can have, in GiB; empty where that is not known."""
    sizes = {sheet.memory_gib for sheet in find_cards(device)}
    return set() if None in sizes else {size for size in sizes if size is not None}


def highest_peak() -> float:
    """TFLOP/s that no card of the platform files exceeds."""
    return max(max(sheet.tflops.values()) for sheet in _sheets())


def precision_family(label: str) -> str | None:
    """A table's word for a precision as data sheets say it; None for a word that is no precision."""
    words = [word for word in re.split(r"[^a-z0-9]+", label.lower()) if word in _LABELS]
    plain = next((word for word in words if word != "amp"), "amp" if "amp" in label.lower() else "")
    return _LABELS.get(plain)


def estimate_use(row: PublishedRow) -> PeakUse | None:
    """None where the rate, the network's FLOPs or the card's peak is not known."""
    rate, flops, label = row.p_core or row.p_train, flops_per_item(row.workload), precision_family(row.precision)
    if rate is None or flops is None or label is None:
        return None
    known = find_card(row.device)
    if known is None or label not in known.tflops or row.devices is None:
        return None
    tflops = rate * flops / row.devices / 1e12
    return PeakUse(
        label=label,
        tflops=tflops,
        percent={name: 100 * tflops / known.tflops[name] for name in FAMILIES if name in known.tflops},
        source=known.source,
    )


def flops_per_item(workload: str) -> float | None:
    """Of training the workload's reference network; None where that is not known."""
    known = workloads.facts(workload)
    return known.flops_per_item if known else None


def estimate_mfu(row: PublishedRow) -> float | None:
    """What share of its devices' peak a row used, in percent; from p_train where the page gives no p_core.

    Above 100 the row cannot have run in the precision its label says.
    """
    used = estimate_use(row)
    return used.percent[used.label] if used else None


@cache
def _sheets() -> tuple[Peak, ...]:
    """Of all platform files, which are read once: a page names hundreds of devices."""
    return tuple(sheet for name in files.names() for sheet in files.load(name).peaks)


@cache
def _vendors() -> set[str]:
    found = [files.load(name) for name in files.names()]
    return set().union(*({file.name} | _words(file.title) for file in found))


def _words(name: str) -> set[str]:
    return {word for word in re.split(r"[\s_/()-]+", name.lower()) if word}
