"""Measures the links between the ranks and checks what comes over them, on the run's own process group.

Collectives that exchange nothing are fast. So every size is added up once with numbers of which each rank has its own,
and whoever finds a wrong sum ends the run before a gradient is trusted to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import distributed

from trainmark.platforms.platform import Device
from trainmark.record.errors import NotReadyError
from trainmark.record.links import AllReduce, format_size
from trainmark.record.precision import PRECISIONS
from trainmark.train.collectives import Collectives

SIZES_BYTES = tuple(4096 * 4**power for power in range(8))
"""4 KiB, which is all latency, to 64 MiB, which is all bandwidth."""
BUDGET_S = 2.0
COPIED = 1024
"""Numbers of which it is checked that they arrive as they are."""
MIN_REPEATS = 3
MAX_REPEATS = 50


def probe(
    device: Device, collectives: Collectives, *, sizes_bytes: Sequence[int] = SIZES_BYTES, budget_s: float = BUDGET_S
) -> list[AllReduce]:
    """What each message size took, smallest first; all ranks must call together and all get the same answer.

    Sizes for which the link is too slow are left out; the first one is always measured.
    """
    if collectives.world == 1:
        return []
    check_copies(device, collectives)
    return measure(device, collectives, sizes_bytes=sizes_bytes, budget_s=budget_s)


def measure(
    device: Device, collectives: Collectives, *, sizes_bytes: Sequence[int], budget_s: float, group: Any = None
) -> list[AllReduce]:
    """The same among the ranks of a process group, or of all; only sums are checked."""
    numbers = torch.empty(max(sizes_bytes) // 4, dtype=torch.float32, device=device.torch)
    _all_reduce_s(numbers[:1].zero_(), device, collectives, group)  # connects, which may take seconds
    began_s = time.perf_counter()
    results: list[AllReduce] = []
    for place, size_bytes in enumerate(sizes_bytes):
        message = numbers[: size_bytes // 4]
        message.copy_(_own_numbers(message.numel(), collectives.rank))
        warm_s = _all_reduce_s(message, device, collectives, group)
        check_sums(message, device, collectives)
        message.zero_()  # stays so however often it is added up
        # the ranks' clocks differ: a rank that decided by its own would leave the others waiting
        warm_s, spent_s = collectives.largest(warm_s, time.perf_counter() - began_s)
        to_go = len(sizes_bytes) - place
        # less than an equal share, for the larger messages to come take longer
        share_s = (budget_s - spent_s) * 2 / (to_go * (to_go + 1))
        repeats = min(max(int(share_s / warm_s), MIN_REPEATS), MAX_REPEATS)
        if results and spent_s + repeats * warm_s > budget_s:
            break
        times_s = collectives.largest(*[_all_reduce_s(message, device, collectives, group) for _ in range(repeats)])
        results.append(_result(size_bytes, times_s, collectives.world))
    return results


def bus_gigabytes_per_s(size_bytes: int, seconds: float, world: int) -> float:
    """What each rank must send and receive at least, by the time it took: the speed of the slowest link on the way.

    An all-reduce moves 2 (n - 1) / n times the message through every rank, so the number does not depend on how many
    ranks there are, and may be held against what the link is sold as.
    """
    return 2 * (world - 1) / world * size_bytes / seconds / 1e9


def check_sums(message: torch.Tensor, device: Device, collectives: Collectives) -> None:
    """Raises NotReadyError unless every rank's own numbers were added up."""
    factors = sum(_factor(rank) for rank in range(collectives.world))
    _check("all-reduce", message, _pattern(message.numel()) * factors, device, collectives)


def check_copies(device: Device, collectives: Collectives) -> None:
    """The same for what gradients and statistics are handed around by beside sums."""
    mine = _own_numbers(COPIED, collectives.rank).to(device.torch)
    everyone = [torch.zeros_like(mine) for _ in range(collectives.world)]
    with device.arithmetic(PRECISIONS["fp32"]):
        distributed.all_gather(everyone, mine)
        distributed.broadcast(mine, 0)
    for rank, numbers in enumerate(everyone):
        _check("all-gather", numbers, _own_numbers(COPIED, rank), device, collectives)
    _check("broadcast", mine, _own_numbers(COPIED, 0), device, collectives)


def _check(
    collective: str, message: torch.Tensor, wanted: torch.Tensor, device: Device, collectives: Collectives
) -> None:
    device.synchronize()
    found = message.cpu()
    wrong = (found != wanted).nonzero().flatten()
    if not len(wrong):
        return
    first, size = int(wrong[0]), format_size(4 * len(wanted))
    raise NotReadyError(
        f"the collectives by {device.platform.file.collectives} do not exchange what they are given: {collective} of "
        f"{size} among {collectives.world} ranks left {len(wrong)} of {len(wanted)} numbers wrong on "
        f"rank {collectives.rank}, such as {float(found[first]):g} for {float(wanted[first]):g}; use one device, or "
        "mend them"
    )


def _own_numbers(length: int, rank: int) -> torch.Tensor:
    """Small whole numbers, so that sums over thousands of ranks are exact in float32; none is zero."""
    return _pattern(length) * _factor(rank)


def _pattern(length: int) -> torch.Tensor:
    return torch.arange(1.0, 14.0).repeat(length // 13 + 1)[:length]


def _factor(rank: int) -> int:
    return rank % 7 + 1


def _all_reduce_s(message: torch.Tensor, device: Device, collectives: Collectives, group: Any) -> float:
    return exchange_s(lambda: distributed.all_reduce(message, group=group), device, collectives)


def exchange_s(exchange: Callable[[], object], device: Device, collectives: Collectives) -> float:
    """What this rank sees an exchange take that all ranks begin together."""
    device.synchronize()
    collectives.barrier()
    with device.arithmetic(PRECISIONS["fp32"]):
        began_s = time.perf_counter()
        exchange()
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
