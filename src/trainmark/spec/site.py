"""The facts of one site, from its `trainmark.toml`: where data lies, how other hosts are entered, which network."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmark.spec.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "trainmark.toml"
VARIABLE = "TRAINMARK_CONFIG"


@dataclass(frozen=True, kw_only=True)
class Remote:
    """How a run starts on another host."""

    python: str = "python3"
    """The Python that has trainmark there; `~/` is the user's home there."""
    folder: str = "."
    """Where it starts; relative to the home of the user there."""
    user: str | None = None
    port: int | None = None
    ssh_config: Path | None = None
    """A file for ssh to read instead of the user's own."""
    allow_root: bool = False


@dataclass(frozen=True, kw_only=True)
class Network:
    """What joins the nodes of a run."""

    interface: str | None = None
    port: int | None = None
    """Where the first node listens for the others."""


@dataclass(frozen=True, kw_only=True)
class Site:
    data: Mapping[str, str] = field(default_factory=dict)
    """The folder of each real data set, by the set's name."""
    remote: Remote = field(default_factory=Remote)
    network: Network = field(default_factory=Network)


_KEYS: dict[str, dict[str, type]] = {
    "data": {},  # any name: which sets there are, and which a workload from outside reads, is not known here
    "remote": {"python": str, "folder": str, "user": str, "port": int, "ssh_config": str, "allow_root": bool},
    "network": {"interface": str, "port": int},
}
_KINDS: dict[type, str] = {str: "a text", int: "a port number from 1 to 65535", bool: "true or false"}


def load(environ: Mapping[str, str] | None = None, *, cwd: Path | None = None, home: Path | None = None) -> Site:
    """The first file found counts; without one every fact is left to its default."""
    path = _find(os.environ if environ is None else environ, cwd or Path.cwd(), home)
    if path is None:
        return Site()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"site file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"site file {path} is not valid TOML: {error}") from None
    _check(path, document)
    remote = dict(document.get("remote", {}))
    if "ssh_config" in remote:
        remote["ssh_config"] = _beside(path, remote["ssh_config"])
    return Site(
        data={name: str(_beside(path, folder)) for name, folder in document.get("data", {}).items()},
        remote=Remote(**remote),
        network=Network(**document.get("network", {})),
    )


def _find(environ: Mapping[str, str], cwd: Path, home: Path | None) -> Path | None:
    if chosen := environ.get(VARIABLE):
        path = Path(chosen).expanduser()
        if not path.is_file():
            raise UsageError(f"{VARIABLE} names {path}, and there is no such file; correct it or unset it")
        return path
    candidates = [cwd / FILE]
    if home is None and environ.get("HOME"):
        home = Path(environ["HOME"])
    if home is not None:
        candidates.append(home / ".config" / "trainmark" / FILE)
    return next((path for path in candidates if path.is_file()), None)


def _check(path: Path, document: Mapping[str, Any]) -> None:
    for table, values in document.items():
        if table not in _KEYS:
            raise UsageError(f"site file {path}: table {table!r} is not known; {nearest(table, _KEYS)}")
        if not isinstance(values, dict):
            raise UsageError(f"site file {path}: {table} must be a table, [{table}], not {values!r}")
        for key, value in values.items():
            if table != "data" and key not in _KEYS[table]:
                raise UsageError(
                    f"site file {path}: key {key!r} of [{table}] is not known; {nearest(key, _KEYS[table])}"
                )
            wanted = _KEYS[table].get(key, str)
            if not _fits(value, wanted):
                raise UsageError(f"site file {path}: {key} of [{table}] must be {_KINDS[wanted]}, not {value!r}")


def _fits(value: object, wanted: type) -> bool:
    if isinstance(value, bool):  # which Python takes for a number
        return wanted is bool
    if isinstance(value, int):
        return wanted is int and 1 <= value <= 65535
    return wanted is str and isinstance(value, str) and value != ""


def _beside(path: Path, word: str) -> Path:
    """A path written in a site file: one that is not absolute begins where the file lies."""
    return path.absolute().parent / Path(word).expanduser()
