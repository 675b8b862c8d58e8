"""Speech is scored by networks of others: their arithmetic, the words, what is told where they are missing."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from trainmark.features.scoring import distillmos, sample_scorer
from trainmark.features.scoring.sample_scorer import Scorer
from trainmark.record.sample import SpeechScores, SpokenClips

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6)
REAL = pytest.mark.skipif(distillmos.find_weights() is None, reason="the extra `mos` is not installed")


def sine(samples: int) -> torch.Tensor:
    t = torch.arange(samples) / distillmos.RATE
    slow = 1 + torch.sin(2 * math.pi * 3 * t)
    return (0.3 * torch.sin(2 * math.pi * 220 * t) * slow + 0.1 * torch.sin(2 * math.pi * 1760 * t)).float()


# Words


@pytest.mark.parametrize(
    ("said", "heard", "rate"),
    [
        ("It can speak.", "it can speak", 0),
        ("It can speak.", "It can't speak!", 1 / 3),
        ("the quick brown fox", "quick brown fox", 1 / 4),
        ("the fox", "see the red fox run", 3 / 2),
        ("Don’t go", "don't go", 0),
        ("one two", "", 1),
        ("", "", None),
    ],
)
def test_word_errors_are_counted_by_the_word(said: str, heard: str, rate: float | None) -> None:
    assert sample_scorer.error_rate([(said, heard)]) == (None if rate is None else pytest.approx(rate))


def test_errors_of_several_clips_are_a_share_of_all_their_words() -> None:
    assert sample_scorer.error_rate([("one two three", "one two three"), ("four", "for")]) == pytest.approx(1 / 4)


@given(WORDS, WORDS)
def test_the_fewest_errors_are_a_distance(said: list[str], heard: list[str]) -> None:
    found = sample_scorer.count_errors(said, heard)
    assert found == sample_scorer.count_errors(heard, said)
    assert abs(len(said) - len(heard)) <= found <= max(len(said), len(heard))
    assert (found == 0) == (said == heard)


# Opinions


def test_the_predictor_has_the_public_parameters() -> None:
    network = distillmos.DistillMos()
    assert sum(parameter.numel() for parameter in network.parameters()) == 4_133_226
    assert len(network.state_dict()) == 120


def test_a_short_sound_is_repeated_and_a_long_one_heard_in_windows() -> None:
    [short] = distillmos.cut_windows(torch.arange(50_000.0))
    assert short.tolist() == (torch.arange(distillmos.WINDOW) % 50_000).tolist()
    [whole] = distillmos.cut_windows(torch.zeros(distillmos.WINDOW))
    assert len(whole) == distillmos.WINDOW
    windows = distillmos.cut_windows(torch.arange(distillmos.WINDOW + 20_000.0))
    assert [window[0].item() for window in windows] == [0, 10_000, 20_000]


@REAL
@pytest.mark.slow
@pytest.mark.parametrize(("samples", "opinion"), [(122_880, 2.2400), (150_000, 2.2266), (200_001, 2.2464)])
def test_its_opinions_are_those_of_the_public_package(samples: int, opinion: float) -> None:
    file = distillmos.find_weights()
    assert file is not None
    assert distillmos.DistillMos.read(file).predict(sine(samples)) == pytest.approx(opinion, abs=2e-4)


@REAL
@pytest.mark.slow
def test_both_networks_hear_a_sound() -> None:
    found = sample_scorer.score(
        [SpokenClips(of="x", sounds=(sine(22_050).numpy(),), texts=("hello",))], sample_scorer.load_scorer()
    )
    [row] = found.rows
    assert found.predictor == "DistillMOS 0.9.1 (distill_mos_v7)"
    assert row.predicted_mos is not None and 1 <= row.predicted_mos < 3
    if not found.recogniser.startswith("unavailable"):
        assert row.wer is not None and row.wer >= 1


# Scores

STAND_IN = Scorer(
    opinion=lambda sound: 1 + 4 * float(sound.abs().max()),
    predictor="a stand-in that takes loud for good",
    transcript=lambda sound: "hello there",
    recogniser="a stand-in that always hears the same",
)


def clips(*peaks: float, of: str = "speech", texts: tuple[str, ...] = ()) -> SpokenClips:
    return SpokenClips(of=of, sounds=tuple(np.full(22_050, peak, np.float32) for peak in peaks), texts=texts)


def test_a_kind_of_clips_has_mean_deviation_and_word_errors() -> None:
    found = sample_scorer.score([clips(0.2, 0.4, texts=("Hello there.", "Hello you there."))], STAND_IN)
    [row] = found.rows
    mean, apart = row.predicted_mos, row.deviation
    assert mean is not None and apart is not None
    assert (row.clips, row.seconds, row.wer) == (2, 2.0, pytest.approx(1 / 5))
    # resampling rings at the ends of a step
    assert mean == pytest.approx(2.2, abs=0.25) and apart == pytest.approx(0.8 / math.sqrt(2), abs=0.1)
    assert str(row) == f"predicted MOS {mean:.2f} ± {apart:.2f}, WER 20.0 %, 2 clips, 2 s"
    assert found.note == "predicted by a network, not a listening test"


def test_where_nobody_knows_the_text_there_are_no_word_errors() -> None:
    [row] = sample_scorer.score([clips(0.2)], STAND_IN).rows
    assert row.wer is None and row.deviation is None
    assert "WER unavailable, 1 clip, 1 s" in str(row)


def test_a_clip_without_sound_has_no_opinion_and_no_words() -> None:
    silent = SpokenClips(of="speech", sounds=(np.zeros(0, np.float32),), texts=("hello",))
    [row] = sample_scorer.score([silent], STAND_IN).rows
    assert (row.predicted_mos, row.wer, row.clips) == (None, None, 1)


def test_without_the_extra_both_are_unavailable_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillmos, "find_weights", lambda: None)
    for name in ("moonshine_voice", *(known for known in sys.modules if known.startswith("moonshine_voice."))):
        monkeypatch.setitem(sys.modules, name, None)
    found = sample_scorer.load_scorer()
    assert found.opinion is found.transcript is None
    assert found.predictor == "unavailable: DistillMOS is not installed; pip install 'trainmark[mos]'"
    assert found.recogniser == "unavailable: moonshine-voice is not installed; pip install 'trainmark[mos]'"


def test_recordings_that_score_badly_are_a_doubt_and_good_ones_are_none() -> None:
    def codes(**row: Any) -> list[str]:
        scores = sample_scorer.score([clips(0.9, of="recordings", texts=("hello there",))], STAND_IN)
        changed = [{**{f: getattr(found, f) for f in found.__struct_fields__}, **row} for found in scores.rows]
        made = SpeechScores(predictor="p", recogniser="r", rows=tuple(type(scores.rows[0])(**each) for each in changed))
        return [doubt.code for doubt in sample_scorer.doubts(made)]

    assert codes() == []
    assert codes(predicted_mos=1.2) == codes(wer=0.9) == ["unheard-voice"]
    assert codes(of="speech", predicted_mos=1.2) == []
    assert list(sample_scorer.doubts(None)) == []
