"""Checks the machine before a run: devices, precision, collectives, compiler, memory, data, disk."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
from torch import distributed

from trainmark import data as datasets, workloads
from trainmark.data import synthetic
from trainmark.platforms import files, scaled_matmul
from trainmark.platforms.matmul_probe import choose_matmul_type, measure_matmul_flops
from trainmark.platforms.platform import Platform
from trainmark.record import cores
from trainmark.record.checks import LOG_BYTES, CheckResult, failed, find_existing_folder, format_count, ok
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import NO_FOLDER, Plan, Topology
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.record.recipe import from_values
from trainmark.record.workload_facts import derive_facts
from trainmark.workloads import weights

BYTES_PER_WEIGHT = 12
"""A weight, its gradient and one optimizer state in float32: a lower bound of what a step holds."""
MARGIN = 3
"""Factor by which a step must exceed its share, as the estimate is rough."""
MEASURE_S = 0.1


def check_budget(plan: Plan, share_s: float, flops_per_s: float | None = None) -> str | None:
    """Why a plan cannot run here within its share of the time, in a sentence; None where it may.

    `flops_per_s` is what the device reaches; by default a CPU is measured.
    """
    if plan.workload_source is not None:
        return None  # too little is known of a workload of a user
    device = Platform(files.load(plan.platform)).open(0)
    title = workloads.title(plan.workload)
    need = estimate_state_bytes(plan)
    there = psutil.virtual_memory().available if device.is_cpu else device.memory_capacity_bytes()
    if there is not None and need > there:
        return (
            f"{title} was left out: its weights, gradients and optimizer alone take {need / 2**30:.3g} GiB, and "
            f"{there / 2**30:.3g} GiB are free here."
        )
    if not device.is_cpu:
        return None
    rate = flops_per_s or _measure_rate(plan.platform, plan.precision)
    step_s = estimate_step_flops(plan, most=MARGIN * share_s * rate) / rate
    if step_s <= MARGIN * share_s:
        return None
    return (
        f"{title} was left out: one step takes about {format_seconds(step_s)} here, and its share of the time is "
        f"{format_seconds(share_s)}; a longer --budget has room for it."
    )


def estimate_state_bytes(plan: Plan) -> float:
    """Of weights, gradients and optimizer on one device."""
    return BYTES_PER_WEIGHT * weights.count_weights(weights.build_model(plan)) / count_shards(plan)


def count_shards(plan: Plan) -> int:
    """Over how many devices a network is sharded."""
    topology = Topology.parse(plan.topology)
    ways = {"fsdp": topology.devices, "hsdp": topology.devices_per_node}
    return ways.get(str(plan.recipe.get("parallel", "")), 1)


def explain_too_large(plan: Plan, capacity_bytes: float | None = None) -> str | None:
    """Why a network does not fit the devices of a plan, and what would; None where it may.

    `capacity_bytes` is per device; by default it is queried, and the ranks of a CPU share its memory.
    """
    topology = Topology.parse(plan.topology)
    if capacity_bytes is None:
        device = Platform(files.load(plan.platform)).open(0)
        found = device.memory_capacity_bytes()
        if found is None:
            return None
        capacity_bytes = found / (topology.devices_per_node if device.is_cpu else 1)
    need = estimate_state_bytes(plan)
    if need <= capacity_bytes:
        return None
    fits = [
        f"shard it over {math.ceil(need * count_shards(plan) / capacity_bytes)} devices or more (--set parallel=fsdp)"
    ]
    layers = int(plan.recipe.get("layers", 0))
    while layers > 1:
        layers //= 2
        if estimate_state_bytes(replace(plan, recipe={**plan.recipe, "layers": layers})) <= capacity_bytes:
            fits.append(f"give it fewer layers (--set layers={layers})")
            break
    return (
        f"{workloads.title(plan.workload)} on {topology} does not fit: weights, gradients and optimizer alone take "
        f"{need / 2**30:.3g} GiB per device, and one has {capacity_bytes / 2**30:.3g}; {', or '.join(fits)}"
    )


@cache
def _measure_rate(platform: str, precision: str) -> float:
    """Measured once for all plans."""
    device = Platform(files.load(platform)).open(0)
    return measure_matmul_flops(device, choose_matmul_type(device, Precision.parse(precision)), budget_s=MEASURE_S)


def estimate_step_flops(plan: Plan, *, most: float) -> float:
    """The FLOPs of one step of a rank: those of the published network if below `most`, else counted, which takes a
    second or two. 0 where the number of items per sample is unknown."""
    workload = workloads.of_plan(plan)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    facts = derive_facts(workload)
    items = (facts.items_per_sample or 0.0) * recipe.step_batch_per_device
    if facts.flops_per_item is not None and facts.flops_per_item * items <= most:
        return facts.flops_per_item * items
    return workload.flops_per_item(recipe) * items


def get_ready(plan: Plan, store: Path, say: Callable[[str], None]) -> None:
    """Generates missing synthetic data; NotReadyError with the first failed check."""
    if plan.data.name in datasets.names() and Path(plan.data.folder) == synthetic.folder(plan.data.name):
        synthetic.ensure(plan.data.name, Path(plan.data.folder), say)
    for result in run_checks(plan, store):
        if result.verdict == "failed":
            raise NotReadyError(str(result))


def run_checks(plan: Plan, store: Path) -> Iterator[CheckResult]:
    """The checks of a plan on this machine; later ones rely on earlier ones."""
    platform = Platform(files.load(plan.platform))
    yield check_devices(plan, platform)
    yield check_precision(plan, platform)
    yield check_collectives(plan, platform)
    yield check_compiler(plan, platform)
    yield check_memory(plan)
    yield check_data_folder(plan)
    yield check_disk(plan, store)


def describe_foreign_load(share: float) -> str | None:
    """A warning where other processes use the machine; else None."""
    if share <= cores.FOREIGN_LOAD:
        return None
    return (
        f"other processes use {100 * share:.0f} % of this machine: results will be slower and noisier; "
        "'trainmark doctor' lists them"
    )


def check_devices(plan: Plan, platform: Platform) -> CheckResult:
    wanted, there = Topology.parse(plan.topology).devices_per_node, platform.device_count
    if platform.is_cpu and wanted > cores.MAX_RANKS_PER_CORE * there:
        return failed(
            f"topology {plan.topology} needs {wanted} ranks on {there} usable cores, more than "
            f"{cores.MAX_RANKS_PER_CORE} per core; try --topology 1x{there}"
        )
    if there >= (1 if platform.is_cpu else wanted):
        return ok(f"{there} devices are visible")
    return failed(
        f"topology {plan.topology} needs {format_count(wanted, 'device')} of platform {platform.file.name} "
        f"on this machine, {there} are visible; try {f'--topology 1x{there}' if there else '--platform cpu'}"
    )


def check_precision(plan: Plan, platform: Platform) -> CheckResult:
    """UsageError where the network has no layer for the precision."""
    device, requested = platform.open(0), Precision.parse(plan.precision)
    if not (reason := device.explain_refusal(requested)):
        if requested.scaled:
            scaled_matmul.replace_linears(weights.build_model(plan))
        return ok(f"{plan.precision} runs here")
    can = [name for name, precision in PRECISIONS.items() if not device.explain_refusal(precision)]
    others = f"this device runs {', '.join(can)}" if can else "nor does any other; see `trainmark platform check`"
    return failed(f"precision {plan.precision} does not run here ({reason}); {others}")


def check_collectives(plan: Plan, platform: Platform) -> CheckResult:
    """An unknown backend would fail in every rank, after the data was opened."""
    word = platform.file.collectives
    if Topology.parse(plan.topology).devices == 1 or distributed.is_backend_available(word):
        return ok("collectives are available")
    known = ", ".join(name for name in distributed.Backend.backend_list if distributed.is_backend_available(name))
    return failed(
        f"platform {platform.file.name} names the collectives {word!r}, which this torch does not have; it has {known}"
    )


def check_compiler(plan: Plan, platform: Platform) -> CheckResult:
    """torch.compile needs a C++ compiler on a CPU, and would fail in the first step without one."""
    if plan.recipe.get("compiled", "no") == "no":
        return ok("nothing is compiled")
    if platform.is_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++")):
        return failed("torch.compile needs a C++ compiler here and neither g++ nor clang++ is found; install one")
    if platform.open(0).emulates(Precision.parse(plan.precision)):
        return failed(
            f"torch.compile does not work with {plan.precision} here: this CPU emulates it, unseen by torch.compile"
        )
    return ok("torch.compile has what it needs")


def check_memory(plan: Plan) -> CheckResult:
    """Activations come on top, and are not estimated."""
    reason = explain_too_large(plan)
    return failed(reason) if reason else ok("weights, gradients and optimizer fit the devices")


def check_data_folder(plan: Plan) -> CheckResult:
    folder = Path(plan.data.folder)
    if plan.data.folder == NO_FOLDER:
        return ok("the workload generates its data")
    if not folder.is_dir():
        return failed(f"data folder {folder} does not exist; give one with --data DIR, or none for synthetic data")
    workload = workloads.of_plan(plan)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    workload.check_data(recipe, folder, Topology.parse(plan.topology).devices)
    return ok(f"data folder {folder} is there, and what can be seen of it at once fits the recipe")


def check_disk(plan: Plan, store: Path) -> CheckResult:
    """Checkpoints and logs must fit; other users of the disk cannot be predicted."""
    need = LOG_BYTES
    if plan.recipe.get("checkpoint_every") != "never":
        need += 3 * estimate_checkpoint_bytes(plan)  # two kept and one being written
    free = shutil.disk_usage(find_existing_folder(store)).free
    if free < need:
        return failed(
            f"{store} has {free / 2**20:,.0f} MiB free and this run may need {need / 2**20:,.0f}; "
            "free some, choose another with --store DIR, or --set checkpoint_every=never"
        )
    return ok(f"{store} has room for checkpoints and logs")


def estimate_checkpoint_bytes(plan: Plan) -> int:
    """Weights, two optimizer states, and the EMA of weights if there is one, in float32."""
    copies = 4 if plan.recipe.get("average_decay") else 3
    return copies * 4 * weights.count_weights(weights.build_model(plan))


def format_seconds(seconds: float) -> str:
    """`90 s`, `3 min`, `1.5 h`."""
    for unit, size_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size_s and seconds % (size_s / 2) == 0:
            return f"{seconds / size_s:g} {unit}"
    return f"{seconds:.3g} s"
