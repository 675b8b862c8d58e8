from __future__ import annotations

import pytest
import torch

from trainmark.workloads.vision import MEAN, STD, normalise


def pixels(n: int = 3, height: int = 20, width: int = 17) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, height, width, 3), dtype=torch.uint8, generator=generator).permute(0, 3, 1, 2)


def textbook(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images.double() / 255 - mean) / std


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pixels_become_the_textbook_floats_rounded_once(dtype: torch.dtype) -> None:
    images = pixels()
    found = normalise(images, dtype)
    assert found.dtype == dtype and found.shape == images.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = textbook(images).to(dtype)
    torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps, atol=2e-6)


def test_a_half_precision_batch_made_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = normalise(pixels(7), torch.bfloat16)
    monkeypatch.setattr("trainmark.workloads.vision._PIECE_VALUES", 2500)
    assert torch.equal(normalise(pixels(7), torch.bfloat16), whole)


def test_one_thread_makes_the_same_floats_as_two() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(normalise(pixels(7), torch.float32))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_a_given_buffer_is_filled_and_returned() -> None:
    buffer = torch.empty(5, 3, 20, 17).to(memory_format=torch.channels_last)
    found = normalise(pixels(), torch.float32, out=buffer[:3])
    assert found.data_ptr() == buffer.data_ptr()
    assert torch.equal(buffer[:3], normalise(pixels(), torch.float32))


def test_plain_channels_first_pixels_give_the_same_floats() -> None:
    assert torch.equal(normalise(pixels().contiguous(), torch.float32), normalise(pixels(), torch.float32))


def test_an_empty_batch_stays_empty() -> None:
    assert normalise(pixels(0), torch.float32).shape == (0, 3, 20, 17)


def test_anything_but_bytes_of_three_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected uint8 images of 3 channels, got torch.float32"):
        normalise(torch.zeros(1, 3, 4, 4), torch.float32)
