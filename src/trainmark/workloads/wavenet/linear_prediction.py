"""What sound is worth to who only predicts it linearly: the bar below which a network has learnt something."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from trainmark.workloads.wavenet import logistics

ORDER = 32
"""Samples before a sample that it is predicted from."""
BLOCK = 256
"""Samples that share a scale of their own, which the predictor is told."""

Floats = npt.NDArray[np.float64]


def fit(clips: list[Floats]) -> Floats:
    """The weights of the samples before, by least squares over all clips together."""
    products, answers = np.zeros((ORDER, ORDER)), np.zeros(ORDER)
    for clip in clips:
        past, now = _rows(clip)
        products += past.T @ past
        answers += past.T @ now
    # a little noise everywhere: silence alone has no one solution
    return np.asarray(np.linalg.solve(products + 1e-9 * np.trace(products) / ORDER * np.eye(ORDER), answers))


def nll(clip: Floats, weights: Floats) -> Floats:
    """In nats, of each sample of a clip that has enough samples before it."""
    past, now = _rows(clip)
    error = now - past @ weights
    scales = np.concatenate(
        [
            # the mean distance of a logistic distribution from its centre is 2 ln 2 of its scale
            np.full(len(part), max(np.abs(part).mean() / (2 * np.log(2)), 1e-6))
            for part in np.split(error, range(BLOCK, len(error), BLOCK))
        ]
    )
    outputs = torch.from_numpy(np.stack([np.zeros_like(now), now - error, np.log(scales)]))
    return np.asarray(logistics.nll(outputs[None], torch.from_numpy(now)[None])[0])


def _rows(clip: Floats) -> tuple[Floats, Floats]:
    windows = np.lib.stride_tricks.sliding_window_view(clip, ORDER + 1)
    return np.ascontiguousarray(windows[:, :-1]), windows[:, -1].copy()  # products of overlapping rows are slow
