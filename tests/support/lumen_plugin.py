"""Teaches torch a device that does not exist, `lumen`, as a vendor's plugin does; its arithmetic is the CPU's.

Tests install it beside themselves: torch imports it by its entry point. Tensors of the device have no memory of their
own; what they hold lies in `HELD`, by their storage, and is never given back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

HELD: dict[int, tuple[Tensor, Any]] = {}
"""By the storage's place: what it stands for, and the storage, so that no other takes its place."""


class Module(backend_registration._DummyBackendModule):  # type: ignore[misc]
    """What becomes `torch.lumen`."""

    def device_count(self) -> int:
        return 2

    def get_device_name(self, index: int = 0) -> str:
        return "Lumen L9"

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class LumenTensor(Tensor):
    pass


def on_device(held: Tensor) -> Tensor:
    made: Tensor = torch._C._acc.create_empty_tensor(held.shape, held.dtype)  # type: ignore[attr-defined]
    made.__class__ = LumenTensor
    storage = made.untyped_storage()
    HELD[storage._cdata] = (held, storage)
    return made


def on_host(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.device.type == "lumen":
        return HELD[leaf.untyped_storage()._cdata][0]
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Every operator, by the CPU's."""
    if operation is torch.ops.aten._copy_from.default:
        on_host(args[1]).copy_(on_host(args[0]))
        return args[1]
    known = {id(on_host(leaf)): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    result = operation(*tree_map(on_host, args), **tree_map(on_host, kwargs))
    made = {id(leaf): on_device(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
    return tree_map(lambda leaf: {**made, **known}[id(leaf)] if isinstance(leaf, Tensor) else leaf, result)


def load() -> None:
    """Called by torch when it is imported."""


backend_registration._setup_privateuseone_for_python_backend("lumen", backend_module=Module())
torch.accelerator.synchronize = lambda device=None: None  # it cannot be taught from Python
EVERY, ATEN = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
EVERY.fallback(compute, dispatch_key="PrivateUse1")
EVERY.fallback(torch.library.fallthrough_kernel, dispatch_key="AutocastPrivateUse1")
ATEN.impl("convolution_overrideable", lambda *args: compute(torch.ops.aten.convolution.default, *args), "PrivateUse1")
ATEN.impl(
    "convolution_backward_overrideable",
    lambda *args: compute(torch.ops.aten.convolution_backward.default, *args[:3], [args[2].shape[0]], *args[3:]),
    "PrivateUse1",
)
