"""Tacotron2 reads aloud: what is said, how sentences are joined, and the doubts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainmark.data import audio
from trainmark.data.ljspeech import make, reader
from trainmark.platforms import files
from trainmark.platforms.platform import Device, Platform
from trainmark.record.errors import UsageError, WorkloadError
from trainmark.record.sample import NetworkUsed
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded
from trainmark.workloads.tacotron2.model import Sizes, Tacotron2
from trainmark.workloads.tacotron2.read_aloud import (
    SILENCE_FRAMES,
    ReadingSettings,
    Speech,
    parse_sentences,
    read_aloud,
    sample,
    split_sentences,
)
from trainmark.workloads.tacotron2.workload import RECIPES, WORKLOAD

QUICK = RECIPES["quick"]
REFERENCE = RECIPES["reference"]
SMOKE = RECIPES["smoke"]


TINY = Sizes(
    encoder=16,
    encoder_layers=1,
    prenet=8,
    attention_rnn=16,
    decoder_rnn=16,
    attention=8,
    location_filters=4,
    location_kernel=5,
    postnet=8,
    postnet_layers=2,
)
SHORT = ReadingSettings(most_frames=12)


def tiny_weights(*, gate_bias: float = -20.0, sizes: Sizes = TINY, trained: bool = True) -> dict[str, Tensor]:
    """A network that never ends by itself, or with a large bias at once; `trained` only by its statistics."""
    torch.manual_seed(0)
    found = Tacotron2(sizes).state_dict()
    found["decoder.gate_layer.linear_layer.bias"].fill_(gate_bias)
    if trained:
        found["postnet.convolutions.0.1.running_mean"].fill_(0.1)
    return found


@pytest.fixture
def device() -> Device:
    return Platform(files.load("cpu")).open(0)


def reader_of(found: dict[str, Tensor], device: Device) -> Trained:
    model = Tacotron2(TINY)
    model.load_state_dict(found)
    source = NetworkUsed(workload="tacotron2", file="tiny.pt", sha256="ab")
    return Trained(workload=WORKLOAD, model=model.eval(), recipe=SMOKE, device=device, source=source)


@pytest.fixture
def voice(device: Device) -> Trained:
    return reader_of(tiny_weights(), device)


def said(voice: Trained, text: str, settings: ReadingSettings = SHORT) -> Speech:
    with torch.no_grad():
        return read_aloud(voice, parse_sentences(text), settings)


def codes(speech: Speech) -> list[str]:
    return [doubt.code for doubt in speech.doubts]


def ending_after(voice: Trained, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the gate fire at one frame, whatever the network thinks."""
    step, seen = voice.model.decoder.step, [0]

    def stepped(*inputs: Any) -> Any:
        mel, gate, state = step(*inputs)
        seen[0] += 1
        return mel, torch.full_like(gate, 20.0 if seen[0] % frames == 0 else -20.0), state

    monkeypatch.setattr(voice.model.decoder, "step", stepped)


# What is said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello there.", ["Hello there."]),
        ("Hello. How are you? Fine!", ["Hello.", "How are you?", "Fine!"]),
        ("hello there. how are you", ["hello there.", "how are you"]),
        ("Dr. Smith met Mrs. Jones. They left.", ["Dr. Smith met Mrs. Jones.", "They left."]),
        ("It was J. Smith. He left.", ["It was J. Smith.", "He left."]),
        ("Paid on Jan. 3rd, 1999. Then it rained.", ["Paid on Jan. 3rd, 1999.", "Then it rained."]),
        ("It costs $3.50 a piece. Really?!  Yes...", ["It costs $3.50 a piece.", "Really?!", "Yes..."]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        ("One.\nTwo.", ["One.", "Two."]),
        ("Well. ... Yes.", ["Well.", "... Yes."]),
        ("Yes. -- ...", ["Yes. -- ..."]),
        (" . Yes", [". Yes"]),
    ],
)
def test_a_text_is_parted_into_sentences(text: str, parts: list[str]) -> None:
    assert split_sentences(text) == parts


def test_what_is_read_is_cleaned_sentence_by_sentence() -> None:
    assert parse_sentences("Dr. Smith paid 5. House!") == ["doctor smith paid five.", "house!"]


@pytest.mark.parametrize("text", ["", "  ", "...", "再见"])
def test_a_text_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sentences(text)


