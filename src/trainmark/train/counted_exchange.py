"""FSDP's all-gather and reduce-scatter, counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from trainmark.train.parallel import Exchange


class _Counted:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class CountedAllGather(_Counted, AllGather):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        with self._exchange(output_tensor, gathered=True):
            return distributed.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class CountedReduceScatter(_Counted, ReduceScatter):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        with self._exchange(input_tensor):
            return distributed.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
