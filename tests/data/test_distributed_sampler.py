from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from trainmark.data.distributed_sampler import (
    BatchShare,
    epoch_order,
    largest_share,
    rank_batches,
    rank_share,
    steps_per_epoch,
)
from trainmark.record.errors import NotReadyError

steady = settings(deadline=None, derandomize=True)
worlds = st.integers(1, 9)
batches = st.integers(1, 7)
counts = st.integers(0, 300)


def all_ranks(count: int, batch: int, world: int, **changes: Any) -> list[list[BatchShare]]:
    settings: dict[str, Any] = {"seed": 3, "epoch": 1, "shuffle": True, **changes}
    return [
        list(rank_batches(count, batch_per_device=batch, world=world, rank=rank, **settings)) for rank in range(world)
    ]


@steady
@given(count=counts, batch=batches, world=worlds)
def test_every_training_sample_is_used_once_and_no_rank_is_ever_without_one(count: int, batch: int, world: int) -> None:
    count += world
    ranks = all_ranks(count, batch, world)
    used = np.concatenate([share.indices for shares in ranks for share in shares])
    assert sorted(used) == list(range(count))
    assert {len(shares) for shares in ranks} == {steps_per_epoch(count, batch_per_device=batch, world=world)}
    longest = largest_share(count, batch_per_device=batch, world=world)
    assert longest <= max(batch, 2)
    for step in zip(*ranks, strict=True):
        sizes = [len(share.indices) for share in step]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= longest
        assert {share.global_count for share in step} == {sum(sizes)}


several = st.integers(2, 9)


@steady
@given(count=counts, per_device=st.integers(2, 7), world=several, buckets=st.integers(0, 4))
def test_a_global_batch_holds_the_same_samples_whatever_the_number_of_devices(
    count: int, per_device: int, world: int, buckets: int
) -> None:
    count += world
    lengths = np.random.default_rng(count).integers(1, 20, count)

    def batches(per_device: int, world: int) -> list[list[int]]:
        ranks = all_ranks(count, per_device, world, lengths=lengths, bucket_batches=buckets)
        return [sorted(np.concatenate([share.indices for share in step])) for step in zip(*ranks, strict=True)]

    alone = batches(per_device * world, 1)
    assert batches(per_device, world) == alone
    sizes = [len(batch) for batch in alone]
    assert set(sizes[:-2]) <= {per_device * world}
    assert len(sizes) == 1 or min(sizes) >= per_device * world / 2


def test_a_remainder_below_half_a_batch_is_evened_out_with_the_batch_before_it() -> None:
    def sizes(count: int, batch: int, world: int) -> list[int]:
        return [share.global_count for share in all_ranks(count, batch, world)[0]]

    assert sizes(27, 4, 2) == sizes(27, 8, 1) == [8, 8, 6, 5]
    assert sizes(28, 4, 2) == sizes(28, 8, 1) == [8, 8, 8, 4]
    assert sizes(3, 4, 2) == sizes(3, 8, 1) == [3]


def test_with_one_sample_per_device_a_remainder_joins_the_batch_before_it() -> None:
    ranks = all_ranks(11, 1, 4)
    assert [share.global_count for share in ranks[0]] == [4, 7]
    assert [len(shares[1].indices) for shares in ranks] == [1, 2, 2, 2]
    assert largest_share(11, batch_per_device=1, world=4) == 2


@steady
@given(count=counts, batch=batches, world=worlds, buckets=st.integers(1, 4))
def test_sorting_by_length_moves_no_place_where_a_batch_begins(
    count: int, batch: int, world: int, buckets: int
) -> None:
    """Where batches of unlike size changed places, a batch would hold the end of one and the start of another."""
    count += world
    lengths = np.arange(count)
    ranks = all_ranks(count, batch, world, lengths=lengths, bucket_batches=buckets, shuffle=False)
    for step in zip(*ranks, strict=True):
        together = sorted(np.concatenate([share.indices for share in step]).tolist())
        assert together == list(range(together[0], together[0] + len(together)))


