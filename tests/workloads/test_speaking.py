from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainmark.datasets import audio
from trainmark.platforms import files
from trainmark.platforms.platform import Device, Platform
from trainmark.spec.errors import NotReadyError, UsageError, WorkloadError
from trainmark.spec.whole_files import sha256
from trainmark.train import checkpoint
from trainmark.workloads.tacotron2.model import Sizes, Tacotron2
from trainmark.workloads.tacotron2.speak import (
    SILENCE_FRAMES,
    Settings,
    Speech,
    Voice,
    checkpoint_file,
    open_voice,
    sentences,
    speak,
    words,
)

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
SHORT = Settings(most_frames=12)


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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save({"state_dict": tiny_weights()}, tmp_path / "tiny.pt")
    return tmp_path / "tiny.pt"


@pytest.fixture
def voice(file: Path, device: Device) -> Voice:
    return open_voice(file, device)


def said(voice: Voice, text: str, settings: Settings = SHORT) -> Speech:
    (speech,) = speak(voice, [words(text)], settings)
    return speech


def codes(speech: Speech) -> list[str]:
    return [doubt["code"] for doubt in speech.document["doubts"]]


def ending_after(voice: Voice, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("{HH AW1 S}. {B EH1 D}.", ["{HH AW1 S}.", "{B EH1 D}."]),
        ("Well. ... Yes.", ["Well.", "... Yes."]),
        ("Yes. -- ...", ["Yes. -- ..."]),
        (" . Yes", [". Yes"]),
    ],
)
def test_a_text_is_parted_into_sentences(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


def test_what_is_read_is_cleaned_sentence_by_sentence() -> None:
    found = words("Dr. Smith paid 5. {HH AW1 S}!")
    assert [sentence.read for sentence in found.sentences] == ["doctor smith paid five.", "{HH AW1 S}!"]
    assert [sentence.letters for sentence in found.sentences] == ["doctor smith paid five.", "HAS!"]


@pytest.mark.parametrize("text", ["", "  ", "...", "a {QQ} b", "a } b"])
def test_a_text_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        words(text)


# Whose voice


def test_a_file_of_weights_is_opened_ready_to_speak(voice: Voice, file: Path) -> None:
    assert voice.model.sizes == TINY
    assert not voice.model.training
    assert voice.sha256 == sha256(file)
    assert {parameter.dtype for parameter in voice.model.parameters()} == {torch.float32}


def test_half_precision_weights_speak_in_single(tmp_path: Path, device: Device) -> None:
    halved = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tiny_weights().items()}
    torch.save(halved, tmp_path / "half.pt")
    model = open_voice(tmp_path / "half.pt", device).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_run_speaks_with_its_newest_checkpoint(tmp_path: Path, device: Device) -> None:
    for step in (3, 20):
        checkpoint.save(tmp_path / "checkpoints", step, {"stepper": {"model": tiny_weights()}})
    newest = tmp_path / "checkpoints" / "step-000000020" / "state.pt"
    assert checkpoint_file(tmp_path) == checkpoint_file(tmp_path / "checkpoints") == newest
    assert checkpoint_file(newest.parent) == checkpoint_file(newest) == newest
    assert open_voice(tmp_path, device).file == newest


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, device: Device) -> None:
    folder = checkpoint.save(tmp_path, 3, {"stepper": {"model": tiny_weights()}})
    torch.save({"state_dict": tiny_weights(gate_bias=1.0)}, folder / "state.pt")
    with pytest.raises(NotReadyError, match="damaged: its content does not match its hash"):
        open_voice(tmp_path, device)


def test_a_missing_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="holds no checkpoint; give a run that left one"):
        checkpoint_file(tmp_path)
    with pytest.raises(NotReadyError, match="nowhere is not there"):
        checkpoint_file(tmp_path / "nowhere")


def test_weights_of_another_network_are_refused(tmp_path: Path, device: Device) -> None:
    def sentence(found: dict[str, Tensor]) -> str:
        torch.save(found, tmp_path / "other.pt")
        with pytest.raises(NotReadyError) as refused:
            open_voice(tmp_path / "other.pt", device)
        return str(refused.value)

    assert "holds no Tacotron2: " in sentence({"conv1.weight": torch.zeros(3)})
    flat = {**tiny_weights(), "encoder.convolutions.0.0.conv.weight": torch.zeros(16, 16)}
    assert "holds no Tacotron2; give" in sentence(flat)
    assert "reads 30 symbols and speaks 80 mel bands, not 148" in sentence(tiny_weights(sizes=Sizes(symbols=30)))
    lacking = tiny_weights()
    del lacking["decoder.gate_layer.linear_layer.bias"]
    assert "1 missing (decoder.gate_layer.linear_layer.bias)" in sentence(lacking)


# Speaking


def test_a_sentence_becomes_sound_mel_and_alignment_of_its_length(voice: Voice) -> None:
    speech = said(voice, "Hello there.")
    assert speech.mel.shape == (80, 12)
    assert speech.alignment.shape == (12, len("hello there."))
    assert speech.alignment.sum(1).tolist() == pytest.approx([1] * 12)
    assert len(speech.samples) == 11 * 256
    assert speech.letters == speech.document["read"] == "hello there."


def test_the_same_words_checkpoint_and_seed_give_the_same_sound(voice: Voice) -> None:
    first, again = said(voice, "Hello there."), said(voice, "Hello there.")
    assert torch.equal(first.samples, again.samples)
    other = said(voice, "Hello there.", Settings(most_frames=12, seed=1))
    assert not torch.equal(first.samples, other.samples)


