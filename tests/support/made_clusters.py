"""Records of clusters that were never built: computing, links, overlap and slow ranks of a known size."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from support.records import make_record
from trainmark.record.links import LinkLevel, fit_level
from trainmark.record.machine import Environment, ExchangeShape
from trainmark.record.metrics import Quantity
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.timeline import RankTrace, Timeline

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Cluster:
    fixed_s: float = 0.004
    """Of a step's computing, whatever its batch."""
    sample_s: float = 0.003
    bytes: int = 100_000_000
    messages: int = 10
    parallel: str = "ddp"
    node: tuple[float, float] = (10e-6, 20e9)
    """Latency and bytes a second inside a node."""
    nodes: tuple[float, float] = (30e-6, 2e9)
    backward: float = 0.6
    """Of computing."""
    noise: float = 0.0
    """Of each rank's computing in each step."""
    ranks_differ: float = 0.0
    hidden_loss: float = 0.0
    """A loss a doubling that nothing on the record explains."""
    seed: int = 0

    def own_s(self, batch: int = BATCH) -> float:
        return self.fixed_s + self.sample_s * batch

    def link(self, level: Any, collective: Any, ranks: int = 2) -> LinkLevel:
        latency_s, bytes_per_s = self.node if level == "node" else self.nodes
        return LinkLevel(level=level, collective=collective, ranks=ranks, latency_s=latency_s, bytes_per_s=bytes_per_s)

    def wire_s(self, topology: Topology) -> float:
        """All of a step's exchange, one message after the other: rings in each node, then among nodes."""
        inside, nodes = topology.devices_per_node, topology.nodes
        total = 0.0
        if self.parallel == "hsdp" and nodes > 1:  # a third of the bytes are gradients, summed among nodes
            latency_s, bytes_per_s = self.nodes
            total += 2 * (nodes - 1) / nodes * self.bytes / 3 / inside / bytes_per_s
            total += 2 * math.ceil(math.log2(nodes)) * latency_s * self.messages / 3
            nodes = 1
        for level, ranks, size in (("node", inside, self.bytes), ("nodes", nodes, self.bytes / inside)):
            latency_s, bytes_per_s = self.node if level == "node" else self.nodes
            if ranks > 1 and self.parallel == "ddp":
                total += 2 * (ranks - 1) / ranks * size / bytes_per_s
                total += 2 * math.ceil(math.log2(ranks)) * latency_s * self.messages
            elif ranks > 1:  # two gathers of the weights and a scatter of gradients, in equally many messages
                total += (ranks - 1) / ranks * size / bytes_per_s
                total += math.ceil(math.log2(ranks)) * latency_s * self.messages
        return total

    def exposed_s(self, topology: Topology, batch: int = BATCH) -> float:
        """Messages go out one by one while backward computes, and the last when it is done."""
        wire_s = self.wire_s(topology)
        cover_s = self.own_s(batch) * (self.backward if self.parallel == "ddp" else 1.0)
        return wire_s - min(wire_s, cover_s) * (1 - 1 / self.messages)

    def record(self, words: str, batch: int = BATCH, *, steps: int = 60, **changes: Any) -> Record:
        topology = Topology.parse(words)
        draw = random.Random(f"{self.seed} {words} {batch}")
        devices = topology.devices
        ranks = [math.exp(draw.gauss(0, self.ranks_differ)) for _ in range(devices)]
        exposed_s = self.exposed_s(topology, batch) if devices > 1 else 0.0
        lost_s = self.own_s(batch) * math.expm1(-self.hidden_loss * math.log2(devices))
        own = [
            [(self.own_s(batch) + lost_s) * rank * math.exp(draw.gauss(0, self.noise)) for rank in ranks]
            for _ in range(steps)
        ]
        step_ns = [round(1e9 * (max(each) + exposed_s)) for each in own]
        traces = tuple(
            RankTrace(
                rank=rank,
                wait_ns=[0] * steps,
                compute_ns=step_ns,
                exchange_ns=[step_ns[step] - round(1e9 * own[step][rank]) for step in range(steps)],
                items=[batch] * steps,
            )
            for rank in range(devices)
        )
        rate = devices * batch * steps / (sum(step_ns) / 1e9)
        return make_record(
            run_id=f"{words}-{batch}",
            plan={"topology": words, "recipe": {"batch_per_device": batch}},
            timeline=Timeline(ranks=traces),
            metrics={"p_core": Quantity(value=rate, unit="images/s", interval=(rate / 1.01, rate * 1.01))},
            environment=self.environment(topology),
            **changes,
        )

    def rate(self, words: str, batch: int = BATCH) -> float:
        """What a run would measure."""
        return self.record(words, batch).metrics["p_core"].value or math.nan

    def environment(self, topology: Topology) -> Environment:
        levels = []
        for level, ranks in (("node", topology.devices_per_node), ("nodes", topology.nodes)):
            for collective in ("all-reduce", "all-gather", "reduce-scatter") if ranks > 1 else ():
                link = self.link(level, collective)
                times = [(size, link.seconds(size, 1, ranks)) for size in SIZES_BYTES]
                levels.append(fit_level(level, collective, ranks, 1, times))  # type: ignore[arg-type]
        gathered = 0 if self.parallel == "ddp" else 2 * self.bytes // 3
        shape = ExchangeShape(
            kind="any",
            parallel=self.parallel,
            messages=self.messages,
            size_bytes=self.bytes,
            gathered_bytes=gathered,
            last_bytes=self.bytes // self.messages,
            backward_s=self.backward * self.own_s() if self.parallel == "ddp" else None,
        )
        return Environment(link_levels=levels, exchange=shape if topology.devices > 1 else None)
