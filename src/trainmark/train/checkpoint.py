"""Checkpoints that are whole or not there: written beside, synced, renamed, with their hash in a manifest."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from trainmark.spec.errors import NotReadyError, WorkloadError
from trainmark.spec.whole_files import UNFINISHED, sha256, sync, whole_folder
from trainmark.workloads.weights import checkpoints

PREFIX = "step-"
KEPT = 2
"""The newest, and one before it in case the newest is damaged."""


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Writes a checkpoint of a step; the older ones beyond the last two are removed once it is safe on disk."""
    final = folder / f"{PREFIX}{step:09d}"
    for left in folder.glob(f".{PREFIX}*{UNFINISHED}"):  # by a worker that was killed here
        shutil.rmtree(left, ignore_errors=True)
    try:
        with whole_folder(final) as part:
            torch.save(state, part / "state.pt")
            manifest = {"step": step, "size": (part / "state.pt").stat().st_size, "sha256": sha256(part / "state.pt")}
            (part / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
            for name in ("state.pt", "manifest.json", "."):
                sync(part / name)
        sync(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise WorkloadError(f"cannot write the checkpoint of step {step} to {folder}: {reason}") from error
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_newest(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The newest whole checkpoint, and a sentence about each damaged one, which is renamed `.corrupt` and kept."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        reason = damage(path)
        if reason is None:
            try:
                state: dict[str, Any] = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
                return state, damaged
            except pickle.UnpicklingError:
                reason = "it holds more than tensors and numbers, and loading it could run code"
            except Exception as error:  # torch raises what its many readers happen to raise
                reason = f"torch cannot read it: {str(error).partition(chr(10))[0]}"
        path.rename(path.with_name(path.name + ".corrupt"))
        damaged.append(f"checkpoint {path.name} is damaged ({reason}) and was set aside as {path.name}.corrupt")
    raise NotReadyError("; ".join([f"no whole checkpoint in {folder}", *damaged]))


def size_bytes(path: Path) -> int:
    return (path / "state.pt").stat().st_size


def step_of(folder: Path) -> int:
    """Steps that a whole checkpoint had been trained for."""
    return int(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["step"])


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's folder; None where it is whole."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        size = size_bytes(path)
        if size != manifest["size"]:
            return f"{size} bytes, not {manifest['size']}"
        if sha256(path / "state.pt") != manifest["sha256"]:
            return "its content does not match its hash"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
