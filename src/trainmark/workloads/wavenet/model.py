"""The WaveNet vocoder: the distribution of each next sample, given the mel spectrogram and the samples so far.

Parameters have the names and shapes of the public layout (weight norm of the old kind), so its files can be loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.record.errors import UsageError
from trainmark.workloads.wavenet.layers import HALF, Kernels, LayerWeights, layers_total

HALF_BIN = 1 / 65535
"""Half the distance of neighbouring values, in audio from -1 to 1."""
MIN_LOG_SCALE = -16.0
EDGE = 0.999
"""Beyond it on either side a value stands for everything further out."""


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


def split(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, means and logarithms of the scales."""
    logits, means, log_scales = outputs.chunk(3, 1)
    return logits, means, log_scales


def _widen(x: Tensor) -> Tensor:
    """At least float32: bins are too narrow for less."""
    return x if x.dtype == torch.float64 else x.float()


CONTEXT = 2
"""Context frames on either side of a segment."""
SCALES = (4, 4, 4, 4)
HOP = math.prod(SCALES)
"""Samples per frame."""
REACH = 2
"""Frames on either side that upsampling spreads a frame over."""
SPEECH_LOUDER, SPEECH_LOG_SCALE = 10.0, -4.0
"""Initial values of a network for speech."""


