"""The type a device multiplies in is told by products, and none passes for another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainmark.features.doctor import conformance
from trainmark.platforms import files, matmul_probe, standin
from trainmark.platforms.matmul_probe import OPERANDS, identify_type
from trainmark.platforms.platform import Device, Platform
from trainmark.record.precision import E4M3, E5M2, PRECISIONS, REDUCED_FLOAT32, TOO_NARROW


def products(dtype: torch.dtype, result: torch.dtype) -> list[float]:
    """As units for a type do it: factors are rounded, their exact product is rounded to the type of the result."""
    pairs = [(torch.tensor(left, dtype=dtype), torch.tensor(right, dtype=dtype)) for left, right in OPERANDS]
    return [float((left.double() * right.double()).to(result)) for left, right in pairs]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_a_type_is_told_by_its_products_whatever_type_the_result_has(name: str) -> None:
    dtype = getattr(torch, name)
    assert identify_type(products(dtype, dtype)) == name
    assert identify_type(products(dtype, torch.float32)) == name


def test_eight_bits_and_split_products_have_words_of_their_own() -> None:
    assert identify_type(products(torch.float8_e4m3fn, torch.float32)) == TOO_NARROW
    exact = products(torch.float32, torch.float32)
    assert identify_type([exact[0] - 2**-23, *exact[1:]]) == REDUCED_FLOAT32


@pytest.mark.parametrize("towards", [1.0, 1 + 2**-10])
def test_tf32_is_told_whether_half_way_goes_up_or_down(towards: float) -> None:
    exact = products(torch.float32, torch.float32)
    assert identify_type([towards, *exact[1:]]) == "tf32"


@pytest.mark.parametrize("inside", ["float32", "tf32", "float16", "bfloat16"])
def test_a_device_that_lowers_float32_by_itself_is_found_out(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "script.toml"
    path.write_text(f"float32_inside = '{inside}'\n", encoding="utf-8")
    monkeypatch.setenv(standin.VARIABLE, str(path))
    device = Platform(files.load("standin")).open(0)
    assert matmul_probe.find_computed_types(device, PRECISIONS["fp32"]) == {
        kind: {"float32": inside} for kind in ("matmul", "convolution")
    }
    mixed = matmul_probe.find_computed_types(device, PRECISIONS["amp-bf16"])
    assert mixed["matmul"] == {"bfloat16": "bfloat16", "float32": inside}


@pytest.mark.parametrize("name", files.load("cpu").precisions)
def test_the_processor_computes_in_what_it_is_asked_for(name: str) -> None:
    asked = PRECISIONS[name]
    found = matmul_probe.find_computed_types(Platform(files.load("cpu")).open(0), asked)
    for kind in matmul_probe.KINDS:
        assert found[kind][asked.unscaled] == asked.unscaled
    eight_bits = {type_: used for type_, used in found["matmul"].items() if type_ in (E4M3, E5M2)}
    assert eight_bits == ({E4M3: E4M3, E5M2: E5M2} if asked.scaled else {})


@pytest.mark.parametrize("lost", [E4M3, E5M2])
def test_a_device_that_drops_digits_of_eight_bits_is_found_out(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = torch._scaled_mm

    def careless(left: torch.Tensor, right: torch.Tensor, **named: object) -> torch.Tensor:
        if left.dtype == getattr(torch, lost):
            left = torch.exp2(left.float().log2().floor()).to(left.dtype)
        return multiply(left, right, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "_scaled_mm", careless)
    device = Platform(files.load("cpu")).open(0)
    found = matmul_probe.find_computed_types(device, PRECISIONS["fp8"])["matmul"]
    assert (found[lost], found[E5M2 if lost == E4M3 else E4M3]) == (TOO_NARROW, E5M2 if lost == E4M3 else E4M3)
    checked = conformance.check_precision(device, PRECISIONS["fp8"])
    assert (checked.verdict, f"not in {lost}" in checked.sentence) == ("failed", True)


def test_a_kind_that_the_device_cannot_compute_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*words: object) -> str:
        raise NotImplementedError("Could not run 'aten::convolution'")

    device: Device = Platform(files.load("cpu")).open(0)
    monkeypatch.setitem(matmul_probe.KINDS, "convolution", missing)
    found = matmul_probe.find_computed_types(device, PRECISIONS["fp32"])
    assert found == {"matmul": {"float32": "float32"}, "convolution": {}}
