"""Cross entropy over a large vocabulary without ever holding the scores of all tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def nll_sum(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The sum over tokens of -ln p of what follows each, in float32.

    The gradients are computed with the scores, chunk by chunk, and wait for backward: what stays in memory is as large
    as the hidden states and the head, not as tokens x vocabulary, and no product is made twice.
    """
    found: Tensor = _ChunkedNll.apply(hidden, weight, targets, chunk)  # type: ignore[no-untyped-call]
    return found


class _ChunkedNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        # a change of the vocabulary's weights to another type is made once, not for each chunk
        head = weight.detach().to(dtype)
        wants_hidden, wants_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        total = hidden.new_zeros((), dtype=torch.float32)
        with torch.autocast(kind, enabled=False):
            for start in range(0, len(targets), chunk):
                rows = slice(start, start + chunk)
                read, wanted = hidden[rows].to(dtype), targets[rows]
                scores = (read @ head.t()).float()
                scores -= scores.amax(dim=-1, keepdim=True)
                right = scores.gather(1, wanted[:, None])
                sums = scores.exp_().sum(dim=-1, keepdim=True)
                total += (sums.log() - right).sum()
                if of_hidden is None and of_weight is None:
                    continue
                # of the sum, not of the mean: what is tiny in half precision is divided later, in what backward gives
                scores /= sums
                scores.scatter_add_(1, wanted[:, None], torch.full_like(right, -1.0))
                errors = scores.to(dtype)
                if of_hidden is not None:
                    of_hidden[rows] = errors @ head
                if of_weight is not None:
                    if of_weight.dtype == dtype:
                        of_weight.addmm_(errors.t(), read)
                    else:
                        of_weight += errors.t() @ read
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        of_hidden, of_weight = ctx.saved_tensors
        share = grads[0]
        return (
            None if of_hidden is None else of_hidden.mul_(share.to(of_hidden.dtype)),
            None if of_weight is None else of_weight.mul_(share).to(ctx.weight_dtype),
            None,
            None,
        )
