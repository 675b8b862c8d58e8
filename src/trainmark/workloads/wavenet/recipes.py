"""The numbers WaveNet is trained with: the published ones, and smaller ones for a first look."""

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
    """Of the residual path and of the skip path; the gate has twice as many."""
    mixtures: int = knob(10, least=1)
    """Logistic distributions of which each sample's is made."""
    window: int = knob(WINDOW, least=256)
    """Samples of a clip in a step, from a random frame on; a shorter clip is padded, and padding is not counted."""
    eval_window: int = knob(0, least=0)
    """Samples from the middle of a validation clip that are judged, hearing those before them; 0 judges whole clips."""
    decay: str = knob("halving", words=("halving", "cosine"))
    """How the learning rate falls: by `halve_every`, or along half a cosine to nothing at the recipe's end."""
    halve_every: str = knob("200000 steps", span=True)
    """The learning rate is halved each time after this much of training."""
    initial: str = knob("published", words=("published", "speech"))
    """Weights are drawn as published, as if sound were as loud as noise of variance 1, or so that a new network hears
    speech at its loudness and expects it there."""
    warmup_steps: int = knob(0, least=0)
    """The learning rate rises from nothing over these."""
    gain: float = knob(1.0, least=1e-3, most=1.0)
    """What sound is multiplied by before it is learnt; val_nll is given as if it were 1."""
    leave_sample: bool = knob(True)
    """After training, let the network make two seconds of a validation clip again from its mel, to be heard."""
    mels_from: str = knob("", run=True)
    """A run, or a file of weights, whose network makes the mels that are heard, of the clips' texts and told the true
    frames, instead of those of the clips: the last part of a vocoder's training should hear what it will be given."""
    mels_from_sha256: str = knob("")
    """Of those weights; found when the run is planned."""
    file_lists: str = knob("")
    """A folder with lists of training, validation and test clips to use instead of the fixed rule."""
    whole_set: bool = knob(True)
    """Refuse a data set that is not whole, by its manifest or by LJSpeech's number of clips."""


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
"""The target is 0.8 nats below what a linear predictor makes of the same samples of the synthetic voice, 7.0."""


def sizes_of(recipe: WaveNetRecipe) -> WaveNetSizes:
    return WaveNetSizes(
        layers=recipe.layers,
        cycles=recipe.cycles,
        residual=recipe.channels,
        gate=2 * recipe.channels,
        skip=recipe.channels,
        mixtures=recipe.mixtures,
    )
