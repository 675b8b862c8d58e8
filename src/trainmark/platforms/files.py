"""Platform files: what makes one vendor different, as data."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmark.spec.errors import UsageError, nearest
from trainmark.spec.precision import FAMILIES, PRECISIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NO_COLLECTIVES = "none"
"""The word for a platform whose devices cannot work together."""


@dataclass(frozen=True, kw_only=True)
class Recognise:
    """How a vendor is told from others that share torch's word for the device."""

    device_name: str | None = None
    """Pattern found in the name torch gives the device."""
    build: str | None = None
    """Attribute of torch.version that is set in the vendor's build of torch."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What one device, as torch counts devices, could reach at most by its data sheet."""

    device: str
    """Pattern found in the name torch gives the device."""
    source: str
    tflops: Mapping[str, float]
    """By family of precisions, dense."""
    memory_gib: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlatformFile:
    name: str
    title: str
    device_type: str
    """torch's word for the device: cpu, cuda, npu, ..."""
    collectives: str
    """torch.distributed's backend for it, or `none`."""
    precisions: tuple[str, ...]
    plugin: str | None = None
    """Module whose import teaches torch the device."""
    python: str | None = None
    """Module beside the file, for a chip that does not behave as others do; a user's own file cannot name any."""
    visible_devices: str | None = None
    """Variable that limits which devices a process sees."""
    least_torch: str | None = None
    """The oldest torch that has what the platform needs, as `2.8`."""
    kubernetes_resource: str | None = None
    """What a cluster calls one device."""
    host_settings: Mapping[str, str] = field(default_factory=dict)
    """Variables the workers get where the recipe says host_settings=tuned."""
    recognise: Recognise = field(default_factory=Recognise)
    peaks: tuple[Peak, ...] = ()
    sensors: Mapping[str, object] | None = None
    """How power, heat and memory are read; sensors.py knows what the table means."""

    def peak(self, device_name: str) -> Peak | None:
        """The first entry whose pattern is found in the device's name."""
        return next((peak for peak in self.peaks if re.search(peak.device, device_name)), None)


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def load(word: str) -> PlatformFile:
    """A platform by its name, or by the path of a file ending in .toml."""
    path = Path(word) if word.endswith(".toml") else Path(__file__).parent / f"{word}.toml"
    if not path.is_file():
        known = "there is no such file" if word.endswith(".toml") else nearest(word, names())
        raise UsageError(f"platform {word!r} is not known; {known}")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"platform file {path} is not valid TOML: {error}") from None
    return _checked(path, document)


# What each table may hold

_WORD = r"[a-z][a-z0-9_]*"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_SHAPES = {
    "device_type": (_WORD, "torch's word for a device, such as cuda"),
    "collectives": (_WORD, "a backend of torch.distributed, such as nccl, or none"),
    "plugin": (rf"{_VARIABLE}(\.{_VARIABLE})*", "the name of a module"),
    "python": (_WORD, "the name of a module beside the file"),
    "visible_devices": (_VARIABLE, "the name of a variable"),
    "least_torch": (r"\d+\.\d+", "a version such as 2.6"),
    "kubernetes_resource": (r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9._-]+", "a resource such as nvidia.com/gpu"),
    "build": (_VARIABLE, "an attribute of torch.version, such as hip"),
}
_KEYS: dict[str, type] = {
    **dict.fromkeys(("title", "device_type", "collectives"), str),
    **dict.fromkeys(("plugin", "python", "visible_devices", "least_torch", "kubernetes_resource"), str),
    **dict.fromkeys(("precisions", "peaks"), list),
    **dict.fromkeys(("host_settings", "recognise", "sensors"), dict),
}
_RECOGNISE_KEYS: dict[str, type] = {"device_name": str, "build": str}
_PEAK_KEYS: dict[str, type] = {"device": str, "source": str, "tflops": dict, "memory_gib": float, "power_w": float}
_TYPES = {str: "text", list: "a list", dict: "a table", float: "a number"}


def _checked(path: Path, document: Mapping[str, Any]) -> PlatformFile:
    where = f"platform file {path}"
    _check_table(where, document, _KEYS, needed=("title", "device_type", "collectives", "precisions"))
    if "python" in document and path.resolve().parent != Path(__file__).resolve().parent:
        raise UsageError(f"{where}: python is for trainmark's own files; a file of yours is data only")
    _check_precisions(where, document["precisions"])
    settings = document.get("host_settings", {})
    for name, value in settings.items():
        if not re.fullmatch(_VARIABLE, name) or not isinstance(value, str):
            raise UsageError(f"{where}: host_settings gives variables texts, not {name} = {value!r}")
    recognise = document.get("recognise", {})
    _check_table(f"{where}: recognise", recognise, _RECOGNISE_KEYS)
    _check_pattern(f"{where}: recognise", "device_name", recognise.get("device_name"))
    peaks = document.get("peaks", [])
    for number, peak in enumerate(peaks, 1):
        _check_peak(f"{where}: peaks, entry {number}", peak)
    if "sensors" in document:
        from trainmark.platforms import sensors

        sensors.check(path, document["sensors"])
    given = {key: value for key, value in document.items() if key not in ("precisions", "recognise", "peaks")}
    return PlatformFile(
        name=path.stem,
        precisions=tuple(document["precisions"]),
        recognise=Recognise(**recognise),
        peaks=tuple(Peak(**peak) for peak in peaks),
        **given,
    )


def _check_table(where: str, table: object, kinds: Mapping[str, type], needed: Sequence[str] = ()) -> None:
    """Every key is known and of its type, and none is missing."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table, not {table!r}")
    for key, value in table.items():
        if key not in kinds:
            raise UsageError(f"{where}: key {key!r} is not known; {nearest(key, kinds)}")
        if kinds[key] is float:
            _check_number(where, key, value)
        elif not isinstance(value, kinds[key]):
            raise UsageError(f"{where}: {key} must be {_TYPES[kinds[key]]}, not {value!r}")
        elif key in _SHAPES and not re.fullmatch(_SHAPES[key][0], str(value)):
            raise UsageError(f"{where}: {key} {value!r} is not {_SHAPES[key][1]}")
    for key in needed:
        if key not in table:
            raise UsageError(f"{where}: key {key!r} is missing")


def _check_number(where: str, key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {key} must be a number above 0, not {value!r}")


def _check_pattern(where: str, key: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UsageError(f"{where}: {key} {pattern!r} is not a regular expression: {error}") from None


def _check_precisions(where: str, precisions: Sequence[object]) -> None:
    if not precisions:
        raise UsageError(f"{where}: precisions is empty; name those the devices train in")
    for precision in precisions:
        if precision not in PRECISIONS:
            raise UsageError(f"{where}: precision {precision!r}; {nearest(str(precision), PRECISIONS)}")


def _check_peak(where: str, peak: object) -> None:
    _check_table(where, peak, _PEAK_KEYS, needed=("device", "source", "tflops"))
    assert isinstance(peak, dict)  # noqa: S101 - checked above, said again for the type checker
    _check_pattern(where, "device", peak["device"])
    for family, tflops in peak["tflops"].items():
        if family not in FAMILIES:
            raise UsageError(f"{where}: precision {family!r}; {nearest(family, FAMILIES)}")
        _check_number(where, f"tflops of {family}", tflops)
