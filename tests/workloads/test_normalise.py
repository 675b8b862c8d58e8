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


def test_plain_channels_first_pixels_give_the_same_floats() -> None:
    assert torch.equal(normalise(pixels().contiguous(), torch.float32), normalise(pixels(), torch.float32))


def test_an_empty_batch_stays_empty() -> None:
    assert normalise(pixels(0), torch.float32).shape == (0, 3, 20, 17)


def test_anything_but_bytes_of_three_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected uint8 images of 3 channels, got torch.float32"):
        normalise(torch.zeros(1, 3, 4, 4), torch.float32)
