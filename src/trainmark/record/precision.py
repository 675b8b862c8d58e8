"""Precisions a run can train in, and how far results may differ by rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainmark.record.errors import UsageError, nearest
from trainmark.record.language import ENGLISH, Say

ROUNDINGS = 4
"""Allowed difference, as a multiple of what rounding every result once changes."""
FLOOR = 1e-4
"""Relative difference that needs no explanation: sums in another order."""

Sums = Sequence[float]
"""A tensor's norm, then sums of its values with random signs; empty where a value is not finite."""


class ComparedQuantity(NamedTuple):
    """One quantity of two computations."""

    name: str
    difference: float
    """As a share of its size; not a number or infinite where one of both is."""
    allowed: float

    @property
    def is_explained(self) -> bool:
        return self.difference <= self.allowed


def judge(name: str, difference: float, by_rounding: float, floor: float) -> ComparedQuantity:
    """Compares a difference with the effect of rounding; up to `floor` is always allowed."""
    return ComparedQuantity(name, difference, max(floor, ROUNDINGS * by_rounding))


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Types of weights and autocast, and the loss scaler, of one precision; types by torch's names."""

    name: str
    weights: str = "float32"
    """Type the weights of convolutions and linear layers are held in; norms stay float32, and where this is not
    float32 the optimizer updates a float32 copy, so that small updates are not lost."""
    autocast: str | None = None
    """Autocast type of matmuls and convolutions; None without autocast."""
    scales_loss: bool = False
    """float16 gradients underflow unless the loss is scaled up first."""
    allows_tf32: bool = False
    scaled: str | None = None
    """8-bit type to which linear layers scale their operands, gradients to the wider-range one; the rest stays in the
    type of the weights."""

    @classmethod
    def parse(cls, text: str) -> Precision:
        found = PRECISIONS.get(text.strip().lower())
        if found is None:
            raise UsageError(f"precision {text!r} is not known; {nearest(text, PRECISIONS)}")
        return found

    @property
    def computes_in(self) -> str:
        """The type most arithmetic is done in, by torch's name; `tf32` where float32 is rounded on the way in."""
        return self.scaled or self.unscaled

    @property
    def unscaled(self) -> str:
        """The same for all matmuls but the scaled ones of linear layers."""
        if self.allows_tf32:
            return "tf32"
        return self.autocast or self.weights

    @property
    def family(self) -> str:
        """The data sheet's name of the arithmetic."""
        return FAMILIES_OF_TYPES[self.computes_in]

    def __str__(self) -> str:
        return self.name


E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
"""8-bit types: one with more digits for the forward pass, one of wider range for gradients."""

FAMILIES_OF_TYPES = {"float32": "fp32", "tf32": "tf32", "float16": "fp16", "bfloat16": "bf16", E4M3: "fp8"}
"""From torch's names of types, and `tf32`, to the words of data sheets."""
FAMILIES = tuple(FAMILIES_OF_TYPES.values())


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision(name="fp32"),
        Precision(name="tf32", allows_tf32=True),
        Precision(name="fp16", weights="float16", scales_loss=True),
        Precision(name="bf16", weights="bfloat16"),
        Precision(name="amp-fp16", autocast="float16", scales_loss=True),
        Precision(name="amp-bf16", autocast="bfloat16"),
        Precision(name="fp8", weights="bfloat16", scaled=E4M3),
    )
}


SCALED_ROUNDING = 2.0**-5
"""Relative error of a dot product with 8-bit operands, whose individual errors are larger."""


def rounding(precision: Precision) -> float:
    """Largest relative rounding error of a precision."""
    if precision.scaled:
        return SCALED_ROUNDING
    return float(2.0 ** (1 - significand_bits(precision.computes_in)))


def significand_bits(type_: str) -> int:
    """Of a type by torch's name, or `tf32`."""
    return _BITS[type_]


