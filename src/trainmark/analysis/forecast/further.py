"""What runs of several topologies say of the next sizes, where they carry a forecast at all."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.analysis.forecast import sizes
from trainmark.analysis.forecast.sizes import Known
from trainmark.analysis.forecast.whole import Assumptions, WholeForecast, whole
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology

NODE = 8
"""Devices up to which a node is taken to have room for twice as many."""
STEPS = 3
"""Times that the largest size is doubled."""


def next_sizes(largest: Topology) -> list[Topology]:
    """Each twice as large as the one before: inside a node up to eight devices, then by nodes."""
    found = []
    for _ in range(STEPS):
        inside = largest.nodes == 1 and 2 * largest.devices_per_node <= NODE
        nodes, devices = (1, 2 * largest.devices_per_node) if inside else (2 * largest.nodes, largest.devices_per_node)
        largest = Topology(nodes=nodes, devices_per_node=devices)
        found.append(largest)
    return found


def beyond(records: Sequence[Record], assumed: Assumptions | None = None, metric: str = "p_core") -> WholeForecast:
    """The sizes these runs are of, and the next ones; UsageError says why nothing is forecast."""
    known = sizes.of_records(records, metric)
    return whole(known, [*_own(known), *next_sizes(known.largest.topology)], None, assumed or Assumptions())


def _own(known: Known) -> list[Topology]:
    return [size.topology for size in known.sizes]
