"""Measures all-reduce between the ranks and checks its results, on the process group of the run.

Collectives that exchange nothing are fast. So every size is summed once with different numbers per rank, and a wrong
sum ends the run before gradients depend on it.
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
"""From 4 KiB, bound by latency, to 64 MiB, bound by bandwidth."""
BUDGET_S = 2.0
COPY_LENGTH = 1024
"""Numbers that all-gather and broadcast are checked with."""
MIN_REPEATS = 3
MAX_REPEATS = 50


def probe(
    device: Device, collectives: Collectives, *, sizes_bytes: Sequence[int] = SIZES_BYTES, budget_s: float = BUDGET_S
) -> list[AllReduce]:
    """Times per message size, smallest first; all ranks must call together and all get the same results.

    Sizes beyond the budget are left out; the first one is always measured.
    """
    if collectives.world == 1:
        return []
    check_copies(device, collectives)
    return measure(device, collectives, sizes_bytes=sizes_bytes, budget_s=budget_s)


def measure(
    device: Device, collectives: Collectives, *, sizes_bytes: Sequence[int], budget_s: float, group: Any = None
) -> list[AllReduce]:
    """The same within a process group, or among all ranks; only sums are checked."""
    numbers = torch.empty(max(sizes_bytes) // 4, dtype=torch.float32, device=device.torch)
    _time_all_reduce_s(numbers[:1].zero_(), device, collectives, group)  # connects, which may take seconds
    began_s = time.perf_counter()
    results: list[AllReduce] = []
    for place, size_bytes in enumerate(sizes_bytes):
        message = numbers[: size_bytes // 4]
        message.copy_(_make_message(message.numel(), collectives.rank))
        warm_s = _time_all_reduce_s(message, device, collectives, group)
        check_sums(message, device, collectives)
        message.zero_()  # stays zero however often it is summed
        # clocks of ranks differ: a rank that decided by its own would leave the others waiting
        warm_s, spent_s = collectives.reduce_max(warm_s, time.perf_counter() - began_s)
        to_go = len(sizes_bytes) - place
        # less than an equal share, as larger messages take longer
        share_s = (budget_s - spent_s) * 2 / (to_go * (to_go + 1))
        repeats = min(max(int(share_s / warm_s), MIN_REPEATS), MAX_REPEATS)
        if results and spent_s + repeats * warm_s > budget_s:
            break
        times_s = collectives.reduce_max(
            *[_time_all_reduce_s(message, device, collectives, group) for _ in range(repeats)]
        )
        results.append(_to_all_reduce(size_bytes, times_s, collectives.world))
    return results


def bus_gigabytes_per_s(size_bytes: int, seconds: float, world: int) -> float:
    """Bus bandwidth as in nccl-tests: the speed of the slowest link.

    An all-reduce moves 2 (n - 1) / n times the message through every rank, so it does not depend on the number of
    ranks, and compares with the nominal speed of the link.
    """
    return 2 * (world - 1) / world * size_bytes / seconds / 1e9


def check_sums(message: torch.Tensor, device: Device, collectives: Collectives) -> None:
    """Raises NotReadyError unless the numbers of all ranks were summed."""
    factors = sum(_factor(rank) for rank in range(collectives.world))
    _check("all-reduce", message, _pattern(message.numel()) * factors, device, collectives)


def check_copies(device: Device, collectives: Collectives) -> None:
    """The same for all-gather and broadcast."""
    mine = _make_message(COPY_LENGTH, collectives.rank).to(device.torch)
    everyone = [torch.zeros_like(mine) for _ in range(collectives.world)]
    with device.arithmetic(PRECISIONS["fp32"]):
        distributed.all_gather(everyone, mine)
        distributed.broadcast(mine, 0)
    for rank, numbers in enumerate(everyone):
        _check("all-gather", numbers, _make_message(COPY_LENGTH, rank), device, collectives)
    _check("broadcast", mine, _make_message(COPY_LENGTH, 0), device, collectives)


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
        f"collectives of {device.platform.file.collectives} return wrong results: {collective} of "
        f"{size} among {collectives.world} ranks left {len(wrong)} of {len(wanted)} numbers wrong on "
        f"rank {collectives.rank}, such as {float(found[first]):g} for {float(wanted[first]):g}; use one device, or "
        "repair the library"
    )


def _make_message(length: int, rank: int) -> torch.Tensor:
    """Small integers, none of them zero, so that sums over thousands of ranks are exact in float32."""
    return _pattern(length) * _factor(rank)


def _pattern(length: int) -> torch.Tensor:
    return torch.arange(1.0, 14.0).repeat(length // 13 + 1)[:length]


def _factor(rank: int) -> int:
    return rank % 7 + 1


def _time_all_reduce_s(message: torch.Tensor, device: Device, collectives: Collectives, group: Any) -> float:
    return time_exchange_s(lambda: distributed.all_reduce(message, group=group), device, collectives)


def time_exchange_s(exchange: Callable[[], object], device: Device, collectives: Collectives) -> float:
    """How long an exchange takes on this rank, if all ranks begin it together."""
    device.synchronize()
    collectives.barrier()
    with device.arithmetic(PRECISIONS["fp32"]):
        began_s = time.perf_counter()
        exchange()
        device.synchronize()
        return time.perf_counter() - began_s


def _to_all_reduce(size_bytes: int, times_s: Sequence[float], world: int) -> AllReduce:
    return AllReduce(
        size_bytes=size_bytes,
        repeats=len(times_s),
        median_s=median(times_s),
        best_s=min(times_s),
        bus_gigabytes_per_s=bus_gigabytes_per_s(size_bytes, min(times_s), world),
    )
