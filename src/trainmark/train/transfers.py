"""What crosses between host and device while steps run: batches go in, losses come out, and neither waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch

from trainmark.platforms.platform import Device

MAX_PENDING_LOSSES = 4096
"""Steps that may lie between a loss's noting and its reading."""


def move_batches(batches: Iterable[Any], device: Device) -> Iterable[Any]:
    """The same batches with every tensor on the device. The host is ahead of the device by a step or more, so a copy
    in a queue of its own is hidden behind the computation; what is not hidden counts as data wait."""
    return batches if device.is_cpu else (move_to_device(batch, device) for batch in batches)


class TensorTarget(Protocol):
    """All that is asked of a device here."""

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor: ...


def move_to_device(value: Any, device: TensorTarget) -> Any:
    """A batch, or a part of one: its tensors are moved wherever they stand, and all else is handed on as it is."""
    if isinstance(value, torch.Tensor):
        return device.to_device(value)
    if is_dataclass(value) and not isinstance(value, type):
        before = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        after = {name: move_to_device(part, device) for name, part in before.items()}
        changes = {name: part for name, part in after.items() if part is not before[name]}
        return replace(value, **changes) if changes else value
    if isinstance(value, dict):
        return {name: move_to_device(part, device) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move_to_device(part, device) for part in value))
    # the lengths of many samples are a tuple too, and looking at each would cost every step
    if isinstance(value, (tuple, list)) and value and not isinstance(value[0], (int, float, str)):
        return type(value)(move_to_device(part, device) for part in value)
    return value


class Losses(Protocol):
    def note(self, loss: torch.Tensor) -> None: ...

    def take(self, count: int) -> list[float]:
        """The oldest losses not yet taken, of steps the device has finished."""


class HostLosses:
    """For devices whose work is done when the call returns: the value is there already."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def note(self, loss: torch.Tensor) -> None:
        self._values.append(loss.item())

    def take(self, count: int) -> list[float]:
        taken, self._values = self._values[:count], self._values[count:]
        return taken


class QueuedLosses:
    """For devices with a queue: the device writes each loss to host memory when it gets there."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._slots = list(buffer.unbind(0))
        self._noted = self._taken = 0

    def note(self, loss: torch.Tensor) -> None:
        self._slots[self._noted % MAX_PENDING_LOSSES].copy_(loss, non_blocking=True)
        self._noted += 1

    def take(self, count: int) -> list[float]:
        first, self._taken = self._taken, self._taken + count
        return [float(self._slots[step % MAX_PENDING_LOSSES]) for step in range(first, self._taken)]


def make_losses(device: Device) -> Losses:
    return HostLosses() if device.is_cpu else QueuedLosses(device.host_buffer(MAX_PENDING_LOSSES))
