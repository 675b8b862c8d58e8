"""Drafts a platform file for an accelerator that has none, from what torch reports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import entry_points

import torch
from torch import distributed

from trainmark.platforms import device_errors, files
from trainmark.platforms.platform import MIN_TORCH, Platform
from trainmark.record import tables
from trainmark.record.errors import NotReadyError
from trainmark.record.precision import PRECISIONS


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What torch reports about the accelerator of this machine."""

    device_type: str
    device_name: str = ""
    """Empty where torch has none."""
    count: int = 0
    memory_bytes: int | None = None
    collectives: str = files.NO_COLLECTIVES
    plugin: str | None = None
    """The module that registers the device in torch; None where torch has it built in."""
    precisions: tuple[str, ...] = ()
    """Precisions in which a layer could be trained."""
    refused: tuple[tuple[str, str], ...] = ()
    """Other precisions, with the reason."""
    torch: str = ""


def inspect_accelerator() -> Accelerator:
    """Inspects the accelerator of this machine; NotReadyError where torch sees none."""
    available = hasattr(torch, "accelerator") and torch.accelerator.is_available()
    found = torch.accelerator.current_accelerator() if available else None
    if found is None:
        raise NotReadyError(
            "torch sees no accelerator here, and a platform file is written from what it sees; import its plugin, or "
            "install one for this torch"
        )
    device_type, name, memory_bytes = found.type, "", None
    everything = tables.read(
        files.PlatformFile,
        {
            "title": device_type,
            "device_type": device_type,
            "collectives": files.NO_COLLECTIVES,
            "precisions": list(PRECISIONS),
        },
        "a first file",
        name=device_type,
        word=device_type,
        text="",
    )
    tried: dict[str, str | None] = {}
    try:
        device = Platform(everything).open(0)
        memory_bytes = device.memory_capacity_bytes()
        name = "" if device.name() == device_type else device.name()
        tried = {word: device.explain_refusal(precision) for word, precision in PRECISIONS.items()}
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        tried = {"fp32": device_errors.first_line(error)}
    return Accelerator(
        device_type=device_type,
        device_name=name,
        count=int(torch.accelerator.device_count()),
        memory_bytes=memory_bytes,
        collectives=_collectives(device_type),
        plugin=_plugin(device_type),
        precisions=tuple(word for word, refusal in tried.items() if refusal is None),
        refused=tuple((word, refusal) for word, refusal in tried.items() if refusal is not None),
        torch=str(torch.__version__),
    )


def make_file(name: str, seen: Accelerator) -> str:
    """A file with the keys that most platforms need; unknown ones are comments."""
    release = ".".join(re.findall(r"\d+", seen.torch)[:2]) or MIN_TORCH
    where = f"{seen.count} x {seen.device_name or seen.device_type}"
    memory = f", {seen.memory_bytes / 2**30:.1f} GiB each" if seen.memory_bytes else ""
    refused = "".join(f"# not {word}: {_comment(reason)}\n" for word, reason in seen.refused)
    plugin = f'plugin = "{seen.plugin}"' if seen.plugin else '# plugin = "torch_vendor"'
    pattern = re.escape(seen.device_name).replace("\\ ", " ") if seen.device_name else "a pattern in the device's name"
    capacity = f"{seen.memory_bytes / 2**30:.0f}" if seen.memory_bytes else "64"
    return f"""\
# {name}: written from what torch {seen.torch} reports of {_comment(where)}{memory}.
# `trainmark platform check ./{name}.toml` says what works; docs/platforms.md explains every key.
title = "{name}"
device_type = "{seen.device_type}"  # torch's word for the device
# torch.distributed's backend; "none" where devices cannot work together
collectives = "{seen.collectives}"
{_precisions(seen)}\
{refused}\
# the module whose import teaches torch the device, where torch does not know it by itself
{plugin}
least_torch = "{release}"
# the variable that limits which devices a process sees
# visible_devices = "{seen.device_type.upper()}_VISIBLE_DEVICES"
# variables that change speed, and belong on the record
# speed_variables = ["{seen.device_type.upper()}_LAUNCH_BLOCKING"]
# what its error says where memory ends, unless it raises torch.OutOfMemoryError
# out_of_memory = "malloc failed"
# how its driver's version is asked for: a program, and the pattern whose first group is the version
# driver = {{ argv = ["vendor-smi", "--version"], pattern = 'Driver Version: (\\S+)' }}
# what one device could reach at most, by its data sheet; without it no run shows mfu
# peaks = [
#   {{ device = '{pattern}', tflops = {{ bf16 = 320 }}, memory_gib = {capacity}, source = "data sheet, rev 1" }},
# ]

# how power, heat and memory are read
# [sensors]
# kind = "program"
# [[sensors.programs]]
# argv = ["vendor-smi", "--csv"]
# parse = "csv"
# [sensors.programs.fields]
# device = {{ from = "index" }}
# power_w = {{ from = "power.draw" }}
"""


def _precisions(seen: Accelerator) -> str:
    """A file must have one: fp32 with a comment where none works."""
    if not seen.precisions:
        return '# in none of them could a layer be trained here; this one is left to try again\nprecisions = ["fp32"]\n'
    listed = ", ".join(f'"{word}"' for word in seen.precisions)
    return f"# in which one layer could be trained here\nprecisions = [{listed}]\n"


def _comment(words: str) -> str:
    """External text on one line, in printable ASCII."""
    return re.sub(r"[^\x20-\x7e]", "?", words)[:160]


def _collectives(device_type: str) -> str:
    if not distributed.is_available():
        return files.NO_COLLECTIVES
    known = distributed.Backend.default_device_backend_map.get(device_type)
    return known or files.NO_COLLECTIVES


def _plugin(device_type: str) -> str | None:
    """The module of the entry point that registers the device in torch."""
    if device_type != torch._C._get_privateuse1_backend_name():
        return None
    modules = [entry.value.partition(":")[0] for entry in entry_points(group="torch.backends")]
    named = [module for module in modules if device_type in module]
    return next(iter(named or modules), None)
