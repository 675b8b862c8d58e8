"""Generates audio with a trained WaveNet: sample by sample, many segments at once, with cached activations.

In numpy, whose calls on small matrices take a third of torch's time. Weight norm is folded in, and conditioning is
upsampled on demand. The outputs are those of the network in training.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainmark.workloads.wavenet.layers import HALF
from trainmark.workloads.wavenet.model import HOP, MIN_LOG_SCALE, Layer, WaveNet, bias_of, window_frames

NEAREST = 1e-5
"""Distance of uniform draws from 0 and 1."""
CHUNK = 32
"""Samples whose conditioning is in memory at once."""

Floats = npt.NDArray[Any]


class Noise(NamedTuple):
    """Random numbers per sample and segment, by which mixtures are drawn from."""

    gumbel: Tensor
    """Decides on a component: (samples, segments, mixtures)."""
    logistic: Tensor
    """(samples, segments)"""


def draw_noise(samples: int, stretches: int, mixtures: int, generator: torch.Generator) -> Noise:
    def uniform(*shape: int) -> Tensor:
        """Away from 0 and 1, whose logarithms are not finite."""
        return torch.rand(shape, generator=generator) * (1 - 2 * NEAREST) + NEAREST

    return Noise(-(-uniform(samples, stretches, mixtures).log()).log(), uniform(samples, stretches).logit())


def draw(outputs: Floats, gumbel: Floats, logistic: Floats) -> Floats:
    """One sample per segment from mixtures of logistics (segments, 3 x mixtures)."""
    logits, means, log_scales = outputs.reshape(len(outputs), 3, -1).swapaxes(0, 1)
    chosen = np.arange(len(outputs)), (logits + gumbel).argmax(1)
    scales = np.exp(np.maximum(log_scales[chosen], MIN_LOG_SCALE))
    return np.asarray((means[chosen] + scales * logistic).clip(-1, 1), np.float32)


class _FoldedLayer:
    """A layer with the inputs it still needs, in a ring.

    A gate's opening is sigmoid(x) = (1 + tanh(x / 2)) / 2, so that one tanh computes both halves of the gates: the
    inner factor is folded into the weights before it (`scale`), the outer one into those after it.
    """

    def __init__(self, layer: Layer, stretches: int, scale: Tensor) -> None:
        self._dilation, self._step = layer.dilation, 0
        weight = layer.conv.weight * scale[:, None, None]
        self._taps = _to_numpy(weight.permute(2, 1, 0).flatten(0, 1))
        self.bias = bias_of(layer.conv) * scale
        out, skip = layer.conv1x1_out, layer.conv1x1_skip
        self._both = _to_numpy(0.5 * torch.cat([HALF * out.weight[:, :, 0], skip.weight[:, :, 0]]).t())
        self._both_bias = _to_numpy(torch.cat([HALF * bias_of(out), bias_of(skip)]))
        self._residual, self._half = weight.shape[1], len(scale) // 2
        self._inputs = np.zeros((2 * self._dilation, stretches, self._residual), np.float32)

    def step(self, x: Floats, gates: Floats) -> tuple[Floats, Floats]:
        """The next layer's input, and this one's part of the skip path."""
        oldest, older = self._step % len(self._inputs), (self._step + self._dilation) % len(self._inputs)
        gates += np.concatenate((self._inputs[oldest], self._inputs[older], x), 1) @ self._taps
        self._inputs[oldest] = x
        self._step += 1
        np.tanh(gates, out=gates)
        both = (gates[:, : self._half] * (gates[:, self._half :] + 1)) @ self._both + self._both_bias
        return np.float32(HALF) * x + both[:, : self._residual], both[:, self._residual :]


@torch.no_grad()
def generate(network: WaveNet, mel: Tensor, noise: Noise) -> Tensor:
    """Audio (segments, samples) for mels (segments, bands, frames), each with context frames on either side."""
    stretches, sizes = len(mel), network.sizes
    scale = torch.where(torch.arange(sizes.gate) < sizes.gate // 2, 1.0, 0.5)
    layers = [_FoldedLayer(layer, stretches, scale) for layer in network.layers]
    biases = torch.stack([layer.bias for layer in layers])[:, None]
    first, first_bias = _to_numpy(network.first_conv.weight[:, 0, 0]), _to_numpy(bias_of(network.first_conv))
    (inner, inner_bias), (outer, outer_bias) = (
        (_to_numpy(conv.weight[:, :, 0].t()), _to_numpy(bias_of(conv))) for conv in network.last_convs
    )
    inner *= math.sqrt(1 / sizes.layers)
    chances = zip(_to_numpy(noise.gumbel), _to_numpy(noise.logistic), strict=True)

    projected, kernels = network.project(mel)
    windows = window_frames(projected).view(stretches, sizes.layers, sizes.gate, len(kernels), -1)
    # by frame, what each layer's conditioning is spread from: (frames, window, layers x segments x gate)
    windows = (windows.permute(3, 4, 1, 0, 2) * scale).flatten(2)
    found = [np.zeros(stretches, np.float32)]  # the sample before the first is silent
    for begin in range(0, len(kernels) * HOP, CHUNK):
        frame, place = divmod(begin, HOP)
        spread = kernels[frame, :, place : place + CHUNK].t() @ windows[frame]
        for gates in _to_numpy(spread.view(-1, sizes.layers, stretches, sizes.gate) + biases):
            x, total = np.outer(found[-1], first) + first_bias, np.zeros_like(inner_bias)
            for layer, own in zip(layers, gates, strict=True):
                x, skip = layer.step(x, own)
                total = total + skip
            outputs = np.maximum(np.maximum(total, 0) @ inner + inner_bias, 0) @ outer + outer_bias
            found.append(draw(outputs, *next(chances)))
    return torch.from_numpy(np.stack(found[1:], 1))


def _to_numpy(tensor: Tensor) -> Floats:
    return np.ascontiguousarray(tensor.detach().numpy(), np.float32)
