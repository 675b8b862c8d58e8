"""Safetensors files, alone or many with an index: numbers only, mapped into memory, every size checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainmark.spec.errors import NotReadyError

INDEX = "model.safetensors.index.json"
ALONE = "model.safetensors"
LARGEST_HEADER = 100 << 20
"""Bytes; the format's own limit."""
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of all files that an index names; they are read when they are looked at."""
    if path.name.endswith(".json"):
        return {name: tensor for file in files(path) for name, tensor in _one(file)}
    return dict(_one(path))


def header(tensors: Mapping[str, Tensor]) -> bytes:
    """What a file begins with whose tensors follow one another in this order."""
    words = {dtype: word for word, dtype in _TYPES.items()}
    entries, begin = {}, 0
    for name, tensor in tensors.items():
        place = [begin, begin + tensor.nbytes]
        entries[name] = {"dtype": words[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        begin += tensor.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # numbers begin where a processor likes to read them
    return len(text).to_bytes(8, "little") + text


def files(index: Path) -> list[Path]:
    """Those an index names, beside it."""
    try:
        if index.stat().st_size > LARGEST_HEADER:
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


def _one(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(LARGEST_HEADER, size - 8):
                raise NotReadyError(f"{path} is no safetensors file: its header would have {length:,} bytes")
            header = json.loads(file.read(length))
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NotReadyError(f"{path} is no safetensors file: its header is no JSON") from error
    if not isinstance(header, dict):
        raise NotReadyError(f"{path} is no safetensors file: its header names no tensors")
    held = size - 8 - length
    data = np.memmap(path, np.uint8, "c", offset=8 + length, shape=(held,)) if held else np.zeros(0, np.uint8)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        yield name, _tensor(path, name, entry, data)


def _tensor(path: Path, name: str, entry: Any, data: np.ndarray[Any, Any]) -> Tensor:
    try:
        dtype, shape, (begin, end) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
        if not all(type(number) is int and 0 <= number <= 2**53 for number in numbers):
            raise ValueError
        if end - begin != math.prod(shape) * dtype.itemsize or end > len(data):
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise NotReadyError(
            f"{path} is damaged: the type, shape or place of tensor {name[:80]!r} cannot be; fetch it again"
        ) from error
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data[begin:end]).view(dtype).view(shape)
