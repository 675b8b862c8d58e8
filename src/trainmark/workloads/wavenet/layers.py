"""The stack of WaveNet layers, with hand-written gradients.

The residual and the skip path are one state, to which each layer adds one matmul in place. Scaling the residual path in
every layer would be another pass over it: instead the weights of later layers are scaled, until the factor is a power
of two. Biases of the residual path are known beforehand and added where it is copied for padding. Frames are upsampled
directly into the gates' sums. On a CPU tanh is computed by sigmoid, which is faster there: tanh(x) / 2 is
sigmoid(2x) - 1/2, with both factors folded into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainmark.workloads.cpu_ops import is_on_cpu

HALF = math.sqrt(0.5)
"""Scale of the residual sum, which keeps its variance."""
HALVED_TOGETHER = 6
"""Layers after which the state is rescaled at once: by 8, which is exact."""


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
    loud = _signal_scale(x)
    louder = _scale_signals(loud, len(weights[0].conv), weights[0].conv)
    for number, (window, own) in enumerate(zip(windows, weights, strict=True)):
        quieter = HALF ** (number % HALVED_TOGETHER)
        if _halves(number):
            shift = shift * HALF**HALVED_TOGETHER
        adds = torch.cat([own.out * (loud / quieter), own.skip if loud == 1 else own.skip * loud])[:, :, 0]
        conv, conv_bias = own.conv * quieter, own.conv_bias
        if louder is not None:
            conv, conv_bias, window = conv * louder[:, None, None], conv_bias * louder, window * louder[:, None, None]
        flat += [tensor.to(x.dtype) for tensor in (window, shift, conv, conv_bias, adds)]
        shift = shift + own.out_bias / quieter
    flat.append(shift)  # unused, but ranks reduce gradients of all weights
    inner, edges = kernels.inner.to(x.dtype), kernels.edges.to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        total: Tensor = Layers.apply(state, inner, edges, kernels.at, dilations, *flat)  # type: ignore[no-untyped-call]
    return total


def _signal_scale(x: Tensor) -> float:
    """Scale of a gate's signal, by which its tanh is divided; 1 for narrow dtypes, for precision, and on accelerators,
    where extra launches cost more than tanh."""
    return 2.0 if is_on_cpu(x) and x.dtype in (torch.float32, torch.float64) else 1.0


def _scale_signals(factor: float, gates: int, like: Tensor) -> Tensor | None:
    """Per gate channel this factor for signals (the first half) and 1 for the others; None if all are 1."""
    if factor == 1:
        return None
    return torch.where(torch.arange(gates, device=like.device) < gates // 2, factor, 1.0).to(like.dtype)


def _halves(number: int) -> bool:
    return number > 0 and number % HALVED_TOGETHER == 0


class Layers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, state: Tensor, inner: Tensor, edges: Tensor, at: list[int], dilations: list[int], *flat: Tensor
    ) -> Tensor:
        state = state.clone()
        keep, kept, loud = any(ctx.needs_input_grad), list[Tensor](), _signal_scale(state)
        for number, dilation in enumerate(dilations):
            window, shift, conv, bias, adds = flat[5 * number : 5 * number + 5]
            goes_on = state[:, : len(shift)]
            if _halves(number):
                goes_on.mul_(HALF**HALVED_TOGETHER)
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
            if loud == 1:
                signal.tanh_(), opening.sigmoid_()
            else:
                sums.sigmoid_()
                signal.sub_(1 / loud)
            gated = signal * opening
            last = number + 1 == len(dilations)  # the last layer has no residual output
            added = slice(len(shift) if last else 0, None)
            state[:, added].baddbmm_(adds[added].expand(len(state), -1, -1), gated)
            if keep:
                kept += [padded, sums, gated, window, conv, adds]
        ctx.save_for_backward(inner, edges, *kept)
        ctx.at, ctx.dilations, ctx.loud = at, dilations, loud
        return state[:, len(shift) :]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inner, edges, *kept = ctx.saved_tensors
        batch, channels = len(gradient), kept[0].shape[1]
        state = torch.cat([gradient.new_zeros(batch, channels, gradient.shape[2]), gradient], 1)
        goes_on = state[:, :channels]
        to_inner, to_edges = torch.zeros_like(inner), torch.zeros_like(edges)
        flat = [torch.zeros_like(goes_on[0, :, 0])]
        softer = _scale_signals(ctx.loud**-2, kept[1].shape[1], gradient)
        for number, dilation in reversed(list(enumerate(ctx.dilations))):
            padded, sums, gated, window, conv, adds = kept[6 * number : 6 * number + 6]
            last = number + 1 == len(ctx.dilations)
            added = slice(channels if last else 0, None)
            to_gated = torch.bmm(adds[added].t().expand(batch, -1, -1), state[:, added])
            to_adds = torch.zeros_like(adds)
            for clip in range(batch):
                to_adds[added].addmm_(state[clip, added], gated[clip].t())
            to_sums = _gate_gradient(to_gated, sums, ctx.loud)
            soft_conv = conv if softer is None else conv * softer[:, None, None]
            to_padded, to_conv, to_bias = torch.ops.aten.convolution_backward(
                to_sums, padded, soft_conv, [len(conv)], [1], [0], [dilation], False, [0], 1, [True, True, True]
            )
            rows = to_sums.view(len(window), -1)
            to_window = torch.mm(rows, inner.t()).view(batch, len(conv), -1, len(inner))
            soft_window = window.view_as(to_window)
            if softer is not None:
                soft_window = soft_window * softer[:, None, None]
            to_inner.addmm_(soft_window.view_as(window).t(), rows)
            at_edges = to_sums.view(*to_window.shape[:3], -1)[:, :, ctx.at]
            to_edges += torch.einsum("bcfw,bcfp->fwp", soft_window[:, :, ctx.at], at_edges)
            to_window[:, :, ctx.at] += torch.einsum("bcfp,fwp->bcfw", at_edges, edges)
            if softer is not None:
                to_window.mul_(softer[:, None, None])
                to_conv.mul_(softer[:, None, None])
                to_bias.mul_(softer)
            heard = to_padded[:, :, -sums.shape[2] :]
            goes_on += heard
            if _halves(number):
                goes_on.mul_(HALF**HALVED_TOGETHER)
            flat = [to_window, heard.sum((0, 2)), to_conv, to_bias, to_adds, *flat]
        return state, to_inner, to_edges, None, None, *flat


def _gate_gradient(gated: Tensor, acted: Tensor, loud: float) -> Tensor:
    """The gradient of the gates' sums, from that of what they let through and from what signals and openings came to;
    those of the signals `loud` squared times too large, which is a pass less."""
    signal, opening = acted.chunk(2, 1)
    sums = torch.empty_like(acted)
    to_signal, to_opening = sums.chunk(2, 1)
    opened = gated * opening
    through = opened * signal
    torch.addcmul(opened, through, signal, value=-(loud**2), out=to_signal)
    torch.addcmul(through, through, opening, value=-1, out=to_opening)
    return sums
