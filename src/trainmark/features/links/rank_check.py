"""Checks and measures the links of a run with several ranks before its model is built, and checks them after."""

from __future__ import annotations

from trainmark.features.links import probe
from trainmark.platforms.platform import Device
from trainmark.record.events import EventWriter, LinksMeasured
from trainmark.train.collectives import Collectives
from trainmark.train.ranks import Ranks

BUDGET_S = 1.0
"""What a run may spend on it; `trainmark doctor --topology` measures longer."""
SIZES_AGAIN_BYTES = (4096, 1 << 20)


def check(
    device: Device, collectives: Collectives, ranks: Ranks, events: EventWriter, *, budget_s: float | None = None
) -> None:
    links = probe.probe(device, collectives, budget_s=BUDGET_S if budget_s is None else budget_s)
    levels = probe.probe_levels(device, collectives, ranks.local_ranks, links)
    if ranks.rank == 0:
        events.write(LinksMeasured(results=links, levels=levels))


def check_again(device: Device, collectives: Collectives) -> None:
    """After training: a library may exchange less when nobody looks."""
    probe.probe(device, collectives, sizes_bytes=SIZES_AGAIN_BYTES, budget_s=0.0)
