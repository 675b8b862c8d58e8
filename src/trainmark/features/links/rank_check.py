"""Checks and measures the links of a run with several ranks, before its model takes the memory."""

from __future__ import annotations

from trainmark.features.links import probe
from trainmark.platforms.platform import Device
from trainmark.record.events import EventWriter, LinksMeasured
from trainmark.train.collectives import Collectives
from trainmark.train.ranks import Ranks

BUDGET_S = 1.0
"""What a run may spend on it; `trainmark doctor --topology` measures longer."""


def check(
    device: Device, collectives: Collectives, ranks: Ranks, events: EventWriter, *, budget_s: float = BUDGET_S
) -> None:
    links = probe.probe(device, collectives, budget_s=budget_s)
    levels = probe.probe_levels(device, collectives, ranks.local_ranks, links)
    if ranks.rank == 0:
        events.write(LinksMeasured(results=links, levels=levels))
