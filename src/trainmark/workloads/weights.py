"""Reads weights, loads them into a model, and counts them."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainmark import workloads
from trainmark.record.atomic_files import sha256
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import Plan
from trainmark.record.recipe import Recipe, from_values
from trainmark.record.trust import check_pickle
from trainmark.workloads import pieces
from trainmark.workloads.workload import Workload

_NAMESPACE = type("Namespace", (), {"__module__": "argparse"})
"""What is made of an argparse.Namespace, in which torchvision's training script keeps its words beside the weights: an
object that holds values, of the kinds allowed anyway, and does nothing."""
_AVERAGES = ("average", "ema", "shadow", "ema_state_dict")
"""Names of averaged weights (EMA) in files; the first is ours."""
MAX_NAMED = 3
"""Names listed per kind of mismatch; the rest is counted."""


def weights_file(path: Path, option: str = "--init-from") -> Path:
    """The file meant by a path: itself, or in a folder the index or file of safetensors, or the state in a checkpoint's
    folder, or the newest in a folder of them. Errors name `option`."""
    if path.is_file():
        return path
    for name in (pieces.INDEX, pieces.ALONE):
        if (path / name).is_file():
            return path / name
    for found in [path, *reversed(checkpoints(path))] if path.is_dir() else []:
        if (found / "state.pt").is_file():
            return found / "state.pt"
    what = "holds no checkpoint" if path.is_dir() else "is no regular file" if path.exists() else "is not there"
    raise NotReadyError(f"{option} {path} {what}; give a file of weights, or the folder of a checkpoint")


def find_weights(path: Path, option: str) -> tuple[Path, str]:
    """The file of weights at a path, and its hash. Errors name `option`."""
    file = weights_file(path, option)
    try:
        return file, weights_sha256(file)
    except OSError as error:
        raise NotReadyError(f"{option} {file} cannot be read: {error.strerror or error}") from error


def weights_sha256(file: Path) -> str:
    """SHA-256 of a file, or of all files of an index or a checkpoint's manifest."""
    parts = pieces.files(file) if file.name == pieces.INDEX else _list_pieces(file)
    if not parts:
        return sha256(file)
    hashes = [sha256(file), *(sha256(part) for part in parts)]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def _list_pieces(file: Path) -> list[Path]:
    return [file.parent / name for name in pieces.piece_files(file.parent)] if file.name == pieces.STATE else []


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".corrupt")


