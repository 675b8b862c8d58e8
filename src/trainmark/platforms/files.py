"""Platform files: what makes one vendor different, as data."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from trainmark.platforms.sensor_table import Sensors
from trainmark.record import tables
from trainmark.record.errors import UsageError, nearest
from trainmark.record.precision import FAMILIES, PRECISIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NO_COLLECTIVES = "none"
"""The word for a platform whose devices cannot work together."""


_WORD = r"^[a-z][a-z0-9_]*$"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max, description="a number above 0")]


def _make_meta(pattern: str, description: str) -> Meta:
    return Meta(pattern=pattern, description=description)


class Recognise(msgspec.Struct, frozen=True, kw_only=True):
    """How a vendor is told from others that share torch's word for the device."""

    device_name: str | None = None
    """Pattern found in the name torch gives the device."""
    build: Annotated[str, _make_meta(rf"^{_VARIABLE}$", "an attribute of torch.version, such as hip")] | None = None
    """Attribute of torch.version that is set in the vendor's build of torch."""

    def __post_init__(self) -> None:
        _check_pattern("device_name", self.device_name)


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """What one device, as torch counts devices, could reach at most by its data sheet."""

    device: str
    """Pattern found in the name torch gives the device."""
    source: str
    tflops: Mapping[str, _Positive]
    """By family of precisions, dense."""
    memory_gib: _Positive | None = None
    memory_gb_s: _Positive | None = None
    """What its memory can be read or written with, in 10^9 bytes a second."""
    power_w: _Positive | None = None

    def __post_init__(self) -> None:
        _check_pattern("device", self.device)
        _check_known("precision", self.tflops, FAMILIES)

    @property
    def names(self) -> list[str]:
        """What its pattern is found in, as people write it."""
        return re.sub(r"\\b|\(.*?\)|[$^?]", "", self.device).split("|")

    def fits(self, device_name: str) -> bool:
        return re.search(self.device, device_name) is not None


class DriverVersion(msgspec.Struct, frozen=True, kw_only=True):
    """How the driver's version is asked for."""

    argv: tuple[str, ...]
    """A program and its words; nothing is read by a shell."""
    pattern: str = r"(\d+(?:\.\d+)+)"
    """Its first group, found in what the program prints, is the version."""

    def __post_init__(self) -> None:
        _check_pattern("pattern", self.pattern)
        if not self.argv or re.compile(self.pattern).groups < 1:
            raise ValueError("driver needs a program, and a pattern with a group in it")


class PlatformFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The file's own, without its ending."""
    word: str
    """By which it was asked for: its name, or its path."""
    text: str
    """The file itself, as it was read."""
    title: str
    device_type: Annotated[str, _make_meta(_WORD, "torch's word for a device, such as cuda")]
    """torch's word for the device: cpu, cuda, npu, ..."""
    collectives: Annotated[str, _make_meta(_WORD, "a backend of torch.distributed, such as nccl, or none")]
    """torch.distributed's backend for it, or `none`."""
    precisions: tuple[str, ...]
    plugin: Annotated[str, _make_meta(rf"^{_VARIABLE}(\.{_VARIABLE})*$", "the name of a module")] | None = None
    """Module whose import teaches torch the device."""
    python: Annotated[str, _make_meta(_WORD, "the name of a module beside the file")] | None = None
    """Module beside the file, for a chip that does not behave as others do; a user's own file cannot name any."""
    visible_devices: Annotated[str, _make_meta(rf"^{_VARIABLE}$", "the name of a variable")] | None = None
    """Variable that limits which devices a process sees."""
    out_of_memory: str | None = None
    """Pattern found in what the device's error says where memory ended and torch's own error for that is not raised."""
    speed_variables: tuple[Annotated[str, _make_meta(rf"^{_VARIABLE}$", "the name of a variable")], ...] = ()
    """Variables of the vendor's that change speed; their values are kept on the record."""
    driver: DriverVersion | None = None
    """How the version of the driver is asked for, where torch does not tell it."""
    least_torch: Annotated[str, _make_meta(r"^[0-9]+\.[0-9]+$", "a version such as 2.6")] | None = None
    """The oldest torch that has what the platform needs, as `2.8`."""
    kubernetes_resource: (
        Annotated[str, _make_meta(r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9._-]+$", "a resource such as nvidia.com/gpu")] | None
    ) = None
    """What a cluster calls one device."""
    host_settings: Mapping[str, str] = {}
    """Variables the workers get where the recipe says host_settings=tuned."""
    deterministic_settings: Mapping[str, str] = {}
    """Variables without which the platform's libraries may give other bits each time; `trainmark verify` sets them."""
    recognise: Recognise = msgspec.field(default_factory=Recognise)
    peaks: tuple[Peak, ...] = ()
    sensors: Sensors | None = None
    """How power, heat and memory are read."""

    def __post_init__(self) -> None:
        if not self.precisions:
            raise ValueError("precisions is empty; name those the devices train in")
        _check_known("precision", self.precisions, PRECISIONS)
        _check_pattern("out_of_memory", self.out_of_memory)
        for key in ("host_settings", "deterministic_settings"):
            for variable, value in getattr(self, key).items():
                if not re.fullmatch(_VARIABLE, variable):
                    raise ValueError(f"{key} gives variables texts, not {variable} = {value!r}")

    @property
    def is_own(self) -> bool:
        """A file of the user's, not one of trainmark's."""
        return self.word.endswith(".toml")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def peak(self, device_name: str) -> Peak | None:
        """The first entry whose pattern is found in the device's name."""
        return next((peak for peak in self.peaks if peak.fits(device_name)), None)


EVERYWHERE = "cpu"
"""The platform every machine has."""


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def load(word: str) -> PlatformFile:
    """A platform by its name, or by the path of a file ending in .toml."""
    path = Path(word) if word.endswith(".toml") else Path(__file__).parent / f"{word}.toml"
    if not path.is_file():
        known = "there is no such file" if word.endswith(".toml") else nearest(word, names())
        raise UsageError(f"platform {word!r} is not known; {known}")
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"platform file {path} is not valid TOML: {error}") from None
    where = f"platform file {path}"
    if "python" in document and path.resolve().parent != Path(__file__).resolve().parent:
        raise UsageError(f"{where}: python is for trainmark's own files; a file of yours cannot bring any")
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
