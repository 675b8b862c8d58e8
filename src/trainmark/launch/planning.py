"""Makes complete plans from the options of a user."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

from trainmark import data as datasets, workloads
from trainmark.data import synthetic
from trainmark.launch.options import LIMITS, RunOptions
from trainmark.platforms import detection, files
from trainmark.record import site
from trainmark.record.errors import UsageError, nearest
from trainmark.record.plan import NO_FOLDER, DataChoice, Plan, Topology
from trainmark.record.precision import Precision
from trainmark.record.recipe import (
    AnyRecipe,
    Limits,
    Recipe,
    apply_settings,
    deviations,
    from_values,
    get_recipe_kind,
    to_values,
)
from trainmark.record.store import Store, default_folder
from trainmark.record.trust import trust_file
from trainmark.workloads import weights


def make_plans(options: RunOptions) -> list[Plan]:
    """One plan per requested workload, or per topology of a sweep."""
    if options.sweep is not None:
        return [
            plan
            for topology in options.sweep_topologies()
            for plan in make_plans(replace(options, sweep=None, topology=str(topology)))
        ]
    names = options.workloads or workloads.names()
    for word in ("data", "init_from"):
        if getattr(options, word) is not None and len(set(names)) > 1:
            option, given = word.replace("_", "-"), ", ".join(dict.fromkeys(names))
            raise UsageError(f"--{option} is for one workload; name it: {given}")
    share_s = options.shared_s and options.shared_s / (len(names) * options.repeat)
    return [set_time_share(make_plan(name, options), share_s) for name in names]


def set_time_share(plan: Plan, share_s: float | None) -> Plan:
    """The plan with its share of a time budget, which replaces the recipe's limit in seconds."""
    if share_s is None:
        return plan
    seconds = None if plan.limits.half_width is not None else plan.limits.seconds
    return replace(plan, limits=replace(plan.limits, seconds=seconds, wall_s=round(share_s, 1)))


def make_plan(name: str, options: RunOptions) -> Plan:
    """The plan for one workload."""
    workload, source = workloads.find(name)
    topology = Topology.parse(options.topology or "1x1")
    chosen = detection.choose_platform() if options.platform in (None, "auto") else str(options.platform)
    platform = files.load(chosen)
    if topology.devices > 1 and platform.collectives == files.NO_COLLECTIVES:
        raise UsageError(
            f"topology {topology} needs collectives, which platform {platform.name} does not have; try --topology 1x1"
        )
    recipe_name = options.recipe or "quick"
    if recipe_name not in workload.recipes:
        raise UsageError(f"recipe {recipe_name!r} is not known; {nearest(recipe_name, workload.recipes)}")
    recipe, kind = workload.recipes[recipe_name], get_recipe_kind(recipe_name)
    if platform.device_type != "cpu":
        changes = workload.on_accelerators.get(recipe_name, {})
        recipe = from_values(type(recipe), {**to_values(recipe), **changes})
    if kind.shares_batch:
        recipe = replace(recipe, batch_per_device=math.ceil(recipe.batch_per_device / topology.devices))
    seed = [] if options.seed is None else [f"seed={options.seed}"]
    usual, recipe = recipe, apply_settings(recipe, [*seed, *options.settings])
    if kind.finds_batch and not options.is_set("learning_rate"):
        rate = workload.scaled_learning_rate(usual, recipe.batch_per_device)
        recipe = replace(recipe, learning_rate=rate)
    recipe = _resolve_runs(recipe, options)
    check_tensor_parallel(recipe, topology)
    data = options.data or _find_site_data(workload.data_set, recipe_name)
    if data:
        folder = str(Path(data).expanduser().absolute())
    elif workload.data_set in datasets.names():
        folder = str(synthetic.folder(workload.data_set))
    else:
        folder = NO_FOLDER
    init_from, init_sha256 = None, None
    if options.init_from is not None:
        init_from, init_sha256 = _find_weights(Path(options.init_from), "--init-from", options)
    plan = Plan(
        workload=workload.name,
        workload_source=source,
        recipe_name=recipe_name,
        recipe=to_values(recipe),
        deviations=deviations(recipe, workload.recipes["reference"]),
        topology=str(topology),
        precision=_choose_precision(options.precision, platform).name,
        platform=str(Path(chosen).absolute()) if platform.is_own else platform.name,
        data=DataChoice(
            name=workload.data_set, folder=folder, synthetic=bool(folder) and synthetic.is_synthetic(Path(folder), data)
        ),
        limits=_choose_limits(options, workload.limits.get(recipe_name, Limits())),
        skip_bad=options.skip_bad,
        hang_timeout_s=options.hang_timeout_s,
        max_restarts=options.max_restarts,
        profile=options.profile,
        init_from=init_from,
        init_sha256=init_sha256,
    )
    check_initial_weights(plan)
    return plan


def needs_search(plan: Plan, options: RunOptions) -> bool:
    """True where the batch of a plan is not known yet: recipe fill without --set batch_per_device."""
    return get_recipe_kind(plan.recipe_name).finds_batch and not options.is_set("batch_per_device")


