"""Lets every result of a step be off by as much as a precision rounds, to see what rounding can do to a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from trainmark.spec.precision import Precision, rounding

LOTS = (1 << 16) + 1
"""Not a power of two, so that no row of a matrix has the same lots as the next."""


class Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, while `active`, every result is off by as much as a precision can round it, up or down by lot."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        signs = torch.randint(0, 2, (LOTS,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        self._factors = 1 + signs * rounding(precision)
        self._shaped: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}
        self.active = True
        self._views: dict[Any, bool] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        if not self.active:
            return result
        if (view := self._views.get(operation)) is None:
            aliases = [returned.alias_info for returned in operation._schema.returns]
            view = any(alias is not None and not alias.is_write for alias in aliases)
            view = self._views[operation] = view or operation.namespace == "c10d"
        if view:  # which has no numbers of its own, or an exchange, which may be under way
            return result
        return self.round_(result) if isinstance(result, Tensor) else tree_map_only(Tensor, self.round_, result)

    def round_(self, tensor: Tensor) -> Tensor:
        # no operator is there for numbers of eight bits but the products they are made for
        if tensor.is_floating_point() and tensor.itemsize > 1 and tensor.layout == torch.strided and tensor.numel() > 1:
            kind = (tensor.shape, tensor.dtype, tensor.device)
            factors = self._shaped.get(kind)
            if factors is None:
                repeats = -(-tensor.numel() // LOTS)
                lots = self._factors.to(tensor.device, tensor.dtype)
                factors = lots.repeat(repeats)[: tensor.numel()].view(tensor.shape)
                if repeats == 1:
                    self._shaped[kind] = factors
            tensor.mul_(factors)
        return tensor
