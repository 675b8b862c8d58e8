"""Compares every operator of a workload's step on a device with the CPU's.

The step is that of a run with the workload's smallest recipe: what passes here runs, and there is no list of operators.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from trainmark import data as datasets, workloads
from trainmark.platforms import device_errors
from trainmark.platforms.files import NO_COLLECTIVES
from trainmark.platforms.platform import Device
from trainmark.record.checks import CheckResult, failed, format_count, ok, unknown
from trainmark.record.plan import NO_FOLDER
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.train import loop, setup, step_check, transfers
from trainmark.train.walker import Walker, copy_arguments, is_random, is_uninitialized
from trainmark.workloads.workload import Share, Workload

SAMPLES = 4
TRIES = 2
"""Compared calls of one operator with the same types."""
MAX_OFF = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Relative error allowed per operator: another order of summation, and one rounding."""
MAX_FROM_ZERO = 1e-6
"""Norm allowed where the CPU's result is all zeros."""
MAX_NAMED = 6


@dataclass(kw_only=True)
class Walked:
    """Findings about the operators of a step."""

    seen: Counter[str] = field(default_factory=Counter)
    compared: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)
    """First line of the error, by operator."""
    wrong: dict[str, float] = field(default_factory=dict)
    """Largest relative error, by operator."""


def check_operators(device: Device, name: str, alive: Callable[[], None] = lambda: None) -> CheckResult:
    """Checks every operator of a workload's step and evaluation, in fp32 and under autocast; calls `alive` after
    each."""
    if device.is_cpu:
        return unknown("other devices are compared with the CPU")
    walked = Walked()
    with _make_batches(workloads.load(name)) as batches:
        for precision in _precisions(device):
            try:
                walk(device, workloads.load(name), precision, *batches, walked, alive)
            except (RuntimeError, NotImplementedError) as error:
                missing = device_errors.find_missing_operator(error)
                if missing is None and not walked.missing:
                    raise
                if missing:
                    walked.missing.setdefault(missing, device_errors.first_line(error))
    return judge_operators(walked)


def judge_operators(walked: Walked) -> CheckResult:
    facts = {"missing": dict(walked.missing), "wrong": dict(walked.wrong)}
    total = format_count(len(walked.seen), "operator")
    said = []
    if walked.missing:
        said.append(f"{len(walked.missing)} of {total} missing: {_name_few(walked.missing)}")
    if walked.wrong:
        off = {f"{name} (off by {_percent(share)})": share for name, share in walked.wrong.items()}
        said.append(f"{len(walked.wrong)} of {total} not as the CPU's: {_name_few(off)}")
    if said:
        return failed("; ".join(said), "a run of this workload needs every one of them", **facts)
    agree = f"{len(walked.compared)} give what the CPU's give"
    if left := [name for name in walked.seen if name not in walked.compared]:
        agree += f"; not compared (random, uninitialized, or not on a CPU): {_name_few(left)}"
    return ok(f"{total} of a step and an evaluation are there, and {agree}", **facts)


def walk(
    device: Device,
    workload: Workload,
    precision: Precision,
    train: Any,
    evaluation: Any,
    walked: Walked,
    alive: Callable[[], None],
) -> None:
    """Trains on one batch and scores another as a run does, and visits every operator."""
    recipe = replace(workload.recipes["smoke"], compiled="no")
    device.set_precision(precision)
    stepper = setup.build_stepper(workload, recipe, precision, device, 1)
    step_check.perturb_weights(stepper)
    watch = Walker(_Comparison(device, walked, alive).visit)
    with watch:
        here, scored = (transfers.map_tensors(batch, device.to_device) for batch in (train, evaluation))
    stepper.watch = watch
    stepper.set_learning_rate(recipe.learning_rate)
    stepper.model.train()
    loss = stepper.step(here)
    transfers.make_losses(device).note(loss)
    scoring = loop.choose_evaluation_precision(recipe, precision)
    stepper.bare_model.eval()
    with torch.no_grad(), device.arithmetic(scoring), device.autocast(scoring), watch:
        workload.score(stepper.bare_model, scored)
    if device.torch.type != "cpu" and device.platform.file.collectives != NO_COLLECTIVES:
        with watch:
            _run_sync_batch_norm(device)
    device.synchronize()


def _run_sync_batch_norm(device: Device) -> None:
    """Calls the operators of torch's SyncBatchNorm."""
    x, weight = torch.rand(4, 3, 5, 5, device=device.torch), torch.ones(3, device=device.torch)
    mean, inverse = torch.batch_norm_stats(x, 1e-5)
    counts = torch.full((1,), 100.0, device=device.torch)
    mean, inverse = torch.batch_norm_gather_stats_with_counts(
        x, mean[None], inverse[None], None, None, 0.1, 1e-5, counts
    )
    y = torch.batch_norm_elemt(x, weight, weight, mean, inverse, 1e-5)
    of_mean, of_spread, *_ = torch.batch_norm_backward_reduce(y, x, mean, inverse, weight, True, True, True)
    torch.batch_norm_backward_elemt(y, x, mean, inverse, weight, of_mean, of_spread, counts.to(torch.int32))


