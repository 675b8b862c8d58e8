"""How a sentence about an unknown word ends."""

from __future__ import annotations

import pytest

from trainmark.record.errors import MAX_NAMED, nearest


@pytest.mark.parametrize(
    ("word", "known"),
    [("--profile", "--port"), ("--compile", "--topology"), ("speed", "completed"), ("cost", "compute")],
)
def test_nothing_far_away_is_suggested(word: str, known: str) -> None:
    assert nearest(word, [known, "vit"]) == f"known: {known}, vit"
    assert nearest(word, [known], otherwise="see --help") == "see --help"


@pytest.mark.parametrize(
    ("word", "known"),
    [("vti", "vit"), ("fp23", "fp32"), ("--topologi", "--topology"), ("Resnet", "resnet50"), ("bf16", "bfloat16")],
)
def test_what_a_word_is_a_slip_for_is_suggested(word: str, known: str) -> None:
    assert nearest(word, ["other", known], otherwise="x") == f"did you mean {known!r}?"


def test_words_that_begin_alike_are_named_before_all_of_them() -> None:
    known = ["batch_per_device", "batch_norm", "seed"]
    assert nearest("batchsize", known, otherwise="x") == "there are batch_per_device, batch_norm"
    assert nearest("memorysize", ["memory_format", "seed"]) == "there is memory_format"


def test_a_wall_of_words_is_cut() -> None:
    said = nearest("zzz", [f"word{index}" for index in range(100)])
    assert said.count("word") == MAX_NAMED and said.endswith(f"and {100 - MAX_NAMED} more")
