"""Lengths of time as people say them."""

from __future__ import annotations

import pytest

from trainmark.record.errors import UsageError
from trainmark.record.numbers import format_seconds, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("3m", 180), ("3min", 180), ("1h", 3600), ("1h30m", 5400), ("2m30s", 150), ("0.5h", 1800),
     (" 3M ", 180), ("180.0", 180), ("12", 12), ("2d", 172800), ("1d12h", 129600)],
)  # fmt: skip
def test_a_length_of_time_is_read(text: str, seconds: float) -> None:
    assert parse_seconds(text, option="--budget") == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "soon", "3 days", "0", "0s", "-3m", "inf", "nan", "1e9", "..s", "1.2.3m", "9" * 300, "99999h"]
)
def test_what_is_no_length_of_time_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"--budget .* is not a duration; try '90s', '3m' or '1h'"):
        parse_seconds(text, option="--budget")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(180, "3 min"), (90, "1.5 min"), (59.97, "60 s"), (3600, "1 h"), (0.012, "0.012 s"), (75, "75 s")],
)
def test_a_length_of_time_is_said_shortly(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
