"""Checks that a platform does what a run relies on, with findings its vendor can act on."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from trainmark import data as datasets, workloads
from trainmark.features.doctor import device_checks
from trainmark.features.links import measure as links
from trainmark.platforms import device_errors, files
from trainmark.platforms.matmul_probe import time_work
from trainmark.platforms.platform import Device, Platform
from trainmark.record.checks import CheckResult, doubt, failed, first_line, format_count, ok, unknown
from trainmark.record.plan import NO_FOLDER, Topology
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


def check_operators(device: Device, name: str) -> CheckResult:
    """Checks every operator of a workload's step and evaluation, in fp32 and under autocast."""
    if device.is_cpu:
        return unknown("other devices are compared with the CPU")
    found = OperatorComparison(device)
    listed = [PRECISIONS[each] for each in device.platform.file.precisions]
    lowered = [precision for precision in listed if precision.autocast]
    chosen = [*(precision for precision in listed if precision.name == "fp32"), *lowered[:1]] or listed[:1]
    with _make_batches(workloads.load(name)) as batches:
        for precision in chosen:
            try:
                walk(device, workloads.load(name), precision, *batches, found)
            except (RuntimeError, NotImplementedError) as error:
                missing = device_errors.find_missing_operator(error)
                if missing is None and not found.missing:
                    raise
                found.missing |= {missing: None} if missing else {}
    return found.judge()


def walk(
    device: Device, workload: Workload, precision: Precision, train: Any, evaluation: Any, found: OperatorComparison
) -> None:
    """Trains on one batch and scores another as a run does, and visits every operator."""
    recipe = replace(workload.recipes["smoke"], compiled="no")
    device.set_precision(precision)
    stepper = setup.build_stepper(workload, recipe, precision, device, 1)
    step_check.perturb_weights(stepper)
    watch = Walker(found.visit)
    with watch:
        here, scored = (transfers.map_tensors(batch, device.to_device) for batch in (train, evaluation))
    stepper.watch = watch
    stepper.set_learning_rate(recipe.learning_rate)
    stepper.model.train()
    transfers.make_losses(device).note(stepper.step(here))
    scoring = loop.choose_evaluation_precision(recipe, precision)
    stepper.bare_model.eval()
    with torch.no_grad(), device.arithmetic(scoring), device.autocast(scoring), watch:
        workload.score(stepper.bare_model, scored)
    device.synchronize()


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
            train, evaluation = (transfers.map_tensors(batch, torch.Tensor.clone) for batch in first)
        yield train, evaluation


