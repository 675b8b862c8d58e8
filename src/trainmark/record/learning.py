"""Whether a training learnt anything, by its loss and by its quality beside guessing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from trainmark.record.record import Quality
from trainmark.record.workload_facts import QualityFacts

CHANCE = "chance"
"""The data fact with the accuracy of guessing."""
CLASSES = "classes"
_MAX_LOSSES = 20
_MIN_LOSSES = 4
_MIN_FOR_A_DOUBT = 12
_MIN_RISE = 0.02


def loss_trend(loss: Sequence[float | None]) -> str | None:
    """`fell`, `rose` or `level`, from the first to the last steps; None where there are too few."""
    finite = [value for value in loss if value is not None]
    if len(finite) < _MIN_LOSSES:
        return None
    part = min(max(1, len(finite) // 4), _MAX_LOSSES)
    first, last = fmean(finite[:part]), fmean(finite[-part:])
    if abs(last - first) <= 0.005 * max(abs(first), abs(last)):
        return "level"
    return "fell" if last < first else "rose"


def loss_rise(loss: Sequence[float | None]) -> tuple[float, float] | None:
    """The loss at the start and at the end, if it certainly rose; None where it did not, or there are too few steps.

    The medians of the first quarter and the last are compared, so that single steps do not count. The rise must be
    above 2 %, and above four standard errors by the unrest of neighbouring steps, which no trend makes larger.
    """
    finite = [value for value in loss if value is not None]
    if len(finite) < _MIN_FOR_A_DOUBT:
        return None
    part = len(finite) // 4
    first, last = median(finite[:part]), median(finite[-part:])
    unrest = 1.4826 * median(abs(b - a) for a, b in pairwise(finite)) / math.sqrt(2)
    error = 1.25 * unrest * math.sqrt(2 / part)  # the standard error of a median is 1.25 times that of a mean
    return (first, last) if last - first > max(_MIN_RISE * abs(first), 4 * error) else None


def find_chance_level(quality: Quality, data_facts: Mapping[str, float]) -> float | None:
    """The accuracy of guessing, if the quality is no better; None where it is, or chance is unknown.

    No better means within two binomial standard errors.
    """
    chance = data_facts.get(CHANCE)
    if chance is None or quality.value is None or quality.unit != "%" or not quality.history or not 0 < chance < 100:
        return None
    samples = max(1, quality.history[-1].samples)
    return chance if quality.value <= chance + 2 * math.sqrt(chance * (100 - chance) / samples) else None


def find_missed_bar(quality: Quality, judged: QualityFacts | None, data_facts: Mapping[str, float]) -> float | None:
    """The quality of a simpler method on the same samples, if the network's is no better; None otherwise."""
    bar = data_facts.get(judged.bar) if judged and judged.bar else None
    if bar is None or quality.value is None:
        return None
    better = quality.value > bar if quality.better == "higher" else quality.value < bar
    return None if better else bar
