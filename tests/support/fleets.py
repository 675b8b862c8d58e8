"""Runs of a fleet without a fleet: a record a host, as fast as the test says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from support.records import make_record, make_timeline
from trainmark.record.links import PairLink
from trainmark.record.record import Record

TEN = {f"node{number:02}": 1.0 + 0.004 * (number * 7 % 10 - 5) for number in range(10)}
"""Ten hosts as fast as each other within 2 %."""
TWO_SLOW = {**TEN, "node03": 0.88, "node07": 0.80}


def host_record(host: str, speed: float = 1.0, **changes: Any) -> Record:
    """A valid run of one plan on a host, so many times as fast as usual."""
    timeline = make_timeline(compute_ms=500 / speed)
    ranks = tuple(replace(trace, host=host) for trace in timeline.ranks)
    values: dict[str, Any] = {"run_id": f"resnet50-quick-{host}", "timeline": replace(timeline, ranks=ranks)}
    return make_record(**{**values, **changes})


def fleet_records(speeds: Mapping[str, float]) -> list[Record]:
    return [host_record(host, speed) for host, speed in speeds.items()]


def device_telemetry(host: str, *, clock: float = 1400, heat: float = 60) -> dict[str, Any]:
    """What the samplers of a host with one device left."""
    at_s = [float(second) for second in range(30)]

    def steady(level: float) -> dict[str, Any]:
        return {"at_s": at_s, "values": [level] * 30}

    device = {
        "device": 0,
        "series": {"clock_mhz": steady(clock), "temperature_c": steady(heat), "power_w": steady(300)},
    }
    return {"machines": [{"host": host, "training_s": [2.0, 28.0], "samples": 30, "devices": [device]}]}


def pair_links(
    nodes: int, *, thin: Mapping[int, float] | None = None, way: tuple[int, int] | None = None, count: int | None = None
) -> list[PairLink]:
    """What pairs of nodes carry where some cables are thinner, or one way is bad; with a little unrest."""
    carries = {node: (thin or {}).get(node, 10.0) for node in range(nodes)}
    from trainmark.features.links.rounds import plan_rounds  # kernel tests use the records alone

    return [
        PairLink(
            first=first,
            second=second,
            size_bytes=64 << 20,
            bus_gigabytes_per_s=(3.0 if (first, second) == way else min(carries[first], carries[second]))
            * (1 + 0.01 * ((first * 5 + second * 3) % 7 - 3) / 3),
            latency_s=2e-5,
        )
        for pairs in plan_rounds(nodes, count)
        for first, second in pairs
    ]
