"""Pairs of nodes are measured in rounds: every pair, all nodes of a round at once, everybody told the same."""

from __future__ import annotations

import faulthandler
from typing import Any

import msgspec
import pytest
from support.gloo_ranks import on_ranks

from trainmark.features.links import probe as link_probe, worker_task as link_pairs
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.links import PairLink, all_rounds
from trainmark.train.collectives import RankGroup


def measured(nodes: int) -> list[list[dict[str, Any]]]:
    faulthandler.dump_traceback_later(60, exit=True)  # ranks that do not agree would wait for each other for ever
    link_pairs.SIZES_BYTES = (4096, 16384)
    link_probe.MAX_REPEATS = 5
    link_pairs.SUSPICIOUS_SHARE = 1.01  # whatever they carry, some are measured again
    device = Platform(files.load("cpu")).open(0)
    return [msgspec.to_builtins(pairs) for pairs in link_pairs.measure(device, RankGroup(), nodes=nodes, budget_s=30.0)]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "nodes"), [(3, 3), (4, 2)])
def test_real_ranks_measure_every_pair_and_know_the_same(ranks: int, nodes: int) -> None:
    told = on_ranks(ranks, measured, nodes)
    assert all(one == told[0] for one in told)
    pairs = [pair for together in told[0] for pair in msgspec.convert(together, list[PairLink])]
    everyone = {(one, other) for one in range(nodes) for other in range(one + 1, nodes)}
    assert {(pair.first, pair.second) for pair in pairs} == everyone
    assert len(told[0]) > all_rounds(nodes), "pairs that carried less are measured again"
    assert all(pair.bus_gigabytes_per_s > 0 and pair.latency_s > 0 and pair.size_bytes == 16384 for pair in pairs)
