from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainmark.workloads.tacotron2.model import diagonality, focus


def steady(frames: int, symbols: int) -> Tensor:
    """Each frame looks at the symbol that stands at its place, or at the two it falls between."""
    at = torch.linspace(0, symbols - 1, frames)
    return (1 - (torch.arange(symbols)[None] - at[:, None]).abs()).clamp(min=0)


def of(alignment: Tensor) -> float:
    frames, symbols = alignment.shape
    return diagonality(alignment[None], torch.tensor([frames]), torch.tensor([symbols])).item()


def focus_of(alignment: Tensor) -> float:
    frames, symbols = alignment.shape
    return focus(alignment[None], torch.tensor([frames]), torch.tensor([symbols])).item()


def looking_at(symbol: int, frames: int = 101, symbols: int = 21) -> Tensor:
    alignment = torch.zeros(frames, symbols)
    alignment[:, symbol] = 1
    return alignment


def test_a_steady_reader_has_diagonality_1() -> None:
    assert of(steady(1001, 101)) == pytest.approx(1, abs=0.01)
    assert of(torch.eye(30)) == pytest.approx(1)


def test_attention_spread_evenly_has_diagonality_near_0() -> None:
    assert of(torch.full((200, 100), 0.01)) == pytest.approx(0, abs=0.02)


def test_attention_stuck_at_an_end_is_negative_and_in_the_middle_a_quarter() -> None:
    assert of(looking_at(0)) == pytest.approx(-0.5)
    assert of(looking_at(20)) == pytest.approx(-0.5)
    assert of(looking_at(10)) == pytest.approx(0.25, abs=0.01)


def test_reading_backwards_is_negative() -> None:
    assert of(torch.eye(101).flip(0)) == pytest.approx(-0.5, abs=0.02)


def test_a_small_case_worked_by_hand() -> None:
    alignment = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])
    # distances: 0; half of 0.5; 0.2 of 0.5
    assert of(alignment) == pytest.approx(1 - 3 * (0 + 0.25 + 0.1) / 3)
    assert focus_of(alignment) == pytest.approx((1 + 0.5 + 0.8) / 3)


def test_one_frame_or_one_symbol_can_be_read_in_one_way_only() -> None:
    assert of(torch.ones(40, 1)) == 1
    assert of(torch.full((1, 40), 1 / 40)) == 1
    assert of(torch.ones(1, 1)) == 1


def test_padding_changes_nothing_even_where_it_holds_no_numbers() -> None:
    alone = torch.softmax(torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), 1)
    both = torch.full((2, 12, 8), torch.nan)
    both[0] = steady(12, 8)
    both[1, :9, :5] = alone
    both[1, :9, 5:] = 0
    lengths = torch.tensor([12, 9]), torch.tensor([8, 5])
    assert diagonality(both, *lengths).tolist() == pytest.approx([of(steady(12, 8)), of(alone)])
    assert focus(both, *lengths).tolist() == pytest.approx([focus_of(steady(12, 8)), focus_of(alone)])


def test_weights_beyond_a_text_do_not_count() -> None:
    alignment = torch.zeros(1, 4, 6)
    alignment[0, :, 5] = 1
    assert focus(alignment, torch.tensor([4]), torch.tensor([3])).item() == 0


def test_half_precision_is_judged_in_single() -> None:
    judged = diagonality(steady(300, 60)[None].bfloat16(), torch.tensor([300]), torch.tensor([60]))
    assert judged.dtype == torch.float32
    assert judged.item() == pytest.approx(of(steady(300, 60)), abs=0.01)
