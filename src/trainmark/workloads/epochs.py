"""A data set read in epochs, each rank its share of every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainmark.data import distributed_sampler
from trainmark.data.distributed_sampler import BatchShare
from trainmark.data.sample_pool import default_workers
from trainmark.record.recipe import Recipe
from trainmark.workloads.workload import Share


class EpochSource:
    """A subclass adds `skipped`, `facts`, `train` and `evaluation`."""

    def __init__(self, recipe: Recipe, share: Share, samples: int) -> None:
        self._share, self._samples = share, samples
        self._seed, self._eval_batch = recipe.seed, recipe.eval_batch_per_device
        self._batching: dict[str, Any] = {"batch_per_device": recipe.step_batch_per_device, "world": share.world}
        self.steps_per_epoch = distributed_sampler.steps_per_epoch(samples, **self._batching)
        self.items_per_step = samples / self.steps_per_epoch
        self.largest_share = distributed_sampler.largest_share(samples, **self._batching)
        self.workers = default_workers(share.local_ranks) if recipe.input_workers < 0 else recipe.input_workers

    def train_shares(self, epoch: int, start_step: int, **order: Any) -> Iterator[BatchShare]:
        """This rank's samples of every batch, shuffled by seed and epoch."""
        return distributed_sampler.rank_batches(
            self._samples,
            **self._batching,
            rank=self._share.rank,
            seed=self._seed,
            epoch=epoch,
            shuffle=True,
            start_step=start_step,
            **order,
        )

    def eval_shares(self, samples: int) -> Iterator[BatchShare]:
        """This rank's samples for evaluation: each once over all ranks."""
        return distributed_sampler.rank_share(
            samples, batch_per_device=self._eval_batch, world=self._share.world, rank=self._share.rank
        )

    def eval_parts(self, numbers: Sequence[int]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """This rank's part of every evaluation batch, and the whole batch, which is the same at every world size."""
        rank, world = self._share.rank, self._share.world
        batches = [numbers[first : first + self._eval_batch] for first in range(0, len(numbers), self._eval_batch)]
        parts = [(whole[len(whole) * rank // world : len(whole) * (rank + 1) // world], whole) for whole in batches]
        return [(part, whole) for part, whole in parts if part]

    def close(self) -> None:
        pass
