"""Synchronized batch norm for the CPU, where torch has none: statistics are those of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

Exchange = Callable[[], AbstractContextManager[None]]
"""Makes a context around a wait for the other ranks, which the clock charges to communication."""


def convert_batch_norms(model: nn.Module, on_cpu: bool, exchange: Exchange) -> nn.Module:
    """The model with its batch norms synchronized over all ranks; its state keeps names and values.

    Accelerators use nn.SyncBatchNorm, which refuses CPU tensors. Ours waits for the other ranks inside `exchange`.
    """
    if not on_cpu:
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
    if isinstance(model, _BatchNorm):
        return GlobalBatchNorm.from_batch_norm(model, exchange)
    for name, child in model.named_children():
        setattr(model, name, convert_batch_norms(child, on_cpu, exchange))
    return model


class GlobalBatchNorm(_BatchNorm):
    """Trains as one batch norm on the concatenated batches of all ranks, which must all call it; evaluates as usual."""

    _exchange: Exchange

    @classmethod
    def from_batch_norm(cls, norm: _BatchNorm, exchange: Exchange) -> GlobalBatchNorm:
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        for name, tensor in (*norm.named_parameters(recurse=False), *norm.named_buffers(recurse=False)):
            setattr(made, name, tensor)
        made._exchange = exchange
        return made.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training:
            return super().forward(x)
        with torch.no_grad():  # the backward pass below differentiates through these
            mean, variance, count = _gather_statistics(x, self._exchange)
            self._track(mean, variance * (count / (count - 1)))
        return _normalise(x, self.weight, self.bias, mean, variance, count, self.eps, self._exchange)

    def _track(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        part = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, part)
        self.running_var.lerp_(unbiased_variance, part)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"a batch norm needs (samples, channels, ...), not a tensor of {x.dim()} dimensions")


class _Normalise(torch.autograd.Function):
    """Normalises with the statistics of all ranks, and differentiates through them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: int,
        eps: float,
        exchange: Exchange,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.count, ctx.eps, ctx.exchange = count, eps, exchange
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            of_y, x, weight, mean, variance, None, None, False, ctx.eps, (False, True, True)
        )
        # x takes the sums over all ranks; weight and bias keep those of this rank, as gradients of parameters are
        # averaged later with all the others
        sums = torch.stack((of_weight, of_bias))
        with ctx.exchange():
            distributed.all_reduce(sums)
        by_spread, by_mean = sums / ctx.count
        inverse = (variance + ctx.eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        of_x = torch.addcmul(
            _view_per_channel(-scale * by_mean, x),
            x - _view_per_channel(mean, x),
            _view_per_channel(-scale * inverse * by_spread, x),
        )
        of_x.addcmul_(of_y.to(of_x.dtype), _view_per_channel(scale, x))
        _, weight_wants, bias_wants, *_ = ctx.needs_input_grad
        return of_x.to(x.dtype), of_weight if weight_wants else None, of_bias if bias_wants else None, *[None] * 5


_normalise: Callable[..., Tensor] = _Normalise.apply


def _gather_statistics(x: Tensor, exchange: Exchange) -> tuple[Tensor, Tensor, int]:
    """Mean, biased variance and count of values per channel, over all ranks."""
    channels = x.shape[1]
    # the kernel of batch norm: torch.var_mean takes twenty times as long with channels last. The running statistics
    # are not wanted, but their type is the type of its result
    unwanted = torch.zeros(2, channels, dtype=torch.promote_types(x.dtype, torch.float32))
    mean, variance = torch.batch_norm_update_stats(x, unwanted[0], unwanted[1], momentum=0.0)
    count = torch.tensor([x.numel() // channels], dtype=torch.float64)  # float32 could not count exactly
    mine = torch.cat((mean, variance, count))
    all_ranks = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    with exchange():
        distributed.all_gather(all_ranks, mine)
    means, variances, counts = torch.split(torch.stack(all_ranks), [channels, channels, 1], dim=1)
    # variance within ranks plus variance between their means: all terms are positive, while a mean of squares minus a
    # squared mean would cancel the digits of a small variance
    shares = counts / counts.sum()
    together = (shares * means).sum(0)
    spread = (shares * (variances + (means - together).square())).sum(0)
    return together.to(mean.dtype), spread.to(mean.dtype), int(counts.sum())


def _view_per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 2))
