"""Measures all-reduce between the ranks and checks its results, on the process group of the run.

Collectives that exchange nothing are fast. So every size is summed once with different numbers per rank, and a wrong
sum ends the run before gradients depend on it. Links within a node and between nodes are then measured separately, with
each collective that training uses.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import distributed

from trainmark.platforms.platform import Device
from trainmark.record.errors import NotReadyError
from trainmark.record.links import COLLECTIVES, AllReduce, Collective, LinkLevel, fit_level, format_size
from trainmark.record.precision import PRECISIONS
from trainmark.train.collectives import Collectives

SIZES_BYTES = tuple(4096 * 4**power for power in range(8))
"""From 4 KiB, bound by latency, to 64 MiB, bound by bandwidth."""
BUDGET_S = 2.0
COPY_LENGTH = 1024
"""Numbers that all-gather and broadcast are checked with."""
MIN_REPEATS = 3
MAX_WIDE_WORLD = 1000
"""Ranks whose sums of eleven-bit integers are exact."""
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
        message.copy_(_make_message(message.numel(), collectives.rank, collectives.world))
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
    _check("all-reduce", message, _pattern(message.numel(), collectives.world) * factors, device, collectives)


def check_copies(device: Device, collectives: Collectives) -> None:
    """The same for all-gather and broadcast."""
    mine = _make_message(COPY_LENGTH, collectives.rank, collectives.world).to(device.torch)
    everyone = [torch.zeros_like(mine) for _ in range(collectives.world)]
    with device.arithmetic(PRECISIONS["fp32"]):
        distributed.all_gather(everyone, mine)
        distributed.broadcast(mine, 0)
    for rank, numbers in enumerate(everyone):
        _check("all-gather", numbers, _make_message(COPY_LENGTH, rank, collectives.world), device, collectives)
    _check("broadcast", mine, _make_message(COPY_LENGTH, 0, collectives.world), device, collectives)


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


def _make_message(length: int, rank: int, world: int) -> torch.Tensor:
    return _pattern(length, world) * _factor(rank)


def _pattern(length: int, world: int) -> torch.Tensor:
    """Odd numbers, of more bits than bfloat16 has where sums over all ranks stay exact in float32."""
    top = 2048 if world <= MAX_WIDE_WORLD else 14
    numbers = torch.arange(1.0, top, 2.0)
    return numbers.repeat(length // len(numbers) + 1)[:length]


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


LEVEL_SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
LEVEL_SIZE_S = 0.025
"""Per message size, unless the minimum number of repeats takes longer."""
MAX_COLLECTIVE_S = 0.4
"""Per collective, as far as it can be predicted; two sizes are always measured."""
MIN_LEVEL_REPEATS = 3
MAX_LEVEL_REPEATS = 15
# newer versions of torch rename these, and warn of the old names
_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)


class _Group(NamedTuple):
    """Ranks that exchange over one kind of link, as one rank sees them."""

    level: Literal["node", "nodes"]
    ranks: int
    groups: int
    """How many such groups exchange at the same time."""
    process_group: Any = None
    """None for all ranks."""
    member: bool = True
    """Non-members only wait."""


def probe_levels(
    device: Device, collectives: Collectives, local_ranks: int, together: Sequence[AllReduce] = ()
) -> list[LinkLevel]:
    """Latency and bandwidth by level and collective; all ranks must call together, and all get the same answer.

    `together` are results of an all-reduce among all ranks, which is not repeated where there is one kind of link.
    Collectives that the backend does not support are left out.
    """
    found = []
    for group in _make_groups(collectives, local_ranks):
        for collective in COLLECTIVES:
            times: list[tuple[int, float]] = []
            if collective == "all-reduce" and group.process_group is None and group.member:
                times = [(row.size_bytes, row.median_s) for row in together]
            times = times or _measure_times(collective, group, device, collectives)
            if times:
                found.append(fit_level(group.level, collective, group.ranks, group.groups, times))
        if group.process_group is not None:
            distributed.destroy_process_group(group.process_group)  # it may hold memory of the device
    return found


def _make_groups(collectives: Collectives, local_ranks: int) -> list[_Group]:
    """The groups of this rank. One node stands for all, as each has its own links; groups across nodes are measured
    for all local ranks at once, as these may share the uplink of a node."""
    world, rank = collectives.world, collectives.rank
    if world == 1 or world % local_ranks:
        return []
    nodes = world // local_ranks
    if 1 in (nodes, local_ranks):
        return [_Group("node" if nodes == 1 else "nodes", world, 1)]
    # torch requires that every rank makes every group, in the same order
    inside = _make_group(collectives, range(local_ranks))
    across = [_make_group(collectives, range(place, world, local_ranks)) for place in range(local_ranks)]
    own = across[rank % local_ranks]
    if inside is None or own is None:
        return []
    first = rank < local_ranks
    return [
        _Group("node", local_ranks, 1, inside if first else None, first),
        _Group("nodes", nodes, local_ranks, own),
    ]


def _make_group(collectives: Collectives, ranks: Sequence[int]) -> Any:
    """A process group of these ranks; None where the backend does not support it."""
    made, failed = None, 0.0
    try:
        made = distributed.new_group(list(ranks))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        failed = _check_unsupported(error)
    return None if collectives.reduce_max(failed) != [0.0] else made


_NO_BACKEND = "No backend type associated with device type"
"""What torch says where a backend, for this collective, does not know the device."""


def _check_unsupported(error: Exception) -> float:
    """1 where the backend does not support it; any other error is raised."""
    message = str(error)
    if not isinstance(error, NotImplementedError) and "support" not in message and _NO_BACKEND not in message:
        raise error
    print(f"a kind of link is not measured: {error}", file=sys.stderr)
    return 1.0


def _measure_times(
    collective: Collective, group: _Group, device: Device, collectives: Collectives
) -> list[tuple[int, float]]:
    """The median time per message size; sizes that would take too long are left out."""
    times: list[tuple[int, float]] = []
    began_s, spent_s = time.perf_counter(), 0.0
    for size_bytes in LEVEL_SIZES_BYTES:
        next_s = times[-1][1] * size_bytes / times[-1][0] * (1 + MIN_LEVEL_REPEATS) if times else 0.0
        if len(times) > 1 and spent_s + next_s > MAX_COLLECTIVE_S:
            break
        # the same whole number of float32 per rank
        size = max(1, size_bytes // 4 // group.ranks) * group.ranks
        call = _make_call(collective, size, group, device)
        warm_s = failed = 0.0
        try:
            warm_s = time_exchange_s(call, device, collectives)
        except (RuntimeError, NotImplementedError) as error:
            failed = _check_unsupported(error)
        # clocks of ranks differ: all must decide the same
        warm_s, failed = collectives.reduce_max(warm_s, failed)
        if failed:
            return []
        repeats = min(max(int(LEVEL_SIZE_S / max(warm_s, 1e-9)), MIN_LEVEL_REPEATS), MAX_LEVEL_REPEATS)
        own = [time_exchange_s(call, device, collectives) for _ in range(repeats)]
        *taken, spent_s = collectives.reduce_max(*own, time.perf_counter() - began_s)
        times.append((4 * size, median(taken)))
    return times


def _make_call(collective: Collective, size: int, group: _Group, device: Device) -> Callable[[], object]:
    if not group.member:
        return lambda: None
    whole = torch.zeros(size, dtype=torch.float32, device=device.torch)
    part = torch.zeros(size // group.ranks, dtype=torch.float32, device=device.torch)
    among = group.process_group
    if collective == "all-reduce":
        return lambda: distributed.all_reduce(whole, group=among)
    if collective == "all-gather":
        return lambda: _gather(whole, part, group=among)
    return lambda: _scatter(part, whole, group=among)