def read_document(path: Path) -> Any:
    """All that a file of weights holds, or the one in a checkpoint's folder; no code in it is run. Of a checkpoint in
    pieces it is all but the optimizer's."""
    path = weights_file(path)
    if path.name.endswith((".safetensors", pieces.INDEX)):
        return pieces.read(path)
    check_pickle(path, torch.__version__)
    try:
        with torch.serialization.safe_globals([_NAMESPACE]):
            document = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch's readers may raise anything
        if isinstance(error, pickle.UnpicklingError) and _is_saved(path):
            raise NotReadyError(
                f"{path} holds more than weights and is not loaded, as loading it could run code; "
                "save its state_dict alone with torch.save"
            ) from error
        raise NotReadyError(f"{path} is not a file that torch.save wrote, or it is damaged") from error
    if not _list_pieces(path):
        return document
    document.get("stepper", {}).pop("optimizer", None)  # twice the size of the weights, and only needed to resume
    return pieces.read_all(pieces.open_state(document, path.parent))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a bare state_dict, a dict that holds one, or a checkpoint of ours. Where there is
    also an average of them over the steps of training, by which networks are judged, it is that."""
    path = weights_file(path)
    document = read_document(path)
    found = _find_state_dict(document)
    if not found:
        raise NotReadyError(f"{path} holds no weights: no state_dict, alone or under 'state_dict' or 'model'")
    if any(tensor.is_meta for tensor in found.values()):
        raise NotReadyError(f"{path} is separated from its shard files; give the folder of the checkpoint")
    if broken := [name for name, tensor in found.items() if not _is_finite(tensor)]:
        raise NotReadyError(
            f"{path} holds weights that are NaN or infinite: {len(broken)} of {len(found)} tensors "
            f"({_list_first(broken)}); give the weights of a run that did not diverge"
        )
    return found


def check_fit(model: nn.Module, weights: Mapping[str, Tensor], source: str, *, to_begin: bool = False) -> None:
    """Raises NotReadyError with the names that do not fit. Checks shapes only, so the model may be on `meta`.

    `to_begin`: the weights are for initialisation, and may be partial if the model supports it.
    """
    weights, wanted = _own_weights(model, weights, to_begin), model.state_dict()
    tied = _other_names(model)
    missing = [
        name
        for name in wanted
        if name not in weights
        and not name.endswith("num_batches_tracked")
        and not any(other in weights for other in tied.get(name, ()))
    ]
    unexpected = [name for name in weights if name not in wanted]
    shapes = [
        f"{name} is {tuple(weights[name].shape)} and not {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
    misfits = [f"{len(names)} {kind} ({_list_first(names)})" for kind, names in kinds if names]
    if misfits:
        raise NotReadyError(
            f"{source} does not fit the model: {', '.join(misfits)}; give weights of this very network, "
            "or change the network with --set"
        )


def load_into(model: nn.Module, weights: Mapping[str, Tensor], source: str, *, to_begin: bool = False) -> None:
    """Copies the weights into a model; only `num_batches_tracked` may be missing."""
    check_fit(model, weights, source, to_begin=to_begin)
    model.load_state_dict(_own_weights(model, weights, to_begin), strict=False)


def _other_names(model: nn.Module) -> dict[str, list[str]]:
    """All names of tied weights; one of these in a file is enough."""
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    return {name: several for several in names.values() if len(several) > 1 for name in several}


def _own_weights(model: nn.Module, weights: Mapping[str, Tensor], to_begin: bool) -> dict[str, Tensor]:
    """The weights by the model's names; it may know others that public files of its kind have (`own_name`), and make
    the weights of another network its own where they are to begin with (`begin_with`)."""
    own_name = getattr(model, "own_name", str)
    found = {own_name(name): tensor for name, tensor in weights.items()}
    begin_with = getattr(model, "begin_with", None)
    return begin_with(found) if to_begin and begin_with else found


def _find_state_dict(document: Any) -> dict[str, Tensor]:
    """The state_dict in a file's contents, or an empty dict."""
    if not isinstance(document, Mapping):
        return {}
    if "stepper" in document:
        return _find_state_dict(document["stepper"])
    averages = [document[key] for key in _AVERAGES if isinstance(document.get(key), Mapping)]
    for key in ("state_dict", "model"):
        if isinstance(document.get(key), Mapping):
            document = document[key]
    tensors = _named_tensors(document)
    averaged = _named_tensors(averages[0]) if averages else {}
    return tensors | {name: tensor for name, tensor in averaged.items() if name in tensors}


def _named_tensors(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Tensors by name, without a wrapper's prefix; empty if not all are tensors."""
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()):
        return {}
    wrapped = all(name.startswith("module.") for name in found)
    return {name.removeprefix("module.") if wrapped else name: value for name, value in found.items()}


def _is_saved(path: Path) -> bool:
    """Whether a file begins like one of torch.save: an archive, or formerly a pickle."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02")


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.float().isfinite().all())


def _list_first(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


RANDOM_INITIALIZERS = {"normal_", "uniform_", "trunc_normal_", "erfinv_"}
NORMS = {"norm"}
"""Replaced by a sum, which has the same shape."""


def build_model(plan: Plan) -> nn.Module:
    workload = workloads.of_plan(plan)
    return build_network(workload, from_values(type(workload.recipes["reference"]), plan.recipe))


def build_network(workload: Workload, recipe: Recipe) -> nn.Module:
    with torch.device("meta"), _OnlyShapes():
        return workload.build(recipe)


def count_weights(network: nn.Module) -> int:
    """The number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


class _OnlyShapes(TorchFunctionMode):
    """Skips random initialization and norms: on the meta device they do nothing but import the compiler of torch."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in RANDOM_INITIALIZERS:
            return args[0] if args else (kwargs or {})["tensor"]  # nn.init passes it by name
        if getattr(func, "__name__", "") in NORMS and len(args) == 1 and kwargs:
            return torch.sum(args[0], dim=kwargs.get("dim"), keepdim=bool(kwargs.get("keepdim")))
        return func(*args, **(kwargs or {}))
