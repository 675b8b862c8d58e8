"""Checks on what a record says of the machine: precision proof, peaks, links, memory, the search for a batch."""

from __future__ import annotations

from collections.abc import Iterator

from trainmark.analysis import peaks
from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.precision import Precision, ran
from trainmark.spec.topology import Topology


@check("precision", "what ran is what the first step's products were computed in")
def precision(case: RecordCase) -> Iterator[CheckResult]:
    proof = case.record.environment.precision
    if proof is None:
        raise CannotCheckError("the record holds no proof of its precision")
    asked = Precision.parse(case.record.plan.precision)
    if proof.asked != asked.name:
        yield wrong(f"{proof.asked} and {asked.name}", "the plan asks for one precision", "the plan and the proof")
    if proof.autocast not in (None, asked.autocast):
        yield wrong(f"autocast to {proof.autocast!r}", f"{asked.name} does not ask for that", "the proof")
    found = ran(proof.multiplications, proof.weights, proof.tf32, proof.autocast)
    if proof.ran != found:
        yield wrong(
            f"{proof.ran} on the record; its products make it {found}",
            "the word for what ran follows from the products that were watched",
            "the label, and what was changed in the proof",
        )
    for kind, types in proof.computed.items():
        products = proof.multiplications.get(kind, {})
        whole = all(isinstance(count, int) and count > 0 for count in (*types.values(), *products.values()))
        if set(types) != set(products) or not whole or any(products[name] < types[name] for name in types):
            yield wrong(f"{kind}: {types} and {products}", "every product multiplies something", "the proof")
    if set(proof.computed) != set(proof.multiplications):
        yield wrong("their kinds differ", "products are counted and weighed together", "the proof")
    if not all(isinstance(count, int) and count > 0 for count in proof.weights.values()):
        yield wrong(f"{proof.weights}", "weights are counted whole", "the proof")
    if (proof.loss_scale is not None) != asked.scales_loss or (proof.loss_scale or 1) <= 0:
        yield wrong(f"loss scale {proof.loss_scale!r} in {asked.name}", "float16 alone needs one, above 0", "the proof")
    if not 0 <= proof.skipped_steps <= case.whole.steps or (proof.skipped_steps and not asked.scales_loss):
        yield wrong(
            f"{proof.skipped_steps!r} of {case.whole.steps} steps skipped",
            "only a loss scale skips steps",
            "the proof",
        )


@check("peak", "the peak is the card's, in the precision asked for")
def peak(case: RecordCase) -> Iterator[CheckResult]:
    flops, device = case.record.environment.flops, case.record.environment.device
    if flops is None:
        raise CannotCheckError("FLOPs were not counted")
    if flops.per_item <= 0 or (flops.peak_tflops is not None and flops.peak_tflops <= 0):
        yield wrong(f"{flops}", "neither FLOPs nor peaks can be below zero", "the environment")
    known = peaks.card(device.name)
    family = Precision.parse(case.record.plan.precision).family
    if known is None or flops.peak_tflops is None or family not in known.tflops:
        return
    if not same(flops.peak_tflops, known.tflops[family], 0.01):
        yield doubtful(
            f"{flops.peak_tflops:g} TFLOP/s; {known.tflops[family]:g} by the {known.source}",
            f"another figure is known of this card in {family}",
            "the platform file that was used",
        )


@check("memory", "no rank held more memory than there is")
def memory(case: RecordCase) -> Iterator[CheckResult]:
    total = case.value("mem_total")
    if total is None:
        raise CannotCheckError("the platform reports no memory")
    for alias in ("mem", "mem_device"):
        used = case.value(alias)
        # a card's own tool counts memory that its framework does not see
        if used is not None and not 0 <= used <= total * (1.05 if alias == "mem_device" else 1):
            yield wrong(f"{alias} {used:g} of {total:g} GiB", "more was used than there is", "the metrics")
    device, cpu = case.record.environment.device, case.record.environment.cpu
    if device.type == "cpu" and cpu.name and not same(device.memory_bytes, cpu.memory_bytes):
        yield wrong(
            f"{device.memory_bytes} and {cpu.memory_bytes} bytes", "on a CPU both are the machine's", "the memory"
        )


@check("links", "the speed of the links follows from sizes and times")
def links(case: RecordCase) -> Iterator[CheckResult]:
    found = case.record.environment.link
    if not found:
        raise CannotCheckError("no link was measured")
    moved = 2 * (case.devices - 1) / case.devices
    sizes = [entry.size_bytes for entry in found]
    if sizes != sorted(set(sizes)):
        yield wrong(f"{sizes}", "messages grow from one to the next", "the measured links")
    for entry in found:
        expected = moved * entry.size_bytes / entry.best_s / 1e9
        whole = isinstance(entry.repeats, int) and entry.repeats > 0
        if not same(entry.bus_gigabytes_per_s, expected) or not 0 < entry.best_s <= entry.median_s or not whole:
            yield wrong(
                f"{entry.size_bytes} bytes: best {entry.best_s!r} s, median {entry.median_s!r} s, "
                f"{entry.bus_gigabytes_per_s!r} GB/s, computed {expected!r}",
                "the speed is what the best of the times makes of the size",
                "the measured links",
            )


@check("fill", "the batch that was searched for is the one that was trained with")
def fill(case: RecordCase) -> Iterator[CheckResult]:
    found = case.record.environment.fill
    if found is None:
        raise CannotCheckError("no batch was searched for")
    batch = int(case.record.plan.recipe["batch_per_device"])
    tried = {entry.batch: entry for entry in found.curve}
    if found.batch_per_device != batch or batch not in tried or tried[batch].unfit:
        yield wrong(f"found {found.batch_per_device}, trained with {batch}", "they are one", "the plan")
    figures = [value or 0 for entry in found.curve for value in (entry.items_per_s, entry.step_s, entry.memory_bytes)]
    if list(tried) != sorted(tried) or min(tried) < 1 or min(figures) < 0 or found.took_s < 0:
        yield wrong(f"tried {list(tried)} in {found.took_s!r} s", "batches are kept by their size", "the search")


@check("machine", "the machine has what the run used of it")
def machine(case: RecordCase) -> Iterator[CheckResult]:
    environment = case.record.environment
    cpu, device = environment.cpu, environment.device
    if case.record.plan.platform == "cpu" and device.type not in ("", "cpu"):
        yield wrong(
            f"platform {case.record.plan.platform}, device {device.type}", "they are of one kind", "the environment"
        )
    if cpu.memory_bytes is not None and cpu.memory_bytes <= 0:
        yield wrong(f"{cpu.memory_bytes} bytes", "a machine has some memory", "the environment")
    if cpu.usable_cores is not None and not 0 < cpu.usable_cores <= (cpu.logical_cores or 0):
        yield wrong(f"{cpu.usable_cores} of {cpu.logical_cores} cores", "a part is at most the whole", "the cores")
    threads = environment.threads
    if threads is not None and threads < 1:
        yield wrong(f"{threads} threads", "a rank has one at least", "the environment")
    each = Topology.parse(case.record.plan.topology).devices_per_node
    visible = device.count_visible
    if visible is not None and device.type != "cpu" and visible < each:
        yield wrong(f"{visible} devices seen, {each} used", "a run uses devices it sees", "the environment")


CHECKS: tuple[Check[RecordCase], ...] = (precision, peak, memory, links, fill, machine)
