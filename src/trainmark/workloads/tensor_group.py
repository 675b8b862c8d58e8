"""What a network asks of the devices that compute each of its blocks together, and of one that has it alone."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class TensorGroup(Protocol):
    """Devices that hold the same stream and a part of each block's weights.

    A network that can be shared so has `tensor_plan`, which names weights by the end of their names with the dimension
    in which each is cut, and `share_among`, which is told the group. All other weights are whole everywhere.
    """

    def spread(self, x: Tensor) -> Tensor:
        """What all hold, on its way to where each computes something else with it: its gradients are added up."""

    def collect(self, x: Tensor) -> Tensor:
        """The sum of what each computed, which all hold; its gradient is that of each."""

    def rows(self, count: int) -> slice:
        """Which of so many rows are this device's, where each takes some of them."""


@runtime_checkable
class DrawnInParts(Protocol):
    """A network whose weights can be drawn part by part, so that no rank ever holds all of them."""

    def initialise(self, place: Any) -> None: ...


class Alone:
    """One device, which has nothing to share."""

    def spread(self, x: Tensor) -> Tensor:
        return x

    def collect(self, x: Tensor) -> Tensor:
        return x

    def rows(self, count: int) -> slice:
        return slice(0, count)


def own(weight: Tensor) -> Tensor:
    """What of a weight this device computes with; inside a layer's own forward its weights are that already."""
    to_local = getattr(weight, "to_local", None)
    found: Tensor = to_local() if to_local else weight
    return found
