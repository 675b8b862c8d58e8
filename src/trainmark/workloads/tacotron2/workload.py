"""Tacotron2 on LJSpeech: text to mel spectrogram, trained under teacher forcing with the published recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.data.ljspeech.reader import Clip
from trainmark.data.mel import MEL, MelCache
from trainmark.record.recipe import Limits, Recipe
from trainmark.record.sample import Sample
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.tacotron2 import attention_quality, read_aloud
from trainmark.workloads.tacotron2.batches import SpeechBatch, SpeechData, Split, check_clips
from trainmark.workloads.tacotron2.facts import CLIP_FRAMES, FACTS, PUBLISHED
from trainmark.workloads.tacotron2.model import Outputs, Sizes, Tacotron2
from trainmark.workloads.tacotron2.recipes import FILL, QUICK, REFERENCE, SMOKE, Tacotron2Recipe
from trainmark.workloads.workload import Progress, Share, optimizer_kwargs


class Tacotron2OnLJSpeech:
    facts, name, item, data_set = FACTS, FACTS.name, FACTS.item, FACTS.data_set
    target = FACTS.quality.target
    recipes: Mapping[str, Recipe] = {"reference": REFERENCE, "fill": FILL, "quick": QUICK, "smoke": SMOKE}
    limits: Mapping[str, Limits] = {"quick": Limits(half_width=0.02, seconds=60)}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {
        "quick": {"batch_per_device": 128, "eval_batch_per_device": 128, "evaluate_after_limit": True}
    }
    reference_global_batch = PUBLISHED.global_batch
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
        )

    def optimizer(self, parameters: Iterable[Tensor], recipe: Tacotron2Recipe) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **optimizer_kwargs(recipe)
        )

    def learning_rate(self, recipe: Tacotron2Recipe, progress: Progress) -> float:
        decays = min(3, int(progress.epoch / recipe.decay_every_epochs))
        return recipe.learning_rate * (1.0, 0.3, 0.1, 0.03)[decays]

    def scaled_learning_rate(self, recipe: Tacotron2Recipe, batch_per_device: int) -> float:
        """Fixed: the published rows keep Adam's rate at every global batch."""
        return recipe.learning_rate

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
            "diagonality": attention_quality.diagonality(*quality).sum(),
            "focus": attention_quality.focus(*quality).sum(),
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
        """Teacher-forced mels (frames, bands) of these clips."""
        batch = Split([clips[number] for number in numbers], cache).batch(range(len(numbers)), range(len(numbers)), 1)
        batch = replace(batch, numbers=tuple(numbers))  # seeds of the prenet's dropout
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


WORKLOAD = Tacotron2OnLJSpeech()


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
