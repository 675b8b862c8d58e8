"""The site file `trainmark.toml`: data folders, hosts, network, price, expected results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from trainmark.record import tables
from trainmark.record.errors import UsageError

JOULES_PER_KWH = 3.6e6
HOUR_S = 3600.0
MIN_PUE, MAX_PUE = 1.0, 5.0

Amount = Annotated[float, msgspec.Meta(gt=0, le=1e9, description="a price above 0")]
Currency = Annotated[str, msgspec.Meta(max_length=4, description="a currency such as EUR")]
Pue = Annotated[float, msgspec.Meta(ge=MIN_PUE, le=MAX_PUE, description="a number from 1 to 5")]


class Price(msgspec.Struct, frozen=True, kw_only=True):
    device_hour: Amount | None = None
    """Of one device; None where not given."""
    currency: Currency = ""
    pue: Pue = 1.0
    """Energy of the building over energy of its machines."""


FILE = "trainmark.toml"
VARIABLE = "TRAINMARK_CONFIG"


Text = Annotated[str, msgspec.Meta(min_length=1, description="a text")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535, description="a port number from 1 to 65535")]
Above = Annotated[float, msgspec.Meta(gt=0, le=1e100, description="a number above 0")]
Percent = Annotated[float, msgspec.Meta(gt=0, lt=100, description="a percentage between 0 and 100")]


class Remote(msgspec.Struct, frozen=True, kw_only=True):
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
    interface: Text | None = None
    port: Port | None = None
    """Where the first node listens for the others."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a good node of this site reaches, to detect a fleet that is slow as a whole."""

    workload: Text
    recipe: Text
    value: Above
    """Of one node, in the metric's unit."""
    metric: Text = "p_core"
    within_percent: Percent = 5.0
    """A node that is worse by more is bad."""
    device: Text | None = None
    """Part of the device's name: other kinds of nodes are not held to it. None holds all to it."""
    topology: Text | None = None
    precision: Text | None = None


class Site(msgspec.Struct, frozen=True, kw_only=True):
    data: Mapping[str, Text] = msgspec.field(default_factory=dict)
    """The folder of each real data set, by the set's name."""
    remote: Remote = Remote()
    network: Network = Network()
    price: Price = Price()
    """What a device costs here, and what the building adds to its energy."""
    expected: tuple[Expected, ...] = ()
    """Of several that fit a run the first counts."""
    trust: tuple[Text, ...] = ()
    """In the user's own file: working folders whose site file may set [remote]."""
    untrusted: str = ""
    """Why its [remote] is not trusted; empty where the file is the user's own."""

    def entering_hosts(self, *, trust: bool) -> Site:
        """This site, for use of [remote]; UsageError where that is not trusted."""
        if self.untrusted and not trust:
            raise UsageError(self.untrusted)
        return self


def load(environ: Mapping[str, str] | None = None, *, cwd: Path | None = None, home: Path | None = None) -> Site:
    """The first site file found; without one, the defaults."""
    environ, cwd = os.environ if environ is None else environ, cwd or Path.cwd()
    own = _own_file(environ, home)
    path = _find(environ, cwd, own)
    if path is None:
        return Site()
    found = _read(path)
    if path == cwd / FILE and not (own and own.is_file() and own.samefile(path)):
        found = _check_trust(found, path, own)
    remote = found.remote
    if remote.ssh_config is not None:
        remote = msgspec.structs.replace(remote, ssh_config=_resolve(path, remote.ssh_config))
    data = {name: _resolve(path, folder) for name, folder in found.data.items()}
    return msgspec.structs.replace(found, data=data, remote=remote)


def _read(path: Path) -> Site:
    try:
        document = tables.load_toml(path)
    except OSError as error:
        raise UsageError(f"site file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"site file {path} is not valid TOML: {error}") from None
    return tables.read(Site, document, f"site file {path}", untrusted="")


def _check_trust(found: Site, path: Path, own: Path | None) -> Site:
    """Marks [remote] of a file in the working folder as untrusted unless the user's own file trusts the folder: it
    names programs that ssh and the hosts run."""
    where = own or f"~/.config/trainmark/{FILE}"
    if found.trust:
        raise UsageError(f"site file {path}: trust is for your own file {where}; a file cannot vouch for itself")
    keys = [field for field in Remote.__struct_fields__ if getattr(found.remote, field) != getattr(Remote(), field)]
    vouched = _read(own).trust if keys and own and own.is_file() else ()
    if not keys or any(Path(folder).expanduser().resolve() == path.resolve().parent for folder in vouched):
        return found
    sentence = (
        f"site file {path}: {keys[0]} of [remote] decides what ssh runs, and the file lies in the working folder; "
        f'say --trust if you know who wrote it, or name the folder in {where}: trust = ["{path.resolve().parent}"]'
    )
    return msgspec.structs.replace(found, untrusted=sentence)


def _own_file(environ: Mapping[str, str], home: Path | None) -> Path | None:
    if home is None and environ.get("HOME"):
        home = Path(environ["HOME"])
    return home and home / ".config" / "trainmark" / FILE


def _find(environ: Mapping[str, str], cwd: Path, own: Path | None) -> Path | None:
    if chosen := environ.get(VARIABLE):
        path = Path(chosen).expanduser()
        if not path.is_file():
            raise UsageError(f"{VARIABLE} names {path}, and there is no such file; correct it or unset it")
        return path
    return next((path for path in (cwd / FILE, own) if path and path.is_file()), None)


def _resolve(path: Path, word: str) -> str:
    """A path in a site file; relative ones start at the file's folder."""
    return str(path.absolute().parent / Path(word).expanduser())