@steady
@given(count=counts, batch=batches, world=worlds, start=st.integers(0, 50), views=st.integers(1, 5))
def test_an_epoch_resumed_at_a_step_goes_on_as_if_never_stopped(
    count: int, batch: int, world: int, start: int, views: int
) -> None:
    def samples(share: BatchShare) -> list[list[int] | None]:
        return [share.indices.tolist(), None if share.views is None else share.views.tolist()]

    count += world
    whole = all_ranks(count, batch, world, repeated_views=views)
    rest = all_ranks(count, batch, world, repeated_views=views, start_step=start)
    for a, b in zip(whole, rest, strict=True):
        assert [samples(share) for share in a[start:]] == [samples(share) for share in b]


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    order = epoch_order(1000, 0, 0, True)
    assert (order == epoch_order(1000, 0, 0, True)).all()
    assert (order != epoch_order(1000, 0, 1, True)).any()
    assert (order != epoch_order(1000, 1, 0, True)).any()
    assert epoch_order(5, 0, 7, False).tolist() == [0, 1, 2, 3, 4]


def test_fewer_training_samples_than_devices_are_refused_with_both_counts() -> None:
    with pytest.raises(NotReadyError, match="3 samples for 8 devices"):
        steps_per_epoch(3, batch_per_device=4, world=8)


@steady
@given(count=counts, batch=batches, world=worlds)
def test_every_evaluation_sample_is_seen_once_and_in_order(count: int, batch: int, world: int) -> None:
    ranks = [list(rank_share(count, batch_per_device=batch, world=world, rank=rank)) for rank in range(world)]
    seen = [index for shares in ranks for share in shares for index in share.indices.tolist()]
    assert seen == list(range(count))
    for shares in ranks:
        assert all(1 <= len(share.indices) <= batch for share in shares)
        assert all(len(share.indices) == batch for share in shares[:-1])
    for step in range(max(map(len, ranks))):
        present = [shares[step] for shares in ranks if step < len(shares)]
        assert {share.global_count for share in present} == {sum(len(share.indices) for share in present)}


views = st.integers(2, 5)


@steady
@given(count=counts, batch=batches, world=several, views=views)
def test_repeated_views_fill_an_epoch_of_the_usual_length_with_fewer_samples(
    count: int, batch: int, world: int, views: int
) -> None:
    count += world
    ranks = all_ranks(count, batch, world, repeated_views=views)
    for usual, step in zip(all_ranks(count, batch, world)[0], zip(*ranks, strict=True), strict=True):
        sizes = [len(share.indices) for share in step]
        assert {share.global_count for share in step} == {sum(sizes)} == {usual.global_count}
        assert min(sizes) >= 1
        assert max(sizes) <= largest_share(count, batch_per_device=batch, world=world)
    seen = sorted((*sample,) for shares in ranks for share in shares for sample in pairs(share))
    order = epoch_order(count, 3, 1, True).tolist()
    assert seen == sorted((order[place // views], place % views) for place in range(count))


def pairs(share: BatchShare) -> list[tuple[int, int]]:
    assert share.views is not None
    return list(zip(share.indices.tolist(), share.views.tolist(), strict=True))


def test_the_views_of_a_sample_go_to_ranks_side_by_side() -> None:
    ranks = all_ranks(12, 2, 4, repeated_views=3, shuffle=False)
    assert [pairs(shares[0]) for shares in ranks] == [
        [(0, 0), (1, 1)],
        [(0, 1), (1, 2)],
        [(0, 2), (2, 0)],
        [(1, 0), (2, 1)],
    ]
    assert [pairs(shares[1]) for shares in ranks] == [[(2, 2)], [(3, 0)], [(3, 1)], [(3, 2)]]


def test_one_device_sees_every_sample_once_whatever_views_are_asked_for() -> None:
    plain, repeated = all_ranks(20, 4, 1), all_ranks(20, 4, 1, repeated_views=3)
    assert [share.indices.tolist() for share in plain[0]] == [share.indices.tolist() for share in repeated[0]]
    assert all(share.views is None for share in repeated[0])
