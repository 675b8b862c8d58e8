"""The average of a network's weights over the steps of its training, by which it is judged if its recipe says so.

Its decay is small at first, min(decay, (1 + t) / (10 + t)) after t steps, so that a short run is not judged by the
weights it began with: an average of 0.9999 alone would still hold half of them after 6,931 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class WeightAverage:
    """Float32 copies of what the optimizer updates, which follow it step by step."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], decay: float) -> None:
        self._names = [name for name, _ in named]
        self._weights = [weight.detach() for _, weight in named]
        self._averages = [weight.clone() for weight in self._weights]
        self._decay, self._steps = decay, 0

    @torch.no_grad()
    def follow(self) -> None:
        """After a step."""
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(self._averages, self._weights, 1 - decay)
        self._steps += 1

    @contextmanager
    def put_into(self, model: torch.nn.Module) -> Iterator[None]:
        """Meanwhile the model computes with the averages; afterwards it has its own weights again, to the last bit."""
        parameters = dict(model.named_parameters())
        held: list[Tensor] = [parameters[name] for name in self._names]
        own = [weight.detach().clone() for weight in held]
        try:
            with torch.no_grad():
                torch._foreach_copy_(held, self._averages)
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(held, own)

    def state(self) -> dict[str, Any]:
        """The averages by the names of the weights, as those who read weights look for them, and how many steps."""
        return {"average": dict(zip(self._names, self._averages, strict=True)), "averaged_steps": self._steps}

    def load_state(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, average in zip(self._names, self._averages, strict=True):
                average.copy_(state["average"][name])
        self._steps = state["averaged_steps"]
