"""Batches of clips with their texts, prefetched from the mel cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainmark.data import audio, distributed_sampler, mel, synthetic
from trainmark.data.audio import BadAudioError
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip, analyse
from trainmark.data.mel import MelCache
from trainmark.data.prefetch import prefetch
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.workloads.tacotron2 import text
from trainmark.workloads.tacotron2.recipes import Tacotron2Recipe
from trainmark.workloads.workload import Share


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeechBatch:
    text: Tensor
    """(clips, symbols) ids, padded with 0."""
    symbols: tuple[int, ...]
    """Length of each text, on the host, as packing needs it."""
    mels: Tensor
    """(frames, clips, bands), padded with 0."""
    frames: Tensor
    """Length of each clip."""
    frames_on_host: tuple[int, ...]
    """The same on the host, without a device sync."""
    numbers: tuple[int, ...]
    """Indices of these clips in the split."""
    count: int
    global_count: int

    @property
    def real_frames(self) -> int:
        return sum(self.frames_on_host)

    @property
    def padding(self) -> Tensor:
        """True where a clip has ended: (clips, frames)."""
        places = torch.arange(self.mels.shape[0], device=self.frames.device)
        return places[None] >= self.frames[:, None]

    def parts(self, count: int) -> list[SpeechBatch]:
        """Micro-batches padded like the whole batch, because padding is part of the published loss."""
        count = min(count, self.count)
        edges = [self.count * number // count for number in range(count + 1)]
        return [self._part(slice(first, last)) for first, last in pairwise(edges)]

    def _part(self, clips: slice) -> SpeechBatch:
        numbers = self.numbers[clips]
        return replace(
            self,
            text=self.text[clips],
            symbols=self.symbols[clips],
            mels=self.mels[:, clips],
            frames=self.frames[clips],
            frames_on_host=self.frames_on_host[clips],
            numbers=numbers,
            count=len(numbers),
        )


class Split:
    """The clips of one split, with their lengths."""

    def __init__(self, clips: Sequence[Clip], cache: MelCache) -> None:
        self.clips = clips
        self.ids = [_read_ids(clip) for clip in clips]
        self.frames = np.array([mel.frames(audio.length(clip.path)) for clip in clips], dtype=np.int64)
        self._cache = cache

    def up_to(self, longest_frames: int) -> Split:
        """Clips up to this length; 0 means all."""
        short = [clip for clip, frames in zip(self.clips, self.frames, strict=True) if frames <= longest_frames]
        return Split(short, self._cache) if longest_frames else self

    def __len__(self) -> int:
        return len(self.clips)

    def batch(self, numbers: Sequence[int], padded_like: Sequence[int], global_count: int) -> SpeechBatch:
        """These clips, padded to the longest of `padded_like`."""
        symbols = max(len(self.ids[number]) for number in padded_like)
        frames = int(self.frames[list(padded_like)].max())
        bands = mel.MEL.bands
        ids, mels = np.zeros((len(numbers), symbols), np.int64), np.zeros((frames, len(numbers), bands), np.float32)
        for place, number in enumerate(numbers):
            ids[place, : len(self.ids[number])] = self.ids[number]
            mels[: self.frames[number], place] = self._cache.get(self.clips[number].path)
        lengths = self.frames[list(numbers)]
        return SpeechBatch(
            text=torch.from_numpy(ids),
            symbols=tuple(len(self.ids[number]) for number in numbers),
            mels=torch.from_numpy(mels),
            frames=torch.from_numpy(lengths),
            frames_on_host=tuple(lengths.tolist()),
            numbers=tuple(numbers),
            count=len(numbers),
            global_count=global_count,
        )


def check_clips(recipe: Tacotron2Recipe, folder: Path, world: int) -> None:
    """Raises NotReadyError if this many ranks cannot train on the folder, by its lists and audio headers.

    Unreadable audio is left to the run, which may skip it.
    """
    clips, frames = _open_splits(recipe, folder).train, []
    for clip in clips if recipe.longest_frames else ():
        with contextlib.suppress(BadAudioError):
            frames.append(mel.frames(audio.length(clip.path)))
    if frames:
        _check_enough(recipe, np.array(frames), world)


def _open_splits(recipe: Tacotron2Recipe, folder: Path) -> reader.Splits:
    splits = reader.open_splits(folder, recipe.file_lists)
    if recipe.whole_set:
        reader.check_whole(folder)
    return splits


def _check_enough(recipe: Tacotron2Recipe, frames: npt.NDArray[np.int64], world: int) -> None:
    """NotReadyError if `longest_frames` excludes too many clips for a step."""
    short, batch = int((frames <= recipe.longest_frames).sum()), recipe.step_batch_per_device * world
    if recipe.longest_frames and short < batch:
        raise NotReadyError(
            f"{short} of {len(frames)} training clips are as short as longest_frames={recipe.longest_frames}, and a "
            f"step takes {batch}; these have {frames.min()} to {frames.max()} frames: --set longest_frames=0 takes all "
            "of them, --set batch_per_device=N fewer a step"
        )


class SpeechData:
    """An LJSpeech-shaped folder, open for one rank."""

    def __init__(self, recipe: Tacotron2Recipe, folder: Path, share: Share, skip_bad: int) -> None:
        self._recipe, self._share = recipe, share
        splits = _open_splits(recipe, folder)
        cache = MelCache(synthetic.cache_folder() / "mels")
        first = share.rank % share.local_ranks / share.local_ranks
        (train, val), self.skipped = analyse((splits.train, splits.val), cache, skip_bad, first=first)
        every, self.val = Split(train, cache), Split(val, cache)
        _check_enough(recipe, every.frames, share.world)
        self._train = every.up_to(recipe.longest_frames)
        self._left_out = len(every) - len(self._train)
        self._batching = {"batch_per_device": recipe.step_batch_per_device, "world": share.world}
        self.steps_per_epoch = distributed_sampler.steps_per_epoch(len(self._train), **self._batching)
        self.items_per_step = float(self._train.frames.sum() / self.steps_per_epoch)
        self._frames = self._padded_frames = 0

    @property
    def facts(self) -> Mapping[str, float]:
        padding = 1 - self._frames / self._padded_frames if self._padded_frames else 0.0
        return {
            "train_samples": len(self._train),
            "val_samples": len(self.val),
            "left_out_samples": self._left_out,
            "padding_share": round(padding, 4),
        }

    def train(self, epoch: int, start_step: int) -> Iterator[SpeechBatch]:
        recipe = self._recipe
        shares = distributed_sampler.rank_batches(
            len(self._train),
            **self._batching,
            rank=self._share.rank,
            seed=recipe.seed,
            epoch=epoch,
            shuffle=True,
            start_step=start_step,
            lengths=self._train.frames if recipe.bucket_batches else None,
            bucket_batches=recipe.bucket_batches,
        )
        for batch in prefetch(
            self._train.batch(s.indices.tolist(), s.indices.tolist(), s.global_count) for s in shares
        ):
            self._frames += batch.real_frames
            self._padded_frames += batch.mels.shape[0] * batch.count
            yield batch

    def evaluation(self) -> Iterator[SpeechBatch]:
        """Each clip once over all ranks. Batches have the same clips and padding at every world size, because padding
        is part of the published loss; a rank takes its part of each."""
        numbers, size = list(range(len(self.val))), self._recipe.eval_batch_per_device
        rank, world = self._share.rank, self._share.world
        batches = [numbers[first : first + size] for first in range(0, len(numbers), size)]
        mine = [(whole[len(whole) * rank // world : len(whole) * (rank + 1) // world], whole) for whole in batches]
        return prefetch(self.val.batch(part, whole, len(whole)) for part, whole in mine if part)

    def close(self) -> None:
        pass


def _read_ids(clip: Clip) -> list[int]:
    try:
        return text.to_ids(clip.text)
    except UsageError as error:
        raise NotReadyError(f"the text of clip {clip.name} cannot be read: {error}") from error