# Reading


def test_a_sentence_becomes_sound_mel_and_alignment_of_its_length(voice: Trained) -> None:
    speech = said(voice, "Hello there.")
    assert speech.mel.shape == (80, 12)
    assert speech.alignment.shape == (12, len("hello there."))
    assert speech.alignment.sum(1).tolist() == pytest.approx([1] * 12)
    assert len(speech.samples) == 11 * 256
    assert speech.letters == speech.facts["read"] == "hello there."


def test_the_same_words_checkpoint_and_seed_give_the_same_sound(voice: Trained) -> None:
    first, again = said(voice, "Hello there."), said(voice, "Hello there.")
    assert torch.equal(first.samples, again.samples)
    other = said(voice, "Hello there.", ReadingSettings(most_frames=12, seed=1))
    assert not torch.equal(first.samples, other.samples)


def test_sentences_come_in_order_whatever_the_batches(voice: Trained) -> None:
    for batch in (1, 2, 4, 8):
        speech = said(voice, "One. Two, two. Three.", ReadingSettings(most_frames=3, batch=batch))
        assert [part["read"] for part in speech.facts["sentences"]] == ["one.", "two, two.", "three."]


def test_sentences_are_joined_with_a_short_silence(voice: Trained) -> None:
    speech = said(voice, "Hello there. Bye.")
    pause = SILENCE_FRAMES * 256
    assert 0.2 < pause / audio.RATE < 0.3
    assert len(speech.samples) == 2 * 11 * 256 + pause
    assert not speech.samples[11 * 256 : 11 * 256 + pause].any()
    assert speech.samples[: 11 * 256].any() and speech.samples[-11 * 256 :].any()
    assert speech.mel.shape == (80, 24 + SILENCE_FRAMES)
    assert speech.alignment.shape == (24 + SILENCE_FRAMES, len("hello there.bye."))
    assert not speech.alignment[12:-12].any()
    assert not speech.alignment[:12, 12:].any() and not speech.alignment[-12:, :12].any()


def test_a_sentence_that_does_not_end_is_a_doubt_with_its_remedy(voice: Trained) -> None:
    (doubt,) = [doubt for doubt in said(voice, "Hello.").doubts if doubt.code == "no-end"]
    assert doubt.text.startswith("the sentence had not ended after 12 frames (0.1 s); raise most_frames")


def test_a_gate_that_fires_at_once_leaves_no_sound_and_says_so(device: Device) -> None:
    speech = said(reader_of(tiny_weights(gate_bias=20.0), device), "Hello there.")
    assert "no-sound" in codes(speech)
    assert speech.facts["sound_s"] == 0
    assert speech.facts["real_time_factor"] is None


def test_attention_that_does_not_move_along_is_a_doubt_for_its_sentence(voice: Trained) -> None:
    speech = said(voice, "Hello there. And now a second sentence.")
    texts = [doubt.text for doubt in speech.doubts if doubt.code == "weak-attention"]
    assert "along sentence 1 (diagonality" in texts[0]
    assert "along sentence 2 (diagonality" in texts[1]
    assert all(part["diagonality"] < 0.5 for part in speech.facts["sentences"])


def test_a_text_longer_than_any_in_ljspeech_is_a_doubt(voice: Trained) -> None:
    assert "long-text" not in codes(said(voice, "a" * 188))
    assert "long-text" in codes(said(voice, "a" * 189))


def test_a_network_that_never_saw_speech_is_told_apart(voice: Trained, device: Device) -> None:
    assert "untrained" not in codes(said(voice, "Hello."))
    assert codes(said(reader_of(tiny_weights(trained=False), device), "Hello."))[0] == "untrained"


def test_a_mel_that_is_not_finite_is_a_failed_workload(voice: Trained) -> None:
    with torch.no_grad():
        voice.model.decoder.linear_projection.linear_layer.bias.fill_(torch.nan)
    with pytest.raises(WorkloadError, match="NaN or infinite"):
        said(voice, "Hello.")


