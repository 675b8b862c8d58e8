"""Generates audio with a trained WaveNet: sample by sample, many segments at once, with cached activations.

Weight norm is folded in, and conditioning is upsampled on demand. A loop in C does it where it can be
compiled (`c_kernel`). In torch, what a layer hears of the past is known a whole dilation ahead, so it is multiplied in
blocks; only the newest sample is multiplied as it comes. The outputs are those of the network in training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trainmark.workloads.wavenet import c_kernel, logistics
from trainmark.workloads.wavenet.layers import HALF
from trainmark.workloads.wavenet.model import HOP, Layer, WaveNet, bias_of, window_frames

Way = Literal["c", "torch"]
"""The two generation loops."""


class UniformDraws(NamedTuple):
    """Uniform draws per sample and segment: (samples, segments, mixtures) and (samples, segments)."""

    which: Tensor
    where: Tensor


def draw_uniform(samples: int, stretches: int, mixtures: int, generator: torch.Generator) -> UniformDraws:
    return UniformDraws(
        which=logistics.uniform(samples, stretches, mixtures, generator=generator),
        where=logistics.uniform(samples, stretches, generator=generator),
    )


class _FoldedLayer:
    """A layer with its cache: the inputs of the current chunk, and those before within its receptive field."""

    def __init__(self, layer: Layer, chunk: int, stretches: int) -> None:
        self.dilation, self._chunk = layer.dilation, chunk
        oldest, older, newest = layer.conv.weight.unbind(2)
        self.oldest, self.older, self.newest = (taps.t().contiguous() for taps in (oldest, older, newest))
        self.bias = bias_of(layer.conv)
        self.residual = layer.conv1x1_out.weight.shape[0]
        # the residual path is scaled by sqrt(1/2), which is folded into its weights
        out = HALF * layer.conv1x1_out.weight[:, :, 0], HALF * bias_of(layer.conv1x1_out)
        skip = layer.conv1x1_skip.weight[:, :, 0], bias_of(layer.conv1x1_skip)
        self.both, self.both_bias = torch.cat([out[0], skip[0]]).t().contiguous(), torch.cat([out[1], skip[1]])
        memory = 2 * self.dilation + chunk
        self.inputs = oldest.new_zeros(memory, stretches, oldest.shape[1])

    def begin_chunk(self) -> None:
        past = 2 * self.dilation
        self.inputs[:past] = self.inputs[self._chunk :].clone()

    def add_past(self, gates: Tensor, at: int) -> None:
        """Adds the contribution of past samples to the gates of the next dilation of samples."""
        ahead = self.dilation
        for taps, first in ((self.oldest, at), (self.older, at + ahead)):
            gates[at : at + ahead].flatten(0, 1).addmm_(self.inputs[first : first + ahead].flatten(0, 1), taps)

    def step(self, x: Tensor, gates: Tensor, at: int) -> tuple[Tensor, Tensor]:
        if at % self.dilation == 0:
            self.add_past(gates, at)
        self.inputs[2 * self.dilation + at] = x
        z = gates[at].addmm_(x, self.newest)
        half = z.shape[1] // 2
        h = torch.tanh(z[:, :half]).mul_(torch.sigmoid(z[:, half:]))
        both = torch.addmm(self.both_bias, h, self.both)
        return torch.add(both[:, : self.residual], x, alpha=HALF), both[:, self.residual :]


class _FoldedNetwork:
    def __init__(self, network: WaveNet, mel: Tensor) -> None:
        stretches, sizes = len(mel), network.sizes
        projected, self._kernels = network.project(mel)
        windows = window_frames(projected).view(stretches, sizes.layers, sizes.gate, len(self._kernels), -1)
        # by frame, what each layer's conditioning is spread from: (frames, layers, window, stretches x gate)
        self._windows = windows.permute(3, 1, 4, 0, 2).flatten(3).contiguous()
        # dilations are powers of 2, as a frame's samples are: no block reaches into another chunk, nor chunk into frame
        self.chunk = max(layer.dilation for layer in network.layers)
        self._layers = [_FoldedLayer(layer, self.chunk, stretches) for layer in network.layers]
        self._biases = torch.stack([layer.bias for layer in self._layers])[:, None, None]
        self._gate, self._stretches = sizes.gate, stretches
        self._first, self._first_bias = network.first_conv.weight[:, 0, 0], bias_of(network.first_conv)
        inner, outer = network.last_convs
        self._inner = (math.sqrt(1 / sizes.layers) * inner.weight[:, :, 0]).t(), bias_of(inner)
        self._outer = outer.weight[:, :, 0].t(), bias_of(outer)

    def chunks(self) -> Iterator[Tensor]:
        """Conditioning chunk by chunk: (layers, samples, segments, gate)."""
        for frame in range(len(self._kernels)):
            for first in range(0, HOP, self.chunk):
                spread = self._kernels[frame, :, first : first + self.chunk].t() @ self._windows[frame]
                for layer in self._layers:
                    layer.begin_chunk()
                yield spread.view(len(self._layers), self.chunk, self._stretches, self._gate) + self._biases

    def step(self, sample: Tensor, gates: Tensor, at: int) -> Tensor:
        """The distribution (segments, 3 x mixtures) of the next sample."""
        x = torch.outer(sample, self._first).add_(self._first_bias)
        total: Tensor | None = None
        for layer, gate in zip(self._layers, gates, strict=True):
            x, skip = layer.step(x, gate, at)
            total = skip if total is None else total.add_(skip)
        assert total is not None  # noqa: S101 - there are layers
        hidden = torch.addmm(self._inner[1], total.relu_(), self._inner[0]).relu_()
        return torch.addmm(self._outer[1], hidden, self._outer[0])


def explain_no_c(network: WaveNet) -> str:
    """Why the C loop cannot be used for this network; empty if it can."""
    weight = next(network.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "it computes in float32 on the host"
    return c_kernel.build().reason


def choose_loop(network: WaveNet) -> Way:
    """The fastest loop available for this network."""
    return "torch" if explain_no_c(network) else "c"


@torch.no_grad()
def generate(network: WaveNet, mel: Tensor, draws: UniformDraws, way: Way) -> Tensor:
    """Audio (segments, samples) for mels (segments, bands, frames), each with context frames on either side."""
    return _generate_in_c(network, mel, draws) if way == "c" else _generate_in_torch(network, mel, draws)


def _generate_in_c(network: WaveNet, mel: Tensor, draws: UniformDraws) -> Tensor:
    projected, kernels = network.project(mel)
    by_layer = projected.view(len(mel), network.sizes.layers, network.sizes.gate, -1).permute(0, 3, 1, 2)
    return c_kernel.Kernel(network).generate(
        by_layer, kernels.transpose(1, 2), draws.which, draws.where, torch.get_num_threads()
    )


def _generate_in_torch(network: WaveNet, mel: Tensor, draws: UniformDraws) -> Tensor:
    folded = _FoldedNetwork(network, mel)
    sample = mel.new_zeros(len(mel))
    found: list[Tensor] = []
    for gates in folded.chunks():
        for at in range(folded.chunk):
            place = len(found)
            outputs = folded.step(sample, gates, at)
            sample = logistics.draw(outputs, draws.which[place], draws.where[place])
            found.append(sample)
    return torch.stack(found, 1)
