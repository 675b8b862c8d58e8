"""Recipes of Tacotron2: the published one, and smaller ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainmark.record.recipe import Recipe, knob
from trainmark.workloads.tacotron2.facts import PUBLISHED


@dataclass(frozen=True, kw_only=True)
class Tacotron2Recipe(Recipe):
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
    """A folder with lists of training, validation and test clips, instead of the fixed split."""
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


REFERENCE = Tacotron2Recipe(
    **PUBLISHED.recipe,
    eval_batch_per_device=128,
    checkpoint_every="10 epochs",
    clip_gradient_norm=1.0,
    score_clips=16,
    seed=23333,
    memory_format="contiguous",
)
FILL = REFERENCE
"""The published throughput rows use the reference's own batch and rate."""
QUICK = replace(
    REFERENCE,
    batch_per_device=8,
    eval_batch_per_device=16,
    checkpoint_every="never",
    bucket_batches=8,
    leave_sample=False,
    score_clips=0,
)
SMOKE = replace(
    REFERENCE,
    score_clips=0,
    batch_per_device=8,
    learning_rate=3e-3,
    epochs=24,
    target=2.4,
    eval_batch_per_device=16,
    evaluate_first=True,
    checkpoint_every="end",
    batch_norm_init="ones",
    mel_bias_init=-5.5,
    guided_attention=10.0,
    longest_frames=260,
    encoder_width=128,
    prenet_width=64,
    rnn_width=128,
    attention_width=32,
    postnet_width=128,
)
