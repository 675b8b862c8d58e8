"""Looks at the machine before an hour is spent on it: devices, precision, data, disk, memory."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil

from trainmark import data as datasets, workloads
from trainmark.data import synthetic
from trainmark.platforms import files, scaled_products
from trainmark.platforms.matmul_rate import matmul_flops, matmul_type
from trainmark.platforms.platform import Platform
from trainmark.record import cores
from trainmark.record.checks import LOG_BYTES, CheckResult, failed, find_existing_folder, ok
from trainmark.record.duration import format_seconds
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import NO_FOLDER, Plan, Topology
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.record.recipe import from_values
from trainmark.record.workload_facts import derive_facts
from trainmark.train import meta_model

BYTES_A_WEIGHT = 12
"""A weight, its gradient and what the plainest optimizer keeps of it, in float32; all else a step holds is more."""
SURE = 3
"""Times a step must exceed its share: samples may be smaller than those of the real set, and the machine was watched
for a moment only."""
MEASURE_S = 0.1


def lacking(plan: Plan, share_s: float, flops_per_s: float | None = None) -> str | None:
    """Why a plan cannot be run here within its share of the time, in a sentence; None where it may well be.

    `flops_per_s` is what the device reaches; where nothing is said, a CPU is measured.
    """
    if plan.workload_source is not None:
        return None  # of what comes from outside too little is known
    device = Platform(files.load(plan.platform)).open(0)
    title = workloads.title(plan.workload)
    need = BYTES_A_WEIGHT * meta_model.weights_of(meta_model.model(plan)) / shards(plan)
    there = psutil.virtual_memory().available if device.is_cpu else device.memory_capacity_bytes()
    if there is not None and need > there:
        return (
            f"{title} was left out: its weights, gradients and optimizer alone take {need / 2**30:.3g} GiB, and "
            f"{there / 2**30:.3g} GiB are free here."
        )
    if not device.is_cpu:
        return None
    rate = flops_per_s or _measured_rate(plan.platform, plan.precision)
    step_s = step_flops(plan, most=SURE * share_s * rate) / rate
    if step_s <= SURE * share_s:
        return None
    return (
        f"{title} was left out: one step takes about {format_seconds(step_s)} here, and its share of the time is "
        f"{format_seconds(share_s)}; a longer --budget has room for it."
    )


def shards(plan: Plan) -> int:
    """Over how many devices a network is spread."""
    topology = Topology.parse(plan.topology)
    ways = {"fsdp": topology.devices, "hsdp": topology.devices_per_node}
    return ways.get(str(plan.recipe.get("parallel", "")), 1)


def too_large(plan: Plan, capacity_bytes: float | None = None) -> str | None:
    """Why a network cannot be trained on the devices of a plan, and what would fit; None where it may.

    `capacity_bytes` is what a device has; where nothing is said, it is asked, and the ranks of a CPU share one memory.
    """
    weights = meta_model.weights_of(meta_model.model(plan))
    topology = Topology.parse(plan.topology)
    if capacity_bytes is None:
        device = Platform(files.load(plan.platform)).open(0)
        found = device.memory_capacity_bytes()
        if found is None:
            return None
        capacity_bytes = found / (topology.devices_per_node if device.is_cpu else 1)
    need = BYTES_A_WEIGHT * weights / shards(plan)
    if need <= capacity_bytes:
        return None
    fits = [
        f"shard it over {math.ceil(BYTES_A_WEIGHT * weights / capacity_bytes)} devices or more (--set parallel=fsdp)"
    ]
    layers = int(plan.recipe.get("layers", 0))
    while layers > 1:
        layers //= 2
        smaller = replace(plan, recipe={**plan.recipe, "layers": layers})
        if BYTES_A_WEIGHT * meta_model.weights_of(meta_model.model(smaller)) / shards(plan) <= capacity_bytes:
            fits.append(f"give it fewer layers (--set layers={layers})")
            break
    return (
        f"{workloads.title(plan.workload)} on {topology} does not fit: weights, gradients and optimizer alone take "
        f"{need / 2**30:.3g} GiB a device, and one has {capacity_bytes / 2**30:.3g}; {', or '.join(fits)}"
    )


@cache
def _measured_rate(platform: str, precision: str) -> float:
    """Once for all plans."""
    device = Platform(files.load(platform)).open(0)
    return matmul_flops(device, matmul_type(device, Precision.parse(precision)), budget_s=MEASURE_S)


def step_flops(plan: Plan, *, most: float) -> float:
    """What one step of a rank computes; a guess that is high, as it is of the published network, if it is below `most`,
    as counting takes a second or two. Nothing where it is not known how many items a sample has."""
    workload = workloads.of_plan(plan)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    facts = derive_facts(workload)
    items = (facts.items_per_sample or 0.0) * recipe.step_batch_per_device
    if facts.flops_per_item is not None and facts.flops_per_item * items <= most:
        return facts.flops_per_item * items
    return workload.flops_per_item(recipe) * items


def get_ready(plan: Plan, store: Path, say: Callable[[str], None]) -> None:
    """Makes the synthetic data where it is missing; NotReadyError with the first thing that the machine lacks."""
    if plan.data.name in datasets.names() and Path(plan.data.folder) == synthetic.folder(plan.data.name):
        synthetic.ensure(plan.data.name, Path(plan.data.folder), say)
    for result in checks(plan, store):
        if result.verdict == "failed":
            raise NotReadyError(str(result))


def checks(plan: Plan, store: Path) -> Iterator[CheckResult]:
    """What this plan needs of the machine, one thing after the other; a later one may take an earlier for granted."""
    platform = Platform(files.load(plan.platform))
    yield devices(plan, platform)
    yield precision(plan, platform)
    yield collectives(plan, platform)
    yield compiler(plan, platform)
    yield memory(plan)
    yield data_folder(plan)
    yield disk(plan, store)


def others_sentence(share: float | None) -> str | None:
    """What to know before a number is waited for on a machine that others use."""
    if share is None or share <= cores.FOREIGN_LOAD:
        return None
    return (
        f"others use {100 * share:.0f} % of this machine: what is measured will be slower and noisier than it can; "
        "'trainmark doctor' says who they are"
    )


def devices(plan: Plan, platform: Platform) -> CheckResult:
    wanted, there = Topology.parse(plan.topology).devices_per_node, platform.device_count
    if platform.is_cpu and wanted > cores.MAX_RANKS_PER_CORE * there:
        return failed(
            f"topology {plan.topology} asks for {wanted} ranks on {there} usable cores, and more than "
            f"{cores.MAX_RANKS_PER_CORE} a core would only take turns; try --topology 1x{there}"
        )
    if there >= (1 if platform.is_cpu else wanted):
        return ok(f"{there} devices are visible")
    return failed(
        f"topology {plan.topology} needs {wanted} devices of platform {platform.file.name} on this machine, "
        f"{there} are visible; try {f'--topology 1x{there}' if there else '--platform cpu'}"
    )


def precision(plan: Plan, platform: Platform) -> CheckResult:
    """UsageError where the network has nothing that the precision is for."""
    device, asked = platform.open(0), Precision.parse(plan.precision)
    if not (reason := device.refuses(asked)):
        if asked.scaled:
            from trainmark.train import meta_model

            scaled_products.take_over(meta_model.model(plan))
        return ok(f"{plan.precision} runs here")
    can = [name for name, precision in PRECISIONS.items() if not device.refuses(precision)]
    others = f"this device runs {', '.join(can)}" if can else "nor does any other; see `trainmark platform check`"
    return failed(f"precision {plan.precision} does not run here ({reason}); {others}")


def collectives(plan: Plan, platform: Platform) -> CheckResult:
    """A word that torch.distributed does not know would fail in every rank, after the data was opened."""
    from torch import distributed

    word = platform.file.collectives
    if Topology.parse(plan.topology).devices == 1 or distributed.is_backend_available(word):
        return ok("ranks can work together")
    known = ", ".join(name for name in distributed.Backend.backend_list if distributed.is_backend_available(name))
    return failed(
        f"platform {platform.file.name} names the collectives {word!r}, which this torch does not have; it has {known}"
    )


def compiler(plan: Plan, platform: Platform) -> CheckResult:
    """torch.compile writes C++ for a CPU, and would fail in the first step without somebody to translate it."""
    if plan.recipe.get("compiled", "no") == "no":
        return ok("nothing is compiled")
    if platform.is_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++")):
        return failed("torch.compile needs a C++ compiler here and neither g++ nor clang++ is found; install one")
    if platform.open(0).emulates(Precision.parse(plan.precision)):
        return failed(
            f"torch.compile does not go with {plan.precision} here: this CPU emulates it, unseen by torch.compile"
        )
    return ok("torch.compile has what it needs")


def memory(plan: Plan) -> CheckResult:
    """What is certain beforehand: activations come on top, and only a step tells how many."""
    reason = too_large(plan)
    return failed(reason) if reason else ok("weights, gradients and optimizer fit the devices")


def data_folder(plan: Plan) -> CheckResult:
    folder = Path(plan.data.folder)
    if plan.data.folder == NO_FOLDER:
        return ok("the workload makes its data itself")
    if not folder.is_dir():
        return failed(f"data folder {folder} is not there; give one with --data DIR, or none for synthetic data")
    workload = workloads.of_plan(plan)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)
    workload.check_data(recipe, folder, Topology.parse(plan.topology).devices)
    return ok(f"data folder {folder} is there, and what can be seen of it at once fits the recipe")


def disk(plan: Plan, store: Path) -> CheckResult:
    """Two checkpoints and the logs must fit; what else fills the disk meanwhile cannot be seen from here."""
    need = LOG_BYTES
    if plan.recipe.get("checkpoint_every") != "never":
        need += 3 * checkpoint_bytes(plan)  # the two kept and the one being written
    free = shutil.disk_usage(find_existing_folder(store)).free
    if free < need:
        return failed(
            f"{store} has {free / 2**20:,.0f} MiB free and this run may need {need / 2**20:,.0f}; "
            "free some, choose another with --store DIR, or --set checkpoint_every=never"
        )
    return ok(f"{store} has room for checkpoints and logs")


def checkpoint_bytes(plan: Plan) -> int:
    """Weights, two optimizer states, and the average of weights if there is one, in float32: no recipe of ours keeps
    more."""
    from trainmark.train import meta_model

    copies = 4 if plan.recipe.get("average_decay") else 3
    return copies * 4 * sum(parameter.numel() for parameter in meta_model.model(plan).parameters())
