"""Averages the gradients of all ranks while backward still computes, and says when nothing else is left to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from trainmark.platforms.platform import Device


def exchanging_gradients(model: nn.Module, device: Device, last_are_ready: Callable[[], None]) -> nn.Module:
    """Exchanges each bucket of gradients as soon as it is full; calls `last_are_ready` before the last one goes out.

    Buckets go out in a fixed order, so the last one goes when all gradients are computed: the time from there to the
    end of backward is what computing did not hide.
    """

    def announced(bucket: Any) -> Any:
        if bucket.is_last():
            last_are_ready()
        return bucket

    indices = None if device.torch.type == "cpu" else [device.torch.index]
    parallel = DistributedDataParallel(model, device_ids=indices, gradient_as_bucket_view=True)
    # a lambda: torch compares a hook's annotations with types, and ours are strings
    parallel.register_comm_hook(distributed.group.WORLD, lambda group, bucket: allreduce_hook(group, announced(bucket)))
    return parallel
