"""Hostile pages: reading ends quickly, and what is shown has no effect on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from trainmark.analysis.peaks import estimate_mfu
from trainmark.analysis.published_library import PublishedPage
from trainmark.features.published import markdown, read
from trainmark.view.published_table import render

HEADS = "| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem | GPU | FPS | 模型 |"
PIECES = (
    "|", "\\|", "||", "\n", "\r", "\r\n", "---", "|---|", " ", "\t", "*", "**", "_", "`", "```", "~~~", "#", "- ",
    "> ", "1. ", "配置", "precision", "fix_hp", "p_core", "(1x8)", "（２x８）", "8x", "单机8卡", "0x0", "x", "/",
    "1e999", "-1", "١٢٣", "75%", "128\\*8", "37.5/40.0", "bs=", "bs:99999999999", "指标名称", "指标值", "模型",
    "加速卡型号: ", "GPU", "FPS", "Score(MOS)", "Convergence criteria", "Configuration", "Performance",
    "score(MOS):4.460", "≥", ":", "<br>", "&#x1b;", "&lt;", "\\", "\x1b[2J", "\0", "\ufeff", "\u2028", "\u202e",
    "=cmd()", "<img onerror=x>", "[a](b)", "", "\ud800", HEADS, "\n" + HEADS + "\n|---|\n",
)  # fmt: skip


def show_page(page: PublishedPage) -> str:
    """All that is done with a page's rows."""
    for row in page.rows:
        assert row.devices is None or row.devices > 0
        estimate_mfu(row)
    return render(page.rows) if page.rows else ""


@pytest.mark.slow
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60).map("".join))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_text_is_too_odd_to_be_read(text: str) -> None:
    show_page(read.read_page(text, name="page.md"))


@given(st.text(max_size=30))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_no_file_name_is_too_odd_to_name_rows_by(name: str) -> None:
    (row,) = read.read_page(f"{HEADS}\n| N7(1x8) | fp32 | / | | 1 | 2 | 3 | | | | | |", name=name).rows
    assert row.name.startswith("published:")
    assert not any(sign.isspace() for sign in row.name)


@pytest.mark.parametrize(
    "text",
    [
        "|" * 1_000_000,
        "|\n" * 500_000,
        "|-|\n" * 250_000,
        "|" + " " * 1_000_000 + "|",
        "- " * 500_000 + "|",
        "|" + "[" * 1_000_000 + "|",
        HEADS + "\n" + "| N7单机8卡(1x8) | fp32 | / | 1 | 1 | 1 | 1 | 1 | 1 | | | |\n" * 20_000,
        (HEADS + "\n|---|\n") * 10_000,
    ],
    ids=["one line", "short lines", "rules", "blanks", "list marks", "brackets", "rows", "tables"],
)
def test_a_megabyte_of_table_signs_is_cut_short_and_said_to_be(text: str) -> None:
    page = read.read_page(text, name="page.md")
    assert page.unread
    assert len(page.rows) <= markdown.MAX_LINES
    assert len(page.unread) <= 201


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["=", "a ", "a=1,", "1x", "单机8卡", "(1x8)", "bs ", "global bs ", "1/", "1&&", "*", "top ", "1d1h"]
)
def test_cells_of_one_sign_end_soon_and_are_kept_as_text(piece: str) -> None:
    cell = piece * 200
    heads = "| GPU | FP32 | ACC | Configuration | Convergence criteria | Time | Batch size |"
    text = "\n".join((heads, "|---|---|---|---|---|---|---|", *["|" + f"{cell}|" * 7] * 40))
    page = read.read_page(text, name="page.md")
    assert len(page.rows) <= 40
    show_page(page)
