"""Mixtures of logistic distributions over the 65,536 values of 16-bit sound: the likelihood of samples, and draws."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_BIN = 1 / 65535
"""Half the distance of neighbouring values, in audio from -1 to 1."""
MIN_LOG_SCALE = -16.0
EDGE = 0.999
"""Beyond it on either side a value stands for everything further out."""
NEAREST = 1e-5
"""Distance of uniform draws from 0 and 1, whose logarithms are not finite."""


def nll(outputs: Tensor, samples: Tensor) -> Tensor:
    """Negative log-likelihood in nats: `outputs` (batch, 3 x mixtures, time) for `samples` (batch, time).

    The probability of a bin is a difference of two sigmoids, whose logarithm is computed without cancellation: accurate
    in float32 for the narrowest component and in the tails, without approximations.
    """
    logits, means, log_scales = split(_widen(outputs))
    log_scales = log_scales.clamp(min=MIN_LOG_SCALE)
    narrowness = (-log_scales).exp()
    value = samples.to(means.dtype)[:, None]
    distance = value - means
    above, below = narrowness * (distance + HALF_BIN), narrowness * (distance - HALF_BIN)
    # log(sigmoid(above) - sigmoid(below))
    inside = -F.softplus(-above) - F.softplus(below) + (-torch.expm1(-2 * HALF_BIN * narrowness)).log()
    found = torch.where(value < -EDGE, -F.softplus(-above), torch.where(value > EDGE, -F.softplus(below), inside))
    return -torch.logsumexp(found + F.log_softmax(logits, 1), 1)


def draw(outputs: Tensor, which: Tensor, where: Tensor) -> Tensor:
    """One sample (batch) from `outputs` (batch, 3 x mixtures), by uniform draws (batch, mixtures) and (batch)."""
    logits, means, log_scales = split(outputs)
    chosen = (logits - (-which.log()).log()).argmax(1, keepdim=True)
    mean, log_scale = means.gather(1, chosen)[:, 0], log_scales.gather(1, chosen)[:, 0].clamp(min=MIN_LOG_SCALE)
    return (mean + log_scale.exp() * (where.log() - torch.log1p(-where))).clamp(-1, 1)


def uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Uniform draws for `draw`."""
    return torch.rand(shape, generator=generator) * (1 - 2 * NEAREST) + NEAREST


def split(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, means and logarithms of the scales."""
    logits, means, log_scales = outputs.chunk(3, 1)
    return logits, means, log_scales


def _widen(x: Tensor) -> Tensor:
    """At least float32: bins are too narrow for less."""
    return x if x.dtype == torch.float64 else x.float()
