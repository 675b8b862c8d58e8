"""The stack of WaveNet layers, with hand-written gradients.

The residual and the skip path are one state, to which each layer adds one matmul in place. Biases of the residual path
are known beforehand and added where it is copied for padding. Frames are upsampled directly into the gates' sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = math.sqrt(0.5)
"""Scale of the residual sum, which keeps its variance."""


class Kernels(NamedTuple):
    """Upsampling kernel: (window of frames, samples of a frame)."""

    inner: Tensor
    edges: Tensor
    """Corrections at the first and last frames of a segment, which are zero-padded."""
    at: list[int]
    """Those frames."""


class LayerWeights(NamedTuple):
    conv: Tensor
    conv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    skip: Tensor


def layers_total(
    x: Tensor,
    begin: Tensor,
    windows: Sequence[Tensor],
    kernels: Kernels,
    weights: Sequence[LayerWeights],
    dilations: list[int],
) -> Tensor:
    """From the first convolution's outputs (batch, channels, samples) the sum of what the layers add to `begin`, one
    value a channel. `windows` are the frames each layer's gates hear, (batch, gates, frames, window)."""
    state = torch.cat([x, begin.to(x)[:, None].expand(len(x), -1, x.shape[2])], 1)
    shift = torch.zeros_like(x[0, :, 0])  # what biases have added to the part that goes on
    flat: list[Tensor] = []
    for window, own in zip(windows, weights, strict=True):
        adds = torch.cat([own.out * HALF, own.skip])[:, :, 0]
        flat += [tensor.to(x.dtype) for tensor in (window, shift, own.conv, own.conv_bias, adds)]
        shift = (shift + own.out_bias) * HALF
    flat.append(shift)  # unused, but ranks reduce gradients of all weights
    inner, edges = kernels.inner.to(x.dtype), kernels.edges.to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        total: Tensor = Layers.apply(state, inner, edges, kernels.at, dilations, *flat)  # type: ignore[no-untyped-call]
    return total


class Layers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, state: Tensor, inner: Tensor, edges: Tensor, at: list[int], dilations: list[int], *flat: Tensor
    ) -> Tensor:
        state = state.clone()
        keep, kept = any(ctx.needs_input_grad), list[Tensor]()
        for number, dilation in enumerate(dilations):
            window, shift, conv, bias, adds = flat[5 * number : 5 * number + 5]
            goes_on = state[:, : len(shift)]
            padding = dilation * (conv.shape[2] - 1)
            padded = state.new_empty(*goes_on.shape[:2], padding + state.shape[2])
            padded[:, :, :padding].zero_()
            torch.add(goes_on, shift[:, None], out=padded[:, :, padding:])
            sums = F.conv1d(padded, conv, bias, dilation=dilation)
            frames = sums.view(*window.shape[:3], -1)
            window = window.reshape(-1, window.shape[3])
            sums.view(len(window), -1).addmm_(window, inner)
            frames[:, :, at] += torch.einsum("bcfw,fwp->bcfp", window.view(*frames.shape[:3], -1)[:, :, at], edges)
            signal, opening = sums.chunk(2, 1)
            gated = signal.tanh_() * opening.sigmoid_()
            last = number + 1 == len(dilations)  # the last layer has no residual output
            added = slice(len(shift) if last else 0, None)
            if not last:
                goes_on.mul_(HALF)
            state[:, added].baddbmm_(adds[added].expand(len(state), -1, -1), gated)
            if keep:
                kept += [padded, sums, gated, window, conv, adds]
        ctx.save_for_backward(inner, edges, *kept)
        ctx.at, ctx.dilations = at, dilations
        return state[:, len(shift) :]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inner, edges, *kept = ctx.saved_tensors
        batch, channels = len(gradient), kept[0].shape[1]
        state = torch.cat([gradient.new_zeros(batch, channels, gradient.shape[2]), gradient], 1)
        goes_on = state[:, :channels]
        to_inner, to_edges = torch.zeros_like(inner), torch.zeros_like(edges)
        flat = [torch.zeros_like(goes_on[0, :, 0])]
        for number, dilation in reversed(list(enumerate(ctx.dilations))):
            padded, sums, gated, window, conv, adds = kept[6 * number : 6 * number + 6]
            last = number + 1 == len(ctx.dilations)
            added = slice(channels if last else 0, None)
            to_gated = torch.bmm(adds[added].t().expand(batch, -1, -1), state[:, added])
            to_adds = torch.zeros_like(adds)
            for clip in range(batch):
                to_adds[added].addmm_(state[clip, added], gated[clip].t())
            to_sums = _gate_gradient(to_gated, sums)
            to_padded, to_conv, to_bias = torch.ops.aten.convolution_backward(
                to_sums, padded, conv, [len(conv)], [1], [0], [dilation], False, [0], 1, [True, True, True]
            )
            rows = to_sums.view(len(window), -1)
            to_window = torch.mm(rows, inner.t()).view(batch, len(conv), -1, len(inner))
            to_inner.addmm_(window.t(), rows)
            at_edges = to_sums.view(*to_window.shape[:3], -1)[:, :, ctx.at]
            to_edges += torch.einsum("bcfw,bcfp->fwp", window.view_as(to_window)[:, :, ctx.at], at_edges)
            to_window[:, :, ctx.at] += torch.einsum("bcfp,fwp->bcfw", at_edges, edges)
            heard = to_padded[:, :, -sums.shape[2] :]
            goes_on.mul_(HALF).add_(heard)
            flat = [to_window, heard.sum((0, 2)), to_conv, to_bias, to_adds, *flat]
        return state, to_inner, to_edges, None, None, *flat


def _gate_gradient(gated: Tensor, acted: Tensor) -> Tensor:
    """The gradient of the gates' sums, from that of what they let through and from what signals and openings came
    to."""
    signal, opening = acted.chunk(2, 1)
    sums = torch.empty_like(acted)
    to_signal, to_opening = sums.chunk(2, 1)
    opened = gated * opening
    through = opened * signal
    torch.addcmul(opened, through, signal, value=-1, out=to_signal)
    torch.addcmul(through, through, opening, value=-1, out=to_opening)
    return sums
