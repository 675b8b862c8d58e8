"""Makes random numbers inside a step the same on every device, so that its results can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class NothingDrawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, random numbers are the same everywhere: a device has draws of its own, with which nothing could be
    compared. They come out so that dropout keeps everything."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in operation.tags:
            return operation(*args, **kwargs)
        name = operation.name().partition("::")[2].partition(".")[0]
        if name == "native_dropout":
            return args[0] / (1 - args[1]) if args[2] else args[0], torch.ones_like(args[0], dtype=torch.bool)
        result = operation(*args, **kwargs)
        if isinstance(result, Tensor) and (value := _drawn(name, args, kwargs)) is not None:
            result.fill_(value)
        return result


_EVERY_16_BITS_LARGE = 0x7FFF7FFF7FFF7FFF


def _drawn(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | int | None:
    """What a draw gives, by its name; None leaves it as it is."""
    if name in ("bernoulli", "bernoulli_"):
        return 1
    if name in ("rand", "rand_like"):
        return 0.9990234375
    if name == "uniform_":
        low, high = (*args[1:3], kwargs.get("to", 1.0))[:2] if len(args) > 1 else (0.0, kwargs.get("to", 1.0))
        return float(low + 0.9990234375 * (high - low))
    if name in ("randn", "randn_like", "normal_", "normal"):
        return 0.0
    if name == "random_":
        most = args[-1] if len(args) > 1 and args[-1] is not None else None
        kind = torch.iinfo(args[0].dtype).max if not args[0].is_floating_point() else 1
        return most - 1 if most is not None else _EVERY_16_BITS_LARGE if kind == 2**63 - 1 else kind
    return None
