"""Platform files: the differences between vendors, as data."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from trainmark.platforms.sensors import Sensors
from trainmark.record import tables
from trainmark.record.errors import UsageError, nearest
from trainmark.record.precision import FAMILIES, PRECISIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NO_COLLECTIVES = "none"
"""For a platform without collectives."""


_WORD = r"^[a-z][a-z0-9_]*$"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max, description="a number above 0")]


def _make_meta(pattern: str, description: str) -> Meta:
    return Meta(pattern=pattern, description=description)


class Recognise(msgspec.Struct, frozen=True, kw_only=True):
    """How a vendor is recognized among others with the same torch device type."""

    device_name: str | None = None
    """Pattern of the device name in torch."""
    build: Annotated[str, _make_meta(rf"^{_VARIABLE}$", "an attribute of torch.version, such as hip")] | None = None
    """Attribute of torch.version that the vendor's build of torch sets."""

    def __post_init__(self) -> None:
        _check_pattern("device_name", self.device_name)


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The data sheet peak of one torch device."""

    device: str
    """Pattern of the device name in torch."""
    source: str
    tflops: Mapping[str, _Positive]
    """By family of precisions, without sparsity."""
    memory_gib: _Positive | None = None
    memory_gb_s: _Positive | None = None
    """Memory bandwidth in 10^9 bytes per second."""
    power_w: _Positive | None = None

    def __post_init__(self) -> None:
        _check_pattern("device", self.device)
        _check_known("precision", self.tflops, FAMILIES)

    @property
    def names(self) -> list[str]:
        """The device names of its pattern, for people."""
        return re.sub(r"\\b|\(.*?\)|[$^?]", "", self.device).split("|")

    def fits(self, device_name: str) -> bool:
        return re.search(self.device, device_name) is not None


class DriverVersion(msgspec.Struct, frozen=True, kw_only=True):
    """How the driver version is queried."""

    argv: tuple[str, ...]
    """A program and its arguments; no shell is involved."""
    pattern: str = r"(\d+(?:\.\d+)+)"
    """Its first group in the output is the version."""

    def __post_init__(self) -> None:
        _check_pattern("pattern", self.pattern)
        if not self.argv or re.compile(self.pattern).groups < 1:
            raise ValueError("driver needs a program, and a pattern with a group")


class PlatformFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The stem of the file name."""
    word: str
    """As requested: its name, or its path."""
    text: str
    """The content of the file."""
    title: str
    device_type: Annotated[str, _make_meta(_WORD, "a torch device type, such as cuda")]
    """The torch device type: cpu, cuda, npu, ..."""
    collectives: Annotated[str, _make_meta(_WORD, "a backend of torch.distributed, such as nccl, or none")]
    """The torch.distributed backend, or `none`."""
    precisions: tuple[str, ...]
    usual_precision: str = "fp32"
    """What people train in on these devices; `run` without a workload takes it."""
    plugin: Annotated[str, _make_meta(rf"^{_VARIABLE}(\.{_VARIABLE})*$", "the name of a module")] | None = None
    """Module whose import registers the device with torch."""
    python: Annotated[str, _make_meta(_WORD, "the name of a module beside the file")] | None = None
    """Module beside the file, for a device that needs its own code; only for built-in platforms."""
    visible_devices: Annotated[str, _make_meta(rf"^{_VARIABLE}$", "the name of a variable")] | None = None
    """Variable that limits the devices a process sees."""
    out_of_memory: str | None = None
    """Pattern of the device's out-of-memory message, where it does not raise torch.OutOfMemoryError."""
    speed_variables: tuple[Annotated[str, _make_meta(rf"^{_VARIABLE}$", "the name of a variable")], ...] = ()
    """Variables of the vendor that change speed; their values are recorded."""
    driver: DriverVersion | None = None
    """How the driver version is queried, where torch does not know it."""
    least_torch: Annotated[str, _make_meta(r"^[0-9]+\.[0-9]+$", "a version such as 2.6")] | None = None
    """The oldest supported torch, such as `2.8`."""
    kubernetes_resource: (
        Annotated[str, _make_meta(r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9._-]+$", "a resource such as nvidia.com/gpu")] | None
    ) = None
    """The resource name of one device in a cluster."""
    host_settings: Mapping[str, str] = {}
    """Variables of the workers with host_settings=tuned."""
    deterministic_settings: Mapping[str, str] = {}
    """Variables that make the libraries of the platform deterministic; `trainmark verify` sets them."""
    recognise: Recognise = msgspec.field(default_factory=Recognise)
    peaks: tuple[Peak, ...] = ()
    sensors: Sensors | None = None
    """How power, temperature and memory are read."""

    def __post_init__(self) -> None:
        if not self.precisions:
            raise ValueError("precisions is empty; list those that the devices support")
        _check_known("precision", self.precisions, PRECISIONS)
        _check_known("usual_precision", [self.usual_precision], self.precisions)
        _check_pattern("out_of_memory", self.out_of_memory)
        for key in ("host_settings", "deterministic_settings"):
            for variable, value in getattr(self, key).items():
                if not re.fullmatch(_VARIABLE, variable):
                    raise ValueError(f"{key} maps variables to strings, not {variable} = {value!r}")

    @property
    def is_own(self) -> bool:
        """A file of the user, not a built-in one."""
        return self.word.endswith(".toml")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def peak(self, device_name: str) -> Peak | None:
        """The first entry whose pattern matches the device name."""
        return next((peak for peak in self.peaks if peak.fits(device_name)), None)


EVERYWHERE = "cpu"
"""The platform every machine has."""


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def load(word: str) -> PlatformFile:
    """A platform by its name, or by the path of a file ending in .toml."""
    path = Path(word) if word.endswith(".toml") else Path(__file__).parent / f"{word}.toml"
    if not path.is_file() or (not word.endswith(".toml") and word not in names()):
        known = "there is no such file" if word.endswith(".toml") else nearest(word, names())
        raise UsageError(f"platform {word!r} is not known; {known}")
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"platform file {path} is not valid TOML: {error}") from None
    where = f"platform file {path}"
    if "python" in document and path.resolve().parent != Path(__file__).resolve().parent:
        raise UsageError(f"{where}: python is only for built-in platform files")
    return tables.read(PlatformFile, document, where, name=path.stem, word=word, text=text)


def _check_pattern(key: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"{key} {pattern!r} is not a regular expression: {error}") from None


def _check_known(what: str, words: Iterable[str], known: Iterable[str]) -> None:
    for word in words:
        if word not in known:
            raise ValueError(f"{what} {word!r}; {nearest(word, known)}")
