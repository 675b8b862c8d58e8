"""WaveNet on LJSpeech: mel spectrogram to audio, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from trainmark.data import audio, synthetic
from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip, analyse
from trainmark.data.mel import MEL, Mel, MelCache, frames
from trainmark.data.prefetch import prefetch
from trainmark.record.recipe import FAST_OR_PLAIN, Recipe, Span, knob
from trainmark.record.sample import Sample
from trainmark.workloads import read_facts
from trainmark.workloads.epochs import EpochSource
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded
from trainmark.workloads.wavenet import vocoder
from trainmark.workloads.wavenet.model import CONTEXT, HOP, REACH, WaveNet, WaveNetSizes, nll
from trainmark.workloads.wavenet.teacher_mels import TeacherMels, open_teacher
from trainmark.workloads.wavenet.vocoder import MEL_DEVIATION, MEL_MEAN
from trainmark.workloads.workload import KnownWorkload, PlainBatch, Progress, Share, optimizer_kwargs

WINDOW = int(read_facts("wavenet").items_per_sample or 0)
"""Samples of a clip per step."""


@dataclass(frozen=True, kw_only=True)
class WaveNetRecipe(Recipe):
    implementation: str = FAST_OR_PLAIN
    layers: int = knob(24, least=1)
    cycles: int = knob(4, least=1)
    """Dilations double from layer to layer within a cycle."""
    channels: int = knob(128, least=1)
    """Channels of the residual and the skip path; the gate has twice as many."""
    mixtures: int = knob(10, least=1)
    """Components of the mixture of logistics."""
    window: int = knob(WINDOW, least=256)
    """Samples of a clip per step, from a random frame on; shorter clips are padded, and padding is masked."""
    eval_window: int = knob(0, least=0)
    """Evaluated samples from the middle of a validation clip, with the context before them; 0 takes whole clips."""
    decay: str = knob("halving", words=("halving", "cosine"))
    """Learning-rate schedule: by `halve_every`, or cosine decay to 0."""
    halve_every: str = knob("200000 steps", span=True)
    """The learning rate is halved each time after this."""
    initial: str = knob("published", words=("published", "speech"))
    """Initialisation: as published, for audio of variance 1, or for the loudness of speech."""
    warmup_steps: int = knob(0, least=0)
    """Linear warm-up from 0."""
    gain: float = knob(1.0, least=1e-3, most=1.0)
    """Gain of the audio in training; val_nll is corrected for it."""
    leave_sample: bool = knob(True)
    """After training, resynthesise two seconds of a validation clip from its mel."""
    mels_from: str = knob("", run=True)
    """A run of Tacotron2, or a file of weights, whose teacher-forced mels replace those of the recordings: fine-tunes a
    vocoder on the mels it will be given."""
    mels_from_sha256: str = knob("")
    """SHA-256 of those weights; set when the run is planned."""
    file_lists: str = knob("")
    """A folder with lists of training and validation clips, instead of the fixed split."""
    whole_set: bool = knob(True)
    """Refuse an incomplete data set, by its manifest or LJSpeech's number of clips."""


def sizes_of(recipe: WaveNetRecipe) -> WaveNetSizes:
    return WaveNetSizes(
        layers=recipe.layers,
        cycles=recipe.cycles,
        residual=recipe.channels,
        gate=2 * recipe.channels,
        skip=recipe.channels,
        mixtures=recipe.mixtures,
    )


