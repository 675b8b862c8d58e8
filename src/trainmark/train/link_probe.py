"""Measures the links between the ranks: an all-reduce of growing messages, on the run's own process group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import distributed

from trainmark.platforms.platform import Device
from trainmark.spec.links import AllReduce
from trainmark.train.collectives import Collectives

SIZES_BYTES = tuple(4096 * 4**power for power in range(8))
"""4 KiB, which is all latency, to 64 MiB, which is all bandwidth."""
BUDGET_S = 2.0
LEAST_REPEATS = 3
MOST_REPEATS = 50


def probe(
    device: Device, collectives: Collectives, *, sizes_bytes: Sequence[int] = SIZES_BYTES, budget_s: float = BUDGET_S
) -> list[AllReduce]:
    """What each message size took, smallest first; all ranks must call together and all get the same answer.

    Sizes for which the link is too slow are left out; the first one is always measured.
    """
    if collectives.world == 1:
        return []
    numbers = _zeros(max(sizes_bytes), device)
    _all_reduce_s(numbers[:1], device, collectives)  # connects, which may take seconds
    began_s = time.perf_counter()
    results: list[AllReduce] = []
    for place, size in enumerate(sizes_bytes):
        message = numbers[: size // 4]
        warm_s = _all_reduce_s(message, device, collectives)
        # the ranks' clocks differ: a rank that decided by its own would leave the others waiting
        warm_s, spent_s = collectives.largest(warm_s, time.perf_counter() - began_s)
        to_go = len(sizes_bytes) - place
        # less than an equal share, for the larger messages to come take longer
        share_s = (budget_s - spent_s) * 2 / (to_go * (to_go + 1))
        repeats = min(max(int(share_s / warm_s), LEAST_REPEATS), MOST_REPEATS)
        if results and spent_s + repeats * warm_s > budget_s:
            break
        times_s = collectives.largest(*[_all_reduce_s(message, device, collectives) for _ in range(repeats)])
        results.append(_result(size, times_s, collectives.world))
    return results


def bus_gigabytes_per_s(size_bytes: int, seconds: float, world: int) -> float:
    """What each rank must send and receive at least, by the time it took: the speed of the slowest link on the way.

    An all-reduce moves 2 (n - 1) / n times the message through every rank, so the number does not depend on how many
    ranks there are, and may be held against what the link is sold as.
    """
    return 2 * (world - 1) / world * size_bytes / seconds / 1e9


def _zeros(size_bytes: int, device: Device) -> torch.Tensor:
    """They stay zeros however often they are summed; written once, so that their memory is there before it is timed."""
    return torch.empty(size_bytes // 4, dtype=torch.float32, device=device.torch).zero_()


def _all_reduce_s(message: torch.Tensor, device: Device, collectives: Collectives) -> float:
    device.synchronize()
    collectives.barrier()
    began_s = time.perf_counter()
    distributed.all_reduce(message)
    device.synchronize()
    return time.perf_counter() - began_s


def _result(size_bytes: int, times_s: Sequence[float], world: int) -> AllReduce:
    return AllReduce(
        size_bytes=size_bytes,
        repeats=len(times_s),
        median_s=median(times_s),
        best_s=min(times_s),
        bus_gigabytes_per_s=bus_gigabytes_per_s(size_bytes, min(times_s), world),
    )
