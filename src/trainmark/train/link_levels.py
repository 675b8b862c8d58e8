"""Measures the links inside a node and those between nodes apart, with each collective that training uses."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import distributed

from trainmark.platforms.platform import Device
from trainmark.spec.links import COLLECTIVES, AllReduce, Collective, LinkLevel, fitted
from trainmark.train.collectives import Collectives
from trainmark.train.link_probe import exchange_s

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
BUDGET_S = 0.1
"""For each collective over each kind of link; two sizes are measured whatever they take."""
LEAST_REPEATS = 3
MOST_REPEATS = 15


class _Group(NamedTuple):
    """The ranks that this one exchanges with over one kind of link."""

    level: Literal["node", "nodes"]
    ranks: Sequence[int]
    groups: int
    process_group: Any
    """None is all ranks."""


def probe(
    device: Device, collectives: Collectives, local_ranks: int, together: Sequence[AllReduce] = ()
) -> list[LinkLevel]:
    """Latency and bandwidth by level and collective; all ranks must call together, and all get the same answer.

    `together` is what an all-reduce among all ranks took, which need not be measured again where they have one kind of
    link. A collective that the backend does not have is left out.
    """
    found = []
    for group in _groups(collectives, local_ranks):
        for collective in COLLECTIVES:
            times = (
                [(row.size_bytes, row.median_s) for row in together]
                if collective == "all-reduce" and group.process_group is None
                else []
            )
            times = times or _times(collective, group, device, collectives)
            if times:
                found.append(fitted(group.level, collective, len(group.ranks), group.groups, times))
        if group.process_group is not None:
            distributed.destroy_process_group(group.process_group)  # it may hold memory of the device
    return found


def _groups(collectives: Collectives, local_ranks: int) -> list[_Group]:
    world, rank = collectives.world, collectives.rank
    if world == 1:
        return []
    if local_ranks in (1, world):
        return [_Group("node" if local_ranks > 1 else "nodes", range(world), 1, None)]
    if world % local_ranks:
        return []
    node, place = divmod(rank, local_ranks)
    inside = range(node * local_ranks, (node + 1) * local_ranks)
    across = range(place, world, local_ranks)
    made = []
    for level, ranks in (("node", inside), ("nodes", across)):
        # only its members make a group, so that thousands of ranks do not wait for each other's
        process_group, failed = None, 0.0
        try:
            process_group = distributed.new_group(list(ranks), use_local_synchronization=True)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            print(f"the links of a part of the ranks are not measured: {error}", file=sys.stderr)
            failed = 1.0
        if collectives.largest(failed) == [0.0]:
            made.append(_Group(level, ranks, world // len(ranks), process_group))  # type: ignore[arg-type]
    return made


def _times(collective: Collective, group: _Group, device: Device, collectives: Collectives) -> list[tuple[int, float]]:
    """The median of what each message took, as long as the budget lasts."""
    began_s = time.perf_counter()
    times: list[tuple[int, float]] = []
    for size_bytes in SIZES_BYTES:
        # a whole number of float32 for each rank
        size = max(1, size_bytes // 4 // len(group.ranks)) * len(group.ranks)
        call = _call(collective, size, group, device)
        warm_s = failed = 0.0
        try:
            warm_s = exchange_s(call, device, collectives)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            print(f"no {collective} is measured: {error}", file=sys.stderr)
            failed = 1.0
        # the clocks of ranks differ: all must decide the same
        warm_s, failed, spent_s = collectives.largest(warm_s, failed, time.perf_counter() - began_s)
        if failed:
            return []
        repeats = min(max(int(BUDGET_S / len(SIZES_BYTES) / max(warm_s, 1e-9)), LEAST_REPEATS), MOST_REPEATS)
        if len(times) > 1 and spent_s + repeats * warm_s > BUDGET_S:
            break
        taken = collectives.largest(*[exchange_s(call, device, collectives) for _ in range(repeats)])
        times.append((4 * size, median(taken)))
    return times


def _call(collective: Collective, size: int, group: _Group, device: Device) -> Callable[[], object]:
    whole = torch.zeros(size, dtype=torch.float32, device=device.torch)
    part = torch.zeros(size // len(group.ranks), dtype=torch.float32, device=device.torch)
    among = group.process_group
    if collective == "all-reduce":
        return lambda: distributed.all_reduce(whole, group=among)
    if collective == "all-gather":
        return lambda: distributed.all_gather_into_tensor(whole, part, group=among)
    return lambda: distributed.reduce_scatter_tensor(part, whole, group=among)