def test_a_text_is_spoken_alike_whatever_comes_after_its_batch(voice: Voice) -> None:
    settings = Settings(most_frames=12, batch=1)
    first, second = speak(voice, [words("Hello there."), words("And more.")], settings)
    assert torch.equal(first.samples, said(voice, "Hello there.", settings).samples)
    assert torch.equal(second.samples, said(voice, "And more.", settings).samples)


def test_texts_come_back_in_order_whatever_the_batches(voice: Voice) -> None:
    texts = ["One. Two, two.", "Three.", "Four, four, four. Five. Six."]
    for batch in (1, 2, 4, 8):
        spoken = speak(voice, [words(text) for text in texts], Settings(most_frames=3, batch=batch))
        assert [speech.document["text"] for speech in spoken] == texts


def test_sentences_are_joined_with_a_short_silence(voice: Voice) -> None:
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


def test_the_gate_ends_a_sentence(voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    ending_after(voice, 7, monkeypatch)
    speech = said(voice, "Hello there.")
    assert speech.document["frames"] == 7
    assert speech.document["sentences"][0]["finished"]
    assert "no-end" not in codes(speech)


def test_a_sentence_that_does_not_end_is_a_doubt_with_its_remedy(voice: Voice) -> None:
    (doubt,) = [doubt for doubt in said(voice, "Hello.").document["doubts"] if doubt["code"] == "no-end"]
    assert doubt["text"].startswith("the sentence had not ended after 12 frames (0.1 s); raise --max-frames")


def test_a_gate_that_fires_at_once_leaves_no_sound_and_says_so(tmp_path: Path, device: Device) -> None:
    torch.save(tiny_weights(gate_bias=20.0), tmp_path / "hasty.pt")
    speech = said(open_voice(tmp_path / "hasty.pt", device), "Hello there.")
    assert "no-sound" in codes(speech)
    assert speech.document["sound_s"] == 0
    assert speech.document["real_time_factor"] is None


def test_attention_that_does_not_move_along_is_a_doubt_for_its_sentence(voice: Voice) -> None:
    speech = said(voice, "Hello there. And now a second sentence.")
    texts = [doubt["text"] for doubt in speech.document["doubts"] if doubt["code"] == "weak-attention"]
    assert "along sentence 1 (diagonality" in texts[0]
    assert "along sentence 2 (diagonality" in texts[1]
    assert all(part["diagonality"] < 0.5 for part in speech.document["sentences"])


def test_a_text_longer_than_any_in_ljspeech_is_a_doubt(voice: Voice) -> None:
    assert "long-text" not in codes(said(voice, "a" * 188))
    assert "long-text" in codes(said(voice, "a" * 189))


def test_a_network_that_never_saw_speech_is_told_apart(voice: Voice, tmp_path: Path, device: Device) -> None:
    assert "untrained" not in codes(said(voice, "Hello."))
    torch.save(tiny_weights(trained=False), tmp_path / "new.pt")
    assert codes(said(open_voice(tmp_path / "new.pt", device), "Hello."))[0] == "untrained"


def test_a_mel_that_is_not_finite_is_a_failed_workload(tmp_path: Path, device: Device) -> None:
    torch.save(tiny_weights(), tmp_path / "whole.pt")
    voice = open_voice(tmp_path / "whole.pt", device)
    with torch.no_grad():
        voice.model.decoder.linear_projection.linear_layer.bias.fill_(torch.nan)
    with pytest.raises(WorkloadError, match="no numbers"):
        said(voice, "Hello.")


def test_a_device_out_of_memory_is_one_sentence(voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(voice.model, "speak", full)
    with pytest.raises(WorkloadError, match="ran out of memory with 2 sentences at once; give a smaller --batch"):
        said(voice, "Hello. There.")


def test_the_document_says_what_was_said_how_and_how_fast(voice: Voice, file: Path) -> None:
    document = said(voice, "Dr. No. Yes.", Settings(most_frames=12, gate_threshold=0.25, seed=7, batch=4)).document
    assert document["kind"] == "trainmark speech"
    assert document["schema"] == 1
    assert (document["text"], document["read"]) == ("Dr. No. Yes.", "doctor no. yes.")
    assert [(part["read"], part["symbols"], part["frames"]) for part in document["sentences"]] == [
        ("doctor no.", 10, 12),
        ("yes.", 4, 12),
    ]
    assert document["checkpoint"] == {"path": str(file), "sha256": sha256(file)}
    assert document["frames"] == 24
    assert document["sound_s"] == pytest.approx((22 + SILENCE_FRAMES) * 256 / 22050)
    compute_s = document["network_s"] + document["vocoder_s"]
    assert document["network_s"] > 0 and document["vocoder_s"] > 0
    assert document["real_time_factor"] == pytest.approx(compute_s / document["sound_s"])
    assert document["vocoder"] == "griffin-lim"
    assert [document[word] for word in ("gate_threshold", "max_frames", "seed", "batch")] == [0.25, 12, 7, 4]
    assert document["device"]
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_sound_picture_and_document_are_written_beside_each_other(voice: Voice, tmp_path: Path) -> None:
    speech = said(voice, "Hello there.")
    for name in ("out", "pictures"):
        (tmp_path / name).mkdir()
    speech.write(tmp_path / "out" / "x.wav", tmp_path / "pictures" / "x.png")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["x.json", "x.wav"]
    assert (tmp_path / "pictures" / "x.png").read_bytes().startswith(b"\x89PNG")
    assert len(audio.read(tmp_path / "out" / "x.wav")) == len(speech.samples)
    assert json.loads((tmp_path / "out" / "x.json").read_text()) == speech.document
