"""Windows of tokens, the same at every world size, prefetched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainmark.data import distributed_sampler
from trainmark.data.prefetch import prefetch
from trainmark.data.text.token_files import Index, TokenStream, Windows, describe, read_index
from trainmark.record.errors import NotReadyError
from trainmark.workloads.decoder.recipes import DecoderRecipe
from trainmark.workloads.workload import PlainBatch, Share


@dataclass(frozen=True, kw_only=True, eq=False)
class TextBatch(PlainBatch):
    tokens: Tensor
    """(windows, context + 1): inputs are all but the last token, targets all but the first."""
    floor: float = 0.0
    """The entropy of the text in nats per token; 0 if unknown."""
    bytes_per_token: float = 0.0
    """Bytes of text per token; 0 if unknown."""
    shared_by: int = 1
    """Ranks that share these windows."""


def check(recipe: DecoderRecipe, folder: Path, world: int) -> Index:
    """NotReadyError if this many ranks cannot train on the folder."""
    index = read_index(folder)
    largest = max(split.largest for split in index.splits.values())
    if largest >= recipe.vocabulary:
        raise NotReadyError(
            f"{folder} holds token {largest}, and the network's vocabulary is {recipe.vocabulary}; set "
            f"vocabulary={largest + 1} or more, or give text of this vocabulary"
        )
    for name in ("train", "val"):
        windows = Windows(TokenStream(folder, index.splits[name]), recipe.context)
        wanted = recipe.step_batch_per_device * world if name == "train" else 1
        if windows.count < wanted:
            raise NotReadyError(
                f"{folder} holds {windows.count} windows of {recipe.context} tokens in its split {name}, and one step "
                f"takes {wanted}; give more text, or set a smaller batch_per_device or context"
            )
    return index


class TextData:
    """Windows of a set of text; a batch depends on seed, step and world size alone."""

    skipped: Sequence[tuple[str, str]] = ()

    def __init__(self, recipe: DecoderRecipe, folder: Path, share: Share) -> None:
        index = check(recipe, folder, share.world)
        self._recipe, self._share, self._index = recipe, share, index
        self._train = Windows(TokenStream(folder, index.splits["train"]), recipe.context)
        self._val = Windows(TokenStream(folder, index.splits["val"]), recipe.context)
        self._floor = index.splits["val"].loss_floor or 0.0
        self._bytes = index.splits["val"].bytes_per_token or 0.0
        # the last, shorter batch is dropped: a step has a fixed number of tokens
        self._batch = recipe.step_batch_per_device * share.world
        self._groups, self._group, self._place = share.world // share.tensor, *divmod(share.rank, share.tensor)
        self._used = self._train.count // self._batch * self._batch

    @property
    def steps_per_epoch(self) -> int:
        return self._used // self._batch

    @property
    def items_per_step(self) -> float:
        return float(self._batch * self._recipe.context)

    @property
    def facts(self) -> Mapping[str, float]:
        return {**describe(self._index), "train_samples": float(self._train.count)}

    def train(self, epoch: int, start_step: int) -> Iterator[TextBatch]:
        shares = distributed_sampler.rank_batches(
            self._used,
            batch_per_device=self._recipe.step_batch_per_device * self._share.tensor,
            world=self._groups,
            rank=self._group,
            seed=self._recipe.seed,
            epoch=epoch,
            shuffle=self._recipe.data_order == "shuffled",
            start_step=start_step,
        )
        return prefetch(replace(self._read(self._train, share), shared_by=self._share.tensor) for share in shares)

    def evaluation(self) -> Iterator[TextBatch]:
        wanted = self._recipe.eval_tokens // self._recipe.context or self._val.count
        return prefetch(self._to_score(min(self._val.count, wanted)))

    def close(self) -> None:
        pass

    def _to_score(self, count: int) -> Iterator[TextBatch]:
        """This rank's windows. Ranks that share a network compute together, so each makes as many batches as the one
        with the most: extra ones have no weight, and of ranks that compute the same only the first counts."""
        batch = self._recipe.eval_batch_per_device * self._share.tensor
        left = math.ceil(math.ceil(count / self._groups) / batch)
        for share in distributed_sampler.rank_share(
            count, batch_per_device=batch, world=self._groups, rank=self._group
        ):
            left -= 1
            found = self._read(self._val, share)
            yield replace(found, count=0) if self._place else found
        for _ in range(left):
            empty = distributed_sampler.BatchShare(indices=np.zeros(1, np.int64), global_count=0)
            yield replace(self._read(self._val, empty), count=0)

    def _read(self, windows: Windows, share: distributed_sampler.BatchShare) -> TextBatch:
        tokens = np.stack([windows.read(int(number)) for number in share.indices])
        return TextBatch(
            tokens=torch.from_numpy(tokens),
            floor=self._floor,
            bytes_per_token=self._bytes,
            count=len(tokens),
            global_count=share.global_count,
        )
