"""Results of `verify`: differing bits by step, rank and layer, and numbers to compare with another chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from trainmark.record.events import BitDifference, Operators
from trainmark.record.numbers import Finite, Whole
from trainmark.record.precision import Sums

SCHEMA = 1
NUMBERS_FILE = "numbers.json"
"""In the folder of a verify: what another chip can be held against."""
SUM_COUNT = 8
"""Sums of a tensor's numbers with random signs; the mean square of such sums is about the tensor's length squared."""
STAGES = ("data", "loss", "gradient", "exchanged gradient", "weight", "statistic")
"""What of a step is hashed, in the order in which a step makes it."""
REPLICATED = ("exchanged gradient", "weight")
"""Of these every rank holds the same."""

Verdict = Literal["equal", "wrong", "unsettled", "incomplete"]


class StepNumbers(Struct, frozen=True, kw_only=True):
    """One step in numbers that can be held against another chip's, computed in float64 on the host."""

    loss: Finite | None
    """The mean over ranks; None where it is not finite."""
    data: Mapping[str, Sums] = {}
    gradients: Mapping[str, Sums] = {}
    """As exchanged, before they are clipped."""
    weights: Mapping[str, Sums] = {}
    """After the step."""


class Numbers(Struct, frozen=True, kw_only=True):
    """All steps of a verify, as rank 0 has them."""

    initial: Mapping[str, Sums]
    """The weights before the first step."""
    steps: Sequence[StepNumbers]
    rounded: Sequence[StepNumbers] = ()
    """The same steps with every result off by as much as the precision rounds: what rounding can do."""


class VerifyTelemetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Extremes of the sensors over a verify, of the worst device."""

    temperature_c: Finite | None = None
    power_w: Finite | None = None
    least_clock_mhz: Finite | None = None
    throttled: Sequence[str] = ()
    ecc_errors: Finite | None = None
    """How many were counted meanwhile."""


class VerifyDocument(Struct, frozen=True, kw_only=True):
    """The document of one verify."""

    schema: int = SCHEMA
    verify_id: str
    created: str
    trainmark: str
    plan: Mapping[str, Any]
    device: str
    torch: str
    hosts: Sequence[str] = ()
    rounds: Whole = 0
    steps: Whole = 0
    """Of each round."""
    seconds: Finite = 0.0
    hashed: Whole = 0
    """Hashed tensors per step."""
    hashed_on_host: str = ""
    """Why, where the device could not do it."""
    draws: bool = False
    """The step uses random numbers, which were fixed so that every chip computes the same step."""
    verdict: Verdict
    sentence: str
    differences: Sequence[BitDifference] = ()
    operators: Operators = Operators()
    switches: Mapping[str, str] = {}
    """Variables that make the platform's libraries deterministic, with the values they had."""
    telemetry: VerifyTelemetry = VerifyTelemetry()
    numbers: Numbers | None = None