def test_a_device_out_of_memory_is_one_sentence(voice: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(voice.model, "speak", full)
    with pytest.raises(WorkloadError, match="ran out of memory with 2 sentences at once; try --set batch=1"):
        said(voice, "Hello. There.")


# As a sample


class Hummer:
    """A vocoder that hums as long as it is asked to."""

    def sound_of(self, trained: Trained, mels: list[Tensor], seed: int) -> Vocoded:
        return Vocoded([torch.full((256 * mel.shape[1],), 0.5) for mel in mels], "hummed")


def hummer(voice: Trained) -> Trained:
    source = NetworkUsed(workload="hummer", file="h.pt", sha256="cd")
    return Trained(workload=Hummer(), model=None, recipe=None, device=voice.device, source=source)


def test_a_sample_is_the_sound_and_where_attention_looked_with_all_that_is_known(voice: Trained) -> None:
    asked = SampleRequest(given="Dr. No. Yes.", options=("most_frames=12", "gate_threshold=0.25", "seed=7", "batch=4"))
    found = sample(voice, asked)
    sound, image = found.parts
    assert sound.caption.startswith("the network reads aloud (griffin-lim): doctor no. yes.; it did not end")
    assert image.png.startswith(b"\x89PNG")
    assert (found.shown, found.generator, found.networks) == ("Dr. No. Yes.", "griffin-lim", ())
    facts = found.facts
    assert [(part["read"], part["symbols"], part["frames"]) for part in facts["sentences"]] == [
        ("doctor no.", 10, 12),
        ("yes.", 4, 12),
    ]
    assert facts["frames"] == 24
    assert facts["sound_s"] == pytest.approx((22 + SILENCE_FRAMES) * 256 / 22050)
    assert facts["real_time_factor"] == pytest.approx((facts["network_s"] + facts["vocoder_s"]) / facts["sound_s"])
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_another_run_may_make_the_sound(voice: Trained) -> None:
    asked = SampleRequest(
        given="Hello. There.", options=("most_frames=12", "vocoder=its-run"), open_run=lambda word: hummer(voice)
    )
    found = sample(voice, asked)
    assert found.generator == "hummed" and [network.workload for network in found.networks] == ["hummer"]
    assert len(found.parts[0].samples) == (24 + SILENCE_FRAMES) * 256


def test_a_run_that_makes_no_sound_of_mels_is_no_vocoder(voice: Trained) -> None:
    asked = SampleRequest(given="Hello.", options=("vocoder=last",), open_run=lambda word: voice)
    with pytest.raises(UsageError, match="--vocoder last: tacotron2 is no vocoder; give a vocoder's run"):
        sample(voice, asked)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("gate_threshold=2", "setting gate_threshold must be at most 1, not 2.0"),
        ("most_frames=0", "setting most_frames must be at least 1, not 0"),
        ("seed=-1", "setting seed must be at least 0, not -1"),
        ("vocodr=x", "setting 'vocodr' is not known; did you mean 'vocoder'?"),
    ],
)
def test_a_setting_it_does_not_know_or_take_is_refused(voice: Trained, said: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        sample(voice, SampleRequest(given="Hello.", options=(said,)))
    assert str(refused.value) == sentence


@pytest.mark.slow
def test_without_a_text_the_validation_sentence_of_middle_length_is_read(voice: Trained, tmp_path: Path) -> None:
    make.make(tmp_path / "set", clips=24)
    clips = sorted(reader.open_splits(tmp_path / "set").val, key=lambda clip: audio.length(clip.path))
    found = sample(voice, SampleRequest(data=tmp_path / "set"))
    assert found.shown == clips[len(clips) // 2].text
    assert found.facts["frames"] == 2 * (audio.length(clips[len(clips) // 2].path) // 256 + 1)


@pytest.mark.slow
def test_after_training_the_recipe_says_how_many_sentences_are_scored(voice: Trained, tmp_path: Path) -> None:
    make.make(tmp_path / "set", clips=24)
    asked = SampleRequest(given="Hello.", options=("most_frames=4",), data=tmp_path / "set")
    assert sample(voice, asked).clips == ()
    scored = sample(replace(voice, recipe=replace(SMOKE, score_clips=2)), asked)
    kinds = {clips.of: len(clips.sounds) for clips in scored.clips}
    assert kinds == {"this sample": 1, "speech": 2, "recordings": 2, "copy synthesis (griffin-lim)": 2}
    assert sample(voice, replace(asked, score=False)).clips == ()
    assert REFERENCE.score_clips > 0 and QUICK.score_clips == SMOKE.score_clips == 0
