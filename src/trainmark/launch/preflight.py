"""Looks at the machine before an hour is spent on it: devices, precision, data, disk, memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.spec.errors import NotReadyError
from trainmark.spec.plan import Plan
from trainmark.spec.precision import PRECISIONS, Precision
from trainmark.spec.topology import Topology

LOG_BYTES = 64 << 20
"""Room for event files, logs and the record."""


def machine(plan: Plan, store: Path) -> None:
    """Raises NotReadyError with what is missing, and what would help."""
    platform = Platform(files.load(plan.platform))
    wanted = Topology.parse(plan.topology).devices_per_node
    if platform.device_count < (1 if platform.is_cpu else wanted):
        remedy = f"--topology 1x{platform.device_count}" if platform.device_count else "--platform cpu"
        raise NotReadyError(
            f"topology {plan.topology} needs {wanted} devices of platform {platform.file.name} on this machine, "
            f"{platform.device_count} are visible; try {remedy}"
        )
    device = platform.open(0)
    if reason := device.refuses(Precision.parse(plan.precision)):
        can = [name for name, precision in PRECISIONS.items() if not device.refuses(precision)]
        raise NotReadyError(
            f"precision {plan.precision} does not run here ({reason}); this device runs {', '.join(can)}"
        )
    compiler(plan, platform)
    data_folder(plan)
    disk(plan, store)
    initial_weights(plan)


def compiler(plan: Plan, platform: Platform) -> None:
    """torch.compile writes C++ for a CPU, and would fail in the first step without somebody to translate it."""
    if plan.recipe.get("compiled") != "yes":
        return
    if platform.is_cpu and not any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++")):
        raise NotReadyError("compiled=yes needs a C++ compiler here and neither g++ nor clang++ is found; install one")
    if platform.open(0).emulates(Precision.parse(plan.precision)):
        raise NotReadyError(
            f"compiled=yes does not go with {plan.precision} here: this CPU emulates it, unseen by torch.compile"
        )


def data_folder(plan: Plan) -> None:
    folder = Path(plan.data.folder)
    if not folder.is_dir():
        raise NotReadyError(f"data folder {folder} is not there; give one with --data DIR, or none for generated data")


def disk(plan: Plan, store: Path) -> None:
    """Two checkpoints and the logs must fit; what else fills the disk meanwhile cannot be seen from here."""
    need = LOG_BYTES
    if plan.recipe.get("checkpoint_every") != "never":
        need += 3 * checkpoint_bytes(plan)  # the two kept and the one being written
    free = shutil.disk_usage(_existing(store)).free
    if free < need:
        raise NotReadyError(
            f"{store} has {free / 2**20:,.0f} MiB free and this run may need {need / 2**20:,.0f}; "
            "free some, choose another with --store DIR, or --set checkpoint_every=never"
        )


def initial_weights(plan: Plan) -> None:
    """A file that cannot be loaded, or does not fit the network, is found here and not after the data was opened."""
    from trainmark.train import meta_model, setup
    from trainmark.workloads import weights

    if (given := setup.initial_weights(plan)) is not None:
        weights.check_fit(meta_model.model(plan), given, str(plan.init_from))


def checkpoint_bytes(plan: Plan) -> int:
    """Weights and two optimizer states in float32: no recipe of ours keeps more."""
    from trainmark.train import meta_model

    return 3 * 4 * sum(parameter.numel() for parameter in meta_model.model(plan).parameters())


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path if path.is_dir() and os.access(path, os.W_OK) else path.parent
