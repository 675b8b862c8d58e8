"""Recipes of WaveNet: the published one, and smaller ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainmark.record.recipe import Recipe, knob
from trainmark.workloads.wavenet.facts import PUBLISHED, WINDOW
from trainmark.workloads.wavenet.model import WaveNetSizes


@dataclass(frozen=True, kw_only=True)
class WaveNetRecipe(Recipe):
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
    file_lists: str = knob("")
    """A folder with lists of training, validation and test clips, instead of the fixed split."""
    whole_set: bool = knob(True)
    """Refuse an incomplete data set, by its manifest or LJSpeech's number of clips."""


REFERENCE = WaveNetRecipe(
    **PUBLISHED.recipe,
    eval_batch_per_device=4,
    evaluate_every="20 epochs",
    checkpoint_every="5 epochs",
    clip_gradient_norm=1.0,
    average_decay=0.9999,
    seed=1,
    memory_format="contiguous",
)
FILL = REFERENCE
QUICK = replace(
    REFERENCE,
    batch_per_device=2,
    layers=12,
    cycles=2,
    eval_batch_per_device=8,
    eval_window=4096,
    checkpoint_every="never",
    warmup_steps=50,
    leave_sample=False,
)
SMOKE = replace(
    REFERENCE,
    batch_per_device=4,
    learning_rate=4e-3,
    epochs=0,
    steps=1200,
    target=6.2,
    layers=12,
    cycles=2,
    channels=32,
    mixtures=3,
    window=1024,
    decay="cosine",
    initial="speech",
    average_decay=0.0,
    eval_window=4096,
    eval_batch_per_device=16,
    evaluate_every="200 steps",
    evaluate_first=True,
    checkpoint_every="end",
)
"""The target is 0.8 nats below a linear predictor's loss on the same synthetic samples, 7.0."""


def sizes_of(recipe: WaveNetRecipe) -> WaveNetSizes:
    return WaveNetSizes(
        layers=recipe.layers,
        cycles=recipe.cycles,
        residual=recipe.channels,
        gate=2 * recipe.channels,
        skip=recipe.channels,
        mixtures=recipe.mixtures,
    )
