"""Scores speech by the networks of the extra `mos`: predicted mean opinion score, and word error rate."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.signal import resample_poly

from trainmark.data import audio
from trainmark.features.scoring import distillmos
from trainmark.record.record import Doubt
from trainmark.record.sample import RECORDINGS, SpeechScore, SpeechScores, SpokenClips

INSTALL = "pip install 'trainmark[mos]'"
RECOGNISER = "moonshine-voice"
MIN_MOS, MAX_WER = 3.0, 0.3
"""Recordings of people that score worse are unlike the scorers' training data."""


class Scorer(NamedTuple):
    """Scores a sound at 16 kHz; either is None where it is not installed."""

    opinion: Callable[[torch.Tensor], float] | None
    predictor: str
    """Its name, or why there is none."""
    transcript: Callable[[torch.Tensor], str] | None
    recogniser: str


NO_SCORER = Scorer(None, "", None, "")


def load_scorer() -> Scorer:
    """The networks that are installed here."""
    file = distillmos.find_weights()
    opinion = distillmos.DistillMos.read(file).predict if file else None
    predictor = distillmos.title() if file else f"unavailable: DistillMOS is not installed; {INSTALL}"
    transcript, recogniser = _load_recogniser()
    return Scorer(opinion, predictor, transcript, recogniser)


def score(clips: Sequence[SpokenClips], scorer: Scorer) -> SpeechScores:
    """Scores each kind of clips."""
    with torch.autocast("cpu", enabled=False):  # always scored in float32
        rows = tuple(_score_clips(kind, scorer) for kind in clips)
    return SpeechScores(predictor=scorer.predictor, recogniser=scorer.recogniser, rows=rows)


def doubts(scores: SpeechScores | None) -> Iterator[Doubt]:
    """A score means little where the recordings themselves score badly."""
    for row in scores.rows if scores else ():
        low = row.predicted_mos is not None and row.predicted_mos < MIN_MOS
        if row.of == RECORDINGS and (low or (row.wer or 0) > MAX_WER):
            yield Doubt(
                code="unheard-voice",
                text=f"the recordings themselves have a {row}: the predictor and the recogniser do not know such a "
                "voice, so they say little about speech that imitates it",
            )


def _score_clips(kind: SpokenClips, scorer: Scorer) -> SpeechScore:
    heard = [_resample(sound) for sound in kind.sounds if len(sound)]
    opinions = [scorer.opinion(sound) for sound in heard] if scorer.opinion else []
    rate = None
    if scorer.transcript and kind.texts and len(heard) == len(kind.sounds):
        rate = error_rate([(text, scorer.transcript(heard[place])) for place, text in enumerate(kind.texts)])
    mean = sum(opinions) / len(opinions) if opinions else None
    spread = [(value - (mean or 0)) ** 2 for value in opinions]
    return SpeechScore(
        of=kind.of,
        clips=len(kind.sounds),
        seconds=sum(len(sound) for sound in kind.sounds) / audio.RATE,
        predicted_mos=mean,
        deviation=math.sqrt(sum(spread) / (len(spread) - 1)) if len(spread) > 1 else None,
        wer=rate,
    )


def _resample(sound: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(resample_poly(sound.astype(np.float64), 320, 441).astype(np.float32))


def _load_recogniser() -> tuple[Callable[[torch.Tensor], str] | None, str]:
    """Moonshine's smallest English model, where the package that carries its weights is installed."""
    try:
        from moonshine_voice.moonshine_api import ModelArch
        from moonshine_voice.transcriber import Transcriber
        from moonshine_voice.utils import get_model_path
    except (ImportError, OSError) as error:  # OSError: the system's libraries are too old
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not load ({error})"
        return None, f"unavailable: {RECOGNISER} {why}; {INSTALL}"
    try:
        network = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)
    except Exception as error:  # whatever the package raises, the sample is not lost
        return None, f"unavailable: {RECOGNISER} has no model ({type(error).__name__}: {error})"

    def transcript(sound: torch.Tensor) -> str:
        found = network.transcribe_without_streaming(sound.tolist(), distillmos.RATE)
        return " ".join(line.text for line in found.lines)

    version = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version(RECOGNISER)
    return transcript, f"moonshine tiny-en {version}"


def split_words(text: str) -> list[str]:
    """The words of a text in lower case; only letters and apostrophes count."""
    return re.sub(r"[^a-z' ]+", " ", text.lower().replace("’", "'")).split()


def count_errors(reference: Sequence[str], heard: Sequence[str]) -> int:
    """The edit distance in words."""
    row = list(range(len(heard) + 1))
    for place, word in enumerate(reference, 1):
        diagonal, row[0] = row[0], place
        for other, found in enumerate(heard, 1):
            changed = diagonal + (word != found)
            diagonal, row[other] = row[other], min(changed, row[other] + 1, row[other - 1] + 1)
    return row[-1]


def error_rate(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Word error rate over pairs of reference and transcript; may exceed 1."""
    words = [(split_words(text), split_words(heard)) for text, heard in pairs]
    count = sum(len(reference) for reference, _ in words)
    return sum(count_errors(reference, heard) for reference, heard in words) / count if count else None
