"""Looks at the machine before an hour is spent on it: devices, precision, data, disk, memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trainmark import data as datasets, workloads
from trainmark.data import synthetic
from trainmark.platforms import files, scaled_products
from trainmark.platforms.platform import Platform
from trainmark.record import cores
from trainmark.record.checks import LOG_BYTES, CheckResult, existing_folder, failed, ok
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import NO_FOLDER, Plan
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.record.recipe import from_values
from trainmark.record.topology import Topology


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
    if platform.is_cpu and wanted > cores.MOST_RANKS_A_CORE * there:
        return failed(
            f"topology {plan.topology} asks for {wanted} ranks on {there} usable cores, and more than "
            f"{cores.MOST_RANKS_A_CORE} a core would only take turns; try --topology 1x{there}"
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
    from trainmark.launch import room

    too_large = room.too_large(plan)
    return failed(too_large) if too_large else ok("weights, gradients and optimizer fit the devices")


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
    free = shutil.disk_usage(existing_folder(store)).free
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