MAX_PREDICTED = 128
"""Clips of each split for fitting and evaluating the linear predictor: all of LJSpeech's validation clips."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SoundBatch(PlainBatch):
    per_sample = ("judged_on_host",)
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


class SoundData(EpochSource):
    """An LJSpeech-shaped folder, open for one rank."""

    def __init__(self, recipe: WaveNetRecipe, folder: Path, share: Share, skip_bad: int, sizes: WaveNetSizes) -> None:
        self._recipe = recipe
        self._heard = -(-(sizes.receptive_field - 1) // MEL.hop) + REACH
        splits = reader.open_splits(folder, recipe.file_lists)
        if recipe.whole_set:
            reader.check_whole(folder)
        cache = MelCache(synthetic.cache_folder() / "mels")
        first = share.rank % share.local_ranks / share.local_ranks
        (train, val), self.skipped = analyse((splits.train, splits.val), cache, skip_bad, first=first)
        mels = cache
        if recipe.mels_from:
            mels = TeacherMels(Path(recipe.mels_from), recipe.mels_from_sha256)
            for clips in (train, val):
                mels.make(clips, cache, first=first)
        self.training, self.val = (Sounds(clips, mels, recipe.gain) for clips in (train, val))
        super().__init__(recipe, share, len(self.training))
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
        def window(number: int) -> Window:
            there = int(self.training.frames[number])
            count = min(self._window, there)
            return Window(first=CounterRng(self._recipe.seed, epoch, number).below(there - count + 1), count=count)

        return prefetch(
            self.training.batch(numbers, [window(number) for number in numbers], share.global_count)
            for share in self.train_shares(epoch, start_step)
            for numbers in (share.indices.tolist(),)
        )

    def evaluation(self) -> Iterator[SoundBatch]:
        """Each clip once over all ranks: whole, or a window from its middle."""
        # clips of similar length together, to limit padding; the same batches at every world size
        numbers = np.argsort(
            [self.scored_window(number).count for number in range(len(self.val))], kind="stable"
        ).tolist()
        return prefetch(
            self.val.batch(part, [self.scored_window(number) for number in part], len(whole))
            for part, whole in self.eval_parts(numbers)
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
    return np.asarray(nll(outputs[None], torch.from_numpy(now)[None])[0])


def _window_rows(clip: Floats) -> tuple[Floats, Floats]:
    windows = np.lib.stride_tricks.sliding_window_view(clip, PREDICTOR_ORDER + 1)
    return np.ascontiguousarray(windows[:, :-1]), windows[:, -1].copy()  # matmuls of overlapping rows are slow


class WaveNetOnLJSpeech(KnownWorkload):
    sums: tuple[str, ...] = ("nll", "judged")
    heard = vocoder.MEL_SETTINGS

    def check_data(self, recipe: WaveNetRecipe, folder: Path, world: int) -> None:
        sizes_of(recipe)
        reader.open_splits(folder, recipe.file_lists)
        if recipe.mels_from:
            open_teacher(Path(recipe.mels_from), recipe.mels_from_sha256)
        if recipe.whole_set:
            reader.check_whole(folder)

    def open_data(self, recipe: WaveNetRecipe, folder: Path, share: Share, skip_bad: int) -> SoundData:
        return SoundData(recipe, folder, share, skip_bad, sizes_of(recipe))

    def blank_batch(self, recipe: WaveNetRecipe) -> SoundBatch:
        clips, frames = recipe.step_batch_per_device, max(1, recipe.window // HOP)
        return SoundBatch(
            sound=torch.empty(clips, frames * HOP + 1),
            mel=torch.empty(clips, sizes_of(recipe).bands, frames + 2 * CONTEXT),
            judged=torch.empty(clips, frames * HOP, dtype=torch.bool),
            judged_on_host=(frames * HOP,) * clips,
            gain=recipe.gain,
            count=clips,
            global_count=clips,
        )

    def build(self, recipe: WaveNetRecipe) -> WaveNet:
        return WaveNet(sizes_of(recipe), for_speech=recipe.initial == "speech", plain=recipe.implementation == "plain")

    def optimizer(self, parameters: Iterable[Tensor], recipe: WaveNetRecipe) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **optimizer_kwargs(recipe)
        )

    def learning_rate(self, recipe: WaveNetRecipe, progress: Progress) -> float:
        rising = min(1.0, (progress.step + 1) / recipe.warmup_steps) if recipe.warmup_steps else 1.0
        return recipe.learning_rate * rising * _decay_rate(recipe, progress)

    def items(self, batch: SoundBatch) -> int:
        return sum(batch.judged_on_host)

    def flops_per_item(self, recipe: WaveNetRecipe) -> float:
        """FLOPs of training, with the conditioning projected at frame rate."""
        sizes = sizes_of(recipe)
        heard = sizes.kernel * sizes.residual * sizes.gate + sizes.gate // 2 * (sizes.residual + sizes.skip)
        conditioned = (2 * REACH + 1) * sizes.gate + sizes.bands * sizes.gate / HOP
        last = sizes.residual + sizes.skip * (sizes.skip + 3 * sizes.mixtures)
        return 2 * 3 * (sizes.layers * (heard + conditioned) + last)

    def loss(self, model: nn.Module, batch: SoundBatch) -> Tensor:
        found = _nll(model, batch)
        return (found * batch.judged).sum() / batch.judged.sum().clamp(min=1)

    def score(self, model: WaveNet, batch: SoundBatch) -> dict[str, Tensor]:
        # a gain divides the density by the same factor
        found = _nll(model, batch) - math.log(batch.gain)
        return {"nll": (found * batch.judged).sum(), "judged": batch.judged.sum()}

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"val_nll": sums["nll"] / sums["judged"]}

    def sample(self, trained: Trained, request: SampleRequest) -> Sample:
        return vocoder.sample(trained, request)

    def sound_of(self, trained: Trained, mels: Sequence[Tensor], seed: int) -> Vocoded:
        return vocoder.sound_of(trained, mels, seed)


def _decay_rate(recipe: WaveNetRecipe, progress: Progress) -> float:
    """The schedule's factor of the learning rate."""
    if recipe.decay == "cosine":
        return (1 + math.cos(math.pi * min(1.0, progress.fraction))) / 2
    every = Span.parse(recipe.halve_every)
    done = {"steps": float(progress.step), "epochs": progress.epoch, "items": progress.items}[every.unit]
    return float(0.5 ** int(done / every.count))


def _nll(model: nn.Module, batch: SoundBatch) -> Tensor:
    """Loss of every next sample."""
    return nll(model(batch.sound[:, :-1], batch.mel).float(), batch.sound[:, 1:])


WORKLOAD = WaveNetOnLJSpeech("wavenet", WaveNetRecipe)
RECIPES = WORKLOAD.recipes
