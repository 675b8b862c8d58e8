"""Ranks measure their links together: the slowest counts, all stop at once, and slow links do not hold a run up."""

from __future__ import annotations

import faulthandler
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from support.gloo_ranks import on_ranks
from support.standin import HandClock

from trainmark.features.links import probe as link_probe
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import NotReadyError
from trainmark.record.links import AllReduce
from trainmark.train.collectives import RankGroup


def measured(paces: list[float]) -> list[dict[str, Any]]:
    """What one rank of a real world is told, while its clock runs at its own pace."""
    faulthandler.dump_traceback_later(60, exit=True)  # ranks that do not agree would wait for each other for ever
    collectives = RankGroup()
    pace = paces[collectives.rank]
    link_probe.time = SimpleNamespace(perf_counter=lambda: pace * time.perf_counter())  # type: ignore[assignment]
    rows: list[dict[str, Any]] = msgspec.to_builtins(
        probed(collectives, sizes_bytes=(4096, 16384, 65536), budget_s=60.0)
    )
    return rows


@pytest.mark.slow
def test_two_real_ranks_measure_every_size_and_know_the_same() -> None:
    told = on_ranks(2, measured, [1.0, 1.0])
    assert told[0] == told[1]
    rows = msgspec.convert(told[0], list[AllReduce])
    assert [row.size_bytes for row in rows] == [4096, 16384, 65536]
    for row in rows:
        assert 0 < row.best_s <= row.median_s
        assert link_probe.MIN_REPEATS <= row.repeats <= link_probe.MAX_REPEATS
        assert row.bus_gigabytes_per_s == pytest.approx(row.size_bytes / row.best_s / 1e9)


@pytest.mark.slow
def test_three_real_ranks_stop_together_when_the_clock_of_one_says_so() -> None:
    told = on_ranks(3, measured, [1.0, 1e9, 1.0])
    assert told[0] == told[1] == told[2]
    [row] = msgspec.convert(told[0], list[AllReduce])
    assert (row.size_bytes, row.repeats) == (4096, link_probe.MIN_REPEATS)
    assert row.median_s > 1e3


class Link:
    """A link of a steady speed between four ranks, one of which takes longer than the one we see."""

    rank = 0
    world = 4

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.bytes_per_s = 1e9
        self.latency_s = 0.0
        self.connect_s = 0.0
        self.slowest = 1.0
        self.sent: list[int] = []
        self.exchanges = True

    def all_reduce(self, message: torch.Tensor, group: object = None) -> None:
        if self.exchanges:
            message *= sum(rank % 7 + 1 for rank in range(self.world))  # of rank 0's numbers
        moved = 1.5 * message.numel() * message.element_size()
        seconds = self.latency_s + moved / self.bytes_per_s + (0 if self.sent else self.connect_s)
        self.clock.pass_ns(round(1e9 * seconds))
        self.sent.append(message.numel() * message.element_size())

    def all_gather(self, everyone: list[torch.Tensor], mine: torch.Tensor) -> None:
        for rank, numbers in enumerate(everyone):
            numbers.copy_(mine * (rank % 7 + 1))

    def broadcast(self, message: torch.Tensor, source: int) -> None: ...

    def reduce_max(self, *values: float) -> list[float]:
        return [self.slowest * value for value in values]

    def barrier(self) -> None:
        self.clock.pass_ns(1_000)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    clock = HandClock()
    made = Link(clock)
    monkeypatch.setattr(link_probe, "time", SimpleNamespace(perf_counter=lambda: clock.ns / 1e9))
    monkeypatch.setattr(link_probe, "distributed", made)
    return made


def probed(collectives: Any, **words: Any) -> list[dict[str, Any]]:
    return link_probe.probe(Platform(files.load("cpu")).open(0), collectives, **words)


def test_the_bus_bandwidth_is_the_speed_of_the_link_whatever_the_message(link: Link) -> None:
    rows = probed(link)
    assert [row.size_bytes for row in rows] == [4096 * 4**power for power in range(8)]
    assert rows[-1].size_bytes == 64 << 20
    assert [row.bus_gigabytes_per_s for row in rows] == [pytest.approx(1.0, rel=1e-3)] * 8


@pytest.mark.slow
@pytest.mark.parametrize("bytes_per_s", [1e5, 1e6, 1e7, 1e8, 1e9, 1e12])
def test_large_messages_are_left_out_rather_than_the_budget_far_exceeded(link: Link, bytes_per_s: float) -> None:
    link.bytes_per_s = bytes_per_s
    before_ns = link.clock.ns
    rows = probed(link, budget_s=2.0)
    assert (link.clock.ns - before_ns) / 1e9 < 2 * 2.0
    assert all(3 <= row.repeats <= 50 for row in rows)
    sizes = [row.size_bytes for row in rows]
    assert sizes == list(link_probe.SIZES_BYTES[: len(sizes)])
    assert len(sizes) == {1e5: 2, 1e6: 3, 1e7: 5, 1e8: 7}.get(bytes_per_s, 8)


def test_the_smallest_message_is_measured_on_the_slowest_link(link: Link) -> None:
    link.bytes_per_s = 10.0
    [row] = probed(link)
    assert (row.size_bytes, row.repeats) == (4096, 3)


def test_collectives_that_exchange_nothing_are_found_out_however_fast_they_are(link: Link) -> None:
    link.exchanges = False
    link.bytes_per_s = 1e15
    with pytest.raises(NotReadyError) as refused:
        probed(link)
    assert "collectives of gloo return wrong results: all-reduce of 4 KiB" in str(refused.value)
    assert "left 1024 of 1024 numbers wrong on rank 0, such as 1 for 10;" in str(refused.value)


def test_collectives_that_copy_nothing_are_named(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "all_gather", lambda everyone, mine: None)
    with pytest.raises(NotReadyError, match=r"all-gather of 4 KiB among 4 ranks .* such as 0 for 1;"):
        probed(link)


@pytest.mark.parametrize("world", [2, 1000, 30_000])
def test_sums_over_all_ranks_are_exact_and_small_worlds_use_more_bits_than_bfloat16_has(world: int) -> None:
    factors = sum(link_probe._factor(rank) for rank in range(world))
    pattern = link_probe._pattern(4096, world)
    assert float(pattern.max()) * factors <= 2**24
    assert bool((pattern != pattern.bfloat16().float()).any()) == (world <= 1000)
