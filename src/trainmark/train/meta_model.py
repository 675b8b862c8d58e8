"""Builds the model of a plan on the meta device, for what must be known before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from trainmark import workloads
from trainmark.record.plan import Plan
from trainmark.record.recipe import Recipe, from_values
from trainmark.workloads.workload import Workload

RANDOM_INITIALIZERS = {"normal_", "uniform_", "trunc_normal_", "erfinv_"}
NORMS = {"norm"}
"""Replaced by a sum, which has the same shape."""


def build_model(plan: Plan) -> nn.Module:
    workload = workloads.of_plan(plan)
    return build_network(workload, from_values(type(workload.recipes["reference"]), plan.recipe))


def build_network(workload: Workload, recipe: Recipe) -> nn.Module:
    with torch.device("meta"), _OnlyShapes():
        return workload.build(recipe)


def count_weights(network: nn.Module) -> int:
    """The number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


class _OnlyShapes(TorchFunctionMode):
    """Skips random initialization and norms: on the meta device they do nothing but import the compiler of torch."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in RANDOM_INITIALIZERS:
            return args[0] if args else (kwargs or {})["tensor"]  # nn.init passes it by name
        if getattr(func, "__name__", "") in NORMS and len(args) == 1 and kwargs:
            return torch.sum(args[0], dim=kwargs.get("dim"), keepdim=bool(kwargs.get("keepdim")))
        return func(*args, **(kwargs or {}))
