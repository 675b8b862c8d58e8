"""Distributed sampler: which samples each rank trains on at each step, and the random numbers of each sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trainmark.record.errors import NotReadyError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class CounterRng:
    """SplitMix64 over a hashed key.

    No state is shared, so a sample's numbers do not depend on process, rank or order; plain integers cost a few
    microseconds per sample, where a numpy generator for each would cost tens.
    """

    __slots__ = ("_state",)

    def __init__(self, *key: int) -> None:
        state = 0
        for word in key:
            state = _mix((state + _GOLDEN) ^ (word & _MASK))
        self._state = state

    def uniform(self) -> float:
        """In [0, 1), with 53 bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return (_mix(self._state) >> 11) * 2.0**-53

    def below(self, stop: int) -> int:
        """An integer in [0, stop)."""
        return int(self.uniform() * stop)


def _mix(word: int) -> int:
    """SplitMix64's finalizer."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchShare:
    """One rank's share of a global batch."""

    indices: Indices
    global_count: int
    """Samples of this step over all ranks."""
    views: npt.NDArray[np.int64] | None = None
    """Random view of each sample; all zero unless samples repeat within an epoch."""


def epoch_order(count: int, seed: int, epoch: int, shuffle: bool) -> Indices:
    """All sample indices in this epoch's order, the same on every rank and at every world size."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    # a function of (seed, epoch) only, so that a resumed epoch continues where it stopped
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.int64, copy=False)


def steps_per_epoch(count: int, *, batch_per_device: int, world: int) -> int:
    """Training steps per epoch, the same on every rank."""
    return len(_batch_edges(count, batch_per_device, world)) - 1


def rank_batches(
    count: int,
    *,
    batch_per_device: int,
    world: int,
    rank: int,
    seed: int,
    epoch: int,
    shuffle: bool,
    start_step: int = 0,
    lengths: Indices | None = None,
    bucket_batches: int = 0,
    repeated_views: int = 1,
) -> Iterator[BatchShare]:
    """This rank's share of every global batch of the epoch, from `start_step` on.

    Global batch g is the same range of the epoch's order at every world size, unless each rank takes a single sample.
    No share is empty and none is longer than `largest_share`. With the `lengths` of all samples, each group of
    `bucket_batches` batches is regrouped by length. With `repeated_views` and more than one rank, an epoch of the same
    length repeats its first samples that often, and their views go to successive ranks. The two cannot be combined.
    """
    _check_rank(world, rank)
    if repeated_views > 1 and lengths is not None:
        raise ValueError("repeated views cannot be combined with bucketing by length")
    cuts = _batch_edges(count, batch_per_device, world)
    order = epoch_order(count, seed, epoch, shuffle)
    if lengths is not None and bucket_batches:
        order = _bucket_by_length(order, lengths, cuts, bucket_batches, world, np.random.default_rng([seed, epoch, 1]))
    if repeated_views > 1 and world > 1:
        yield from _deal_views(order, repeated_views, cuts[start_step:], world, rank)
        return
    for first, last in pairwise(cuts[start_step:]):
        size = last - first
        mine = slice(first + size * rank // world, first + size * (rank + 1) // world)
        yield BatchShare(indices=order[mine], global_count=size)


def largest_share(count: int, *, batch_per_device: int, world: int) -> int:
    """Maximum samples of one rank in one step: the batch size, or 2 where a batch of 1 leaves a remainder."""
    cuts = _batch_edges(count, batch_per_device, world)
    return max(-(-(last - first) // world) for first, last in pairwise(cuts))


def rank_share(count: int, *, batch_per_device: int, world: int, rank: int) -> Iterator[BatchShare]:
    """This rank's batches for evaluation: each sample once over all ranks, in file order.

    A rank may have one batch fewer than another, or none, because evaluation only sums counts at its end.
    """
    _check_rank(world, rank)
    first, last = count * rank // world, count * (rank + 1) // world
    larger = count % world  # this many ranks have one sample more
    for done in range(0, last - first, batch_per_device):
        start = first + done
        left = max(0, count // world - done)
        yield BatchShare(
            indices=np.arange(start, min(start + batch_per_device, last), dtype=np.int64),
            global_count=(world - larger) * min(batch_per_device, left) + larger * min(batch_per_device, left + 1),
        )


def _batch_edges(count: int, batch_per_device: int, world: int) -> list[int]:
    """Boundaries of global batches within the epoch's order.

    A remainder below half a global batch is balanced with the batch before it. This depends on the global batch alone,
    not on the world size; and as no batch but an only one is then shorter than half, every rank has a sample of each
    if its batch is two or more. With a batch of 1 per device, a remainder joins the batch before it, and only there
    the boundaries depend on the world size.
    """
    if batch_per_device < 1 or world < 1:
        raise ValueError(f"a batch of {batch_per_device} on {world} devices cannot be split; both must be at least 1")
    if count < world:
        raise NotReadyError(
            f"the training set holds {count} samples for {world} devices; every device needs at least one"
        )
    global_batch = batch_per_device * world
    cuts = [*range(0, count, global_batch), count]
    remainder = count % global_batch
    if len(cuts) == 2 or remainder == 0:
        return cuts
    if batch_per_device == 1:
        cuts.pop(-2)
    elif 2 * remainder < global_batch:
        cuts[-2] = (cuts[-3] + cuts[-1] + 1) // 2
    return cuts


def _deal_views(order: Indices, views: int, cuts: list[int], world: int, rank: int) -> Iterator[BatchShare]:
    """Shares of the order with samples repeated, so that neighbouring ranks train on views of the same samples."""
    for first, last in pairwise(cuts):
        places = np.arange(first + rank, last, world, dtype=np.int64)
        yield BatchShare(indices=order[places // views], global_count=last - first, views=places % views)


def _bucket_by_length(
    order: Indices, lengths: Indices, cuts: list[int], batches: int, world: int, rng: np.random.Generator
) -> Indices:
    """The order with the samples of every few batches sorted by length, and these batches shuffled."""
    parts: list[Indices] = []
    for start in range(0, len(cuts) - 1, batches):
        edges = cuts[start : start + batches + 1]
        pool = order[edges[0] : edges[-1]]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        sizes = np.diff(edges)
        # batches of another size stay at the end, so that the boundaries do not move
        sorted_batches = np.split(pool, np.cumsum(sizes)[:-1])
        places = rng.permutation(int((sizes == sizes[0]).sum()))
        shuffled = [sorted_batches[place] for place in places] + sorted_batches[len(places) :]
        # dealt round-robin: the ranks' shares of a batch have similar lengths too
        parts += [batch[rank::world] for batch in shuffled for rank in range(world)]
    return np.concatenate(parts)


def _check_rank(world: int, rank: int) -> None:
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} ranks (0 to {world - 1})")