def refuse_search(plans: Iterable[Plan], options: RunOptions) -> None:
    """Launchers of one run must agree on the batch before the rendezvous, and each search might find another."""
    for plan in plans:
        if needs_search(plan, options):
            raise UsageError(
                f"recipe fill finds the batch of {plan.workload} where one process starts all ranks, not among several "
                "nodes or tasks; find it with --topology 1x1, then give it: --set batch_per_device=N"
            )


def check_initial_weights(plan: Plan) -> None:
    """Raises where the file cannot be loaded or does not fit the network, before any data is opened."""
    from trainmark.train import setup

    if plan.init_from and (given := setup.load_initial_weights(plan)) is not None:
        weights.check_fit(weights.build_model(plan), given, str(plan.init_from), to_begin=True)


def check_tensor_parallel(recipe: Recipe, topology: Topology) -> None:
    """UsageError where the topology does not allow the tensor parallelism of a recipe."""
    tensor = recipe.tensor_parallel
    if tensor > 1 and recipe.parallel == "ddp":
        raise UsageError(f"tensor_parallel={tensor} needs a sharded network; add --set parallel=fsdp")
    if topology.devices_per_node % tensor:
        raise UsageError(
            f"tensor_parallel={tensor} does not divide the {topology.devices_per_node} devices per node of {topology}; "
            "set a divisor"
        )


def resume_plan(plan: Plan, run_folder: Path, options: RunOptions) -> Plan:
    """The plan of an earlier run, resumed from its last checkpoint; only limits, data and topology may change."""
    given = [
        word.replace("_", "-")
        for word in ("recipe", "precision", "platform", "seed", "init_from")
        if getattr(options, word) is not None
    ]
    if given or options.settings:
        raise UsageError(f"--resume takes the plan of the run it resumes; leave out --{(given or ['set'])[0]}")
    if options.topology is not None:
        plan = change_topology(plan, Topology.parse(options.topology))
    choice = replace(plan.data, folder=str(Path(options.data).expanduser().absolute())) if options.data else plan.data
    limits = replace(_choose_limits(options, plan.limits), wall_s=None)  # the budget of its first part is spent
    return replace(plan, data=choice, limits=limits, resume_from=str(run_folder / "checkpoints"))


def change_topology(plan: Plan, topology: Topology) -> Plan:
    """The plan with its global batch split over another topology: the same steps of the same samples."""
    batch = int(plan.recipe["batch_per_device"]) * Topology.parse(plan.topology).devices
    if batch % topology.devices:
        raise UsageError(
            f"the global batch of {batch} samples cannot be split over the {topology.devices} devices of {topology}; "
            "give a topology whose number of devices divides it"
        )
    workload = workloads.of_plan(plan)
    reference = workload.recipes["reference"]
    values = {**plan.recipe, "batch_per_device": batch // topology.devices}
    if tensor := int(values.get("tensor_parallel", 0)):
        values["tensor_parallel"] = math.gcd(tensor, topology.devices_per_node)
    recipe = from_values(type(reference), values)
    return replace(plan, topology=str(topology), recipe=to_values(recipe), deviations=deviations(recipe, reference))


def _find_site_data(data_set: str, recipe_name: str) -> str | None:
    """The folder of the real set on this site, for recipes that use it."""
    if not get_recipe_kind(recipe_name).real_data:
        return None
    folders, known = site.load().data, (*datasets.names(), data_set)
    for name in folders:
        if name not in known:
            raise UsageError(f"{site.FILE}: key {name!r} of [data] is not known; {nearest(name, known)}")
    return folders.get(data_set)


def _find_weights(path: Path, option: str, options: RunOptions) -> tuple[str, str]:
    """The file of weights at a path that the user typed, and its hash."""
    file, digest = weights.find_weights(path.expanduser().absolute(), option)
    if options.trust:
        trust_file(file)
    return str(file), digest


def _resolve_runs(recipe: AnyRecipe, options: RunOptions) -> AnyRecipe:
    """The recipe with each run replaced by the file of its weights, with their hash."""
    changes: dict[str, str] = {}
    for field in fields(recipe):
        if field.metadata.get("run") and (word := getattr(recipe, field.name)):
            path = Path(word).expanduser()
            if not path.exists() and os.sep not in word:
                path = Store(Path(options.store).expanduser() if options.store else default_folder()).run_folder(word)
            path = path / "checkpoints" if (path / "checkpoints").is_dir() else path
            file, digest = _find_weights(path, f"setting {field.name}", options)
            changes |= {field.name: file, f"{field.name}_sha256": digest}
    return replace(recipe, **changes)


def _choose_precision(word: str | None, platform: files.PlatformFile) -> Precision:
    precision = Precision.parse(word or "fp32")
    if precision.name not in platform.precisions:
        can = ", ".join(platform.precisions)
        raise UsageError(f"precision {precision} does not run on platform {platform.name}; it has {can}")
    return precision


def _choose_limits(options: RunOptions, usual: Limits) -> Limits:
    limits = Limits(steps=options.steps, seconds=options.seconds, epochs=options.epochs, items=options.items)
    given = {name: value for name in LIMITS if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        if value <= 0:
            raise UsageError(f"--{name} must be more than 0, not {value:g}")
    return limits if given else usual
