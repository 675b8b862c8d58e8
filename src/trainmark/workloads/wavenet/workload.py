"""WaveNet on LJSpeech: mel spectrogram to audio, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from trainmark.data.ljspeech import reader
from trainmark.record.recipe import Limits, Recipe, Span
from trainmark.record.sample import Sample
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded
from trainmark.workloads.wavenet import logistics, vocoder
from trainmark.workloads.wavenet.batches import SoundBatch, SoundData
from trainmark.workloads.wavenet.facts import FACTS, PUBLISHED
from trainmark.workloads.wavenet.model import CONTEXT, HOP, REACH, WaveNet
from trainmark.workloads.wavenet.recipes import FILL, QUICK, REFERENCE, SMOKE, WaveNetRecipe, sizes_of
from trainmark.workloads.workload import Progress, Share, optimizer_kwargs


class WaveNetOnLJSpeech:
    facts, name, item, data_set = FACTS, FACTS.name, FACTS.item, FACTS.data_set
    target = FACTS.quality.target
    recipes: Mapping[str, Recipe] = {"reference": REFERENCE, "fill": FILL, "quick": QUICK, "smoke": SMOKE}
    limits: Mapping[str, Limits] = {"quick": Limits(half_width=0.02, seconds=60)}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {
        "quick": {"batch_per_device": 8, "layers": 24, "cycles": 4, "evaluate_after_limit": True}
    }
    reference_global_batch = PUBLISHED.global_batch
    sums: tuple[str, ...] = ("nll", "judged")
    heard = vocoder.MEL_SETTINGS

    def check_data(self, recipe: WaveNetRecipe, folder: Path, world: int) -> None:
        sizes_of(recipe)
        reader.open_splits(folder, recipe.file_lists)
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
        return WaveNet(sizes_of(recipe), for_speech=recipe.initial == "speech")

    def optimizer(self, parameters: Iterable[Tensor], recipe: WaveNetRecipe) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **optimizer_kwargs(recipe)
        )

    def learning_rate(self, recipe: WaveNetRecipe, progress: Progress) -> float:
        rising = min(1.0, (progress.step + 1) / recipe.warmup_steps) if recipe.warmup_steps else 1.0
        return recipe.learning_rate * rising * _decay_rate(recipe, progress)

    def scaled_learning_rate(self, recipe: WaveNetRecipe, batch_per_device: int) -> float:
        """Fixed: public recipes keep Adam's rate at every batch."""
        return recipe.learning_rate

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
    return logistics.nll(model(batch.sound[:, :-1], batch.mel).float(), batch.sound[:, 1:])


WORKLOAD = WaveNetOnLJSpeech()
