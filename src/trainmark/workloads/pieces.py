"""Tensors that lie in pieces in the files of a checkpoint: any region of one is read without the rest."""

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

INDEX = "model.safetensors.index.json"
ALONE = "model.safetensors"
MAX_INDEX = 100 << 20
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
    """The tensors of a file, or of all files that an index names; mapped into memory, read when they are looked at."""
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
    """What a file begins with whose tensors follow one another in this order: the package writes no file in pieces."""
    entries, begin = {}, 0
    for name, tensor in tensors.items():
        place = [begin, begin + tensor.nbytes]
        entries[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        begin += tensor.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # numbers begin where a processor likes to read them
    return len(text).to_bytes(8, "little") + text


def files(index: Path) -> list[Path]:
    """Those an index names, beside it."""
    try:
        if index.stat().st_size > MAX_INDEX:
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
"""Of a piece on its way to a file: so much is in memory at once beside what a rank trains with."""

Region = tuple[slice, ...]
"""What of each dimension is meant, from where to where."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor that lies in a checkpoint; `stored[region]` reads a region of it, always into new memory."""

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[Region], Tensor]

    def __getitem__(self, region: Region) -> Tensor:
        return self.read(region)

    def whole(self) -> Tensor:
        return self.read(everything(self.shape))


class Piece(NamedTuple):
    """What one rank holds of a tensor, to be written by it."""

    path: str
    """Where in the state the tensor stands."""
    begins: tuple[int, ...]
    """Where in the whole tensor the piece begins."""
    values: Tensor


def everything(shape: Sequence[int]) -> Region:
    return tuple(slice(0, length) for length in shape)


def changed(nest: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """The same nest of dicts and lists with every leaf changed; `change` is told its path and what it is."""
    if isinstance(nest, Mapping):
        return {key: changed(value, change, _under(path, key)) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)):
        return type(nest)(changed(value, change, _under(path, place)) for place, value in enumerate(nest))
    return change(path, nest)


def without_values(nest: Any) -> Any:
    """The same nest with the shape and the type alone of every tensor that has a dimension."""

    def bare(path: str, value: Any) -> Any:
        large = isinstance(value, (Tensor, Stored)) and value.shape
        return torch.empty(value.shape, dtype=value.dtype, device="meta") if large else value

    return changed(nest, bare)


def whole(nest: Any) -> Any:
    """The same nest with every tensor that lies in a checkpoint read."""
    return changed(nest, lambda path, value: value.whole() if isinstance(value, Stored) else value)


def names(folder: Path) -> list[str]:
    """The files of pieces that the manifest of a checkpoint names; none where it is in one file."""
    try:
        shards = json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("shards", {})
        found = sorted(shards)
    except (OSError, ValueError, AttributeError, TypeError):
        return []
    for name in found:
        if PurePath(name).name != name or not name.endswith(".safetensors"):
            raise NotReadyError(f"{folder} names the file {name!r}, which is no safetensors file beside it")
    return found


def opened(state: Any, folder: Path) -> Any:
    """The state of a checkpoint, with what its file has no values of to be read from the pieces beside it."""
    pieces: dict[str, list[tuple[tuple[int, ...], Tensor]]] = {}
    for name in names(folder):
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

    return changed(state, stored)


def blocks(pieces: Sequence[Piece]) -> Iterator[bytes | memoryview]:
    """The bytes of a file that holds these pieces."""
    tensors = {f"{piece.path}@{','.join(map(str, piece.begins))}": piece.values for piece in pieces}
    yield header(tensors)
    for tensor in tensors.values():
        data = in_bytes(tensor)
        for start in range(0, len(data), BLOCK_BYTES):
            yield data[start : start + BLOCK_BYTES]


def in_bytes(tensor: Tensor) -> memoryview:
    """The numbers of a tensor, without a copy where it lies in one stretch of host memory."""
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


def _under(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
