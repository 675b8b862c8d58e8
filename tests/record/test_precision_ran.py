"""A run is called by what it computed in, and by no word that does not fit."""

from __future__ import annotations

import pytest

from trainmark.record.precision import PRECISIONS, describe_matmuls, name_precision, scaled_share

NOT_ALLOWED = {"matmul": False, "convolution": False}


@pytest.mark.parametrize("word", PRECISIONS)
def test_what_ran_as_asked_has_the_name_it_was_asked_by(word: str) -> None:
    asked = PRECISIONS[word]
    used = "float32" if asked.allows_tf32 else asked.computes_in
    tf32 = dict.fromkeys(NOT_ALLOWED, asked.allows_tf32)
    assert (
        name_precision(
            {"matmul": {used: 9}, "convolution": {used: 5}}, {asked.weights: 3, "float32": 1}, tf32, asked.autocast
        )
        == word
    )


@pytest.mark.parametrize(
    ("eight_bits", "word"),
    [(51, "fp8"), (49, "mixed: 51 % bfloat16, 16 % float8_e4m3fn, 33 % float8_e5m2"), (0, "bf16")],
)
def test_half_of_the_multiplications_in_eight_bits_make_a_run_fp8(eight_bits: int, word: str) -> None:
    forward = eight_bits // 3
    counted = {"bfloat16": 100 - eight_bits, "float8_e4m3fn": forward, "float8_e5m2": eight_bits - forward}
    found = name_precision({"matmul": counted}, {"bfloat16": 9, "float32": 1}, NOT_ALLOWED, None)
    assert found.removesuffix(", weights bfloat16") == word
    assert scaled_share({"matmul": counted, "convolution": {}}) == eight_bits / 100


CONVOLUTIONS_ONLY = {"matmul": False, "convolution": True}


@pytest.mark.parametrize(
    ("matmul", "convolution", "tf32", "autocast", "word"),
    [
        ({"float32": 9}, {}, NOT_ALLOWED, "bfloat16", "fp32"),
        ({"bfloat16": 80, "float32": 20}, {}, NOT_ALLOWED, "bfloat16", "amp-bf16"),
        ({"bfloat16": 2, "float32": 98}, {}, NOT_ALLOWED, None, "mixed: 2 % bfloat16, 98 % float32"),
        ({"bfloat16": 60, "float32": 40}, {}, NOT_ALLOWED, "bfloat16", "mixed: 60 % bfloat16, 40 % float32"),
        ({"bfloat16": 9}, {}, NOT_ALLOWED, None, "mixed: 100 % bfloat16"),
        ({"float32": 1}, {"float32": 999}, CONVOLUTIONS_ONLY, None, "tf32"),
        ({"float32": 999}, {"float32": 1}, CONVOLUTIONS_ONLY, None, "fp32"),
        ({"float32": 5}, {"float32": 5}, CONVOLUTIONS_ONLY, None, "mixed: 50 % float32, 50 % tf32"),
        ({"float8_e4m3fn": 9}, {}, NOT_ALLOWED, None, "mixed: 100 % float8_e4m3fn"),
        ({"float32": 98, "float8_e5m2": 2}, {}, NOT_ALLOWED, None, "mixed: 98 % float32, 2 % float8_e5m2"),
        ({}, {}, NOT_ALLOWED, None, "mixed: no product was seen"),
    ],
)
def test_a_word_is_given_only_where_it_fits(
    matmul: dict[str, int], convolution: dict[str, int], tf32: dict[str, bool], autocast: str | None, word: str
) -> None:
    found = name_precision({"matmul": matmul, "convolution": convolution}, {"float32": 1}, tf32, autocast)
    assert found.removesuffix(", weights float32") == word


def test_products_are_counted_in_words() -> None:
    computed = {"matmul": {"bfloat16": 12, "float32": 3}, "convolution": {"bfloat16": 1}}
    assert describe_matmuls(computed) == "12 matmuls in bfloat16, 3 in float32, 1 convolution in bfloat16"
    assert describe_matmuls({"matmul": {}, "convolution": {}}) == ""


@pytest.mark.parametrize(
    ("inside", "word"),
    [
        ({"matmul": {"float32": "float32"}}, "fp32"),
        ({"matmul": {"float32": "tf32"}}, "tf32"),
        ({"matmul": {"float32": "bfloat16"}}, "mixed: 100 % bfloat16, weights float32"),
        ({"convolution": {"float32": "bfloat16"}}, "fp32"),
    ],
)
def test_what_the_device_makes_of_float32_counts_where_it_is_narrower(
    inside: dict[str, dict[str, str]], word: str
) -> None:
    assert name_precision({"matmul": {"float32": 9}}, {"float32": 3}, NOT_ALLOWED, None, inside) == word


def test_a_device_that_computes_more_than_was_asked_for_keeps_the_label() -> None:
    inside = {"matmul": {"bfloat16": "float32"}}
    assert name_precision({"matmul": {"bfloat16": 9}}, {"float32": 3}, NOT_ALLOWED, "bfloat16", inside) == "amp-bf16"
