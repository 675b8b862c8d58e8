"""Compares the steps of a chip with the same steps of another: where they diverge, and how far the losses differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from trainmark.features.verify.document import Numbers, StepNumbers, VerifyDocument
from trainmark.record.errors import UsageError
from trainmark.record.plan import Plan, Topology
from trainmark.record.precision import (
    FLOOR,
    ROUNDINGS,
    Precision,
    Sums,
    judge,
    relative,
    rounding,
    significand_bits,
)

MAX_DATA_APART = 1e-3
"""Relative difference of samples: images and sounds are decoded by different processors."""
LEFT_OUT_STEPS = 20
MAX_LOSS_APART = 0.02
"""The published rule for the losses of one training on two chips: mean relative difference after the first steps."""

_GRADIENT, _WEIGHT = "gradient of ", "weight "

Agreement = Literal["agrees", "differs", "unknown"]
EXIT_CODES: dict[Agreement, int] = {"agrees": 0, "differs": 6, "unknown": 7}


class Divergence(Struct, frozen=True, kw_only=True):
    """A quantity that differs by more than rounding explains."""

    step: int
    """Counted from 1."""
    quantity: str
    difference: float | None
    """Relative difference; None where one of both is not finite."""
    allowed: float


class Parity(Struct, frozen=True, kw_only=True):
    """Two verifies of the same steps."""

    verdict: Agreement
    sentence: str
    own: str
    other: str
    """Device and precision of each."""
    steps: int = 0
    first: Divergence | None = None
    loss_apart: float | None = None
    """Mean relative difference of the losses after the first 20 steps; None with fewer steps."""


def compare_verifies(own: VerifyDocument, other: VerifyDocument) -> Parity:
    """Compares a verify with the one whose steps it repeats."""
    plans = mine, theirs = Plan.from_json(own.plan), Plan.from_json(other.plan)
    _refuse_unlike(mine, theirs)
    found = Parity(verdict="unknown", sentence="", own=_name(own, mine), other=_name(other, theirs))
    if own.numbers is None or other.numbers is None:
        who = "this verify" if own.numbers is None else "the other verify"
        return replace(found, sentence=f"nothing can be compared: {who} has no numbers")
    steps = min(len(own.numbers.steps), len(other.numbers.steps))
    same_samples = steps if mine.topology == theirs.topology else 0
    if reason := _find_mismatch(own.numbers, other.numbers, same_samples, max(map(_weight_tolerance, plans))):
        return replace(found, steps=steps, sentence=f"nothing can be compared: {reason}")
    floor = max(FLOOR, ROUNDINGS * max(rounding(Precision.parse(plan.precision)) for plan in plans))
    first = next(_find_partings(own.numbers, other.numbers, steps, floor), None)
    loss_apart = compare_losses(own.numbers.steps[:steps], other.numbers.steps[:steps])
    by_rounding = max(_measure_rounding(numbers, steps) for numbers in (own.numbers, other.numbers))
    breaks_rule = loss_apart is not None and loss_apart >= max(MAX_LOSS_APART, ROUNDINGS * by_rounding)
    return replace(
        found,
        verdict="differs" if first or breaks_rule else "agrees",
        sentence=_describe(steps, first, loss_apart, by_rounding),
        steps=steps,
        first=first,
        loss_apart=loss_apart,
    )


def compare_losses(own: Sequence[StepNumbers], other: Sequence[StepNumbers]) -> float | None:
    """Mean relative difference by the published rule; infinite where a loss is not finite on one chip alone."""
    shares = [relative_loss(mine.loss, theirs.loss) for mine, theirs in zip(own, other, strict=True)][LEFT_OUT_STEPS:]
    return sum(shares) / len(shares) if shares else None


def _find_partings(own: Numbers, other: Numbers, steps: int, floor: float) -> Iterator[Divergence]:
    """Quantities that differ by more than rounding explains, in the order of computation.

    In the first step a quantity may differ by its own rounding error. Later a unit may switch by rounding alone, at a
    random step: from then on the tolerance is the largest rounding error of the quantity in any step.

    An optimizer that divides by a gradient's size moves a number by a full step, up or down, however near to zero its
    gradient is. The share of a gradient's numbers whose sign rounding can turn is about what rounding changes the
    gradient by, and how far the weights then lie apart is its root. In float32 next to none turn. In a narrower
    precision which of a small layer's few numbers do is chance, that one round of rounding need not have shown.
    """
    rounded = _differences_by_rounding(own, other, slice(0, 1))
    for step in range(steps):
        if step == 1:
            rounded = _differences_by_rounding(own, other, slice(None))
        for name, share in _differences(own.steps[step], other.steps[step], own, other):
            by_rounding = rounded.get(name, 0.0)
            if floor > FLOOR and name.startswith(_WEIGHT):
                by_rounding = max(by_rounding, math.sqrt(rounded.get(f"{_GRADIENT}{name.removeprefix(_WEIGHT)}", 0.0)))
            judged = judge(name, share, by_rounding, floor)
            if not judged.is_explained:
                finite = share if math.isfinite(share) else None
                yield Divergence(step=step + 1, quantity=name, difference=finite, allowed=judged.allowed)


def _differences_by_rounding(own: Numbers, other: Numbers, steps: slice) -> dict[str, float]:
    """The largest rounding error of each quantity in some steps."""
    found: dict[str, float] = {}
    for numbers in (own, other):
        for changed, plain in zip(numbers.rounded[steps], numbers.steps[steps], strict=False):
            for name, share in _differences(changed, plain, numbers, numbers):
                found[name] = max(share, found.get(name, 0.0))
    return found


def _differences(mine: StepNumbers, theirs: StepNumbers, own: Numbers, other: Numbers) -> Iterator[tuple[str, float]]:
    yield "loss", relative_loss(mine.loss, theirs.loss)
    for name in reversed(list(theirs.gradients)):
        if name in mine.gradients:
            yield f"{_GRADIENT}{name}", relative_sums(mine.gradients[name], theirs.gradients[name])
    for name in theirs.weights:
        if name in mine.weights:
            moved = relative_moves(mine.weights[name], own.initial[name], theirs.weights[name], other.initial[name])
            yield f"{_WEIGHT}{name}", moved


def _measure_rounding(numbers: Numbers, steps: int) -> float:
    """The difference of losses that rounding alone causes, by the same rule."""
    rounded, plain = numbers.rounded[:steps], numbers.steps[:steps]
    return compare_losses(rounded, plain) or 0.0 if len(rounded) == len(plain) else 0.0


def _weight_tolerance(plan: Plan) -> float:
    """The relative error of initial weights that a precision stores."""
    held = Precision.parse(plan.precision).weights
    return FLOOR if held == "float32" else float(2.0 ** (1 - significand_bits(held)))


def _find_mismatch(own: Numbers, other: Numbers, steps: int, held: float) -> str:
    """Why two verifies did not train the same steps, by the samples of `steps` of them; empty where they did.

    Initial weights may differ by `held`.
    """
    for name, sums in other.initial.items():
        if name in own.initial and relative_sums(own.initial[name], sums) > held:
            return f"the initial weights differ: weight {name}"
    for step in range(steps):
        for name, sums in other.steps[step].data.items():
            if name in own.steps[step].data and relative_sums(own.steps[step].data[name], sums) > MAX_DATA_APART:
                return f"the samples of step {step + 1} differ: {name}"
    return ""


HOW_IT_RUNS = {"batch_per_device", "host_settings", "input_workers", "parallel", "tensor_parallel"}
"""Recipe fields in which two verifies may differ: they change where a step is computed, not what."""


def _refuse_unlike(mine: Plan, theirs: Plan) -> None:
    if mine.workload != theirs.workload:
        raise UsageError(f"a verify of {mine.workload} cannot be compared with one of {theirs.workload}")
    for name in sorted({*mine.recipe, *theirs.recipe} - HOW_IT_RUNS):
        if mine.recipe.get(name) != theirs.recipe.get(name):
            raise UsageError(
                f"the two verifies differ in {name}: {mine.recipe.get(name)} and {theirs.recipe.get(name)}; "
                "run one of them again with --against the other"
            )
    if _global_batch(mine) != _global_batch(theirs):
        raise UsageError(
            f"the two verifies differ in the batch of a step: {_global_batch(mine)} and {_global_batch(theirs)} samples"
        )


def _global_batch(plan: Plan) -> int:
    return int(plan.recipe["batch_per_device"]) * Topology.parse(plan.topology).devices


def _name(document: VerifyDocument, plan: Plan) -> str:
    return f"{document.device or plan.platform_word}, {plan.precision}"


def _describe(steps: int, first: Divergence | None, loss_apart: float | None, by_rounding: float) -> str:
    rule = f"the rule for losses needs more than {LEFT_OUT_STEPS} steps"
    if loss_apart is not None:
        mean = f"{100 * loss_apart:.2g} % after the first {LEFT_OUT_STEPS} steps"
        rule = f"the losses stay within 2 % of each other ({mean})"
        if loss_apart >= MAX_LOSS_APART:
            alone = f"rounding alone causes {100 * by_rounding:.2g} %"
            rule = f"the losses do not stay within 2 % of each other ({mean}, {alone})"
    if first is None:
        return f"the same training for {steps} steps: no quantity differs by more than rounding explains; {rule}"
    wrong = f"{first.quantity} is zero or not finite on one chip alone"
    if first.difference is not None:
        off, allowed = f"{100 * first.difference:.2g} %", f"{100 * first.allowed:.2g} %"
        wrong = f"{first.quantity} is off by {off}, {allowed} is allowed"
    return f"another training from step {first.step} on: {wrong}; {rule}"


def relative_loss(one: float | None, other: float | None) -> float:
    """How far two losses differ; None is a loss that is not finite."""
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return relative(abs(one - other), abs(other))


def relative_sums(one: Sums, other: Sums) -> float:
    """Norm of the difference of two tensors relative to the other's norm, estimated from their sums."""
    if not (one and other):
        return 0.0 if not (one or other) else math.inf
    return relative(_length(_subtract(one[1:], other[1:])), other[0])


def relative_moves(one: Sums, one_began: Sums, other: Sums, other_began: Sums) -> float:
    """The same for the change of weights since the start."""
    if not (one and other):
        return 0.0 if not (one or other) else math.inf
    own, theirs = _subtract(one[1:], one_began[1:]), _subtract(other[1:], other_began[1:])
    return relative(_length(_subtract(own, theirs)), _length(theirs))


def _subtract(one: Sums, other: Sums) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def _length(sums: Sums) -> float:
    """Estimates the norm: the mean square of signed sums is about the norm squared."""
    return math.sqrt(sum(value * value for value in sums) / len(sums))
