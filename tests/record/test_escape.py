from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, strategies as st

from trainmark.record.escape import csv_cell, fit_encoding, markdown_cell, terminal

ANY_TEXT = st.text(st.characters())


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("one\ntwo\r\tthree", r"one\ntwo\r\tthree"),
        ("abc\u202egpj.exe", r"abc\u202egpj.exe"),
        ("\x9b31m", r"\x9b31m"),
        ("half\ud800", r"half\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_spelled_out(hostile: str, shown: str) -> None:
    assert terminal(hostile) == shown


def test_names_in_any_script_are_left_alone() -> None:
    assert terminal("昇腾 910B · Ünïcode 👩‍🔬 می‌خواهم") == "昇腾 910B · Ünïcode 👩‍🔬 می‌خواهم"


@given(ANY_TEXT)
def test_no_text_reaches_a_terminal_with_a_control_character(text: str) -> None:
    assert not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") for sign in terminal(text))


@given(ANY_TEXT, st.sampled_from(["ascii", "latin-1", "gbk", "utf-8", "no-such-encoding"]))
def test_text_is_fitted_to_any_encoding(text: str, encoding: str) -> None:
    safe, codec = terminal(text), "ascii" if encoding == "no-such-encoding" else encoding
    shown = fit_encoding(safe, encoding)
    assert shown.encode(codec).decode(codec) == shown
    assert all(sign in shown for sign in safe if sign.isascii())
    if safe.encode(codec, "ignore").decode(codec) == safe:
        assert shown == safe, "what the encoding has is left alone"


def test_our_own_signs_have_a_plain_spelling() -> None:
    assert fit_encoding("±0.4 % — 256 → 32, ≥ 75.5", "ascii") == "+/-0.4 % - 256 -> 32, >= 75.5"
    assert fit_encoding("±0.4 % ≥", "latin-1") == "±0.4 % >="


@given(ANY_TEXT)
def test_a_markdown_cell_stays_one_cell_of_text(text: str) -> None:
    cell = markdown_cell(text)
    assert "\n" not in cell
    assert "<" not in cell
    assert ">" not in cell
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`*\[\]]", cell)


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)&gt;"),
        ("a | b", r"a \| b"),
        (r"a \| b", r"a \\\| b"),
        ("one\ntwo", "one two"),
        ("[here](javascript:x)", r"\[here\](javascript:x)"),
        ("see https://evil.example", "see https&#58;//evil.example"),
        ("val_loss", "val_loss"),
        ("_loud_", r"\_loud\_"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
    ],
)
def test_markdown_in_a_cell_is_shown_and_not_obeyed(hostile: str, shown: str) -> None:
    assert markdown_cell(hostile) == shown


@pytest.mark.parametrize("formula", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", " =1", "＝1+1"])
def test_a_formula_is_text_in_a_csv_cell(formula: str) -> None:
    assert csv_cell(formula) == "'" + formula


def test_a_tab_cannot_hide_a_formula() -> None:
    assert csv_cell("\t=1") == r"\t=1"


@pytest.mark.parametrize("plain", ["", "-1.5", "+2e-3", "AMD EPYC", "a=b", "昇腾"])
def test_a_plain_csv_cell_is_left_alone(plain: str) -> None:
    assert csv_cell(plain) == plain
