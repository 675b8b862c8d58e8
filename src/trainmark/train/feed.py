"""Puts batches on the device while the step before is still computing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from trainmark.platforms.platform import Device


def on_device(batches: Iterable[Any], device: Device) -> Iterable[Any]:
    """The same batches with every tensor field on the device. The host is ahead of the device by a step or more, so a
    copy in a queue of its own is hidden behind the computation; what is not hidden counts as data wait."""
    return batches if device.is_cpu else _moved(batches, device)


def _moved(batches: Iterable[Any], device: Device) -> Iterator[Any]:
    for batch in batches:
        tensors = {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), torch.Tensor)}
        yield replace(batch, **{name: device.take(tensor) for name, tensor in tensors.items()})
