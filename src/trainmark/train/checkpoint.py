"""Atomic checkpoints: written to a temporary folder, synced, renamed, with their hashes in a manifest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainmark.record.atomic_files import UNFINISHED, atomic_folder, sha256, sync
from trainmark.record.errors import NotReadyError, WorkloadError
from trainmark.record.foreign_files import read_plain
from trainmark.record.trust import check_pickle
from trainmark.train.collectives import Collectives
from trainmark.workloads import pieces
from trainmark.workloads.pieces import MANIFEST, STATE, Piece, Stored
from trainmark.workloads.weights import checkpoints

PREFIX = "step-"
KEPT = 2
"""The newest, and one before it in case the newest is damaged."""


def save(
    folder: Path,
    step: int,
    state: dict[str, Any],
    held: list[Piece] | None = None,
    ranks: Collectives | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Path:
    """Writes a checkpoint of a step; older ones beyond the last two are removed once it is safe on disk.

    Each rank writes the pieces it holds, rank 0 also the state without their values. A rank that does not see the
    folder of rank 0 sends its pieces there, block by block. Where no rank holds pieces (None), only rank 0 writes, and
    the others need not call.
    """
    ranks, final = ranks or Collectives(), folder / f"{PREFIX}{step:09d}"
    if ranks.rank:
        _write_own(Path(ranks.broadcast(None).decode()), held or [], ranks, step, alive)
        return final
    for left in folder.glob(f".{PREFIX}*{UNFINISHED}"):  # by a worker that was killed
        shutil.rmtree(left, ignore_errors=True)
    with _explain_write_errors(step, folder):
        with atomic_folder(final.absolute()) as part:
            manifest: dict[str, Any] = {"step": step}
            if held is not None:
                ranks.broadcast(str(part).encode())
                manifest["shards"] = _write_own(part, held, ranks, step, alive)
            torch.save(state, part / STATE)
            manifest |= {"size": (part / STATE).stat().st_size, "sha256": sha256(part / STATE)}
            (part / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
            for name in (STATE, MANIFEST, "."):
                sync(part / name)
        sync(folder)
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _write_own(
    part: Path, held: list[Piece], ranks: Collectives, step: int, alive: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    """One file of pieces per rank; returns their entries of the manifest."""
    sees = [bool(one) for one in ranks.gather(b"yes" if part.is_dir() else b"")]
    own = pieces.blocks(held)
    if sees[ranks.rank]:
        written = [_write_blocks(part, ranks.rank, own, alive)]
    else:
        written = []
        for block in own:
            ranks.send(block)
        ranks.send(b"")
    if ranks.rank == 0:
        for other in (rank for rank, seen in enumerate(sees) if not seen):
            written.append(_write_blocks(part, other, iter(partial(ranks.receive, other), b""), alive))
    entries = [one for each in ranks.gather(json.dumps(written).encode()) for one in json.loads(each)]
    for one in entries:
        if one["failed"]:
            raise _make_write_error(step, part.parent, one["failed"])
    return {one["name"]: {"size": one["size"], "sha256": one["sha256"]} for one in entries}


def _write_blocks(
    part: Path, rank: int, blocks: Iterable[bytes | memoryview], alive: Callable[[], None]
) -> dict[str, str | int]:
    path, digest, size, failed = part / f"rank{rank:05d}.safetensors", hashlib.sha256(), 0, ""
    blocks = iter(blocks)
    try:
        with path.open("xb") as file:
            for block in blocks:
                file.write(block)
                digest.update(block)
                size += len(block)
                alive()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        failed = error.strerror or str(error)
        for _ in blocks:  # a sending rank would block otherwise
            pass
    return {"name": path.name, "size": size, "sha256": digest.hexdigest(), "failed": failed}


@contextmanager
def _explain_write_errors(step: int, folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise _make_write_error(step, folder, reason) from error


def _make_write_error(step: int, folder: Path, reason: str | None) -> WorkloadError:
    return WorkloadError(f"cannot write the checkpoint of step {step} to {folder}: {reason}")


def load_newest(folder: Path, *, mapped: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The newest whole checkpoint, and a sentence about each damaged one, which is renamed `.corrupt` and kept.

    Tensors in pieces are `Stored`. With `mapped`, those in one file are read on access.
    """
    path, damaged = _find_newest(folder)
    return _load_state(path, mapped=mapped), damaged


