"""Tacotron2 on LJSpeech: text to mel spectrogram, trained under teacher forcing with the published recipe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.data import audio, mel, synthetic
from trainmark.data.audio import BadAudioError
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip, analyse
from trainmark.data.mel import MEL, MelCache
from trainmark.data.prefetch import prefetch
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.recipe import FAST_OR_PLAIN, Recipe, knob
from trainmark.record.sample import Sample
from trainmark.workloads import read_facts
from trainmark.workloads.epochs import EpochSource
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.tacotron2 import read_aloud, text
from trainmark.workloads.tacotron2.model import Outputs, Sizes, Tacotron2, diagonality, focus
from trainmark.workloads.workload import KnownWorkload, Progress, Share, cut_samples, optimizer_kwargs

CLIP_FRAMES = int(read_facts("tacotron2").items_per_sample or 0)
"""Mean mel frames of a clip of LJSpeech."""


@dataclass(frozen=True, kw_only=True)
class Tacotron2Recipe(Recipe):
    implementation: str = FAST_OR_PLAIN
    decay_every_epochs: int = knob(500, least=1)
    """The learning rate is multiplied by 0.3, 0.1 and 0.03 after 1, 2 and 3 times this."""
    mask_padding: bool = knob(False)
    """Mask padding in the training loss. The published target was reached without."""
    batch_norm_init: str = knob("uniform", words=("uniform", "ones"))
    """Initial scale of batch norms: uniform in 0 to 1, or 1. Published models use either."""
    mel_bias_init: float = knob(0.0)
    """Initial bias of the mel projection; 0 is random, as published. The mean of the data saves the steps that would
    only learn it."""
    hidden_dropout: float = knob(0.1, least=0)
    """Dropout of the hidden states of both LSTMs."""
    guided_attention: float = knob(0.0, least=0)
    """Weight of the guided attention loss; 0 as published. Without it, small networks had not aligned after 400 steps
    on synthetic speech; with it, 50 are enough."""
    bucket_batches: int = knob(0, least=0)
    """Bucket clips by length within this many batches; 0 does not bucket."""
    longest_frames: int = knob(0, least=0)
    """Exclude longer clips from training; 0 takes all."""
    file_lists: str = knob("")
    """A folder with lists of training and validation clips, instead of the fixed split."""
    whole_set: bool = knob(True)
    """Refuse an incomplete data set, by its manifest or LJSpeech's number of clips."""
    leave_sample: bool = knob(True)
    """After training, generate a sentence and keep its audio and alignment."""
    score_clips: int = knob(0, least=0)
    """Validation sentences to generate and score after training, if the extra `mos` is installed."""
    encoder_width: int = knob(512, least=2)
    prenet_width: int = knob(256, least=1)
    rnn_width: int = knob(1024, least=1)
    """Width of both LSTMs of the decoder."""
    attention_width: int = knob(128, least=1)
    postnet_width: int = knob(512, least=1)


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
        return [
            replace(
                self,
                text=self.text[clips],
                symbols=self.symbols[clips],
                mels=self.mels[:, clips],
                frames=self.frames[clips],
                frames_on_host=self.frames_on_host[clips],
                numbers=self.numbers[clips],
                count=clips.stop - clips.start,
            )
            for clips in cut_samples(self.count, count)
        ]


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


class SpeechData(EpochSource):
    """An LJSpeech-shaped folder, open for one rank."""

    def __init__(self, recipe: Tacotron2Recipe, folder: Path, share: Share, skip_bad: int) -> None:
        splits = _open_splits(recipe, folder)
        cache = MelCache(synthetic.cache_folder() / "mels")
        first = share.rank % share.local_ranks / share.local_ranks
        (train, val), self.skipped = analyse((splits.train, splits.val), cache, skip_bad, first=first)
        every, self.val = Split(train, cache), Split(val, cache)
        _check_enough(recipe, every.frames, share.world)
        self._train = every.up_to(recipe.longest_frames)
        self._left_out = len(every) - len(self._train)
        super().__init__(recipe, share, len(self._train))
        self._bucket_batches = recipe.bucket_batches
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
        lengths = self._train.frames if self._bucket_batches else None
        shares = self.train_shares(epoch, start_step, lengths=lengths, bucket_batches=self._bucket_batches)
        for batch in prefetch(
            self._train.batch(s.indices.tolist(), s.indices.tolist(), s.global_count) for s in shares
        ):
            self._frames += batch.real_frames
            self._padded_frames += batch.mels.shape[0] * batch.count
            yield batch

    def evaluation(self) -> Iterator[SpeechBatch]:
        """Each clip once over all ranks. Batches have the same clips and padding at every world size, because padding
        is part of the published loss; a rank takes its part of each."""
        parts = self.eval_parts(range(len(self.val)))
        return prefetch(self.val.batch(part, whole, len(whole)) for part, whole in parts)


