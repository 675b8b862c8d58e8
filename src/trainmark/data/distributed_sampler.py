"""Decides which samples each device sees at each step: every sample once an epoch, or fewer of them in more views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trainmark.record.errors import NotReadyError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchShare:
    """What one rank takes of one global batch."""

    indices: Indices
    global_count: int
    """Samples all ranks together take in this step."""
    views: npt.NDArray[np.int64] | None = None
    """Which random view of each sample is meant; all zero unless a sampler repeats samples within an epoch."""


def epoch_order(count: int, seed: int, epoch: int, shuffle: bool) -> Indices:
    """All sample numbers in the order of this epoch: the same on every rank and at every world size."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    # the shuffling order is a function of (seed, epoch) only, so a resumed epoch goes on where it stopped
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.int64, copy=False)


def steps_per_epoch(count: int, *, batch_per_device: int, world: int) -> int:
    """How many training steps an epoch has; the same on every rank."""
    return len(_cuts(count, batch_per_device, world)) - 1


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

    Global batch g is the same stretch of the epoch's order however many devices split it, unless each takes a single
    sample. No share is empty and none is longer than `largest_share` says. With the `lengths` of all samples, those of
    each `bucket_batches` batches are exchanged among these so that a batch holds samples of like length. With
    `repeated_views` and more than one rank, an epoch is the first of the samples, each as often as that, and its views
    go to one rank after the other; the epoch stays as long as it was. The two do not go together.
    """
    _check_rank(world, rank)
    if repeated_views > 1 and lengths is not None:
        raise ValueError("samples seen in several views cannot be sorted by length too")
    cuts = _cuts(count, batch_per_device, world)
    order = epoch_order(count, seed, epoch, shuffle)
    if lengths is not None and bucket_batches:
        order = _bucketed(order, lengths, cuts, bucket_batches, world, np.random.default_rng([seed, epoch, 1]))
    if repeated_views > 1 and world > 1:
        yield from _views_dealt(order, repeated_views, cuts[start_step:], world, rank)
        return
    for first, last in pairwise(cuts[start_step:]):
        size = last - first
        mine = slice(first + size * rank // world, first + size * (rank + 1) // world)
        yield BatchShare(indices=order[mine], global_count=size)


def largest_share(count: int, *, batch_per_device: int, world: int) -> int:
    """The most samples one rank gets in one step: the batch asked for, or 2 where a batch of 1 leaves a remainder."""
    cuts = _cuts(count, batch_per_device, world)
    return max(-(-(last - first) // world) for first, last in pairwise(cuts))


def rank_share(count: int, *, batch_per_device: int, world: int, rank: int) -> Iterator[BatchShare]:
    """This rank's batches for evaluation: each sample once over all ranks, in file order.

    A rank may have one batch fewer than another, or none, because evaluation only adds up counts at its end.
    """
    _check_rank(world, rank)
    first, last = count * rank // world, count * (rank + 1) // world
    larger = count % world  # this many ranks hold one sample more than the others
    for done in range(0, last - first, batch_per_device):
        start = first + done
        left = max(0, count // world - done)
        yield BatchShare(
            indices=np.arange(start, min(start + batch_per_device, last), dtype=np.int64),
            global_count=(world - larger) * min(batch_per_device, left) + larger * min(batch_per_device, left + 1),
        )


def _cuts(count: int, batch_per_device: int, world: int) -> list[int]:
    """Where global batches begin and end within the epoch's order.

    A remainder below half a global batch is evened out with the batch before it. That looks at the global batch alone,
    so the cuts do not depend on how many devices share it; and as no batch but an only one is then shorter than half,
    every device has a sample of each wherever it was asked to take two or more. With a batch of 1 per device any
    remainder leaves some without: it joins the batch before it, and only there the cuts depend on the devices.
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


def _views_dealt(order: Indices, views: int, cuts: list[int], world: int, rank: int) -> Iterator[BatchShare]:
    """Shares of the order with each sample repeated, so that ranks side by side train on views of the same samples."""
    for first, last in pairwise(cuts):
        places = np.arange(first + rank, last, world, dtype=np.int64)
        yield BatchShare(indices=order[places // views], global_count=last - first, views=places % views)


def _bucketed(
    order: Indices, lengths: Indices, cuts: list[int], batches: int, world: int, rng: np.random.Generator
) -> Indices:
    """The order with the samples of every few batches sorted by length, and these batches in random order again."""
    parts: list[Indices] = []
    for start in range(0, len(cuts) - 1, batches):
        edges = cuts[start : start + batches + 1]
        pool = order[edges[0] : edges[-1]]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        sizes = np.diff(edges)
        # batches of another size, at the end, stay there, so that the places where batches begin do not move
        sorted_batches = np.split(pool, np.cumsum(sizes)[:-1])
        places = rng.permutation(int((sizes == sizes[0]).sum()))
        shuffled = [sorted_batches[place] for place in places] + sorted_batches[len(places) :]
        # dealt out like cards: the ranks' shares of a batch are equally long too
        parts += [batch[rank::world] for batch in shuffled for rank in range(world)]
    return np.concatenate(parts)


def _check_rank(world: int, rank: int) -> None:
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} ranks (0 to {world - 1})")
