"""The number formats a run can train in, one word each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainmark.record.errors import UsageError, nearest

ROUNDINGS = 4
"""Times as much as rounding every result once changes a quantity, it may differ."""
FLOOR = 1e-4
"""What nobody has to explain, of a quantity's size: sums in another order."""

Sums = Sequence[float]
"""A tensor's length, then sums of its numbers with random signs; nothing where one of its numbers is not finite."""


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
    """A difference beside what rounding alone makes of the quantity; up to `floor` needs no explanation."""
    return ComparedQuantity(name, difference, max(floor, ROUNDINGS * by_rounding))


def relative(difference: float, size: float) -> float:
    """A difference as a share of a size; any difference from zero is infinite."""
    return difference / size if size else (0.0 if difference == 0 else math.inf)


def relative_loss(one: float | None, other: float | None) -> float:
    """How far two losses differ; None is a loss that is not finite."""
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return relative(abs(one - other), abs(other))


def relative_sums(one: Sums, other: Sums) -> float:
    """The length of the difference of two tensors as a share of the other's length, as their sums tell it."""
    if not (one and other):
        return 0.0 if not (one or other) else math.inf
    return relative(_length(_subtract(one[1:], other[1:])), other[0])


def relative_moves(one: Sums, one_began: Sums, other: Sums, other_began: Sums) -> float:
    """The same of how far weights have moved since they began."""
    if not (one and other):
        return 0.0 if not (one or other) else math.inf
    own, theirs = _subtract(one[1:], one_began[1:]), _subtract(other[1:], other_began[1:])
    return relative(_length(_subtract(own, theirs)), _length(theirs))


def _subtract(one: Sums, other: Sums) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def _length(sums: Sums) -> float:
    """The mean square of a tensor's signed sums is about its length squared."""
    return math.sqrt(sum(value * value for value in sums) / len(sums))


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What one word asks of weights, autocast and the loss scaler; types by torch's names."""

    name: str
    weights: str = "float32"
    """Type the weights of convolutions and linear layers are held in; norms stay float32, and where this is not
    float32 the optimizer updates a float32 copy, so that small updates are not lost."""
    autocast: str | None = None
    """Type autocast lowers matrix products and convolutions to, if autocast is used."""
    scales_loss: bool = False
    """float16 gradients underflow unless the loss is scaled up first."""
    allows_tf32: bool = False
    scaled: str | None = None
    """Type of eight bits to which linear layers scale the factors of their products, and gradients to its sister of
    wider range; whatever does not fit stays in the type of the weights."""

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
        """The same of all products but those that linear layers scale."""
        if self.allows_tf32:
            return "tf32"
        return self.autocast or self.weights

    @property
    def family(self) -> str:
        """What the arithmetic is called on data sheets, whatever the weights are held in."""
        return FAMILIES_OF_TYPES[self.computes_in]

    def __str__(self) -> str:
        return self.name


E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
"""Types of eight bits: one with more digits, for what goes forward, one of wider range, for gradients."""

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
"""By how much a sum of products is off whose factors have eight bits: the errors of many, which are larger, differ."""


def rounding(precision: Precision) -> float:
    """The largest share of a number by which a precision rounds it."""
    if precision.scaled:
        return SCALED_ROUNDING
    return float(2.0 ** (1 - significand_bits(precision.computes_in)))


def significand_bits(type_: str) -> int:
    """Of a type by torch's name, or `tf32`."""
    return _BITS[type_]


MIN_SHARE = 0.75
"""What a run's products must share of one type to be called by it: autocast leaves some of them as they are."""
MIN_SCALED_SHARE = 0.5
"""The same of eight bits, which attention and a network's head never are."""
MAX_NARROWER = 0.01
"""What of them may be narrower than the type a run is called by."""
REDUCED_FLOAT32, TOO_NARROW = "less than float32", "less than bfloat16"
"""Words for arithmetic that is none of the types there are names for: sums of narrow parts, or a handful of bits."""
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
    """The word for what a step was really computed in, or `mixed: ...` with what was found where no word fits.

    `multiplications` tells for matmul and convolution how many were asked for in which type, `weights` how many numbers
    of the model are held in which, `tf32` whether float32 may be rounded on its way into the products of a kind, and
    `inside` in which type the device multiplies factors of a type, where that was tried.
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
    """What share of all multiplications had factors of eight bits."""
    total = sum(sum(types.values()) for types in multiplications.values())
    scaled = sum(types.get(type_, 0) for types in multiplications.values() for type_ in (E4M3, E5M2))
    return scaled / total if total else 0.0


def narrower_inside(kind: str, asked: str, factors: str, inside: Mapping[str, Mapping[str, str]]) -> str | None:
    """The type a device multiplies factors in where that is narrower than what it was asked for."""
    used = inside.get(kind, {}).get(factors, asked)
    return used if _BITS.get(used, 0) < _BITS.get(asked, 0) else None


def describe_inside(inside: Mapping[str, Mapping[str, str]]) -> str:
    """`matmuls of float32 in bfloat16, convolutions of float32 in float32`."""
    return ", ".join(
        f"{kind}s of {factors} in {used}" for kind, types in inside.items() for factors, used in sorted(types.items())
    )


def describe_matmuls(computed: Mapping[str, Mapping[str, int]]) -> str:
    """`12 matmuls in bfloat16, 3 in float32, 53 convolutions in bfloat16`."""
    return ", ".join(
        f"{count} {kind + ('' if count == 1 else 's') if not place else ''}".rstrip() + f" in {type_}"
        for kind, types in computed.items()
        for place, (type_, count) in enumerate(sorted(types.items()))
    )