def _read_ids(clip: Clip) -> list[int]:
    try:
        return text.to_ids(clip.text)
    except UsageError as error:
        raise NotReadyError(f"the text of clip {clip.name} cannot be read: {error}") from error


class Tacotron2OnLJSpeech(KnownWorkload):
    sums: tuple[str, ...] = ("loss", "masked_loss", "diagonality", "focus")

    def check_data(self, recipe: Tacotron2Recipe, folder: Path, world: int) -> None:
        check_clips(recipe, folder, world)

    def open_data(self, recipe: Tacotron2Recipe, folder: Path, share: Share, skip_bad: int) -> SpeechData:
        return SpeechData(recipe, folder, share, skip_bad)

    def blank_batch(self, recipe: Tacotron2Recipe, frames: int) -> SpeechBatch:
        """Clips of one length, with LJSpeech's mean number of symbols."""
        return blank_clips(recipe.step_batch_per_device, frames, CLIP_SYMBOLS)

    def step_lengths(self, recipe: Tacotron2Recipe) -> tuple[int, int, int]:
        """Two lengths in frames from which a step at LJSpeech's mean length, the third, is extrapolated."""
        return 32, 64, min(CLIP_FRAMES, recipe.longest_frames or CLIP_FRAMES)

    def build(self, recipe: Tacotron2Recipe) -> Tacotron2:
        return Tacotron2(
            sizes_of(recipe),
            hidden_dropout=recipe.hidden_dropout,
            batch_norm_init=recipe.batch_norm_init,
            mask_padding=recipe.mask_padding,
            guided_attention=recipe.guided_attention,
            mel_bias_init=recipe.mel_bias_init,
            plain=recipe.implementation == "plain",
        )

    def optimizer(self, parameters: Iterable[Tensor], recipe: Tacotron2Recipe) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **optimizer_kwargs(recipe)
        )

    def learning_rate(self, recipe: Tacotron2Recipe, progress: Progress) -> float:
        decays = min(3, int(progress.epoch / recipe.decay_every_epochs))
        return recipe.learning_rate * (1.0, 0.3, 0.1, 0.03)[decays]

    def items(self, batch: SpeechBatch) -> int:
        return batch.real_frames

    def flops_per_item(self, recipe: Tacotron2Recipe) -> float:
        return training_flops_per_frame(sizes_of(recipe))

    def loss(self, model: nn.Module, batch: SpeechBatch) -> Tensor:
        outputs = _run_model(model, batch)
        losses = clip_losses(outputs, batch)
        return (losses if outputs.strayed is None else losses + outputs.strayed).mean()

    def score(self, model: Tacotron2, batch: SpeechBatch) -> dict[str, Tensor]:
        # the prenet's dropout stays on in evaluation, by the published definition; each clip has its own mask, the same
        # at every evaluation and world size
        kept = prenet_masks(batch, model)
        outputs = _run_model(model, batch, kept)
        symbols = torch.tensor(batch.symbols, device=batch.frames.device)
        quality = outputs.alignment, batch.frames, symbols
        return {
            "loss": clip_losses(outputs, batch).sum(),
            "masked_loss": clip_losses(outputs, batch, real=~batch.padding).sum(),
            "diagonality": diagonality(*quality).sum(),
            "focus": focus(*quality).sum(),
        }

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        clips = sums["samples"]
        return {
            "val_loss": sums["loss"] / clips,
            "masked_val_loss": sums["masked_loss"] / clips,
            "diagonality": sums["diagonality"] / clips,
            "attention_focus": sums["focus"] / clips,
        }

    def sample(self, trained: Trained, request: SampleRequest) -> Sample:
        return read_aloud.sample(trained, request)

    @torch.no_grad()
    def make_mels(
        self, model: Tacotron2, clips: Sequence[Clip], numbers: Sequence[int], cache: MelCache
    ) -> list[Tensor]:
        """Teacher-forced mels (frames, bands) of these clips of a split."""
        places = range(len(numbers))
        batch = Split([clips[number] for number in numbers], cache).batch(places, places, len(numbers))
        batch = replace(batch, numbers=tuple(numbers))  # the seeds of the prenet's dropout
        refined = _run_model(model, batch, prenet_masks(batch, model)).refined.float()
        return [mel[:, :frames].T for mel, frames in zip(refined, batch.frames_on_host, strict=True)]


