"""What the exchange of a step takes at a size: ring by ring, inside a node and between nodes, by the measured links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from msgspec import structs

from trainmark.spec.links import Collective, LinkLevel, fitted
from trainmark.spec.machine import ExchangeShape
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology

Level = Literal["node", "nodes"]


@dataclass(frozen=True, kw_only=True)
class ExchangeOverLinks:
    """What ranks exchange in a step, and the links it goes over."""

    shape: ExchangeShape
    levels: Mapping[tuple[Level, Collective], LinkLevel]

    @property
    def sharded(self) -> bool:
        return self.shape.parallel in ("fsdp", "hsdp") or self.shape.gathered_bytes > 0

    @property
    def last(self) -> float:
        """The share of the exchange that comes when nothing is left to compute."""
        whole = max(1, self.shape.size_bytes)
        return min(1.0, (self.shape.last_bytes or whole / max(1, self.shape.messages)) / whole)

    def knows(self, topology: Topology) -> bool:
        return self.seconds(topology) is not None

    def seconds(self, topology: Topology) -> float | None:
        """Of all messages, one after the other, with nothing hidden; None where it goes over links nobody measured.

        Gradients are added up inside each node, then among nodes, where every rank has its part of them to send.
        """
        shape, inside, nodes = self.shape, topology.devices_per_node, topology.nodes
        if not self.sharded:
            return self._over(topology, [("all-reduce", shape.size_bytes, shape.messages)])
        gradients = shape.size_bytes - shape.gathered_bytes
        gathers = shape.messages * shape.gathered_bytes / max(1, shape.size_bytes)
        sent: list[tuple[Collective, float, float]] = [
            ("all-gather", shape.gathered_bytes, gathers),
            ("reduce-scatter", gradients, shape.messages - gathers),
        ]
        if shape.parallel != "hsdp":
            return self._over(topology, sent)
        shards = self._over(replace(topology, nodes=1), sent)
        copies = self._among("nodes", nodes, "all-reduce", gradients / inside, shape.messages - gathers)
        return None if shards is None or copies is None else shards + copies

    def _over(self, topology: Topology, sent: list[tuple[Collective, float, float]]) -> float | None:
        inside, total = topology.devices_per_node, 0.0
        for collective, size_bytes, messages in sent:
            within = self._among("node", inside, collective, size_bytes, messages)
            between = self._among("nodes", topology.nodes, collective, size_bytes / inside, messages)
            if within is None or between is None:
                return None
            total += within + between
        return total

    def _among(
        self, level: Level, ranks: int, collective: Collective, size_bytes: float, messages: float
    ) -> float | None:
        if ranks == 1 or not size_bytes:
            return 0.0
        link = self.levels.get((level, collective))
        if link is None and (sums := self.levels.get((level, "all-reduce"))):
            link = structs.replace(sums, collective=collective)
        return link.seconds(size_bytes, messages, ranks) if link else None


def exchange(record: Record) -> ExchangeOverLinks | None:
    """Of a run; None where it exchanged nothing, or what it did is not on its record."""
    shape, found = record.environment.exchange, links_of(record)
    return ExchangeOverLinks(shape=shape, levels=found) if shape and found else None


def links_of(record: Record) -> dict[tuple[Level, Collective], LinkLevel]:
    """By level and collective; where levels were not measured apart, and there is one, what all ranks saw."""
    environment, topology = record.environment, Topology.parse(record.plan.topology)
    levels = list(environment.link_levels)
    if not levels and environment.link and 1 in (topology.nodes, topology.devices_per_node) and topology.devices > 1:
        times = [(row.size_bytes, row.median_s) for row in environment.link]
        levels = [fitted("node" if topology.nodes == 1 else "nodes", "all-reduce", topology.devices, 1, times)]
    return {(level.level, level.collective): level for level in levels}