@dataclass(frozen=True, kw_only=True)
class WaveNetSizes:
    layers: int = 24
    cycles: int = 4
    """Dilations double within a cycle and restart with the next."""
    residual: int = 128
    gate: int = 256
    skip: int = 128
    mixtures: int = 10
    bands: int = 80
    kernel: int = 3

    def __post_init__(self) -> None:
        if self.layers % self.cycles or 2 ** (self.layers // self.cycles - 1) > HOP:
            raise UsageError(
                f"layers={self.layers} in cycles={self.cycles}: every cycle has as many layers, and at most "
                f"{HOP.bit_length()}; try layers=24, cycles=4"
            )

    def dilation(self, layer: int) -> int:
        return int(2 ** (layer % (self.layers // self.cycles)))

    @property
    def receptive_field(self) -> int:
        """Receptive field in samples."""
        return 1 + (self.kernel - 1) * sum(self.dilation(layer) for layer in range(self.layers))


class NormedConv(nn.Module):
    """A convolution with weight norm, with the parameter names of older torch versions."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, *, bias: bool = True) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.empty(outputs, inputs, kernel))
        nn.init.kaiming_normal_(self.weight_v, nonlinearity="relu")
        self.weight_g = nn.Parameter(self.weight_v.detach().flatten(1).norm(dim=1).view(-1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    @property
    def weight(self) -> Tensor:
        return torch._weight_norm(self.weight_v, self.weight_g, 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight, self.bias)


class Layer(nn.Module):
    def __init__(self, sizes: WaveNetSizes, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv = NormedConv(sizes.residual, sizes.gate, sizes.kernel)
        self.conv1x1c = NormedConv(sizes.bands, sizes.gate, bias=False)
        self.conv1x1_out = NormedConv(sizes.gate // 2, sizes.residual)
        self.conv1x1_skip = NormedConv(sizes.gate // 2, sizes.skip)

    def forward(self, x: Tensor, conditioning: Tensor) -> tuple[Tensor, Tensor]:
        """What goes on to the next layer and what is added to the skip path, from `x` (batch, residual, samples) and
        the upsampled mel (batch, bands, samples)."""
        heard = F.pad(x, (self.dilation * (self.conv.weight_v.shape[2] - 1), 0))
        sums = F.conv1d(heard, self.conv.weight, self.conv.bias, dilation=self.dilation) + self.conv1x1c(conditioning)
        signal, opening = sums.chunk(2, 1)
        gated = torch.tanh(signal) * torch.sigmoid(opening)
        return (x + self.conv1x1_out(gated)) * HALF, self.conv1x1_skip(gated)

    @property
    def weights(self) -> LayerWeights:
        return LayerWeights(
            conv=self.conv.weight,
            conv_bias=bias_of(self.conv),
            out=self.conv1x1_out.weight,
            out_bias=bias_of(self.conv1x1_out),
            skip=self.conv1x1_skip.weight,
        )


class Smoothing(nn.Module):
    """Along time, by the same nine weights for every band."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.full((1, 1, 1, 9), 1 / 9))
        self.weight_g = nn.Parameter(torch.full((1, 1, 1, 1), 1 / 3))  # the norm of those nine

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, torch._weight_norm(self.weight_v, self.weight_g, 0)[:, 0], padding=4)


class Repeat(nn.Module):
    """Repeats every value."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.scale, -1)


class Upsampling(nn.Module):
    """Frames to samples: repeated and smoothed four times. The same for every band, so it can follow the matmuls over
    bands, which then have 256 times fewer columns."""

    def __init__(self) -> None:
        super().__init__()
        self.up_layers = nn.ModuleList(layer for scale in SCALES for layer in (Repeat(scale), Smoothing()))

    def forward(self, frames: Tensor) -> Tensor:
        """(bands, frames) to (bands, samples)."""
        x = frames[:, None]
        for layer in self.up_layers:
            x = layer(x)
        return x[:, 0]

    def kernels(self, frames: int) -> Kernels:
        """The kernel of `forward`, from its impulse responses."""
        weight = next(self.parameters())
        short = min(frames, 4 * REACH + 1)
        single = self(torch.eye(short, dtype=weight.dtype, device=weight.device)).view(short, short, HOP)
        padded = F.pad(single, (0, 0, 0, 0, REACH, REACH))  # by input frame, output frame and sample of it
        windows = torch.stack([padded[output : output + 2 * REACH + 1, output] for output in range(short)])
        inner = windows[short // 2]
        edges = [output for output in range(short) if min(output, short - 1 - output) < REACH]
        at = [edge if edge < short // 2 else frames - short + edge for edge in edges]
        return Kernels(inner=inner, edges=windows[edges] - inner, at=at)


class ConditioningNet(nn.Module):
    def __init__(self, sizes: WaveNetSizes) -> None:
        super().__init__()
        self.conv_in = nn.Conv1d(sizes.bands, sizes.bands, 2 * CONTEXT + 1, bias=False)
        self.upsample = Upsampling()


class WaveNet(nn.Module):
    @staticmethod
    def own_name(name: str) -> str:
        """Our name of a parameter in a file with torch's newer weight norm."""
        for public, own in (
            ("parametrizations.weight.original0", "weight_g"),
            ("parametrizations.weight.original1", "weight_v"),
        ):
            if name.endswith(public):
                return name.removesuffix(public) + own
        return name

    def __init__(self, sizes: WaveNetSizes, *, for_speech: bool = False, plain: bool = False) -> None:
        """Initialised as published, or for the loudness of speech. `plain` trains layer by layer, as published, by
        torch's operators and autograd; otherwise the layers are one operation with hand-written gradients."""
        super().__init__()
        self.sizes, self.plain = sizes, plain
        self.first_conv = NormedConv(1, sizes.residual)
        self.conv_layers = nn.ModuleList(Layer(sizes, sizes.dilation(layer)) for layer in range(sizes.layers))
        last = NormedConv(sizes.skip, sizes.skip), NormedConv(sizes.skip, 3 * sizes.mixtures)
        self.last_conv_layers = nn.ModuleList([nn.ReLU(), last[0], nn.ReLU(), last[1]])
        self.upsample_net = ConditioningNet(sizes)
        if for_speech:
            self._expect_speech()

    @torch.no_grad()
    def _expect_speech(self) -> None:
        """Speech has a standard deviation of a twentieth where the default initialisation expects 1: the input is
        amplified tenfold, and distributions start ten times nearer to 0, with scales of speech."""
        self.first_conv.weight_g.mul_(SPEECH_LOUDER)
        _, last = self.last_convs
        last.weight_g.div_(SPEECH_LOUDER)
        bias_of(last)[2 * self.sizes.mixtures :].fill_(SPEECH_LOG_SCALE)

    def forward(self, sound: Tensor, mel: Tensor) -> Tensor:
        """`sound` (batch, samples) and `mel` (batch, bands, frames) with the frames on either side of it give the
        distribution (batch, 3 x mixtures, samples) of each sample that follows one of `sound`."""
        weight = self.first_conv.weight_v
        mel, x = mel.to(weight.dtype), self.first_conv(sound[:, None].to(weight.dtype))
        if self.plain:
            return self.head(self._run_layers(x, mel))
        windows, kernels = self.conditioning(mel)
        # one by one: gradients of a stack's sum would share memory
        begin = reduce(torch.add, [bias_of(layer.conv1x1_skip) for layer in self.layers])
        weights = [layer.weights for layer in self.layers]
        return self.head(layers_total(x, begin, windows, kernels, weights, [layer.dilation for layer in self.layers]))

    def _run_layers(self, x: Tensor, mel: Tensor) -> Tensor:
        frames = self.upsample_net.conv_in(mel)
        conditioning = self.upsample_net.upsample(frames.flatten(0, 1)).view(*frames.shape[:2], -1)
        total = x.new_zeros(())
        for layer in self.layers:
            x, skip = layer(x, conditioning)
            total = total + skip
        return total + 0 * x.sum()  # what the last layer passes on is unused, but ranks reduce gradients of all weights

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer in self.conv_layers if isinstance(layer, Layer)]

    @property
    def last_convs(self) -> list[NormedConv]:
        """The two output convolutions."""
        return [layer for layer in self.last_conv_layers if isinstance(layer, NormedConv)]

    def head(self, total: Tensor) -> Tensor:
        x = total * math.sqrt(1 / self.sizes.layers)
        for layer in self.last_conv_layers:
            x = layer(x)
        return x

    def conditioning(self, mel: Tensor) -> tuple[list[Tensor], Kernels]:
        """Conditioning per layer: (batch, gate, frames, window)."""
        windows = window_frames(self._project(mel))
        return list(torch.split(windows, self.sizes.gate, 1)), self.upsample_net.upsample.kernels(windows.shape[2])

    def project(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Conditioning of all layers' gates, (batch, layers x gate, frames with REACH more on either side), and its
        upsampling kernel: (frames, window of frames, samples of a frame)."""
        kernels = self.upsample_net.upsample.kernels(mel.shape[2] - 2 * CONTEXT)
        spread = kernels.inner.repeat(mel.shape[2] - 2 * CONTEXT, 1, 1)
        spread[kernels.at] += kernels.edges
        return self._project(mel), spread

    def _project(self, mel: Tensor) -> Tensor:
        weights = torch.cat([layer.conv1x1c.weight for layer in self.layers])
        return F.pad(F.conv1d(self.upsample_net.conv_in(mel), weights), (REACH, REACH))


def window_frames(projected: Tensor) -> Tensor:
    """Windows of frames that reach each frame's samples: (batch, channels, frames, window)."""
    return projected.unfold(2, 2 * REACH + 1, 1)


def bias_of(conv: NormedConv) -> Tensor:
    assert conv.bias is not None  # noqa: S101 - only the conditioning has none
    return conv.bias
