"""Text to speech by a trained Tacotron2, with doubts about the result."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainmark.data import audio
from trainmark.data.ljspeech import reader
from trainmark.data.mel import MEL, frames, invert_mel
from trainmark.record.errors import UsageError, WorkloadError
from trainmark.record.recipe import knob
from trainmark.record.record import Doubt
from trainmark.record.sample import ImagePart, Sample, SampleSettings, SoundPart, SpokenClips
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded, VocoderWorkload
from trainmark.workloads.tacotron2 import plot
from trainmark.workloads.tacotron2.attention_quality import diagonality, focus
from trainmark.workloads.tacotron2.clips import GRIFFIN_LIM, score_sources
from trainmark.workloads.tacotron2.model import SpokenMel
from trainmark.workloads.tacotron2.text import SYMBOLS, clean, to_ids

SILENCE_FRAMES = 22
"""Between two sentences of one text: about a quarter of a second."""
LONGEST_SYMBOLS = 188
"""The longest text of LJSpeech."""
STEADY_FROM = 0.5
"""Diagonality below this is a doubt: attention is off by more than a sixth of the text on average."""

_PAUSE = re.compile(r"""[.!?]+["'”’)\]]*\s+""")


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(SampleSettings):
    vocoder: str = knob(GRIFFIN_LIM)
    """A vocoder's run, or Griffin-Lim."""
    gate_threshold: float = knob(0.5, least=0, most=1)
    """Probability of the stop token that ends a sentence."""
    most_frames: int = knob(1723, least=1)
    """Maximum frames of a sentence, 11.6 ms each: 20 s, twice the longest clip of LJSpeech."""
    batch: int = knob(8, least=1)
    """Sentences per batch."""
    score_clips: int = knob(4, least=1)
    """Additional validation sentences if speech is scored."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    read: str
    ids: tuple[int, ...]

    @property
    def letters(self) -> str:
        """One character per symbol; a phoneme is shown by its first."""
        return "".join(SYMBOLS[number].removeprefix("@")[0] for number in self.ids)


@dataclass(frozen=True, kw_only=True)
class Words:
    """A text as symbols."""

    text: str
    sentences: tuple[Sentence, ...]

    @property
    def read(self) -> str:
        return " ".join(sentence.read for sentence in self.sentences)


@dataclass(frozen=True, kw_only=True, eq=False)
class Speech:
    """Speech of a text, and how it was generated."""

    samples: Tensor
    mel: Tensor
    """(bands, frames)"""
    alignment: Tensor
    """(frames, symbols); block-diagonal for several sentences."""
    letters: str
    generator: str
    facts: Mapping[str, Any]
    doubts: tuple[Doubt, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Piece:
    """The mel of one sentence."""

    sentence: Sentence
    mel: Tensor
    alignment: Tensor
    finished: bool
    diagonality: float
    focus: float

    @property
    def frames(self) -> int:
        return self.mel.shape[1]


def sample(trained: Trained, request: SampleRequest) -> Sample:
    """Speech of the given text, or of the validation sentence of median length, with its alignment."""
    settings = request.settings(ReadingSettings)
    if request.given is None:
        text, most_frames = validation_sentence(trained, request)
        if settings.most_frames == ReadingSettings.most_frames:
            settings = replace(settings, most_frames=most_frames)
    else:
        text = parse_words(request.given)
    vocoder = open_vocoder(request, settings)
    speech = read_aloud(trained, text, settings, vocoder)
    png = plot.draw(alignment=speech.alignment.numpy(), mel=speech.mel.numpy(), title=text.read, letters=speech.letters)
    heard = f"the network reads aloud ({speech.generator}): {text.read}"
    cut = "; it did not end and was cut" if any(doubt.code == "no-end" for doubt in speech.doubts) else ""
    return Sample(
        parts=(
            SoundPart(samples=speech.samples.numpy(), caption=f"{heard}{cut}"),
            ImagePart(png=png, caption="its mel spectrogram and attention alignment"),
        ),
        shown=text.text,
        generator=speech.generator,
        networks=(vocoder.source,) if vocoder else (),
        facts=speech.facts,
        doubts=speech.doubts,
        clips=clips_to_score(trained, request, settings, vocoder, (text, speech)),
    )


def clips_to_score(
    trained: Trained,
    request: SampleRequest,
    settings: ReadingSettings,
    vocoder: Trained | None,
    sample: tuple[Words, Speech],
) -> tuple[SpokenClips, ...]:
    """The sample, validation sentences by the same networks, and reference clips of those."""
    count = settings.score_clips if request.score else trained.recipe.score_clips if request.score is None else 0
    if not count:
        return ()
    clips = reader.validation_clips(request.data_folder, trained.recipe.file_lists, count)
    longest = max(frames(audio.length(clip.path)) for clip in clips)
    settings = replace(settings, most_frames=min(settings.most_frames, 2 * longest))
    read = [read_aloud(trained, parse_words(clip.text), settings, vocoder) for clip in clips]
    text, spoken = sample
    return (
        SpokenClips(of="this sample", sounds=(spoken.samples.numpy(),), texts=(text.read,)),
        SpokenClips(
            of="speech",
            sounds=tuple(speech.samples.numpy() for speech in read),
            texts=tuple(clip.text for clip in clips),
        ),
        *score_sources(clips, vocoder, settings.seed),
    )


def validation_sentence(trained: Trained, request: SampleRequest) -> tuple[Words, int]:
    """The sentence of median length, limited to twice the frames of its clip."""
    clips = reader.open_splits(request.data_folder, trained.recipe.file_lists).val
    lengths = sorted((frames(audio.length(clip.path)), number) for number, clip in enumerate(clips))
    count, number = lengths[len(lengths) // 2]
    return parse_words(clips[number].text), 2 * count


def open_vocoder(request: SampleRequest, settings: ReadingSettings) -> Trained | None:
    """The vocoder; None for Griffin-Lim."""
    if settings.vocoder == GRIFFIN_LIM:
        return None
    found = request.open_run(settings.vocoder)
    if not isinstance(found.workload, VocoderWorkload):
        raise UsageError(
            f"--vocoder {settings.vocoder}: {found.source.workload} is no vocoder; give a vocoder's run, or "
            f"{GRIFFIN_LIM}"
        )
    return found


def parse_words(text: str) -> Words:
    """A text as symbols per sentence; UsageError if it cannot be read."""
    clean(text)  # refuses the whole text first
    return Words(
        text=text,
        sentences=tuple(Sentence(read=clean(part), ids=tuple(to_ids(part))) for part in split_sentences(text)),
    )


def split_sentences(text: str) -> list[str]:
    """Splits after . ! ? and white space, but not after 'Dr.', an initial, or before a number."""
    parts, start = [], 0
    for pause in _PAUSE.finditer(text):
        before, after = text[start : pause.start()], text[pause.end() :]
        if _is_end(before, pause[0], after):
            parts.append(text[start : pause.end()].strip())
            start = pause.end()
    return [*parts, text[start:].strip()]


def _is_end(before: str, pause: str, after: str) -> bool:
    if before.count("{") > before.count("}"):
        return False
    if not all(any(map(str.isalnum, part)) for part in (before, after)):
        return False
    if pause.strip() != ".":
        return True
    word = re.search(r"[A-Za-z]+$", before)
    # a known abbreviation is spelled out without its dot
    shortened = word is not None and (len(word[0]) == 1 or not clean(f"{word[0]}.").endswith("."))
    return not shortened and not after[0].isdigit()


def read_aloud(trained: Trained, text: Words, settings: ReadingSettings, vocoder: Trained | None = None) -> Speech:
    """Generates speech in batches of sentences; each batch reseeds its dropout."""
    device = trained.device
    pieces: list[_Piece] = []
    device.synchronize()
    began = time.perf_counter()
    for start in range(0, len(text.sentences), settings.batch):
        pieces += _read_batch(trained, text.sentences[start : start + settings.batch], settings)
    device.synchronize()
    network_s = time.perf_counter() - began
    began = time.perf_counter()
    sounds, generator = vocode([piece.mel for piece in pieces], vocoder, settings.seed)
    return _join(trained, text, pieces, sounds, generator, network_s, time.perf_counter() - began)


def vocode(mels: Sequence[Tensor], vocoder: Trained | None, seed: int) -> Vocoded:
    """Audio of each mel (bands, frames)."""
    with torch.autocast("cpu", enabled=False):  # always in float32
        if vocoder is None:
            # on the host: it needs complex numbers, which some devices lack
            return Vocoded([invert_mel(mel) for mel in mels], GRIFFIN_LIM)
        # a sentence may be empty
        wanted = [mel for mel in mels if mel.shape[1]]
        made = vocoder.workload.sound_of(vocoder, wanted, seed)
        sounds = iter(made.sounds)
        return Vocoded([next(sounds) if mel.shape[1] else torch.zeros(0) for mel in mels], made.generator)


def _read_batch(trained: Trained, said: Sequence[Sentence], settings: ReadingSettings) -> Iterator[_Piece]:
    lengths = [len(sentence.ids) for sentence in said]
    ids = torch.zeros(len(said), max(lengths), dtype=torch.long)
    for row, sentence in zip(ids, said, strict=True):
        row[: len(sentence.ids)] = torch.tensor(sentence.ids)
    out = _speak(trained, ids, lengths, settings)
    counts = torch.tensor(out.frames), torch.tensor(lengths)
    diagonal, sharp = (judge(out.alignment, *counts).tolist() for judge in (diagonality, focus))
    mels, alignments = out.mel.float().cpu(), out.alignment.float().cpu()
    for number, (sentence, count) in enumerate(zip(said, out.frames, strict=True)):
        yield _Piece(
            sentence=sentence,
            mel=mels[number, :, :count],
            alignment=alignments[number, :count, : lengths[number]],
            finished=out.finished[number],
            diagonality=diagonal[number],
            focus=sharp[number],
        )


def _speak(trained: Trained, ids: Tensor, lengths: Sequence[int], settings: ReadingSettings) -> SpokenMel:
    try:
        spoken: SpokenMel = trained.model.speak(
            ids.to(trained.device.torch),
            lengths,
            gate_threshold=settings.gate_threshold,
            most_frames=settings.most_frames,
            generator=torch.Generator().manual_seed(settings.seed),
        )
    except torch.OutOfMemoryError as error:
        raise WorkloadError(
            f"the device ran out of memory with {len(lengths)} sentences at once; "
            "try --set batch=1, or a smaller --set most_frames"
        ) from error
    return spoken


def _join(
    trained: Trained,
    text: Words,
    pieces: Sequence[_Piece],
    sounds: Sequence[Tensor],
    generator: str,
    network_s: float,
    vocoder_s: float,
) -> Speech:
    """Concatenates the sentences with short silences, in audio and plot alike."""
    joined, mels, looks = [], [], []
    for number, (piece, sound) in enumerate(zip(pieces, sounds, strict=True)):
        if number:
            joined.append(torch.zeros(SILENCE_FRAMES * MEL.hop))
            mels.append(torch.full((MEL.bands, SILENCE_FRAMES), MEL.least).log())
            looks.append(torch.zeros(SILENCE_FRAMES, 0))
        joined.append(sound)
        mels.append(piece.mel)
        looks.append(piece.alignment)
    samples = torch.cat(joined)
    sound_s = len(samples) / audio.RATE
    return Speech(
        samples=samples,
        mel=torch.cat(mels, 1),
        alignment=torch.block_diag(*looks),  # type: ignore[no-untyped-call]
        letters="".join(piece.sentence.letters for piece in pieces),
        generator=generator,
        facts={
            "read": text.read,
            "sentences": [
                {
                    "read": piece.sentence.read,
                    "symbols": len(piece.sentence.ids),
                    "frames": piece.frames,
                    "finished": piece.finished,
                    "diagonality": round(piece.diagonality, 4),
                    "focus": round(piece.focus, 4),
                }
                for piece in pieces
            ],
            "frames": sum(piece.frames for piece in pieces),
            "sound_s": sound_s,
            "network_s": network_s,
            "vocoder_s": vocoder_s,
            "real_time_factor": (network_s + vocoder_s) / sound_s if sound_s else None,
        },
        doubts=tuple(_find_doubts(trained, pieces)),
    )


def _find_doubts(trained: Trained, pieces: Sequence[_Piece]) -> Iterator[Doubt]:
    if not _has_learnt(trained.model.state_dict()):
        yield Doubt(
            code="untrained",
            text="the network is untrained: its batch norm statistics are the initial ones; train it first",
        )
    for number, piece in enumerate(pieces, 1):
        which = "the sentence" if len(pieces) == 1 else f"sentence {number}"
        symbols, length_s = len(piece.sentence.ids), piece.frames * MEL.hop / MEL.rate
        if symbols > LONGEST_SYMBOLS:
            yield Doubt(
                code="long-text",
                text=f"{which} has {symbols} symbols and is longer than anything in LJSpeech ({LONGEST_SYMBOLS}); "
                "split it with full stops",
            )
        if not piece.finished:
            yield Doubt(
                code="no-end",
                text=f"{which} had not ended after {piece.frames} frames ({length_s:.1f} s); raise most_frames, lower "
                "gate_threshold, or train for longer",
            )
        elif piece.frames < 2:
            yield Doubt(
                code="no-sound",
                text=f"{which} ended before it began; raise gate_threshold, or train for longer",
            )
        if piece.diagonality < STEADY_FROM:
            yield Doubt(
                code="weak-attention",
                text=f"attention does not move steadily along {which} (diagonality {piece.diagonality:.2f}, a steady "
                "reader has 1): words may be missing, repeated or not words at all; train for longer",
            )


def _has_learnt(found: Mapping[str, Tensor]) -> bool:
    """Whether any norm has statistics other than the initial ones."""
    return any(
        bool((tensor != (1 if name.endswith("running_var") else 0)).any())
        for name, tensor in found.items()
        if name.endswith((".running_mean", ".running_var"))
    )
