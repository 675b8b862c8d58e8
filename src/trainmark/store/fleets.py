"""What became of the hosts of a fleet: a file that grows by a line a host, so that one cut short can be taken up."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from trainmark.spec.errors import NotReadyError, UsageError
from trainmark.spec.links import PairLink
from trainmark.store.store import Store

FOLDER = "fleets"
TAKEN_UP_WITHIN = timedelta(hours=24)
"""An older fleet is not gone on with: its nodes may have changed."""


class FleetBegun(msgspec.Struct, frozen=True, kw_only=True, tag="fleet"):
    """The first line: what was asked of which hosts."""

    created: str
    trainmark: str
    words: tuple[str, ...]
    """What every host was told to run."""
    hosts: tuple[str, ...]


class HostDone(msgspec.Struct, frozen=True, kw_only=True, tag="host"):
    host: str
    run_ids: tuple[str, ...] = ()
    """Of its runs, whose records are in the store."""
    failed: str = ""
    """Why it has no result, in a sentence."""


class PairsDone(msgspec.Struct, frozen=True, kw_only=True, tag="links"):
    hosts: tuple[str, ...]
    """In the order in which the pairs number them."""
    pairs: tuple[PairLink, ...] = ()
    failed: str = ""


_LINE = msgspec.json.Decoder(FleetBegun | HostDone | PairsDone)


@dataclass(kw_only=True)
class FleetLog:
    """One fleet as far as it got; of several lines about a host the last counts."""

    path: Path
    begun: FleetBegun
    hosts: dict[str, HostDone] = field(default_factory=dict)
    links: PairsDone | None = None

    @property
    def to_do(self) -> list[str]:
        """Hosts that have no result yet: those that failed are tried again."""
        done = {host for host, line in self.hosts.items() if not line.failed}
        return [host for host in self.begun.hosts if host not in done]

    def add(self, line: HostDone | PairsDone) -> None:
        """On disk before this returns."""
        _append(self.path, line)
        self._take(line)

    def _take(self, line: HostDone | PairsDone) -> None:
        if isinstance(line, HostDone):
            self.hosts[line.host] = line
        else:
            self.links = line


def begin(store: Store, words: Sequence[str], hosts: Sequence[str], trainmark: str) -> FleetLog:
    now = datetime.now(timezone.utc)
    path = store.folder / FOLDER / f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}.jsonl"
    begun = FleetBegun(
        created=now.isoformat(timespec="seconds"), trainmark=trainmark, words=tuple(words), hosts=tuple(hosts)
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotReadyError(f"{path.parent} cannot be made: {error.strerror}") from error
    _append(path, begun)
    return FleetLog(path=path, begun=begun)


def read(path: Path) -> FleetLog:
    """UsageError where it is no file of a fleet; a line that was not finished is passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"fleet file {path} cannot be read: {error.strerror}") from error
    log: FleetLog | None = None
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            found = _LINE.decode(line)
            if isinstance(found, FleetBegun):
                log = FleetLog(path=path, begun=found)
            elif log is not None:
                log._take(found)
    if log is None:
        raise UsageError(f"fleet file {path} is damaged: it does not say what was run")
    return log


def newest(store: Store) -> FleetLog | None:
    """The fleet that was begun last; None where there was none."""
    paths = sorted((store.folder / FOLDER).glob("*.jsonl"))
    return read(paths[-1]) if paths else None


def to_go_on_with(store: Store, words: Sequence[str], hosts: Sequence[str], trainmark: str) -> FleetLog | None:
    """The newest fleet, where it was asked for the same, not long ago, and some of its hosts have no result."""
    try:
        found = newest(store)
    except UsageError:
        return None
    if found is None or not found.to_do:
        return None
    begun = found.begun
    if (begun.words, begun.hosts, begun.trainmark) != (tuple(words), tuple(hosts), trainmark):
        return None
    with contextlib.suppress(ValueError, TypeError):
        if datetime.now(timezone.utc) - datetime.fromisoformat(begun.created) < TAKEN_UP_WITHIN:
            return found
    return None


def _append(path: Path, line: FleetBegun | HostDone | PairsDone) -> None:
    try:
        with path.open("ab", buffering=0) as stream:
            # a line that a killed process left unfinished must not swallow this one
            stream.write((b"\n" if stream.tell() else b"") + msgspec.json.encode(line) + b"\n")
            os.fsync(stream.fileno())
    except OSError as error:
        raise NotReadyError(f"{path} cannot be written: {error.strerror}") from error
