"""Platform files: what makes one vendor different, as data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from trainmark.spec.errors import UsageError, nearest
from trainmark.spec.precision import PRECISIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, kw_only=True)
class PlatformFile:
    name: str
    title: str
    device_type: str
    """torch's word for the device: cpu, cuda, npu, ..."""
    collectives: str
    """torch.distributed's backend for it."""
    precisions: tuple[str, ...]
    plugin: str | None = None
    """Module whose import teaches torch the device."""
    visible_devices: str | None = None
    """Variable that limits which devices a process sees."""
    host_settings: Mapping[str, str] = field(default_factory=dict)
    """Variables the workers get where the recipe says host_settings=tuned."""


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def load(word: str) -> PlatformFile:
    """A platform by its name, or by the path of a file ending in .toml."""
    path = Path(word) if word.endswith(".toml") else Path(__file__).parent / f"{word}.toml"
    if not path.is_file():
        raise UsageError(f"platform {word!r} is not known; {nearest(word, names())}")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"platform file {path} is not valid TOML: {error}") from None
    return _checked(path, document)


def _checked(path: Path, document: dict[str, object]) -> PlatformFile:
    known = [f.name for f in fields(PlatformFile) if f.name != "name"]
    for key in document:
        if key not in known:
            raise UsageError(f"platform file {path}: key {key!r} is not known; {nearest(key, known)}")
    for key in ("title", "device_type", "collectives", "precisions"):
        if key not in document:
            raise UsageError(f"platform file {path}: key {key!r} is missing")
    for key, value in document.items():
        wanted: type = {"precisions": list, "host_settings": dict}.get(key, str)
        if not isinstance(value, wanted):
            raise UsageError(f"platform file {path}: {key} must be a {wanted.__name__}, not {value!r}")
    precisions = document.pop("precisions")
    assert isinstance(precisions, list)  # noqa: S101 - checked above, said again for the type checker
    for precision in precisions:
        if precision not in PRECISIONS:
            raise UsageError(f"platform file {path}: precision {precision!r}; {nearest(str(precision), PRECISIONS)}")
    return PlatformFile(name=path.stem, precisions=tuple(precisions), **document)  # type: ignore[arg-type]
