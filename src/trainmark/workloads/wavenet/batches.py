"""Windows of clips with their mels, prefetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from trainmark import workloads
from trainmark.data import audio, distributed_sampler, synthetic
from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip, analyse
from trainmark.data.mel import MEL, Mel, MelCache, frames
from trainmark.data.prefetch import prefetch
from trainmark.record.atomic_files import sha256
from trainmark.record.errors import NotReadyError, TrainmarkError
from trainmark.record.recipe import from_values
from trainmark.workloads import weights
from trainmark.workloads.wavenet import logistics
from trainmark.workloads.wavenet.model import CONTEXT, REACH, WaveNetSizes
from trainmark.workloads.wavenet.recipes import WaveNetRecipe
from trainmark.workloads.wavenet.vocoder import MEL_DEVIATION, MEL_MEAN
from trainmark.workloads.workload import Share

MAX_PREDICTED = 128
"""Clips of each split for fitting and evaluating the linear predictor: all of LJSpeech's validation clips."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SoundBatch:
    sound: Tensor
    """(clips, samples) from -1 to 1, padded with 0; one sample more than outputs."""
    mel: Tensor
    """(clips, bands, frames), with the frames on either side of the window."""
    judged: Tensor
    """(clips, samples) mask of evaluated samples: neither padding nor context."""
    judged_on_host: tuple[int, ...]
    """Number of evaluated samples per clip, on the host."""
    gain: float
    """Gain of the audio."""
    count: int
    global_count: int

    def parts(self, count: int) -> list[SoundBatch]:
        count = min(count, self.count)
        edges = [self.count * number // count for number in range(count + 1)]
        return [self._part(slice(first, last)) for first, last in pairwise(edges)]

    def _part(self, clips: slice) -> SoundBatch:
        judged_on_host = self.judged_on_host[clips]
        return replace(
            self,
            sound=self.sound[clips],
            mel=self.mel[clips],
            judged=self.judged[clips],
            judged_on_host=judged_on_host,
            count=len(judged_on_host),
        )


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of a clip, in frames."""

    first: int
    count: int
    heard: int = 0
    """Leading frames that are context only."""
    after: int = 0
    """Trailing frames that only condition those before them."""


class Sounds:
    """The clips of one split."""

    def __init__(self, clips: Sequence[Clip], cache: MelCache, gain: float) -> None:
        self.clips, self._cache, self._gain = clips, cache, gain
        self.frames = np.array([frames(audio.length(clip.path)) for clip in clips], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.clips)

    def mel(self, number: int) -> Mel:
        """Mel of a clip (frames, bands)."""
        return self._cache.get(self.clips[number].path)

    def batch(self, numbers: Sequence[int], windows: Sequence[Window], global_count: int) -> SoundBatch:
        longest = max(window.count for window in windows)
        sound = np.zeros((len(numbers), longest * MEL.hop + 1), np.float32)
        judged = np.zeros((len(numbers), longest * MEL.hop), np.bool_)
        mels = np.zeros((len(numbers), MEL.bands, longest + 2 * CONTEXT), np.float32)
        for place, (number, window) in enumerate(zip(numbers, windows, strict=True)):
            path = self.clips[number].path
            samples = audio.read(path)[window.first * MEL.hop : (window.first + window.count) * MEL.hop + 1]
            sound[place, : len(samples)] = samples
            # an output predicts the next sample
            judged[place, window.heard * MEL.hop : (window.count - window.after) * MEL.hop] = True
            judged[place, len(samples) - 1 :] = False
            mel = self.mel(number)
            wanted = np.arange(window.first - CONTEXT, window.first + longest + CONTEXT).clip(0, len(mel) - 1)
            mels[place] = mel[wanted].T
        return SoundBatch(
            sound=torch.from_numpy(sound * self._gain if self._gain != 1 else sound),
            mel=torch.from_numpy((mels - MEL_MEAN) / MEL_DEVIATION).float(),
            judged=torch.from_numpy(judged),
            judged_on_host=tuple(judged.sum(1).tolist()),
            gain=self._gain,
            count=len(numbers),
            global_count=global_count,
        )


class SoundData:
    """An LJSpeech-shaped folder, open for one rank."""

    def __init__(self, recipe: WaveNetRecipe, folder: Path, share: Share, skip_bad: int, sizes: WaveNetSizes) -> None:
        self._recipe, self._share = recipe, share
        self._heard = -(-(sizes.receptive_field - 1) // MEL.hop) + REACH
        splits = reader.open_splits(folder, recipe.file_lists)
        if recipe.whole_set:
            reader.check_whole(folder)
        cache = MelCache(synthetic.cache_folder() / "mels")
        first = share.rank % share.local_ranks / share.local_ranks
        (train, val), self.skipped = analyse((splits.train, splits.val), cache, skip_bad, first=first)
        heard = cache
        if recipe.mels_from:
            heard = TeacherMels(Path(recipe.mels_from), recipe.mels_from_sha256)
            for clips in (train, val):
                heard.make(clips, cache, first)
        self.training, self.val = (Sounds(clips, heard, recipe.gain) for clips in (train, val))
        self._batching: dict[str, Any] = {"batch_per_device": recipe.step_batch_per_device, "world": share.world}
        self.steps_per_epoch = distributed_sampler.steps_per_epoch(len(self.training), **self._batching)
        taken = np.minimum(self.training.frames, self._window) * MEL.hop
        self.items_per_step = float(taken.sum() / self.steps_per_epoch)

    @property
    def _window(self) -> int:
        """Frames per training window."""
        return max(1, self._recipe.window // MEL.hop)

    @property
    def facts(self) -> Mapping[str, float]:
        """With the linear predictor's loss on the same validation clips, in nats: the baseline of `val_nll`."""
        counted = {"train_samples": len(self.training), "val_samples": len(self.val)}
        return {**counted, "linear_nll": self._linear_nll()} if self._share.rank == 0 else counted

    def train(self, epoch: int, start_step: int) -> Iterator[SoundBatch]:
        shares = distributed_sampler.rank_batches(
            len(self.training),
            **self._batching,
            rank=self._share.rank,
            seed=self._recipe.seed,
            epoch=epoch,
            shuffle=True,
            start_step=start_step,
        )

        def window(number: int) -> Window:
            there = int(self.training.frames[number])
            count = min(self._window, there)
            return Window(first=CounterRng(self._recipe.seed, epoch, number).below(there - count + 1), count=count)

        return prefetch(
            self.training.batch(numbers, [window(number) for number in numbers], share.global_count)
            for share in shares
            for numbers in (share.indices.tolist(),)
        )

    def evaluation(self) -> Iterator[SoundBatch]:
        """Each clip once over all ranks: whole, or a window from its middle."""
        size, rank, world = self._recipe.eval_batch_per_device, self._share.rank, self._share.world
        # clips of similar length together, to limit padding; the same batches at every world size
        numbers = np.argsort(
            [self.scored_window(number).count for number in range(len(self.val))], kind="stable"
        ).tolist()
        batches = [numbers[first : first + size] for first in range(0, len(numbers), size)]
        mine = [(whole[len(whole) * rank // world : len(whole) * (rank + 1) // world], whole) for whole in batches]
        return prefetch(
            self.val.batch(part, [self.scored_window(number) for number in part], len(whole))
            for part, whole in mine
            if part
        )

    def scored_window(self, number: int) -> Window:
        """The evaluated window of a validation clip."""
        there = int(self.val.frames[number])
        wanted = self._recipe.eval_window // MEL.hop
        if not wanted or wanted >= there:
            return Window(first=0, count=there)
        first = (there - wanted) // 2
        heard, after = min(first, self._heard), min(there - first - wanted, REACH)
        return Window(first=first - heard, count=heard + wanted + after, heard=heard, after=after)

    def _linear_nll(self) -> float:
        """The linear predictor's loss on the evaluated samples."""
        fitted = [audio.read(clip.path).astype(np.float64) for clip in self.training.clips[:MAX_PREDICTED]]
        weights = fit_predictor(fitted)
        found = []
        for number, clip in enumerate(self.val.clips[:MAX_PREDICTED]):
            window = self.scored_window(number)
            # an output predicts the next sample, and the predictor needs some before the first
            first = max(0, (window.first + window.heard) * MEL.hop + 1 - PREDICTOR_ORDER)
            last = (window.first + window.count - window.after) * MEL.hop + 1
            found.append(predictor_nll(audio.read(clip.path).astype(np.float64)[first:last], weights))
        return round(float(np.concatenate(found).mean()), 3)

    def close(self) -> None:
        pass


PREDICTOR_ORDER = 32
"""Order of the linear predictor."""
PREDICTOR_BLOCK = 256
"""Samples that share a scale, which the predictor knows."""

Floats = npt.NDArray[np.float64]


def fit_predictor(clips: list[Floats]) -> Floats:
    """Predictor weights by least squares over all clips."""
    products, answers = np.zeros((PREDICTOR_ORDER, PREDICTOR_ORDER)), np.zeros(PREDICTOR_ORDER)
    for clip in clips:
        past, now = _window_rows(clip)
        products += past.T @ past
        answers += past.T @ now
    # regularised: silence alone has no unique solution
    return np.asarray(
        np.linalg.solve(products + 1e-9 * np.trace(products) / PREDICTOR_ORDER * np.eye(PREDICTOR_ORDER), answers)
    )


def predictor_nll(clip: Floats, weights: Floats) -> Floats:
    """In nats, for each sample with enough samples before it."""
    past, now = _window_rows(clip)
    error = now - past @ weights
    scales = np.concatenate(
        [
            # the mean absolute deviation of a logistic distribution is 2 ln 2 times its scale
            np.full(len(part), max(np.abs(part).mean() / (2 * np.log(2)), 1e-6))
            for part in np.split(error, range(PREDICTOR_BLOCK, len(error), PREDICTOR_BLOCK))
        ]
    )
    outputs = torch.from_numpy(np.stack([np.zeros_like(now), now - error, np.log(scales)]))
    return np.asarray(logistics.nll(outputs[None], torch.from_numpy(now)[None])[0])


def _window_rows(clip: Floats) -> tuple[Floats, Floats]:
    windows = np.lib.stride_tricks.sliding_window_view(clip, PREDICTOR_ORDER + 1)
    return np.ascontiguousarray(windows[:, :-1]), windows[:, -1].copy()  # matmuls of overlapping rows are slow


BATCH = 8
"""Clips per batch."""


@runtime_checkable
class TeacherForced(Protocol):
    """A workload whose networks generate mels from texts."""

    def build(self, recipe: Any) -> nn.Module: ...

    def make_mels(self, model: Any, clips: Sequence[Clip], numbers: Sequence[int], cache: MelCache) -> list[Tensor]:
        """Teacher-forced mels (frames, bands) of these clips."""


class TeacherMels(MelCache):
    """Teacher-forced mels of clips by the network in a file; `make` must be called before `get`."""

    def __init__(self, file: Path, digest: str) -> None:
        super().__init__(synthetic.cache_folder() / "taught-mels" / digest[:16])
        self._file, self._digest = file, digest

    def make(self, clips: Sequence[Clip], cache: MelCache, first: float) -> None:
        """Makes missing mels, starting at a share of the clips, so that ranks start at different positions."""
        missing = [number for number, clip in enumerate(clips) if not self.has(clip.path)]
        if not missing:
            return
        workload, model = open_teacher(self._file, self._digest)
        start = int(len(missing) * first)
        for numbers in _split_batches([*missing[start:], *missing[:start]]):
            wanted = [number for number in numbers if not self.has(clips[number].path)]
            made = workload.make_mels(model, clips, wanted, cache) if wanted else []
            for number, mel in zip(wanted, made, strict=True):
                self.put(clips[number].path, mel.numpy())

    def _compute(self, wav: Path) -> Mel:
        raise NotReadyError(f"the mel of {wav} is missing from {self.folder}; restart the run")


def open_teacher(file: Path, digest: str) -> tuple[TeacherForced, Any]:
    """The network in a checkpoint, ready to make mels; NotReadyError if it was changed since the plan, or cannot."""
    if sha256(file) != digest:
        raise NotReadyError(f"{file} was changed after the run was planned; plan it again")
    document = weights.read_document(file)
    try:
        made_by = document["made_by"]
        workload: Any = workloads.load(made_by["workload"])
        recipe = from_values(type(workload.recipes["reference"]), made_by["recipe"])
    except (KeyError, TypeError, TrainmarkError) as error:
        raise NotReadyError(f"{file} does not say what network it holds; give a run of this version") from error
    if not isinstance(workload, TeacherForced):
        raise NotReadyError(
            f"mels_from {file} holds a network of {made_by['workload']}, which makes no mels of texts; give a run of a "
            "network that does"
        )
    model = workload.build(recipe)
    weights.load_into(model, weights.read_weights(file), str(file))
    return workload, model.eval()


def _split_batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), BATCH):
        yield numbers[first : first + BATCH]
