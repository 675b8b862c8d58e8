"""The links inside a node and between nodes are measured apart, and two numbers explain what they took."""

from __future__ import annotations

import faulthandler
from typing import Any

import msgspec
import pytest
from support.gloo_ranks import on_ranks
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from trainmark.features.links import probe as link_probe
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record import links
from trainmark.record.links import COLLECTIVES, LinkLevel
from trainmark.train.collectives import Collectives, RankGroup


def levels(local_ranks: int) -> list[dict[str, Any]]:
    faulthandler.dump_traceback_later(60, exit=True)  # ranks that do not agree would wait for each other for ever
    collectives = RankGroup()
    link_probe.probe_levels(Platform(files.load("cpu")).open(0), collectives, local_ranks)  # leaves nothing in the way
    found = link_probe.probe_levels(Platform(files.load("cpu")).open(0), collectives, local_ranks)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    distributed.barrier(group=mesh.get_group("shard"))
    told: list[dict[str, Any]] = msgspec.to_builtins(found)
    return told


@pytest.mark.slow
def test_four_ranks_on_two_nodes_measure_both_kinds_of_links_and_know_the_same() -> None:
    told = on_ranks(4, levels, 2)
    assert told[0] == told[1] == told[2] == told[3]
    found = msgspec.convert(told[0], list[LinkLevel])
    assert [(one.level, one.collective) for one in found] == [
        (at, of) for at in ("node", "nodes") for of in COLLECTIVES
    ]
    assert [(one.ranks, one.groups) for one in found] == [(2, 1)] * 3 + [(2, 2)] * 3
    for one in found:
        assert one.latency_s >= 0
        assert one.bytes_per_s > 0
        assert len(one.times) >= 2


def test_one_rank_has_no_link_to_measure() -> None:
    assert link_probe.probe_levels(Platform(files.load("cpu")).open(0), Collectives(), 1) == []


def levels_without_gather(local_ranks: int) -> list[str]:
    def gather(*words: object, **more: object) -> None:
        raise RuntimeError("No backend type associated with device type lumen")

    link_probe._gather = gather
    device = Platform(files.load("cpu")).open(0)
    return [level.collective for level in link_probe.probe_levels(device, RankGroup(), local_ranks)]


@pytest.mark.slow
def test_a_collective_that_the_backend_lacks_is_left_out() -> None:
    assert on_ranks(2, levels_without_gather, 2) == [["all-reduce", "reduce-scatter"]] * 2


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_latency_and_bandwidth_of_a_made_link_are_found_and_hold_for_more_ranks(
    collective: links.Collective, ranks: int
) -> None:
    made = LinkLevel(level="node", collective=collective, ranks=ranks, latency_s=20e-6, bytes_per_s=12.5e9)
    times = [(size, made.seconds(size, 1, ranks)) for size in link_probe.LEVEL_SIZES_BYTES]
    found = links.fit_level("node", collective, ranks, 1, times)
    assert found.latency_s == pytest.approx(20e-6)
    assert found.bytes_per_s == pytest.approx(12.5e9)
    assert found.seconds(1e8, 25, 64) == pytest.approx(made.seconds(1e8, 25, 64))


def test_noise_and_a_single_size_still_give_a_bandwidth() -> None:
    noisy = links.fit_level("nodes", "all-gather", 2, 1, [(4096, 1e-3), (65536, 3e-3), (1 << 20, 2e-3)])
    assert noisy.bytes_per_s == pytest.approx((1 << 20) / 2 / 2e-3)
    alone = links.fit_level("nodes", "all-reduce", 2, 1, [(4096, 1e-3)])
    assert (alone.latency_s, alone.bytes_per_s) == (0.0, pytest.approx(4.096e6))
