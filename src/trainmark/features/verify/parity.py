"""Holds the steps of a chip against the same steps of another: where they part, and how far apart the losses are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from trainmark.features.verify.verdict import parse_plan
from trainmark.record.errors import UsageError
from trainmark.record.plan import Plan, Topology
from trainmark.record.precision import (
    FLOOR,
    ROUNDINGS,
    ComparedQuantity,
    Precision,
    judge,
    relative_loss,
    relative_moves,
    relative_sums,
    rounding,
    significand_bits,
)
from trainmark.record.verify import Numbers, StepNumbers, VerifyDocument

MAX_DATA_APART = 1e-3
"""Of the samples: images and sounds are decoded by other processors."""
LEFT_OUT_STEPS = 20
MAX_LOSS_APART = 0.02
"""The published rule for losses of one training on two chips: their mean relative difference after the first steps."""

_GRADIENT, _WEIGHT = "gradient of ", "weight "

Agreement = Literal["agrees", "differs", "unknown"]
EXIT_CODES: dict[Agreement, int] = {"agrees": 0, "differs": 6, "unknown": 7}


class Divergence(Struct, frozen=True, kw_only=True):
    """A quantity that differs by more than rounding explains."""

    step: int
    """Counted from 1."""
    quantity: str
    difference: float | None
    """A share of its size; None where one of both is not finite."""
    allowed: float


class Parity(Struct, frozen=True, kw_only=True):
    """Two verifies of the same steps."""

    verdict: Agreement
    sentence: str
    own: str
    other: str
    """What each computed on: device and precision."""
    steps: int = 0
    quantities: int = 0
    """ComparedQuantity in each step."""
    first: Divergence | None = None
    partings: int = 0
    """Of all quantities in all steps."""
    loss_apart: float | None = None
    """The mean relative difference of the losses after the first 20 steps; None of fewer steps."""
    own_loss: Sequence[float | None] = ()
    other_loss: Sequence[float | None] = ()


def compare_verifies(own: VerifyDocument, other: VerifyDocument) -> Parity:
    """A verify beside the other that it was made like."""
    mine, theirs = parse_plan(own), parse_plan(other)
    _refuse_unlike(mine, theirs)
    found = Parity(verdict="unknown", sentence="", own=_name(own, mine), other=_name(other, theirs))
    if own.numbers is None or other.numbers is None:
        who = "this verify" if own.numbers is None else "the other verify"
        return replace(found, sentence=f"nothing can be compared: {who} did not come to its numbers")
    steps = min(len(own.numbers.steps), len(other.numbers.steps))
    own_loss, other_loss = ([step.loss for step in told.steps[:steps]] for told in (own.numbers, other.numbers))
    found = replace(found, steps=steps, own_loss=own_loss, other_loss=other_loss)
    if own.draws and not other.numbers.initial:
        drawn = "the step draws random numbers, which a run does and a verify does not; hold it against a verify"
        return replace(found, sentence=f"nothing can be compared: {drawn}")
    looked_at = steps if mine.topology == theirs.topology else 0
    held = max(_weight_tolerance(plan) for plan in (mine, theirs))
    if reason := _find_mismatch(own.numbers, other.numbers, looked_at, held):
        return replace(found, sentence=f"nothing can be compared: {reason}")
    floor = max(FLOOR, ROUNDINGS * max(rounding(Precision.parse(plan.precision)) for plan in (mine, theirs)))
    compared = list(_compare_steps(own.numbers, other.numbers, steps, floor))
    partings = [
        Divergence(
            step=step,
            quantity=each.name,
            difference=each.difference if math.isfinite(each.difference) else None,
            allowed=each.allowed,
        )
        for step, quantities in enumerate(compared, 1)
        for each in quantities
        if not each.is_explained
    ]
    loss_apart = compare_losses(own_loss, other_loss)
    first = partings[0] if partings else None
    by_rounding = max(_measure_rounding(told, steps) for told in (own.numbers, other.numbers))
    breaks_rule = loss_apart is not None and loss_apart >= max(MAX_LOSS_APART, ROUNDINGS * by_rounding)
    return replace(
        found,
        verdict="differs" if first or breaks_rule else "agrees",
        sentence=_sentence(steps, first, loss_apart, by_rounding),
        quantities=len(compared[0]) if compared else 0,
        first=first,
        partings=len(partings),
        loss_apart=loss_apart,
    )


def compare_losses(own: Sequence[float | None], other: Sequence[float | None]) -> float | None:
    """By the published rule; infinite where a loss is not finite on one chip alone."""
    shares = [relative_loss(mine, theirs) for mine, theirs in zip(own, other, strict=True)][LEFT_OUT_STEPS:]
    return sum(shares) / len(shares) if shares else None


def _compare_steps(own: Numbers, other: Numbers, steps: int, floor: float) -> Iterator[list[ComparedQuantity]]:
    """Every quantity of each step in the order in which a step makes it.

    In the first step it may differ by what rounding does to it there. Later a unit may switch by rounding alone, and
    when it does is chance: from then on it is the most that rounding does to the quantity in any step.

    An optimizer that divides by a gradient's size moves a number by a full step, up or down, however near to zero its
    gradient is. The share of a gradient's numbers whose sign rounding can turn is about what rounding changes the
    gradient by, and how far the weights then lie apart is its root. In float32 next to none turn. In a narrower
    precision which of a small layer's few numbers do is chance, that one round of rounding need not have shown.
    """
    rounded = _differences_by_rounding(own, other, slice(0, 1))
    for step in range(steps):
        if step == 1:
            rounded = _differences_by_rounding(own, other, slice(None))
        compared = []
        for name, share in _differences(own.steps[step], other.steps[step], own, other):
            by_rounding = rounded.get(name, 0.0)
            if floor > FLOOR and name.startswith(_WEIGHT):
                by_rounding = max(by_rounding, math.sqrt(rounded.get(f"{_GRADIENT}{name.removeprefix(_WEIGHT)}", 0.0)))
            compared.append(judge(name, share, by_rounding, floor))
        yield compared


def _differences_by_rounding(own: Numbers, other: Numbers, steps: slice) -> dict[str, float]:
    """The most that rounding alone does to each quantity in some steps."""
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


def _measure_rounding(told: Numbers, steps: int) -> float:
    """How far rounding alone parts the losses, by the same rule."""
    rounded, plain = ([step.loss for step in each[:steps]] for each in (told.rounded, told.steps))
    return compare_losses(rounded, plain) or 0.0 if len(rounded) == len(plain) else 0.0


def _weight_tolerance(plan: Plan) -> float:
    """By how much the weights a precision holds may differ from the initial ones."""
    held = Precision.parse(plan.precision).weights
    return FLOOR if held == "float32" else float(2.0 ** (1 - significand_bits(held)))


def _find_mismatch(own: Numbers, other: Numbers, steps: int, held: float) -> str:
    """Why two verifies did not make the same steps, by the samples of so many of them; empty where they did.

    Weights may begin `held` apart.
    """
    for name, sums in other.initial.items():
        if name in own.initial and relative_sums(own.initial[name], sums) > held:
            return f"the networks do not begin alike: weight {name}"
    for step in range(steps):
        for name, sums in other.steps[step].data.items():
            if name in own.steps[step].data and relative_sums(own.steps[step].data[name], sums) > MAX_DATA_APART:
                return f"the samples of step {step + 1} are not the same: {name}"
    return ""


def _refuse_unlike(mine: Plan, theirs: Plan) -> None:
    if mine.workload != theirs.workload:
        raise UsageError(f"a verify of {mine.workload} cannot be held against one of {theirs.workload}")
    for name in sorted({*mine.recipe, *theirs.recipe} - {"batch_per_device", "host_settings", "input_workers"}):
        if mine.recipe.get(name) != theirs.recipe.get(name):
            raise UsageError(
                f"the two verifies differ in {name}: {mine.recipe.get(name)} and {theirs.recipe.get(name)}; "
                "make one of them anew with --against the other"
            )
    if _global_batch(mine) != _global_batch(theirs):
        raise UsageError(
            f"the two verifies differ in the batch of a step: {_global_batch(mine)} and {_global_batch(theirs)} samples"
        )


def _global_batch(plan: Plan) -> int:
    return int(plan.recipe["batch_per_device"]) * Topology.parse(plan.topology).devices


def _name(told: VerifyDocument, plan: Plan) -> str:
    return f"{told.device or plan.platform_word}, {plan.precision}"


def _sentence(steps: int, first: Divergence | None, loss_apart: float | None, by_rounding: float) -> str:
    rule = _rule(loss_apart, by_rounding)
    if first is None:
        return f"the same training for {steps} steps: no quantity differs by more than rounding explains; {rule}"
    if first.difference is None:
        return (
            f"another training from step {first.step} on: {first.quantity} is zero or not finite on one alone; {rule}"
        )
    off, allowed = f"{100 * first.difference:.2g} %", f"{100 * first.allowed:.2g} %"
    return f"another training from step {first.step} on: {first.quantity} is off by {off}, {allowed} is allowed; {rule}"


def _rule(loss_apart: float | None, by_rounding: float) -> str:
    if loss_apart is None:
        return f"the rule for losses needs more than {LEFT_OUT_STEPS} steps"
    mean, rounding_mean = f"{100 * loss_apart:.2g} %", f"{100 * by_rounding:.2g} %"
    if loss_apart < MAX_LOSS_APART:
        return f"the losses keep within 2 % of each other ({mean} after the first {LEFT_OUT_STEPS} steps)"
    return (
        f"the losses do not keep within 2 % of each other ({mean} after the first {LEFT_OUT_STEPS} steps, where "
        f"rounding alone makes {rounding_mean})"
    )
