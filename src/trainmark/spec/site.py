"""The facts of one site, from its `trainmark.toml`: where data lies, how other hosts are entered, which network."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from trainmark.spec import tables
from trainmark.spec.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "trainmark.toml"
VARIABLE = "TRAINMARK_CONFIG"


Text = Annotated[str, msgspec.Meta(min_length=1, description="a text")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535, description="a port number from 1 to 65535")]


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """How a run starts on another host."""

    python: Text = "python3"
    """The Python that has trainmark there; `~/` is the user's home there."""
    folder: Text = "."
    """Where it starts; relative to the home of the user there."""
    user: Text | None = None
    port: Port | None = None
    ssh_config: Text | None = None
    """A file for ssh to read instead of the user's own."""
    allow_root: bool = False


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """What joins the nodes of a run."""

    interface: Text | None = None
    port: Port | None = None
    """Where the first node listens for the others."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    data: Mapping[str, Text] = msgspec.field(default_factory=dict)
    """The folder of each real data set, by the set's name."""
    remote: Remote = Remote()
    network: Network = Network()


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
    found = tables.read(Site, document, f"site file {path}")
    remote = found.remote
    if remote.ssh_config is not None:
        remote = msgspec.structs.replace(remote, ssh_config=_beside(path, remote.ssh_config))
    data = {name: _beside(path, folder) for name, folder in found.data.items()}
    return msgspec.structs.replace(found, data=data, remote=remote)


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


def _beside(path: Path, word: str) -> str:
    """A path written in a site file: one that is not absolute begins where the file lies."""
    return str(path.absolute().parent / Path(word).expanduser())
