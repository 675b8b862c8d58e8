"""Safetensors files, alone or many with an index, read by the package of that name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

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
