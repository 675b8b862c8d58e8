"""Networks of packages that people would pick instead, each where it is installed; none is a dependency.

Their trainings are what their own scripts and examples do: default allocator and threads, torch's default optimizer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

IMAGE_NETWORKS: Mapping[str, Mapping[str, Callable[[Any], nn.Module]]] = {
    "resnet50": {
        "torchvision": lambda package: package.models.resnet50(),
        "timm": lambda package: package.create_model("resnet50"),
    },
    "vit": {
        "torchvision": lambda package: package.models.vit_b_16(),
        "timm": lambda package: package.create_model("vit_base_patch16_224"),
    },
}


def installed(package: str) -> Any | None:
    """The package, or None, whatever keeps it from being imported beside this torch."""
    try:
        return importlib.import_module(package)
    except Exception as error:  # a build for another torch fails in ways of its own
        print(f"{package} cannot be raced: {error}".partition("\n")[0], flush=True)
        return None


def image_networks(workload: str) -> dict[str, Callable[[], nn.Module]]:
    """By package, what makes its network for a workload's task."""
    found: dict[str, Callable[[], nn.Module]] = {}
    for package, make in IMAGE_NETWORKS.get(workload, {}).items():
        if (module := installed(package)) is not None:
            found[package] = partial(make, module)
    return found


def speech_networks() -> dict[str, Callable[[], nn.Module]]:
    """By package, what makes its Tacotron2: torchaudio's is NVIDIA's, carried over."""
    module = installed("torchaudio")
    return {} if module is None else {"torchaudio": module.models.Tacotron2}
