"""What a card can do at most in each precision, so that a rate can be held against a row's label."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainmark.spec.precision import FAMILIES
from trainmark.spec.published_row import FLOPS_PER_ITEM, PublishedRow
from trainmark.spec.topology import Topology

MOST_SEEN = 70.0
"""Percent of a data sheet's peak above which hardly any whole training step was ever seen."""

_LABELS = {"amp": "fp16", "fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "bf16": "bf16", "float32": "fp32"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """A device by its data sheet."""

    pattern: str
    """What its name holds, as words."""
    tflops: Mapping[str, float]
    """Dense, by precision."""
    source: str
    memory_gib: float | None = None


CARDS = (
    Card(pattern="A100", tflops={"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312}, source="NVIDIA A100 data sheet"),
    Card(
        pattern="H100 PCIe",
        tflops={"fp32": 51, "tf32": 378, "fp16": 756, "bf16": 756},
        memory_gib=80,
        source="H100 PCIe as listed by others",
    ),
    Card(
        pattern="H100",
        tflops={"fp32": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4},
        memory_gib=80,
        source="NVIDIA H100 data sheet (SXM5)",
    ),
    Card(pattern="V100-PCIE", tflops={"fp32": 14.1, "fp16": 113}, source="V100 PCIe as listed by others"),
    Card(pattern="V100-SXM2", tflops={"fp32": 15.7, "fp16": 125}, source="NVIDIA V100 data sheet"),
    Card(
        pattern="BI-V100",
        tflops={"fp32": 37, "fp16": 147, "bf16": 147},
        memory_gib=32,
        source="BI-V100 as announced in April 2021",
    ),
    Card(
        pattern="C500",
        tflops={"fp32": 36, "tf32": 140, "fp16": 280, "bf16": 280},
        memory_gib=64,
        source="MetaX C500 as circulated",
    ),
    Card(
        pattern="S4000",
        tflops={"fp32": 25, "tf32": 50, "fp16": 100, "bf16": 100},
        memory_gib=48,
        source="MTT S4000 as announced in December 2023",
    ),
)
"""The first that fits counts."""


@dataclass(frozen=True, kw_only=True)
class Use:
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
        able = {name: percent for name, percent in self.percent.items() if percent <= MOST_SEEN}
        widest = [name for name, percent in able.items() if percent == max(able.values())]
        return " or ".join([*widest, *(["narrower"] if len(able) > len(widest) else [])])


def card(device: str) -> Card | None:
    """The card a device's name means; the first that fits."""
    wanted = _words(device)
    return next((known for known in CARDS if set(_words(known.pattern)) <= set(wanted)), None)


def family(label: str) -> str | None:
    """A table's word for a precision as data sheets say it; None for a word that is no precision."""
    for word in re.split(r"[^a-z0-9]+", label.lower()):
        if word == "amp":
            continue
        if word in _LABELS:
            return _LABELS[word]
    return "fp16" if "amp" in label.lower() else None


def use(row: PublishedRow) -> Use | None:
    """None where the rate, the network's FLOPs or the card's peak is not known."""
    rate, flops, label = row.p_core or row.p_train, FLOPS_PER_ITEM.get(row.workload), family(row.precision)
    if rate is None or flops is None or label is None:
        return None
    known = card(row.device)
    peaks = dict(known.tflops) if known else {}
    if row.peak_tflops is not None:
        peaks[label] = row.peak_tflops
    if label not in peaks:
        return None
    tflops = rate * flops / Topology.parse(row.topology).devices / 1e12
    return Use(
        label=label,
        tflops=tflops,
        percent={name: 100 * tflops / peaks[name] for name in FAMILIES if name in peaks},
        source=known.source if known else row.peak_source.title if row.peak_source else "the row itself",
    )


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s_/()-]+", name.lower()) if word]
