"""Turns what a user said into a plan in which nothing is left open."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

from trainmark import data as datasets, workloads
from trainmark.data import synthetic
from trainmark.launch.options import RunOptions
from trainmark.platforms import detection, files
from trainmark.record import site
from trainmark.record.errors import NotReadyError, UsageError, nearest
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


def plans(options: RunOptions) -> list[Plan]:
    """One decided plan for each workload asked for, or for each topology of a sweep."""
    if options.sweep is not None:
        return [
            plan
            for topology in options.sweep_topologies()
            for plan in plans(replace(options, sweep=None, topology=str(topology)))
        ]
    names = options.workloads or workloads.names()
    for word in ("data", "init_from"):
        if getattr(options, word) is not None and len(set(names)) > 1:
            option, given = word.replace("_", "-"), ", ".join(dict.fromkeys(names))
            raise UsageError(f"--{option} is for one workload; name it: {given}")
    share_s = options.shared_s and options.shared_s / (len(names) * options.repeat)
    return [with_share(decide(name, options), share_s) for name in names]


def with_share(plan: Plan, share_s: float | None) -> Plan:
    """The plan with its share of a time budget, which takes the place of the recipe's own limit in seconds."""
    if share_s is None:
        return plan
    seconds = None if plan.limits.half_width is not None else plan.limits.seconds
    return replace(plan, limits=replace(plan.limits, seconds=seconds, wall_s=round(share_s, 1)))


