"""What a trained network leaves to be heard and seen: a sentence of the validation set, and where attention looked."""

from __future__ import annotations

from pathlib import Path

import torch

from trainmark.datasets import audio
from trainmark.spec.artifact import Artifact
from trainmark.workloads.tacotron2 import griffin_lim, plot, text
from trainmark.workloads.tacotron2.batches import Split
from trainmark.workloads.tacotron2.model import Tacotron2

SOUND, IMAGE = "sample.wav", "alignment.png"


def leave(model: Tacotron2, val: Split, folder: Path) -> tuple[Artifact, ...]:
    """Speaks the sentence of middle length; it may take twice the frames the clip has, and no more."""
    number = sorted(range(len(val)), key=lambda place: int(val.frames[place]))[len(val) // 2]
    device = next(model.parameters()).device
    ids = val.ids[number]
    spoken = model.speak(
        torch.tensor([ids], device=device),
        [len(ids)],
        most_frames=2 * int(val.frames[number]),
        generator=torch.Generator().manual_seed(0),
    )
    frames = spoken.frames[0]
    mel, alignment = spoken.mel[0, :, :frames].float().cpu(), spoken.alignment[0, :frames].float().cpu()
    words = text.clean(val.clips[number].text)
    with torch.autocast("cpu", enabled=False):  # whatever the network computes in, the sound is made in float32
        audio.write(folder / SOUND, griffin_lim.wave(mel))
    plot.save(folder / IMAGE, alignment=alignment.numpy(), mel=mel.numpy(), title=words, letters=words)
    ended = "" if spoken.finished[0] else "; it did not find its end and was cut"
    return (
        Artifact(file=SOUND, caption=f"the network speaks (griffin-lim): {words}{ended}"),
        Artifact(file=IMAGE, caption="the mel it made and where attention looked meanwhile"),
    )
