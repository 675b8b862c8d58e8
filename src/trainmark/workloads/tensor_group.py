"""Tensor parallelism as a network sees it, and its single-device stand-in."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class TensorGroup(Protocol):
    """Devices that hold the same residual stream and a part of each block's weights.

    A network that supports it has `tensor_plan`, which maps suffixes of weight names to the sharded dimension, and
    `share_among(group)`. All other weights are replicated.
    """

    def spread(self, x: Tensor) -> Tensor:
        """Identity in the forward pass, all-reduce of the gradient in the backward pass."""

    def collect(self, x: Tensor) -> Tensor:
        """All-reduce in the forward pass, identity in the backward pass."""

    def rows(self, count: int) -> slice:
        """This device's share of the rows."""


@runtime_checkable
class ShardedInit(Protocol):
    """A network whose weights can be initialised one by one, so that no rank ever holds all of them."""

    def initialise(self, place: Any) -> None: ...


class Alone:
    """A single device."""

    def spread(self, x: Tensor) -> Tensor:
        return x

    def collect(self, x: Tensor) -> Tensor:
        return x

    def rows(self, count: int) -> slice:
        return slice(0, count)


def local_part(weight: Tensor) -> Tensor:
    """This device's part of a weight; inside a layer's forward its weights are local already."""
    to_local = getattr(weight, "to_local", None)
    found: Tensor = to_local() if to_local else weight
    return found
