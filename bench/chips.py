"""Chips that are not here, in one process: some compute a step honestly in another way, others get one thing wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from trainmark.platforms.standin_device import round_operands
from trainmark.train.loop import Job
from trainmark.train.walker import Walker

_aten = torch.ops.aten
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
Lot = random.Random


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One way to compute the steps of a job; `enter` gives None where the network has nothing to try it on."""

    name: str
    enter: Callable[[Job, Lot], AbstractContextManager[Any] | None]
    precisions: tuple[str, ...] = ("fp32",)
    """In which it is tried."""


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


# Honest ways: another order of sums, other kernels, more digits inside


@contextmanager
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    yield
    torch.set_num_threads(before)


def _other_layout(job: Job) -> AbstractContextManager[None] | None:
    weights = [weight for weight in job.stepper.bare_model.parameters() if weight.dim() == 4]
    return _laid_out(weights) if weights else None


@contextmanager
def _laid_out(weights: list[nn.Parameter]) -> Iterator[None]:
    """Weights of convolutions with channels last, or first where they were last."""
    before = [weight.data for weight in weights]
    for weight in weights:
        last = weight.data.is_contiguous(memory_format=torch.channels_last)
        other = torch.contiguous_format if last else torch.channels_last
        weight.data = weight.data.clone(memory_format=other)
    yield
    for weight, data in zip(weights, before, strict=True):
        weight.data = data


def _in_two_parts(job: Job) -> AbstractContextManager[None] | None:
    """Where no statistics of the batch are taken, its halves give the same gradients."""
    stepper = job.stepper
    per_batch = any(isinstance(module, NORMS[0]) for module in stepper.bare_model.modules())
    return None if per_batch or job.recipe.batch_per_device % 2 else _replaced(stepper, "_accumulate", 2)


def backwards() -> Walker:
    """Inside, the sums of matmuls are added up from their other end."""

    def visit(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1, _aten.baddbmm.default: 1}.get(operator)
        if at is not None:
            one, other = args[at].flip(-1), args[at + 1].flip(-2)
            args = (*args[:at], one, other, *args[at + 2 :])
        elif operator is _aten.convolution.default and args[8] == 1 and not args[6]:
            args = (args[0].flip(1), args[1].flip(1), *args[2:])
        return operator(*args, **kwargs)

    return Walker(visit)


