"""Records the types of the matmuls of a run's first step: as requested, and as the device computes them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from trainmark.platforms.matmul_probe import SIZES, find_computed_types, read_size
from trainmark.record.events import EventWriter, PrecisionSeen
from trainmark.record.precision import name_precision, scaled_share, significand_bits
from trainmark.train.stepper import Stepper
from trainmark.train.walker import Walker, find_tensors, read_name

_MATMUL = re.compile(r"(^|_)((b?add)?b?(mm|mv)|matmul|linear|v?dot|attention|rnn|lstm|gru)(_|$)")
_CONVOLUTION = re.compile(r"(^|_)conv(olution)?(\dd)?(_|$)")
_NO_MATMUL = re.compile(r"reorder|flatten|pack|thnn_fused")
"""Layout changes of weights, and the pointwise part of a recurrence."""


class Proof:
    """The arithmetic of a run: types requested in its first step, types computed in known matmuls.

    Types of operands show what was requested. Only results show what the device computes inside, so a few matmuls whose
    result depends on the type run before the first step, with the settings of the run.

    Only rank 0 records: all ranks have the same plan and the same torch, which is checked before they start.
    """

    def __init__(self, stepper: Stepper, events: EventWriter) -> None:
        self._stepper = stepper
        self._events = events
        self._seen: PrecisionSeen | None = None
        self._inside = find_computed_types(stepper.device, stepper.precision)
        self._largest: dict[str, Sequence[int]] = {}
        emulated = stepper.device.widens(stepper.precision)
        self._emulated: torch.dtype | None = getattr(torch, stepper.precision.unscaled) if emulated else None
        self._computed: dict[str, Counter[str]] = {"matmul": Counter(), "convolution": Counter()}
        self._multiplications: dict[str, Counter[str]] = {"matmul": Counter(), "convolution": Counter()}
        self._autocast: str | None = None
        self._updates = 0
        self._found_bad: Tensor | None = None
        """On the device: how many updates found a gradient that is not finite, and were skipped."""
        if stepper.scaler.is_enabled():
            stepper.optimizer.register_step_post_hook(self._count_update)
        stepper.watch = self._watch_step()

    def count_flops(self) -> int:
        """Those of the first step's matmuls: a multiplication and an addition each."""
        return 2 * sum(sum(counts.values()) for counts in self._multiplications.values())

    def conclude(self, steps: int) -> None:
        """Writes it again after the last step, when a sync costs no step anything."""
        if self._seen is None or not self._stepper.scaler.is_enabled():
            return
        bad = 0 if self._found_bad is None else round(float(self._found_bad))
        scale = float(self._stepper.scaler.get_scale())
        self._seen = replace(self._seen, loss_scale=scale, skipped_steps=steps - self._updates + bad)
        self._events.write(self._seen)

    def probe_again(self) -> None:
        """Probes the device once more, also with the largest matmuls of the first step; the narrowest type counts."""
        seen, stepper = self._seen, self._stepper
        if seen is None:
            return
        inside = {kind: dict(types) for kind, types in self._inside.items()}
        for sizes in (SIZES, self._largest):
            for kind, types in find_computed_types(stepper.device, stepper.precision, sizes).items():
                for factors, found in types.items():
                    inside[kind][factors] = min(found, inside[kind].get(factors, found), key=significand_bits)
        if inside != self._inside:
            ran = name_precision(self._multiplications, seen.weights, seen.tf32, seen.autocast, inside)
            self._events.write(replace(seen, ran=ran, inside=inside))

    def _count_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # most optimizers are not called for a step that is skipped; fused ones are, and decide on the device
        self._updates += 1
        found = getattr(optimizer, "found_inf", None)
        if found is not None:
            self._found_bad = found.clone() if self._found_bad is None else self._found_bad.add_(found)

    @contextmanager
    def _watch_step(self) -> Iterator[None]:
        scaler = self._stepper.scaler
        # before the first step, reading the scale needs no sync
        scale = float(scaler.get_scale()) if scaler.is_enabled() else None
        hook = self._stepper.bare_model.register_forward_pre_hook(self._note_autocast)
        try:
            with Walker(self._visit):
                yield
        finally:
            hook.remove()
            self._stepper.watch = None
        self._seen = self._describe(scale)
        self._events.write(self._seen)

    def _visit(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = operator(*args, **kwargs)
        name = read_name(operator)
        if (kind := classify_operator(name)) is not None:
            tensors = list(_find_floating(args[1:] if _is_add(name) else args))
            if len(tensors) > 1:
                used = _name(self._type(tensors))
                self._computed[kind][used] += 1
                gradients = sum(args[-1][:2]) if name == "convolution_backward" else 2
                self._multiplications[kind][used] += count_multiplications(name, kind, tensors, result, gradients)
                size = read_size(name, *tensors[:2])
                if size and math.prod(size) > math.prod(self._largest.get(kind, ())):
                    self._largest[kind] = size
        return result

    def _type(self, tensors: list[Tensor]) -> torch.dtype:
        """The type of a matmul: that of its operands, or the narrower one that emulation rounded them to."""
        factors, emulated = tensors[:2], self._emulated
        narrowest = min((factor.dtype for factor in factors), key=lambda dtype: dtype.itemsize)
        if emulated is None or narrowest.itemsize < emulated.itemsize:
            return narrowest
        return emulated if all(_holds_only(factor, emulated) for factor in factors) else narrowest

    def _note_autocast(self, model: Any, inputs: Any) -> None:
        kind = self._stepper.device.torch.type
        self._autocast = _name(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None

    def _describe(self, scale: float | None) -> PrecisionSeen:
        weights: Counter[str] = Counter()
        for parameter in self._stepper.bare_model.parameters():
            weights[_name(self._stepper.parallel.type_of(parameter))] += parameter.numel()
        tf32 = {
            "matmul": torch.get_float32_matmul_precision() != "highest",
            "convolution": bool(torch.backends.cudnn.allow_tf32),
        }
        precision = self._stepper.precision
        return PrecisionSeen(
            asked=precision.name,
            ran=name_precision(self._multiplications, weights, tf32, self._autocast, self._inside),
            computed=self._computed,
            multiplications=self._multiplications,
            inside=self._inside,
            weights=weights,
            tf32=tf32,
            autocast=self._autocast,
            loss_scale=scale,
            scaled_share=scaled_share(self._multiplications) if precision.scaled else None,
        )


@cache
def classify_operator(name: str) -> str | None:
    """`matmul`, `convolution` or None, by the name of an operator: backends have their own names."""
    plain = name.lower().rstrip("_")
    if _NO_MATMUL.search(plain):
        return None
    if _CONVOLUTION.search(plain):
        return "convolution"
    return "matmul" if _MATMUL.search(plain) else None


def count_multiplications(name: str, kind: str, tensors: list[Tensor], result: Any, gradients: int = 2) -> int:
    """The number of multiplications of a matmul; a convolution's backward pass may have only one of two `gradients`."""
    left, right = tensors[:2]
    back = "backward" in name
    if kind == "convolution":
        outputs, weight = (left, tensors[2]) if back else (next(_find_floating([result])), right)
        return (gradients if back else 1) * outputs.numel() * weight.numel() // max(1, weight.shape[0])
    if "attention" in name:
        return (5 if back else 2) * left.numel() * right.shape[-2]
    if right.dim() == 2 and re.search(r"rnn|lstm|gru", name):
        return 2 * (left.numel() // max(1, left.shape[-1])) * right.numel()
    return next(_find_floating([result])).numel() * left.shape[-1]


def _is_add(name: str) -> bool:
    """True for operators whose first tensor is only added to the result."""
    return name.lstrip("_").startswith(("add", "badd"))


def _find_floating(values: Any) -> Iterator[Tensor]:
    return (tensor for tensor in find_tensors(values) if tensor.is_floating_point())


def _holds_only(tensor: Tensor, narrow: torch.dtype) -> bool:
    """True where the first and last row of a tensor are exact in a narrower type, which is hardly chance."""
    if tensor.dtype == narrow or tensor.layout != torch.strided or not tensor.numel():
        return True
    for end in (0, -1):
        row = tensor[(end,) * (tensor.dim() - 1)]
        if not torch.equal(row, row.to(narrow).to(row.dtype)):
            return False
    return True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
