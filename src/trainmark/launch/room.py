"""Says beforehand which runs a machine, or the time given them, has no room for: cheaply, and only where it is sure."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import psutil

from trainmark import workloads
from trainmark.platforms import files
from trainmark.platforms.matmul_rate import matmul_flops, matmul_type
from trainmark.platforms.platform import Platform
from trainmark.record.duration import shown
from trainmark.record.plan import Plan
from trainmark.record.precision import Precision
from trainmark.record.recipe import from_values
from trainmark.record.topology import Topology
from trainmark.record.workload_facts import derive
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
        f"{title} was left out: one step takes about {shown(step_s)} here, and its share of the time is "
        f"{shown(share_s)}; a longer --budget has room for it."
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
    facts = derive(workload)
    items = (facts.items_per_sample or 0.0) * recipe.step_batch_per_device
    if facts.flops_per_item is not None and facts.flops_per_item * items <= most:
        return facts.flops_per_item * items
    return workload.flops_per_item(recipe) * items