def wide() -> Walker:
    """Inside, matmuls, norms and sums have more digits than requested, and round their result once."""

    def visit(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if operator not in _WIDENED or not all(one.dtype == torch.float32 for one in args if isinstance(one, Tensor)):
            return operator(*args, **kwargs)
        found = operator(*tree_map_only(Tensor, Tensor.double, args), **kwargs)
        return tree_map_only(Tensor, Tensor.float, found)

    return Walker(visit)


_WIDENED = {
    _aten.mm.default,
    _aten.bmm.default,
    _aten.addmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
    _aten.convolution_backward.default,
    _aten.native_layer_norm.default,
    _aten.native_layer_norm_backward.default,
    _aten._softmax.default,
    _aten._log_softmax.default,
    _aten.sum.dim_IntList,
    _aten.mean.dim,
}

PRECISIONS = ("amp-bf16", "bf16")
"""In which the plain chip is held against float32, and some others against the plain one."""
HONEST = (
    Chip(name="one thread more", enter=lambda job, lot: _threads()),
    Chip(
        name="no oneDNN",
        enter=lambda job, lot: _replaced(torch.backends.mkldnn, "enabled", False),
        precisions=("fp32", *PRECISIONS),
    ),
    Chip(name="other layout", enter=lambda job, lot: _other_layout(job)),
    Chip(name="batch in two parts", enter=lambda job, lot: _in_two_parts(job)),
    Chip(name="sums backwards", enter=lambda job, lot: backwards(), precisions=("fp32", *PRECISIONS)),
    Chip(name="float64 inside", enter=lambda job, lot: wide()),
)


# Dishonest ones


def _scaled_gradient(share: float) -> Callable[[Job, Lot], AbstractContextManager[Any] | None]:
    return lambda job, lot: _hooked(lot.choice(_weights(job)), lambda gradient: gradient * (1 + share))


def _scaled_output(share: float) -> Callable[[Job, Lot], AbstractContextManager[Any] | None]:
    def enter(job: Job, lot: Lot) -> AbstractContextManager[Any] | None:
        return _output_changed(_a_layer(job, lot, LAYERS), lambda layer, output: output * (1 + share))

    return enter


def _wrong_eps(times: float) -> Callable[[Job, Lot], AbstractContextManager[Any] | None]:
    def enter(job: Job, lot: Lot) -> AbstractContextManager[Any] | None:
        norm = _a_layer(job, lot, NORMS)
        return norm and _replaced(norm, "eps", norm.eps * times)

    return enter


def _no_bias(job: Job, lot: Lot) -> AbstractContextManager[Any] | None:
    def without(layer: nn.Module, output: Tensor) -> Tensor:
        bias: Any = layer.bias
        shaped: Tensor = bias if isinstance(layer, nn.Linear) else bias.view(-1, *[1] * (output.dim() - 2))
        return output - shaped

    return _output_changed(_a_layer(job, lot, LAYERS, lambda layer: layer.bias is not None), without)


def _narrow_inside(type_: str) -> Callable[[Job, Lot], AbstractContextManager[Any] | None]:
    return lambda job, lot: Walker(
        lambda operation, args, kwargs: operation(*round_operands(type_, operation, args), **kwargs)
    )


def _flipped(bit: int) -> Callable[[Job, Lot], AbstractContextManager[Any] | None]:
    """One bit of one number of one layer's gradient, in every step."""

    def enter(job: Job, lot: Lot) -> AbstractContextManager[Any]:
        weight = lot.choice(_weights(job))
        place = lot.randrange(weight.numel())

        def flip(gradient: Tensor) -> Tensor:
            wrong = gradient.clone().reshape(-1)
            wrong.view(torch.int32)[place] ^= 1 << bit
            return wrong.view(gradient.shape)

        return _hooked(weight, flip)

    return enter


DISHONEST = (
    *(Chip(name=f"a gradient {s:g} % off", enter=_scaled_gradient(s / 100)) for s in (0.01, 0.1, 1, 10)),
    *(Chip(name=f"a layer's results {s:g} % off", enter=_scaled_output(s / 100)) for s in (0.1, 1, 10)),
    *(Chip(name=f"eps of a norm {t:g} times", enter=_wrong_eps(t)) for t in (10, 100, 1000)),
    Chip(name="a bias left out", enter=_no_bias),
    *(Chip(name=f"products in {t}", enter=_narrow_inside(t)) for t in ("tf32", "float16", "bfloat16")),
    *(Chip(name=f"bit {b} of a gradient flipped", enter=_flipped(b)) for b in (20, 22, 25, 29)),
    *(
        Chip(name=f"a gradient {s:g} % off in amp-bf16", enter=_scaled_gradient(s / 100), precisions=("amp-bf16",))
        for s in (1, 10, 30)
    ),
)


def _weights(job: Job) -> list[nn.Parameter]:
    return [weight for weight in job.stepper.bare_model.parameters() if weight.requires_grad]


def _a_layer(
    job: Job, lot: Lot, kinds: tuple[type[nn.Module], ...], fits: Callable[[Any], bool] = lambda layer: True
) -> Any:
    there = [each for each in job.stepper.bare_model.modules() if isinstance(each, kinds) and fits(each)]
    return lot.choice(there) if there else None


@contextmanager
def _hooked(weight: nn.Parameter, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    hook = weight.register_hook(change)  # type: ignore[no-untyped-call]
    yield
    hook.remove()


def _output_changed(
    layer: nn.Module | None, change: Callable[[nn.Module, Tensor], Tensor]
) -> AbstractContextManager[Any] | None:
    if layer is None:
        return None
    stack = ExitStack()
    stack.callback(layer.register_forward_hook(lambda module, given, output: change(module, output)).remove)
    return stack
