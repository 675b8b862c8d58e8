"""Detects the platform of this machine, for `--platform auto`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any

import torch

from trainmark.platforms import files
from trainmark.platforms.files import PlatformFile
from trainmark.record.errors import NotReadyError


def detect() -> str:
    """The name of the platform of the accelerator that torch sees, else of the CPU."""
    candidates = _load_candidates()
    device_type = _find_device_type() or _load_plugins(candidates)
    return files.EVERYWHERE if device_type is None else _choose_most_specific(device_type, candidates)


def find_undescribed_if_auto(requested: str | None) -> str | None:
    """A warning where torch sees an accelerator without a platform file, so that the CPU is used instead; None where
    the user has chosen a platform."""
    if requested not in (None, "auto") or os.environ.get("TRAINMARK_PLATFORM"):
        return None
    device_type = _find_device_type()
    if device_type is None or _choose_most_specific(device_type, _load_candidates()) != files.EVERYWHERE:
        return None
    return (
        f"torch sees an accelerator, {device_type}, that no platform file describes, so THE CPU IS USED and not the "
        f"accelerator; `trainmark platform new {device_type}` writes a file for it, to be given with --platform"
    )


def _load_candidates() -> list[PlatformFile]:
    return [file for file in map(files.load, files.names()) if file.name != files.EVERYWHERE]


def _find_device_type() -> str | None:
    """The torch device type of this machine."""
    if not hasattr(torch, "accelerator"):
        raise NotReadyError(
            f"this is torch {torch.__version__}; install a build of torch 2.6 or newer, or --platform cpu"
        )
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None else found.type


def _load_plugins(candidates: Sequence[PlatformFile]) -> str | None:
    """The same after importing installed plugins of torch; one that cannot be imported is skipped."""
    for file in candidates:
        if file.plugin is None or importlib.util.find_spec(file.plugin.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(file.plugin)
        except Exception:  # noqa: S112 - a plugin without its driver may raise anything
            continue
        if (device_type := _find_device_type()) is not None:
            return device_type
    return None


def _choose_most_specific(device_type: str, candidates: Sequence[PlatformFile]) -> str:
    """The platform of this device type that matches best; the CPU if there is none."""
    name = _read_device_name(device_type)
    fitting = [(_rate_fit(file, name), file.name) for file in candidates if file.device_type == device_type]
    known = [(fit, name) for fit, name in fitting if fit is not None]
    return max(known, default=((), files.EVERYWHERE))[1]


def _rate_fit(file: PlatformFile, device_name: str) -> tuple[int, int] | None:
    """How well a file matches: by the length of the matched device name, then by the build; None if it does not."""
    wanted, length = file.recognise, 0
    if wanted.device_name is not None:
        if (found := re.search(wanted.device_name, device_name)) is None:
            return None
        length = len(found.group())
    if wanted.build is not None and not getattr(torch.version, wanted.build, None):
        return None
    return length, int(wanted.build is not None)


def _read_device_name(device_type: str) -> str:
    module: Any = getattr(torch, device_type, None)
    return str(module.get_device_name(0)) if hasattr(module, "get_device_name") else ""


def choose_platform() -> str:
    """The default platform: TRAINMARK_PLATFORM, or the detected one."""
    return os.environ.get("TRAINMARK_PLATFORM") or detect()