def decide(name: str, options: RunOptions) -> Plan:
    """The plan for one workload."""
    workload, source = workloads.find(name)
    topology = Topology.parse(options.topology or "1x1")
    chosen = detection.chosen() if options.platform in (None, "auto") else str(options.platform)
    platform = files.load(chosen)
    if topology.devices > 1 and platform.collectives == files.NO_COLLECTIVES:
        raise UsageError(
            f"topology {topology} needs devices that work together, which those of platform {platform.name} cannot; "
            "try --topology 1x1"
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
    recipe = _with_weights_of_runs(recipe, options)
    check_tensor_parallel(recipe, topology)
    data = options.data or _site_data(workload.data_set, recipe_name)
    if data:
        folder = str(Path(data).expanduser().absolute())
    elif workload.data_set in datasets.names():
        folder = str(synthetic.folder(workload.data_set))
    else:
        folder = NO_FOLDER
    init_from, init_sha256 = _initial(options.init_from)
    plan = Plan(
        workload=workload.name,
        workload_source=source,
        recipe_name=recipe_name,
        recipe=to_values(recipe),
        deviations=deviations(recipe, workload.recipes["reference"]),
        topology=str(topology),
        precision=_precision(options.precision, platform).name,
        platform=str(Path(chosen).absolute()) if platform.is_own else platform.name,
        data=DataChoice(
            name=workload.data_set, folder=folder, synthetic=bool(folder) and synthetic.is_synthetic(Path(folder), data)
        ),
        limits=_limits(options, workload.limits.get(recipe_name, Limits())),
        skip_bad=options.skip_bad,
        hang_timeout_s=options.hang_timeout_s,
        max_restarts=options.max_restarts,
        profile=options.profile,
        init_from=init_from,
        init_sha256=init_sha256,
    )
    check_initial_weights(plan)
    return plan


def check_initial_weights(plan: Plan) -> None:
    """A file that cannot be loaded, or does not fit the network, is found here and not after the data was opened."""
    from trainmark.train import meta_model, setup
    from trainmark.workloads import weights

    if plan.init_from and (given := setup.initial_weights(plan)) is not None:
        weights.check_fit(meta_model.model(plan), given, str(plan.init_from), to_begin=True)


def check_tensor_parallel(recipe: Recipe, topology: Topology) -> None:
    """UsageError where devices cannot compute blocks together as a recipe says."""
    tensor = recipe.tensor_parallel
    if tensor > 1 and recipe.parallel == "ddp":
        raise UsageError(f"tensor_parallel={tensor} is for a sharded network; add --set parallel=fsdp")
    if topology.devices_per_node % tensor:
        raise UsageError(
            f"tensor_parallel={tensor} does not divide the devices a node has, {topology.devices_per_node} in "
            f"{topology}; set a divisor of them"
        )


def resume_plan(plan: Plan, run_folder: Path, options: RunOptions) -> Plan:
    """An earlier run's plan, to go on from its last checkpoint; only where it stops, its data and how many devices
    share its batch may change."""
    said = [
        word.replace("_", "-")
        for word in ("recipe", "precision", "platform", "seed", "init_from")
        if getattr(options, word) is not None
    ]
    if said or options.settings:
        raise UsageError(f"--resume takes the plan of the run it resumes; leave out --{(said or ['set'])[0]}")
    if options.topology is not None:
        plan = shared_anew(plan, Topology.parse(options.topology))
    choice = replace(plan.data, folder=str(Path(options.data).expanduser().absolute())) if options.data else plan.data
    limits = replace(_limits(options, plan.limits), wall_s=None)  # what its first part was given is used up
    return replace(plan, data=choice, limits=limits, resume_from=str(run_folder / "checkpoints"))


def shared_anew(plan: Plan, topology: Topology) -> Plan:
    """The plan with its global batch shared by other devices: the same steps of the same samples."""
    batch = int(plan.recipe["batch_per_device"]) * Topology.parse(plan.topology).devices
    if batch % topology.devices:
        raise UsageError(
            f"the run's batch of {batch} samples cannot be shared by the {topology.devices} devices of {topology}; "
            "give a topology whose number of devices divides it"
        )
    workload = workloads.of_plan(plan)
    reference = workload.recipes["reference"]
    values = {**plan.recipe, "batch_per_device": batch // topology.devices}
    if tensor := int(values.get("tensor_parallel", 0)):
        values["tensor_parallel"] = math.gcd(tensor, topology.devices_per_node)
    recipe = from_values(type(reference), values)
    return replace(plan, topology=str(topology), recipe=to_values(recipe), deviations=deviations(recipe, reference))


def _site_data(data_set: str, recipe_name: str) -> str | None:
    """Where this site keeps the real set, for the recipes that are meant for it."""
    if not get_recipe_kind(recipe_name).real_data:
        return None
    folders, known = site.load().data, (*datasets.names(), data_set)
    for name in folders:
        if name not in known:
            raise UsageError(f"{site.FILE}: key {name!r} of [data] is not known; {nearest(name, known)}")
    return folders.get(data_set)


def _initial(word: str | None, asked: str = "--init-from") -> tuple[str, str] | tuple[None, None]:
    """The file of weights meant, and the hash of what it holds."""
    if word is None:
        return None, None
    from trainmark.workloads import weights

    file = weights.weights_file(Path(word).expanduser().absolute(), asked)
    try:
        return str(file), weights.weights_sha256(file)
    except OSError as error:
        raise NotReadyError(f"{asked} {file} cannot be read: {error.strerror or error}") from error


def _with_weights_of_runs(recipe: AnyRecipe, options: RunOptions) -> AnyRecipe:
    """The recipe with files of weights, and their hashes, where it names runs."""
    changes: dict[str, str] = {}
    for field in fields(recipe):
        if field.metadata.get("run") and (word := getattr(recipe, field.name)):
            path = Path(word).expanduser().absolute()
            if not path.exists():
                path = Store(Path(options.store).expanduser() if options.store else default_folder()).run_folder(word)
            folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
            file, digest = _initial(str(folder), f"setting {field.name}")
            changes |= {field.name: str(file), f"{field.name}_sha256": str(digest)}
    return replace(recipe, **changes)


def _precision(word: str | None, platform: files.PlatformFile) -> Precision:
    precision = Precision.parse(word or "fp32")
    if precision.name not in platform.precisions:
        can = ", ".join(platform.precisions)
        raise UsageError(f"precision {precision} does not run on platform {platform.name}; it has {can}")
    return precision


def _limits(options: RunOptions, usual: Limits) -> Limits:
    said = {"steps": options.steps, "seconds": options.seconds, "epochs": options.epochs, "items": options.items}
    given = {name: value for name, value in said.items() if value is not None}
    for name, value in given.items():
        if value <= 0:
            raise UsageError(f"--{name} must be more than 0, not {value:g}")
    return (
        Limits(steps=options.steps, seconds=options.seconds, epochs=options.epochs, items=options.items)
        if given
        else usual
    )