@dataclass
class OperatorComparison:
    """A visitor that compares operators with the CPU's; a missing one runs on the CPU, so that later ones are
    visited too."""

    device: Device
    seen: dict[str, None] = field(default_factory=dict)
    compared: set[str] = field(default_factory=set)
    missing: dict[str, None] = field(default_factory=dict)
    wrong: dict[str, float] = field(default_factory=dict)
    """Largest relative error, by operator."""
    _tried: Counter[Any] = field(default_factory=Counter)
    _lstm_cells: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """Arguments of each fused LSTM cell, by the address of the workspace that its backward gets: its layout is the
    vendor's own."""

    def judge(self) -> CheckResult:
        total = format_count(len(self.seen), "operator")
        said = []
        if self.missing:
            said.append(f"{len(self.missing)} of {total} missing: {_name_few(self.missing)}")
        if self.wrong:
            off = [f"{name} (off by {min(100 * share, 1000):.3g} %)" for name, share in self.wrong.items()]
            said.append(f"{len(self.wrong)} of {total} not as the CPU's: {_name_few(off)}")
        if said:
            return failed("; ".join(said), "a run of this workload needs every one of them")
        agree = f"{len(self.compared)} give what the CPU's give"
        if left := [name for name in self.seen if name not in self.compared]:
            agree += f"; not compared (random, uninitialized, or not on a CPU): {_name_few(left)}"
        return ok(f"{total} of a step and an evaluation are there, and {agree}")

    def visit(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = str(operator._schema.name)
        self.seen[name] = None
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
            self.missing[name] = None
            return self._run_on_cpu(operator, args, kwargs)
        if name == LSTM_CELL:
            self._lstm_cells[result[2].data_ptr()] = args
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
            return tree_map_only(Tensor, lambda leaf: back.get(id(leaf), leaf.to(self.device.torch)), result)

    def _compare(self, operator: Any, name: str, here: Any, on_host: Any) -> None:
        """Compares results and arguments, which the operator may have written to."""
        host_args, host_kwargs = on_host
        try:
            if name == LSTM_CELL:
                wanted = *_compute_lstm_cell(*host_args), None
            elif name == LSTM_CELL_BACKWARD:
                cell = self._lstm_cells[here[0][4].data_ptr()]
                wanted = _differentiate_lstm_cell(*host_args[:2], *_to_host(cell))
            else:
                wanted = operator(*host_args, **host_kwargs)
        except (RuntimeError, NotImplementedError):
            return  # the CPU has no such operator
        self.device.synchronize()
        self.compared.add(name)
        for off in _differences(here, (host_args, host_kwargs, wanted)):
            self.wrong[name] = max(off, self.wrong.get(name, 0.0))


# Vendors' fused operators that no CPU has, composed of plain ones

LSTM_CELL, LSTM_CELL_BACKWARD = "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_lstm_cell_backward_impl"


def _activate_lstm_gates(by_input: Tensor, by_hidden: Tensor, biases: tuple[Tensor | None, ...]) -> list[Tensor]:
    gates = sum((bias.float() for bias in biases if bias is not None), by_input.float() + by_hidden.float())
    into, forget, new, out = gates.chunk(4, 1)
    return [into.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()]


def _compute_lstm_cell(by_input: Tensor, by_hidden: Tensor, cell: Tensor, *biases: Tensor | None) -> tuple[Tensor, ...]:
    into, forget, new, out = _activate_lstm_gates(by_input, by_hidden, biases)
    after = forget * cell.float() + into * new
    return (out * after.tanh()).to(cell.dtype), after.to(cell.dtype)


def _differentiate_lstm_cell(
    of_hidden: Tensor | None,
    of_after: Tensor | None,
    by_input: Tensor,
    by_hidden: Tensor,
    cell: Tensor,
    *biases: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of the gates, of the cell, and of the biases where there are any."""
    into, forget, new, out = _activate_lstm_gates(by_input, by_hidden, biases)
    before = cell.float()
    after = (forget * before + into * new).tanh()
    of_hidden = torch.zeros_like(before) if of_hidden is None else of_hidden.float()
    of_cell = of_hidden * out * (1 - after.square()) + (0.0 if of_after is None else of_after.float())
    parts = (
        of_cell * new * into * (1 - into),
        of_cell * before * forget * (1 - forget),
        of_cell * into * (1 - new.square()),
        of_hidden * after * out * (1 - out),
    )
    of_gates = torch.cat(parts, 1).to(by_input.dtype)
    has_bias = any(bias is not None for bias in biases)
    return of_gates, (of_cell * forget).to(cell.dtype), of_gates.sum(0) if has_bias else None


def check_synced_batch_norm(device: Device) -> CheckResult:
    """Compares nn.SyncBatchNorm's operators, on the samples of two ranks, with the batch norm of a CPU."""
    made = torch.Generator().manual_seed(0)
    x, of_y = (torch.randn(4, 3, 5, 5, generator=made) for _ in range(2))
    weight, bias, mean, spread = (torch.rand(3, generator=made) for _ in range(4))
    inputs = [each.double().requires_grad_() for each in (x, weight, bias)]
    tracked = [mean.double(), spread.double()]
    y = F.batch_norm(inputs[0], tracked[0], tracked[1], inputs[1], inputs[2], training=True)
    wanted = (y.detach(), *tracked, *torch.autograd.grad(y, inputs, of_y.double()))
    names = ("output", "running mean", "running variance", "gradient", "gradient of weight", "gradient of bias")
    try:
        found = _normalise_as_two_ranks(*(each.to(device.torch) for each in (x, of_y, weight, bias, mean, spread)))
        device.synchronize()
    except (RuntimeError, NotImplementedError) as error:
        if missing := device_errors.find_missing_operator(error):
            return unknown(f"no {missing} here; on an accelerator, recipes with batch_norm=all-devices need it")
        raise
    wrong = [
        name
        for name, one, other in zip(names, found, wanted, strict=True)
        if not step_check.relative_difference(one.cpu().double(), other) <= MAX_OFF[torch.float32]
    ]
    if wrong:
        return failed(
            f"not as the CPU's batch norm: {', '.join(wrong)}", "recipes with batch_norm=all-devices need all of it"
        )
    return ok("the operators of nn.SyncBatchNorm give what the CPU's batch norm gives")


def _normalise_as_two_ranks(
    x: Tensor, of_y: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_variance: Tensor
) -> tuple[Tensor, ...]:
    """Output, running statistics and gradients, by the operators that nn.SyncBatchNorm calls between collectives."""
    eps, momentum = 1e-5, 0.1
    parts, of_parts = (torch.split(each, [1, 3]) for each in (x, of_y))
    counts = torch.tensor([part.numel() / 3 for part in parts], device=x.device)
    means, inverses = (torch.stack(each) for each in zip(*(torch.batch_norm_stats(p, eps) for p in parts), strict=True))
    mean, inverse = torch.batch_norm_gather_stats_with_counts(
        x, means, inverses, running_mean, running_variance, momentum, eps, counts
    )
    y = torch.cat([torch.batch_norm_elemt(part, weight, bias, mean, inverse, eps) for part in parts])
    sums = [
        torch.batch_norm_backward_reduce(of_part, part, mean, inverse, weight, True, True, True)
        for of_part, part in zip(of_parts, parts, strict=True)
    ]
    of_mean, of_spread, of_weight, of_bias = (one + other for one, other in zip(*sums, strict=True))
    of_x = [
        torch.batch_norm_backward_elemt(of_part, part, mean, inverse, weight, of_mean, of_spread, counts.int())
        for of_part, part in zip(of_parts, parts, strict=True)
    ]
    return y, running_mean, running_variance, torch.cat(of_x), of_weight, of_bias


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


def _name_few(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:MAX_NAMED])
    return shown + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


WORK_S = 0.05
"""Minimum duration of the work that synchronize and events are tested on."""
MAX_MATMULS = 1 << 16
EVENT_TRIES = 12
"""Other load may disturb some measurements."""
EVENT_TOLERANCE = 0.15
SIDE = 256
TENSOR_BYTES = 64 << 20
MAX_TENSORS = 24
"""One of these must raise the peak; the first may stay below an earlier peak of the process."""
FP32 = PRECISIONS["fp32"]

Check = Callable[[], CheckResult]


def list_checks(word: str) -> Iterator[tuple[str, Check]]:
    """Every check by its name; raises NotReadyError where there is no device."""
    platform = Platform(files.load(word))
    device = platform.open(0)
    devices = format_count(platform.device_count, "core" if device.is_cpu else "device")
    yield "opens", lambda: ok(f"{device.name()}, {devices}")
    yield "synchronises", partial(check_synchronize, device)
    yield "events", partial(check_events, device)
    yield "memory", partial(check_memory, device)
    for name in platform.file.precisions:
        yield f"precision {name}", partial(check_precision, device, PRECISIONS[name])
    for name in workloads.names():
        yield f"operators {name}", partial(check_operators, device, name)
    yield "synced batch norm", partial(check_synced_batch_norm, device)
    yield "collectives", partial(check_collectives, word, platform)
    yield "sensors", partial(device_checks.check_sensors, platform.file)


def run_check(name: str, check: Check) -> CheckResult:
    """Runs a check; one that raises has failed with the driver's error."""
    try:
        return replace(check(), name=name)
    except Exception as error:
        said = f"raised {type(error).__name__}: {first_line(error)}"
        return replace(failed(said, "every run makes the call above"), name=name)


def check_synchronize(device: Device) -> CheckResult:
    """After synchronize() the mark before it is reached, and a result can be read at once."""
    work = _make_work(device)
    tries = []
    for _ in range(3):
        began = time.perf_counter()
        result = work()
        mark = device.marks.mark()
        device.synchronize()
        waited_s = time.perf_counter() - began
        if not device.marks.is_reached(mark):
            return failed(
                "synchronize() returned while a mark recorded before it was not reached",
                "torch.accelerator.synchronize and Event.query must use the same queue",
            )
        with device.arithmetic(FP32):
            result.sum().item()
        tries.append((waited_s, time.perf_counter() - began - waited_s))
    waited_s, read_s = min(tries, key=lambda pair: pair[1] / pair[0])
    if read_s > waited_s / 2:
        return failed(
            f"reading a result took {read_s * 1e3:.1f} ms after a synchronize() that had taken {waited_s * 1e3:.1f} ms",
            "synchronize() must wait for the computation, not only for its launch",
        )
    return ok(f"{waited_s * 1e3:.1f} ms of work were waited for, and the result was read {read_s * 1e3:.1f} ms later")


def check_events(device: Device) -> CheckResult:
    """Compares device time with wall time; a busy host may be late, so one try that agrees is enough."""
    work = _make_work(device)
    for _ in range(EVENT_TRIES):
        device.synchronize()
        began = time.perf_counter()
        first = device.marks.mark()
        work()
        last = device.marks.mark()
        device.synchronize()
        wall_s = time.perf_counter() - began
        event_s = device.marks.between_ns(first, last) / 1e9
        said = f"{event_s * 1e3:.1f} ms between two events, {wall_s * 1e3:.1f} ms of wall time"
        if abs(event_s / wall_s - 1) <= EVENT_TOLERANCE:
            return ok(said)
    return failed(said, "Event.elapsed_time must give milliseconds of the device's own time, recorded in order")


def check_memory(device: Device) -> CheckResult:
    capacity, before = device.memory_capacity_bytes(), device.peak_memory_bytes()
    if not capacity or before is None:
        missing = "mem_get_info" if not capacity else "max_memory_allocated"
        return failed("its memory is not known", f"torch's module for the device must have {missing}")
    size = min(TENSOR_BYTES, capacity // 8)
    held: list[Tensor] = []
    while len(held) < MAX_TENSORS and (len(held) + 1) * size < capacity / 4:
        with device.arithmetic(FP32):
            held.append(torch.ones(size // 4, device=device.torch))
        device.synchronize()
        after = device.peak_memory_bytes() or 0
        if after - before >= size * 0.9:
            grown = f"a tensor of {size / 2**20:.0f} MiB raised the peak by {(after - before) / 2**20:.0f} MiB"
            return ok(f"{grown}; capacity {capacity / 2**30:.1f} GiB")
        before = max(before, after)
    return failed(
        f"the peak stayed at {before / 2**20:.0f} MiB while {len(held)} tensors of {size / 2**20:.0f} MiB were made",
        "max_memory_allocated must count what tensors hold",
    )


def check_precision(device: Device, precision: Precision) -> CheckResult:
    if fault := device_checks.find_fault(device, precision):
        return failed(fault, "remove it from the file's precisions, or fix it")
    return ok(f"trains; matmuls are rounded as {precision.computes_in}")


def check_collectives(word: str, platform: Platform) -> CheckResult:
    """Two ranks in processes of their own exchange numbers, which are checked."""
    if platform.file.collectives == files.NO_COLLECTIVES:
        return unknown("the file declares no collectives")
    ranks = 2 if platform.is_cpu or platform.device_count > 1 else 1
    with tempfile.TemporaryDirectory(prefix="trainmark-") as folder:
        topology, store = Topology.parse(f"1x{ranks}"), Path(folder)
        found = links.measure(topology, hosts=None, platform=word, store=store, say=lambda sentence: None)
    if found.verdict == "failed":
        remedy = f"torch.distributed's backend {platform.file.collectives!r} must join and sum float32 on the devices"
        return failed(found.sentence, remedy)
    if absent := found.facts.get(links.ABSENT):
        needs = "FSDP and tensor parallelism need them; a run without them trains with all weights on every device"
        return doubt(f"{platform.file.collectives} has no {' and no '.join(absent)}; {found.sentence}", needs)
    return ok(f"{platform.file.collectives}: {found.sentence}")


def _make_work(device: Device) -> Callable[[], Tensor]:
    """Makes a function that launches enough matmuls to outlast their launch."""
    numbers = torch.full((SIDE, SIDE), 1 / SIDE, device=device.torch)
    matmuls = 4

    def work() -> Tensor:
        result = numbers
        with device.arithmetic(FP32):
            for _ in range(matmuls):
                result = result @ numbers
        return result

    work()  # warm up: threads, memory, libraries
    while matmuls < MAX_MATMULS and time_work(device, work) < WORK_S:
        matmuls *= 2
    return work
