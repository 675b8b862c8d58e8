"""A hash of bits sees every change of a number, and every change of places."""

from __future__ import annotations

import pytest
import torch

from trainmark.features.verify.hashed_steps import ROW, BitHash, copy_to_host

SIZES = (1, 7, ROW, ROW + 1, 3 * ROW + 5)


@pytest.fixture(scope="module")
def hashed() -> BitHash:
    return BitHash()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64])
@pytest.mark.parametrize("size", SIZES)
def test_every_bit_of_any_number_counts(size: int, dtype: torch.dtype, hashed: BitHash) -> None:
    lot = torch.Generator().manual_seed(size)
    tensor = torch.randn(size, generator=lot).mul(100).to(dtype)
    own = int(hashed(tensor))
    bits = tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])
    width = 8 * tensor.itemsize
    for place in {0, size // 2, size - 1}:
        for bit in range(width):
            mask = -(1 << bit) if bit == width - 1 else 1 << bit
            bits[place] ^= mask
            assert int(hashed(tensor)) != own, (place, bit)
            bits[place] ^= mask
    assert int(hashed(tensor)) == own


@pytest.mark.parametrize("size", SIZES[1:])
def test_signs_and_places_count(size: int, hashed: BitHash) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(0))
    two_signs = tensor.clone()
    two_signs[[0, size - 1]] *= -1
    seen = {int(hashed(each)) for each in (tensor, -tensor, two_signs, tensor.flip(0), tensor.roll(1))}
    assert len(seen) == 5


def test_equal_numbers_in_an_equal_layout_have_one_hash_and_come_to_the_host_at_once(hashed: BitHash) -> None:
    picture = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    again = picture.clone(memory_format=torch.preserve_format)
    odd = [torch.zeros(0), torch.tensor([True, False]), torch.tensor(3.0)]
    values = copy_to_host([hashed(each) for each in (picture, again, *odd)])
    assert values[0] == values[1] and values[2] == 0
    assert all(type(value) is int for value in values)
