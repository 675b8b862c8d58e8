"""Text to speech by a trained Tacotron2, with doubts about the result."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, from_numpy
from torch.nn.utils.rnn import pad_sequence

from trainmark.data import audio
from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip
from trainmark.data.mel import MEL, frames, invert_mel, log_mel
from trainmark.record.errors import UsageError, WorkloadError
from trainmark.record.recipe import knob
from trainmark.record.record import Doubt
from trainmark.record.sample import RECORDINGS, ImagePart, Sample, SampleSettings, SoundPart, SpokenClips
from trainmark.workloads.sampling import SampleRequest, Trained, Vocoded, VocoderWorkload
from trainmark.workloads.tacotron2 import plot
from trainmark.workloads.tacotron2.model import SpokenMel, diagonality, focus
from trainmark.workloads.tacotron2.text import SYMBOLS, clean, to_ids

GRIFFIN_LIM = "griffin-lim"


def score_sources(clips: Sequence[Clip], vocoder: Trained | None, seed: int) -> tuple[SpokenClips, ...]:
    """The recordings, and audio resynthesised from their mels by Griffin-Lim and, if given, by a vocoder."""
    texts = tuple(clip.text for clip in clips)
    recorded = [audio.read(clip.path) for clip in clips]
    mels = [log_mel(from_numpy(sound)) for sound in recorded]
    found = [
        SpokenClips(of=RECORDINGS, sounds=tuple(recorded), texts=texts),
        _label_sources(GRIFFIN_LIM, [invert_mel(mel) for mel in mels], texts),
    ]
    if vocoder is not None:
        sounds = vocoder.workload.sound_of(vocoder, mels, seed).sounds
        found.append(_label_sources(vocoder.source.workload, sounds, texts))
    return tuple(found)


def _label_sources(by: str, sounds: list[Tensor], texts: tuple[str, ...]) -> SpokenClips:
    return SpokenClips(of=f"copy synthesis ({by})", sounds=tuple(sound.numpy() for sound in sounds), texts=texts)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceMel:
    """The mel of one sentence."""

    mel: Tensor
    """(bands, frames)"""
    alignment: Tensor
    """(frames, symbols)"""
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Speech:
    """Speech of a text: its sentences with short silences between them."""

    samples: Tensor
    mel: Tensor
    alignment: Tensor
    """Block-diagonal for several sentences."""
    letters: str
    generator: str
    facts: Mapping[str, Any]
    doubts: tuple[Doubt, ...]


def sample(trained: Trained, request: SampleRequest) -> Sample:
    """Speech of the given text, or of the validation sentence of median length, with its alignment."""
    settings = request.settings(ReadingSettings)
    if request.given is None:
        text, most_frames = choose_sentence(trained, request)
        if settings.most_frames == ReadingSettings.most_frames:
            settings = replace(settings, most_frames=most_frames)
    else:
        text = request.given
    sentences = parse_sentences(text)
    vocoder = open_vocoder(request, settings)
    speech = read_aloud(trained, sentences, settings, vocoder)
    read = speech.facts["read"]
    png = plot.draw(alignment=speech.alignment.numpy(), mel=speech.mel.numpy(), title=read, letters=speech.letters)
    cut = "; it did not end and was cut" if any(doubt.code == "no-end" for doubt in speech.doubts) else ""
    return Sample(
        parts=(
            SoundPart(
                samples=speech.samples.numpy(), caption=f"the network reads aloud ({speech.generator}): {read}{cut}"
            ),
            ImagePart(png=png, caption="its mel spectrogram and attention alignment"),
        ),
        shown=text,
        generator=speech.generator,
        networks=(vocoder.source,) if vocoder else (),
        facts=speech.facts,
        doubts=speech.doubts,
        clips=clips_to_score(trained, request, settings, vocoder, speech),
    )


def clips_to_score(
    trained: Trained, request: SampleRequest, settings: ReadingSettings, vocoder: Trained | None, speech: Speech
) -> tuple[SpokenClips, ...]:
    """The sample, validation sentences by the same networks, and reference clips of those."""
    count = settings.score_clips if request.score else trained.recipe.score_clips if request.score is None else 0
    if not count:
        return ()
    clips = reader.validation_clips(request.data_folder, trained.recipe.file_lists, count)
    longest = max(frames(audio.length(clip.path)) for clip in clips)
    settings = replace(settings, most_frames=min(settings.most_frames, 2 * longest))
    read = [read_aloud(trained, parse_sentences(clip.text), settings, vocoder).samples.numpy() for clip in clips]
    return (
        SpokenClips(of="this sample", sounds=(speech.samples.numpy(),), texts=(speech.facts["read"],)),
        SpokenClips(of="speech", sounds=tuple(read), texts=tuple(clip.text for clip in clips)),
        *score_sources(clips, vocoder, settings.seed),
    )


def choose_sentence(trained: Trained, request: SampleRequest) -> tuple[str, int]:
    """The validation sentence of median length, and twice the frames of its clip as the limit of reading it."""
    clips = reader.open_splits(request.data_folder, trained.recipe.file_lists).val
    lengths = sorted((frames(audio.length(clip.path)), number) for number, clip in enumerate(clips))
    count, number = lengths[len(lengths) // 2]
    return clips[number].text, 2 * count


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


def parse_sentences(text: str) -> list[Sentence]:
    """A text as symbols per sentence; UsageError if it cannot be read."""
    clean(text)  # refuses the whole text first
    return [Sentence(read=clean(part), ids=tuple(to_ids(part))) for part in split_sentences(text)]


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


def read_aloud(
    trained: Trained, sentences: Sequence[Sentence], settings: ReadingSettings, vocoder: Trained | None = None
) -> Speech:
    """Generates speech in batches of sentences; each batch reseeds its dropout."""
    trained.device.synchronize()
    began = time.perf_counter()
    readings: list[SentenceMel] = []
    for start in range(0, len(sentences), settings.batch):
        readings += _read_batch(trained, sentences[start : start + settings.batch], settings)
    trained.device.synchronize()
    network_s = time.perf_counter() - began
    began = time.perf_counter()
    sounds, generator = vocode([reading.mel for reading in readings], vocoder, settings.seed)
    vocoder_s = time.perf_counter() - began

    samples = torch.cat(_join(sounds, torch.zeros(SILENCE_FRAMES * MEL.hop)))
    silent_mel = torch.full((MEL.bands, SILENCE_FRAMES), MEL.least).log()
    alignments = _join([reading.alignment for reading in readings], torch.zeros(SILENCE_FRAMES, 0))
    sound_s = len(samples) / audio.RATE
    return Speech(
        samples=samples,
        mel=torch.cat(_join([reading.mel for reading in readings], silent_mel), 1),
        alignment=torch.block_diag(*alignments),  # type: ignore[no-untyped-call]
        letters="".join(sentence.letters for sentence in sentences),
        generator=generator,
        facts={
            "read": " ".join(sentence.read for sentence in sentences),
            "sentences": [reading.facts for reading in readings],
            "frames": sum(reading.facts["frames"] for reading in readings),
            "sound_s": sound_s,
            "network_s": network_s,
            "vocoder_s": vocoder_s,
            "real_time_factor": (network_s + vocoder_s) / sound_s if sound_s else None,
        },
        doubts=tuple(
            Doubt(code=code, text=text) for code, text in _find_doubts(trained, [reading.facts for reading in readings])
        ),
    )


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


def _read_batch(trained: Trained, said: Sequence[Sentence], settings: ReadingSettings) -> Iterator[SentenceMel]:
    lengths = [len(sentence.ids) for sentence in said]
    ids = pad_sequence([torch.tensor(sentence.ids) for sentence in said], batch_first=True)
    try:
        out: SpokenMel = trained.model.speak(
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
    counts = torch.tensor(out.frames), torch.tensor(lengths)
    diagonal, sharp = (judge(out.alignment, *counts).tolist() for judge in (diagonality, focus))
    mels, alignments = out.mel.float().cpu(), out.alignment.float().cpu()
    for number, (sentence, count) in enumerate(zip(said, out.frames, strict=True)):
        yield SentenceMel(
            mel=mels[number, :, :count],
            alignment=alignments[number, :count, : lengths[number]],
            facts={
                "read": sentence.read,
                "symbols": lengths[number],
                "frames": count,
                "finished": out.finished[number],
                "diagonality": round(diagonal[number], 4),
                "focus": round(sharp[number], 4),
            },
        )


def _join(parts: Sequence[Tensor], silence: Tensor) -> list[Tensor]:
    """The parts with silence between them."""
    return [piece for part in parts for piece in (silence, part)][1:]


def _find_doubts(trained: Trained, sentences: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Codes and texts."""
    if not _has_learnt(trained.model.state_dict()):
        yield "untrained", "the network is untrained: its batch norm statistics are the initial ones; train it first"
    for number, facts in enumerate(sentences, 1):
        which = "the sentence" if len(sentences) == 1 else f"sentence {number}"
        symbols, count, diagonal = facts["symbols"], facts["frames"], facts["diagonality"]
        if symbols > LONGEST_SYMBOLS:
            yield (
                "long-text",
                f"{which} has {symbols} symbols and is longer than anything in LJSpeech ({LONGEST_SYMBOLS}); "
                "split it with full stops",
            )
        if not facts["finished"]:
            yield (
                "no-end",
                f"{which} had not ended after {count} frames ({count * MEL.hop / MEL.rate:.1f} s); raise most_frames, "
                "lower gate_threshold, or train for longer",
            )
        elif count < 2:
            yield "no-sound", f"{which} ended before it began; raise gate_threshold, or train for longer"
        if diagonal < STEADY_FROM:
            yield (
                "weak-attention",
                f"attention does not move steadily along {which} (diagonality {diagonal:.2f}, a steady reader has 1): "
                "words may be missing, repeated or not words at all; train for longer",
            )


def _has_learnt(found: Mapping[str, Tensor]) -> bool:
    """Whether any norm has statistics other than the initial ones."""
    return any(
        bool((tensor != (1 if name.endswith("running_var") else 0)).any())
        for name, tensor in found.items()
        if name.endswith((".running_mean", ".running_var"))
    )
