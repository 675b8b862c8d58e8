"""The two ranks that differ most are found among very many without holding each against each."""

from __future__ import annotations

import numpy as np
import pytest

from trainmark.record.timeline import RankTrace, Timeline


def timeline(compute_ns: list[int], items: list[int]) -> Timeline:
    pairs = enumerate(zip(compute_ns, items, strict=True))
    return Timeline(
        ranks=tuple(
            RankTrace(rank=rank, wait_ns=[0], compute_ns=[ns], exchange_ns=[0], items=[held])
            for rank, (ns, held) in pairs
        )
    )


@pytest.mark.parametrize("kinds", [1, 3, 1000])
def test_the_skew_is_that_of_the_worst_of_all_pairs(kinds: int) -> None:
    draw = np.random.default_rng(kinds)
    for ranks in (2, 3, 40):
        own, items = draw.integers(900, 1100, ranks), draw.integers(50, 50 + kinds, ranks)
        found = timeline(own.tolist(), items.tolist()).skew
        assert found is not None
        every = own[:, None] / own / np.maximum(1.0, items[:, None] / items)
        assert found.factor == pytest.approx(every.max())
        assert found.factor == pytest.approx(every[found.slow.rank, found.fast.rank])


def test_of_ranks_that_are_alike_the_first_is_named() -> None:
    found = timeline([10, 12, 12, 10], [5, 5, 5, 5]).skew
    assert found is not None
    assert (found.slow.rank, found.fast.rank) == (1, 0)


@pytest.mark.slow
def test_many_ranks_need_no_more_memory_than_their_own() -> None:
    ranks = 30_000  # of which all pairs would take 7 GB
    own = np.random.default_rng(0).integers(10**9, 2 * 10**9, ranks)
    found = timeline(own.tolist(), [64] * ranks).skew
    assert found is not None
    assert found.factor == pytest.approx(own.max() / own.min())
