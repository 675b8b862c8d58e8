"""Keeps the loss of every step without making the host wait for the device."""

from __future__ import annotations

from typing import Protocol

import torch

from trainmark.platforms.platform import Device

MOST_KEPT = 4096
"""Steps that may lie between a loss's noting and its reading."""


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
        self._slots[self._noted % MOST_KEPT].copy_(loss, non_blocking=True)
        self._noted += 1

    def take(self, count: int) -> list[float]:
        first, self._taken = self._taken, self._taken + count
        return [float(self._slots[step % MOST_KEPT]) for step in range(first, self._taken)]


def losses_on(device: Device) -> Losses:
    return HostLosses() if device.is_cpu else QueuedLosses(device.host_buffer(MOST_KEPT))