@contextmanager
def _make_batches(workload: Workload) -> Iterator[tuple[Any, Any]]:
    """One batch to train on and one to score, of the smallest data set."""
    smoke = workload.recipes["smoke"]
    recipe = replace(smoke, batch_per_device=SAMPLES, eval_batch_per_device=SAMPLES, input_workers=0)
    with tempfile.TemporaryDirectory(prefix="trainmark-") as name:
        folder = Path(name) / "set"
        if workload.data_set in datasets.names():
            known = datasets.find(workload.data_set)
            known.make(folder, **known.smallest)
        where = folder if folder.exists() else Path(NO_FOLDER)
        source = workload.open_data(recipe, where, Share(rank=0, world=1, local_ranks=1), 0)
        with closing(source):
            first = (next(iter(source.train(0, 0))), next(iter(source.evaluation())))
            train, evaluation = (transfers.map_tensors(batch, Tensor.clone) for batch in first)
        yield train, evaluation


class _Comparison:
    """A visitor that compares operators with the CPU's; a missing one runs on the CPU, so that later ones are
    visited too."""

    def __init__(self, device: Device, walked: Walked, alive: Callable[[], None]) -> None:
        self._device = device
        self._alive = alive
        self._found = walked
        self._tried: Counter[Any] = Counter()

    def visit(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = str(operator._schema.name)
        self._alive()  # the one before has ended
        self._found.seen[name] += 1
        signature = (operator, tuple(leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)))
        self._tried[signature] += 1
        on_host = None
        if self._tried[signature] <= TRIES and not is_uninitialized(operator):
            with _disable_current_modes():
                on_host = _to_host((args, kwargs))
        try:
            result = operator(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if device_errors.find_missing_operator(error) is None:
                raise
            self._found.missing.setdefault(name, device_errors.first_line(error))
            return self._run_on_cpu(operator, args, kwargs)
        if on_host is not None and not is_random(operator):
            with _disable_current_modes():
                self._compare(operator, name, (args, kwargs, result), on_host)
        return result

    def _run_on_cpu(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _disable_current_modes():
            host_args, host_kwargs = _to_host((args, kwargs))
            result = operator(*host_args, **host_kwargs)
            back = {}
            for here, there in zip(tree_leaves((args, kwargs)), tree_leaves((host_args, host_kwargs)), strict=True):
                if isinstance(here, Tensor):
                    here.copy_(there)
                    back[id(there)] = here
            return tree_map_only(Tensor, lambda leaf: back.get(id(leaf), leaf.to(self._device.torch)), result)

    def _compare(self, operator: Any, name: str, here: Any, on_host: Any) -> None:
        """Compares results and arguments, which the operator may have written to."""
        host_args, host_kwargs = on_host
        try:
            wanted = operator(*host_args, **host_kwargs)
        except (RuntimeError, NotImplementedError):
            return  # the CPU has no such operator
        self._device.synchronize()
        off = max(_differences(here, (host_args, host_kwargs, wanted)), default=0.0)
        self._found.compared.add(name)
        if off:
            self._found.wrong[name] = max(off, self._found.wrong.get(name, 0.0))


def _differences(here: Any, there: Any) -> Iterator[float]:
    """Relative errors of floating tensors that differ by more than allowed."""
    for found, wanted in zip(tree_leaves(here), tree_leaves(there), strict=True):
        if not isinstance(wanted, Tensor) or wanted.layout != torch.strided or not wanted.is_floating_point():
            continue  # indices of equal values may come in another order
        one, other = (tensor.detach().cpu().double().nan_to_num() for tensor in (found, wanted))
        off = step_check.relative_difference(one, other)
        if math.isinf(off):  # another shape, or not zero where it should be
            off = float(one.shape != other.shape or bool(one.norm() > MAX_FROM_ZERO))
        if off > MAX_OFF.get(wanted.dtype, 0.1):
            yield off


def _to_host(values: Any) -> Any:
    copies = copy_arguments(values, lambda tensor: tensor.cpu().clone())
    return tree_map_only(torch.device, lambda device: torch.device("cpu"), copies)


def _precisions(device: Device) -> list[Precision]:
    listed = [PRECISIONS[name] for name in device.platform.file.precisions]
    lowered = [precision for precision in listed if precision.autocast]
    plain = [precision for precision in listed if precision.name == "fp32"]
    return [*plain, *lowered[:1]] or listed[:1]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 10 else "more than 1000 %"


def _name_few(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:MAX_NAMED])
    return shown + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
