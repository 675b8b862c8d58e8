"""Transfers between host and device while steps run: batches in, losses out, without a sync."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from trainmark.platforms.platform import Device

MAX_PENDING_LOSSES = 4096
"""Steps between the noting of a loss and its reading, at most."""


def move_batches(batches: Iterable[Any], device: Device) -> Iterable[Any]:
    """The same batches with every tensor on the device. The host is ahead by a step or more, so a copy on its own
    stream overlaps with computation; what does not overlap counts as data wait."""
    return batches if device.is_cpu else (map_tensors(batch, device.to_device) for batch in batches)


def map_tensors(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch, or a part of one, with all its tensors replaced, however nested."""
    if isinstance(value, torch.Tensor):
        return move(value)
    if is_dataclass(value) and not isinstance(value, type):
        before = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        after = {name: map_tensors(part, move) for name, part in before.items()}
        changes = {name: part for name, part in after.items() if part is not before[name]}
        return replace(value, **changes) if changes else value
    if isinstance(value, dict):
        return {name: map_tensors(part, move) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(part, move) for part in value))
    # a tuple may hold the lengths of many samples, and visiting each would cost every step
    if isinstance(value, (tuple, list)) and value and not isinstance(value[0], (int, float, str)):
        return type(value)(map_tensors(part, move) for part in value)
    return value


class Losses:
    """A ring in host memory: the device writes each loss there when it gets to it."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._slots = list(buffer.unbind(0))
        self._noted = self._taken = 0

    def note(self, loss: torch.Tensor) -> None:
        self._slots[self._noted % MAX_PENDING_LOSSES].copy_(loss, non_blocking=True)
        self._noted += 1

    def take(self, count: int) -> list[float]:
        """The oldest losses not yet taken, of finished steps."""
        first, self._taken = self._taken, self._taken + count
        return [float(self._slots[step % MAX_PENDING_LOSSES]) for step in range(first, self._taken)]


def make_losses(device: Device) -> Losses:
    return Losses(device.host_buffer(MAX_PENDING_LOSSES))
