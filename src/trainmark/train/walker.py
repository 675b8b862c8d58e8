"""Shows every operator of a step to a visitor, below autograd and autocast, in the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from trainmark.record.precision import Precision, rounding

SIGNS = (1 << 16) + 1
"""Not a power of two, so that no row of a matrix has the same signs as the next."""
NEARLY_ONE = 0.9990234375
_ALL_16_BITS_LARGE = 0x7FFF7FFF7FFF7FFF


def fix_random() -> Walker:
    """Inside, random numbers are the same on every device; dropout keeps everything."""
    return Walker(_fix_random)


def _fix_random(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not is_random(operator):
        return operator(*args, **kwargs)
    name = read_name(operator)
    if name == "native_dropout":
        return args[0] / (1 - args[1]) if args[2] else args[0], torch.ones_like(args[0], dtype=torch.bool)
    result = operator(*args, **kwargs)
    if isinstance(result, Tensor) and (value := _fixed_value(name, args, kwargs)) is not None:
        result.fill_(value)
    return result


def _fixed_value(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | int | None:
    """The value of every random number, by operator; None leaves them as they are."""
    if name in ("bernoulli", "bernoulli_"):
        return 1
    if name in ("rand", "rand_like"):
        return NEARLY_ONE
    if name == "uniform_":
        low, high = (*args[1:3], kwargs.get("to", 1.0))[:2] if len(args) > 1 else (0.0, kwargs.get("to", 1.0))
        return float(low + NEARLY_ONE * (high - low))
    if name in ("randn", "randn_like", "normal_", "normal"):
        return 0.0
    if name == "random_":
        if len(args) > 1 and args[-1] is not None:
            return int(args[-1] - 1)
        largest = 1 if args[0].is_floating_point() else torch.iinfo(args[0].dtype).max
        return _ALL_16_BITS_LARGE if largest == 2**63 - 1 else largest
    return None


class Rounding:
    """Perturbs every result of a step by the rounding of a precision, up or down at random.

    Its walker is `Walker(rounding.visit)`; while `active` is false it changes nothing.
    """

    def __init__(self, precision: Precision) -> None:
        signs = torch.randint(0, 2, (SIGNS,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        self._factors = 1 + signs * rounding(precision)
        self._shaped: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}
        self.active = True

    def visit(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = operator(*args, **kwargs)
        if not self.active or not computes(operator, args):
            return result
        return self.round_(result) if isinstance(result, Tensor) else tree_map_only(Tensor, self.round_, result)

    def round_(self, tensor: Tensor) -> Tensor:
        # 8-bit types have no operators but matmuls
        if tensor.is_floating_point() and tensor.itemsize > 1 and tensor.layout == torch.strided and tensor.numel() > 1:
            kind = (tensor.shape, tensor.dtype, tensor.device)
            factors = self._shaped.get(kind)
            if factors is None:
                repeats = -(-tensor.numel() // SIGNS)
                all_factors = self._factors.to(tensor.device, tensor.dtype)
                factors = all_factors.repeat(repeats)[: tensor.numel()].view(tensor.shape)
                if repeats == 1:
                    self._shaped[kind] = factors
            tensor.mul_(factors)
        return tensor


Visit = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Receives an operator and its arguments, calls it, and returns the result that the step continues with."""

_UNINITIALIZED = ("empty", "new_empty", "resize_", "set_", "_reshape_alias")


class Walker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operator goes through `visit`; operators that the visitor calls do not."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._visit = visit

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented  # a DTensor calls operators on local tensors, which come here
        return self._visit(operator, args, kwargs or {})


def read_name(operator: Any) -> str:
    """`addmm` of `aten::addmm.out`."""
    return str(operator._schema.name).partition("::")[2]


@cache
def is_view(operator: Any) -> bool:
    """Its result shares memory with an argument."""
    aliases = [returned.alias_info for returned in operator._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def computes(operator: Any, args: tuple[Any, ...]) -> bool:
    """It computes numbers here: it is no view, no collective (which may still be under way), and no dry run of shapes,
    as DTensors make them."""
    shapes_only = any(hasattr(tensor, "fake_mode") for tensor in find_tensors(args))
    return not (shapes_only or "c10d" in operator.namespace or is_view(operator))


def is_random(operator: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


def is_uninitialized(operator: Any) -> bool:
    """Its result is uninitialized memory."""
    return read_name(operator).startswith(_UNINITIALIZED)


def find_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments or results, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from find_tensors(value)


def copy_arguments(values: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """Arguments with every tensor copied; one that is passed twice is copied once."""
    copies: dict[Any, Tensor] = {}

    def copy_once(tensor: Tensor) -> Tensor:
        key: Any = id(tensor)
        if tensor.layout == torch.strided:
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in copies:
            copies[key] = copy(tensor.detach())
        return copies[key]

    return tree_map_only(Tensor, copy_once, values)
