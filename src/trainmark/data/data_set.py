"""What a data set is to everybody else: its words, the options of its commands, and functions loaded when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmark.data.verification import Report

MANIFEST = "trainmark-set.json"
"""At the root of a synthetic set: what its maker wrote."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A word of `trainmark data` that is one set's own."""

    word: str
    """As it is typed: `--clips`."""
    help: str
    metavar: str = "N"
    kind: type = int
    default: Any = None
    """None: the function knows it."""
    required: bool = False

    @property
    def name(self) -> str:
        return self.word.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One folder beside this file; its modules `make`, `prepare` and `verify` bring numpy and are loaded late."""

    name: str
    title: str
    makes: str
    """What `trainmark data make` writes, in a few words."""
    prepares: str
    verifies: str
    things: str
    """What the maker counts: images."""
    takes: str
    """How long the synthetic set is in the making."""
    smallest: Mapping[str, Any] = field(default_factory=dict)
    """What `make` is told for the smallest set on which every workload's smoke recipe can take a step."""
    make_options: tuple[Option, ...] = ()
    prepare_options: tuple[Option, ...] = ()

    def default_name(self) -> str:
        """What the folder of the synthetic set is called."""
        name: str = self._module("make").default_name()
        return name

    def make(self, out: Path, *, progress: Callable[[int, int], None] | None = None, **contents: Any) -> None:
        """Writes the synthetic set, whole or not at all; returns at once where it is whole already."""
        self._module("make").make(out, progress=progress, **contents)

    def prepare(self, out: Path, *, any_archive: bool, progress: Callable[[Any], None], **files: Path | None) -> str:
        """Unpacks the published archives, and says what the set now holds."""
        sentence: str = self._module("prepare").from_files(out, any_archive=any_archive, progress=progress, **files)
        return sentence

    def verify(self, folder: Path, *, decode: str) -> Report[Any]:
        report: Report[Any] = self._module("verify").verify(folder, decode=decode)
        return report

    def look(self, folder: Path) -> tuple[str, str]:
        """What a folder seems to hold at a glance, and what is wrong with it; empty where nothing is."""
        found: tuple[str, str] = self._module("verify").look(folder)
        return found

    def _module(self, word: str) -> Any:
        return import_module(f"trainmark.data.{self.name}.{word}")
