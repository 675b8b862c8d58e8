"""Data sets: one folder per set, beside the code they share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.record.errors import NotReadyError, UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from trainmark.data.verification import Report

MANIFEST = "trainmark-set.json"
"""At the root of a synthetic set: the parameters it was made with."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A command-line option of `trainmark data` for one set."""

    word: str
    """Such as `--clips`."""
    help: str
    metavar: str = "N"
    kind: type = int
    default: Any = None
    """None: the function's own default."""
    required: bool = False

    @property
    def name(self) -> str:
        return self.word.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One folder beside this file; its modules `make` and `prepare` import numpy and are loaded lazily."""

    name: str
    title: str
    makes: str
    """What `trainmark data make` writes, in a few words."""
    prepares: str
    verifies: str
    things: str
    """Unit of progress, such as images."""
    takes: str
    """How long making the synthetic set takes."""
    smallest: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `make` for the smallest set on which every smoke recipe can take a step."""
    make_options: tuple[Option, ...] = ()
    prepare_options: tuple[Option, ...] = ()

    def default_name(self) -> str:
        """Folder name of the synthetic set."""
        name: str = self._module("make").default_name()
        return name

    def make(self, out: Path, *, progress: Callable[[int, int], None] | None = None, **contents: Any) -> None:
        """Writes the synthetic set atomically; returns at once if it is complete."""
        self._module("make").make(out, progress=progress, **contents)

    def prepare(self, out: Path, *, any_archive: bool, progress: Callable[..., None], **files: Path | None) -> str:
        """Unpacks the published archives and returns a summary."""
        sentence: str = self._module("prepare").prepare(out, any_archive=any_archive, progress=progress, **files)
        return sentence

    def verify(self, folder: Path, *, decode: str) -> Report:
        report: Report = self._module("prepare").verify(folder, decode=decode)
        return report

    def _module(self, word: str) -> Any:
        return import_module(f"trainmark.data.{self.name}.{word}")


@cache
def names() -> tuple[str, ...]:
    """Every data set that has a folder here."""
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/facts.py")))


def find(name: str) -> DataSet:
    if name not in names():
        raise UsageError(f"data set {name!r} is not known; {nearest(name, names())}")
    data_set: DataSet = import_module(f"{__name__}.{name}.facts").DATA_SET
    return data_set


def all_sets() -> tuple[DataSet, ...]:
    return tuple(find(name) for name in names())


def read_counts(root: Path, *keys: str) -> dict[str, int] | None:
    """These counts in the manifest of a synthetic set; None if it has none."""
    path = root / MANIFEST
    try:
        values = json.loads(path.read_text("utf-8"))
        found = {key: values[key] for key in keys}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotReadyError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"{path} does not give {' and '.join(map(repr, keys))}; make the set again") from error
    for key, count in found.items():
        if type(count) is not int or count < 0:
            raise NotReadyError(f"{path}: {key!r} is {count!r}, which is no count; make the set again")
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """A file of this package."""
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return document