def load_newest_on_all_ranks(folder: Path, ranks: Collectives, *, mapped: bool) -> tuple[dict[str, Any], list[str]]:
    """The newest checkpoint in the folder of rank 0; all ranks raise if there is none. Where all see it, each reads it;
    else rank 0 reads and broadcasts every tensor, and all ranks must access the same ones in the same order."""
    if ranks.world == 1:
        return load_newest(folder, mapped=mapped)
    found: dict[str, Any] = {}
    state: dict[str, Any] = {}
    if ranks.rank == 0:
        try:
            path, found["damaged"] = _find_newest(folder.absolute())
            state = _load_state(path, mapped=mapped)
            found |= {"path": str(path), "manifest": sha256(path / MANIFEST), "state": pieces.strip_values(state)}
        except NotReadyError as error:
            found["refusal"] = str(error)
        packed = io.BytesIO()
        torch.save(found, packed)
        ranks.broadcast(packed.getvalue())
    else:
        found = torch.load(io.BytesIO(ranks.broadcast(None)), map_location="cpu", weights_only=True)
    if "refusal" in found:
        raise NotReadyError(found["refusal"])
    path = Path(found["path"])
    [unseen] = ranks.reduce_max(not _can_see(path, found["manifest"]))
    if unseen:
        return _read_through_rank_0(found["state"], state, ranks), found["damaged"]
    return state if ranks.rank == 0 else _load_state(path, mapped=mapped), found["damaged"]


def read_step(folder: Path) -> int:
    """The step of a whole checkpoint."""
    return int(json.loads(read_plain(folder / MANIFEST))["step"])


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint folder; None where it is whole."""
    try:
        manifest = json.loads(read_plain(path / MANIFEST))
        files = {STATE: manifest, **{name: manifest["shards"][name] for name in pieces.piece_files(path)}}
        with ThreadPoolExecutor() as pool:
            return next(
                filter(None, pool.map(_compare_with_manifest, [path / name for name in files], files.values())), None
            )
    except (OSError, ValueError, KeyError, TypeError, NotReadyError) as error:
        return f"{type(error).__name__}: {error}"


def _compare_with_manifest(file: Path, manifest: dict[str, Any]) -> str | None:
    """How a file differs from its manifest entry; None where it does not."""
    size, where = file.stat().st_size, "" if file.name == STATE else f"{file.name}: "
    reason = None
    if size != manifest["size"]:
        reason = f"{size} bytes, not {manifest['size']}"
    elif sha256(file) != manifest["sha256"]:
        reason = "its content does not match its hash"
    return reason and where + reason


def _find_newest(folder: Path) -> tuple[Path, list[str]]:
    """The newest checkpoint that is whole and can be read."""
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        reason = find_damage(path)
        if reason is None:
            try:
                _load_state(path, mapped=True)
                return path, damaged
            except pickle.UnpicklingError:
                reason = "it holds more than tensors and numbers, and loading it could run code"
            except NotReadyError as error:
                reason = str(error)
            except Exception as error:  # torch raises what its many readers happen to raise
                reason = f"torch cannot read it: {str(error).partition(chr(10))[0]}"
        path.rename(path.with_name(path.name + ".corrupt"))
        damaged.append(f"checkpoint {path.name} is damaged ({reason}) and was set aside as {path.name}.corrupt")
    raise NotReadyError("; ".join([f"no whole checkpoint in {folder}", *damaged]))


def measure_size_bytes(path: Path) -> int:
    """The size of all files of a checkpoint."""
    return sum(file.stat().st_size for file in path.iterdir())


def _load_state(path: Path, *, mapped: bool) -> dict[str, Any]:
    check_pickle(path / STATE, torch.__version__)
    state = torch.load(path / STATE, map_location="cpu", weights_only=True, mmap=mapped)
    found: dict[str, Any] = pieces.open_state(state, path)
    return found


def _can_see(path: Path, manifest: str) -> bool:
    """Whether this rank sees the same checkpoint as rank 0: hosts may have their own disks."""
    try:
        return sha256(path / MANIFEST) == manifest
    except OSError:
        return False


def _read_through_rank_0(bare: Any, state: Any, ranks: Collectives) -> Any:
    """A state whose tensors rank 0 reads and broadcasts when all ranks access them."""
    values: dict[str, Tensor | Stored] = {}
    pieces.map_leaves(state, values.__setitem__)

    def defer(path: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_meta:
            return value

        def read(region: pieces.Region) -> Tensor:
            data = None
            if ranks.rank == 0:
                data = bytes(pieces.as_bytes(values[path][pieces.full_region(value.shape)]))
            whole = torch.frombuffer(bytearray(ranks.broadcast(data)), dtype=value.dtype)
            return whole.view(value.shape)[region].clone()

        return Stored(value.shape, value.dtype, read)

    return pieces.map_leaves(bare, defer)