MIN_SHARE = 0.75
"""Share of multiplications in one type for a run to be named by it; autocast leaves some in float32."""
MIN_SCALED_SHARE = 0.5
"""The same for 8-bit types, which attention and the head never use."""
MAX_NARROWER = 0.01
"""Share of multiplications that may be narrower than the type a run is named by."""
REDUCED_FLOAT32, TOO_NARROW = "less than float32", "less than bfloat16"
"""Names for arithmetic of no standard type: sums of narrow parts, or a few bits."""
_BITS = {
    "float32": 24,
    REDUCED_FLOAT32: 12,
    "tf32": 11,
    "float16": 11,
    "bfloat16": 8,
    E4M3: 4,
    E5M2: 3,
    TOO_NARROW: 1,
}
"""Of the significand."""


def name_precision(
    multiplications: Mapping[str, Mapping[str, int]],
    weights: Mapping[str, int],
    tf32: Mapping[str, bool],
    autocast: str | None,
    inside: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The precision a step was computed in, or `mixed: ...` with the shares where no name fits.

    `multiplications` counts them by kind and type, `weights` the parameters by type, `tf32` says by kind whether
    float32 may be rounded to tf32, and `inside` in which type the device multiplies operands of a type, where tried.
    """
    found: dict[str, int] = {}
    for kind, types in multiplications.items():
        for type_, count in types.items():
            used = "tf32" if type_ == "float32" and tf32.get(kind) else type_
            if lowered_inside := narrower_inside(kind, used, type_, inside or {}):
                used = lowered_inside
            found[used] = found.get(used, 0) + count
    total = sum(found.values())
    if not total:
        return "mixed: no product was seen"
    kinds: dict[str, int] = {}
    for used, count in found.items():
        kind = E4M3 if used == E5M2 else used  # one precision takes both
        kinds[kind] = kinds.get(kind, 0) + count
    main = max(kinds, key=lambda used: kinds[used])
    held = max(weights, key=lambda used: weights[used])
    narrower = sum(count for used, count in kinds.items() if _BITS.get(used, 0) < _BITS.get(main, 0))
    least = MIN_SCALED_SHARE if main == E4M3 else MIN_SHARE
    if kinds[main] >= least * total and narrower <= MAX_NARROWER * total:
        lowered = main if held != main and main == autocast else None
        wanted = (main, held, lowered)
        for precision in PRECISIONS.values():
            if (precision.computes_in, precision.weights, precision.autocast) == wanted:
                return precision.name
    shares = ", ".join(f"{100 * count / total:.0f} % {used}" for used, count in sorted(found.items()))
    return f"mixed: {shares}, weights {held}"


def scaled_share(multiplications: Mapping[str, Mapping[str, int]]) -> float:
    """Share of multiplications with 8-bit operands."""
    total = sum(sum(types.values()) for types in multiplications.values())
    scaled = sum(types.get(type_, 0) for types in multiplications.values() for type_ in (E4M3, E5M2))
    return scaled / total if total else 0.0


def narrower_inside(kind: str, asked: str, factors: str, inside: Mapping[str, Mapping[str, str]]) -> str | None:
    """The type a device multiplies in, where narrower than requested."""
    used = inside.get(kind, {}).get(factors, asked)
    return used if _BITS.get(used, 0) < _BITS.get(asked, 0) else None


def describe_inside(inside: Mapping[str, Mapping[str, str]], say: Say = ENGLISH) -> str:
    """`matmuls of float32 in bfloat16, convolutions of float32 in float32`."""
    return ", ".join(
        say("{kinds} of {factors} in {used}").format(kinds=say(f"{kind}s"), factors=factors, used=used)
        for kind, types in inside.items()
        for factors, used in sorted(types.items())
    )


def describe_matmuls(computed: Mapping[str, Mapping[str, int]], say: Say = ENGLISH) -> str:
    """`12 matmuls in bfloat16, 3 in float32, 53 convolutions in bfloat16`."""
    return ", ".join(
        say("{counted} in {type}").format(
            counted=f"{count} {say(kind if count == 1 else f'{kind}s') if not place else ''}".rstrip(), type=type_
        )
        for kind, types in computed.items()
        for place, (type_, count) in enumerate(sorted(types.items()))
    )


def relative(difference: float, size: float) -> float:
    """A difference as a share of a size; any difference from zero is infinite."""
    return difference / size if size else (0.0 if difference == 0 else math.inf)