def sizes_of(recipe: Tacotron2Recipe) -> Sizes:
    return Sizes(
        encoder=recipe.encoder_width,
        prenet=recipe.prenet_width,
        attention_rnn=recipe.rnn_width,
        decoder_rnn=recipe.rnn_width,
        attention=recipe.attention_width,
        postnet=recipe.postnet_width,
    )


def blank_clips(clips: int, frames: int, symbols: int) -> SpeechBatch:
    return SpeechBatch(
        text=torch.empty(clips, symbols, dtype=torch.long),
        symbols=(symbols,) * clips,
        mels=torch.empty(frames, clips, MEL.bands),
        frames=torch.empty(clips, dtype=torch.long),
        frames_on_host=(frames,) * clips,
        numbers=tuple(range(clips)),
        count=clips,
        global_count=clips,
    )


def clip_losses(outputs: Outputs, batch: SpeechBatch, real: Tensor | None = None) -> Tensor:
    """Loss per clip: squared error of both mels and the gate's cross-entropy, each averaged over frames.

    Over all frames of the padded batch, as published, so that their mean is the batch's loss; or without padding.
    """
    target = batch.mels.permute(1, 2, 0).float()
    places = torch.arange(target.shape[2], device=target.device)
    ended = (places[None] >= batch.frames[:, None] - 1).float()
    errors = (outputs.mel - target).square().mean(1) + (outputs.refined - target).square().mean(1)
    errors = errors + F.binary_cross_entropy_with_logits(outputs.gate, ended, reduction="none")
    if real is None:
        return errors.mean(1)
    return (errors * real).sum(1) / batch.frames


def prenet_masks(batch: SpeechBatch, model: Tacotron2) -> list[Tensor]:
    """The prenet's dropout masks for each clip, seeded by the clip's number."""
    prenet, frames = model.decoder.prenet, batch.mels.shape[0]
    shape = (len(prenet.layers), frames, model.sizes.prenet)
    masks = [
        torch.rand(shape, generator=torch.Generator().manual_seed(number)) >= prenet.dropout for number in batch.numbers
    ]
    return list(torch.stack(masks, 2).to(batch.mels.device, torch.float32))


def _run_model(model: nn.Module, batch: SpeechBatch, kept: list[Tensor] | None = None) -> Outputs:
    outputs: Outputs = model(batch.text, batch.symbols, batch.mels, frames=batch.frames, kept=kept)
    return outputs


WORKLOAD = Tacotron2OnLJSpeech("tacotron2", Tacotron2Recipe)
RECIPES = WORKLOAD.recipes


CLIP_SYMBOLS = 100
"""Mean symbols of a clip of LJSpeech; the encoder's FLOPs are divided among its frames."""


def training_flops_per_frame(sizes: Sizes, *, symbols: int = CLIP_SYMBOLS, frames: int = CLIP_FRAMES) -> float:
    """FLOPs per mel frame, forward and backward pass, with its share of the encoder."""
    return flops_per_frame(sizes, symbols) + flops_per_symbol(sizes) * symbols / frames


def flops_per_frame(sizes: Sizes, symbols: int) -> float:
    """FLOPs per frame of a clip with this many symbols: prenet, both LSTMs, attention, postnet."""
    hidden, said, width = sizes.attention_rnn, sizes.decoder_rnn, sizes.encoder
    summary = said + width
    attention = (
        hidden * sizes.attention  # the query
        + symbols * sizes.location_kernel * 2 * sizes.location_filters
        + symbols * sizes.location_filters * sizes.attention
        + symbols * sizes.attention  # the energies
        + symbols * width  # the context
    )
    widths = [sizes.bands, *[sizes.postnet] * (sizes.postnet_layers - 1), sizes.bands]
    products = (
        sizes.prenet * sizes.prenet
        + 4 * hidden * (sizes.prenet + width + hidden)
        + attention
        + 4 * said * (hidden + width + said)
        + summary * (sizes.bands + 1)  # mel and gate
        + sum(a * b * sizes.postnet_kernel for a, b in pairwise(widths))
    )
    # the prenet's first layer needs no input gradient
    return 2 * (_TRAINED * products + (_TRAINED - 1) * sizes.bands * sizes.prenet)


def flops_per_symbol(sizes: Sizes) -> float:
    """FLOPs per symbol: the encoder and the attention keys."""
    width = sizes.encoder
    convolutions = sizes.encoder_layers * width * width * sizes.encoder_kernel
    recurrence = 2 * 4 * (width // 2) * (width + width // 2)
    return 2 * _TRAINED * (convolutions + recurrence + width * sizes.attention)


_TRAINED = 3
"""One matmul in the forward pass, and two of its size in the backward pass."""
