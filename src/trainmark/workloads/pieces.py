"""Sharded tensors in checkpoint files: any region is read without the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainmark.record.errors import NotReadyError
from trainmark.record.foreign_files import read_plain

INDEX = "model.safetensors.index.json"
ALONE = "model.safetensors"
MAX_INDEX_BYTES = 100 << 20
"""Bytes."""
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of all files in an index; memory-mapped."""
    found = files(path) if path.name.endswith(".json") else [path]
    return {name: tensor for file in found for name, tensor in _tensors(file)}


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, file.get_tensor(name)
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError) as error:
        raise NotReadyError(f"{path} is no safetensors file, or it is damaged: {error}; fetch it again") from error


def header(tensors: Mapping[str, Tensor]) -> bytes:
    """The header of a safetensors file with these tensors in order: the package cannot write incrementally."""
    entries, begin = {}, 0
    for name, tensor in tensors.items():
        place = [begin, begin + tensor.nbytes]
        entries[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        begin += tensor.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # data is aligned
    return len(text).to_bytes(8, "little") + text


def files(index: Path) -> list[Path]:
    """The files of an index, in its folder."""
    try:
        if index.stat().st_size > MAX_INDEX_BYTES:
            raise NotReadyError(f"{index} is larger than any index of weights")
        document = json.loads(index.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotReadyError(f"{index} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NotReadyError(f"{index} is no JSON; fetch it again") from error
    named = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise NotReadyError(f"{index} names no files of weights in its weight_map; fetch it again")
    found = sorted(set(named.values()))
    for name in found:
        if PurePath(name).name != name or not name.endswith(".safetensors"):
            raise NotReadyError(f"{index} names the file {name!r}, which is no safetensors file beside it")
    return [index.parent / name for name in found]


MANIFEST, STATE = "manifest.json", "state.pt"
BLOCK_BYTES = 64 << 20
"""Write buffer: host memory used beside what a rank trains with."""

Region = tuple[slice, ...]
"""Start and end per dimension."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a checkpoint; `stored[region]` reads a region into new memory."""

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[Region], Tensor]

    def __getitem__(self, region: Region) -> Tensor:
        return self.read(region)

    def whole(self) -> Tensor:
        return self.read(full_region(self.shape))


class Piece(NamedTuple):
    """One rank's shard of a tensor, to be written by it."""

    path: str
    """Path of the tensor in the state."""
    begins: tuple[int, ...]
    """Offset in the whole tensor."""
    values: Tensor


def full_region(shape: Sequence[int]) -> Region:
    return tuple(slice(0, length) for length in shape)


def map_leaves(nest: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Maps `change(path, value)` over the leaves of nested dicts and lists."""
    if isinstance(nest, Mapping):
        return {key: map_leaves(value, change, _join_path(path, key)) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)):
        return type(nest)(map_leaves(value, change, _join_path(path, place)) for place, value in enumerate(nest))
    return change(path, nest)


def strip_values(nest: Any) -> Any:
    """The same nest with non-scalar tensors replaced by their shape and dtype."""

    def bare(path: str, value: Any) -> Any:
        large = isinstance(value, (Tensor, Stored)) and value.shape
        return torch.empty(value.shape, dtype=value.dtype, device="meta") if large else value

    return map_leaves(nest, bare)


def read_all(nest: Any) -> Any:
    """The same nest with every stored tensor read."""
    return map_leaves(nest, lambda path, value: value.whole() if isinstance(value, Stored) else value)


def piece_files(folder: Path) -> list[str]:
    """Shard files in a checkpoint's manifest; none if it is one file."""
    try:
        shards = json.loads(read_plain(folder / MANIFEST)).get("shards", {})
        found = sorted(shards)
    except (OSError, ValueError, AttributeError, TypeError):
        return []
    for name in found:
        if PurePath(name).name != name or not name.endswith(".safetensors"):
            raise NotReadyError(f"{folder} names the file {name!r}, which is no safetensors file beside it")
    return found


def open_state(state: Any, folder: Path) -> Any:
    """The state of a checkpoint, with missing values read lazily from the shard files."""
    pieces: dict[str, list[tuple[tuple[int, ...], Tensor]]] = {}
    for name in piece_files(folder):
        for entry, tensor in read(folder / name).items():
            path, _, corner = entry.rpartition("@")
            try:
                begins = tuple(int(number) for number in corner.split(","))
            except ValueError:
                begins = ()
            if len(begins) != tensor.dim():
                raise NotReadyError(f"{folder} holds {entry[:80]!r}, which is no piece of a tensor")
            pieces.setdefault(path, []).append((begins, tensor))

    def stored(path: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_meta:
            return value
        held = pieces.get(path, [])
        return Stored(value.shape, value.dtype, lambda region: _read(region, held, value.dtype, f"{folder}: {path}"))

    return map_leaves(state, stored)


def blocks(pieces: Sequence[Piece]) -> Iterator[bytes | memoryview]:
    """The bytes of a file with these pieces."""
    tensors = {f"{piece.path}@{','.join(map(str, piece.begins))}": piece.values for piece in pieces}
    yield header(tensors)
    for tensor in tensors.values():
        data = as_bytes(tensor)
        for start in range(0, len(data), BLOCK_BYTES):
            yield data[start : start + BLOCK_BYTES]


def as_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes, without a copy if it is contiguous on the host."""
    numbers: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(numbers)


def _read(region: Region, held: Sequence[tuple[tuple[int, ...], Tensor]], dtype: torch.dtype, what: str) -> Tensor:
    found = torch.empty([part.stop - part.start for part in region], dtype=dtype)
    missing = found.numel()
    for begins, piece in held:
        if piece.dim() != len(region):
            raise NotReadyError(f"{what} lies in pieces of another shape")
        spans = [
            (max(part.start, begin), min(part.stop, begin + length))
            for part, begin, length in zip(region, begins, piece.shape, strict=True)
        ]
        if any(start >= end for start, end in spans):
            continue
        target = tuple(slice(s - part.start, e - part.start) for (s, e), part in zip(spans, region, strict=True))
        source = tuple(slice(s - begin, e - begin) for (s, e), begin in zip(spans, begins, strict=True))
        found[target] = piece[source]
        missing -= found[target].numel()
    if missing:
        raise NotReadyError(f"{what} lies in pieces that do not make up the whole")
    return found


def _join_path(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
