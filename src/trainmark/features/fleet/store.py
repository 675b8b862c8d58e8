"""Keeps what became of the hosts of a fleet in one file per fleet, so that one cut short can be resumed."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.links import PairLink
from trainmark.record.store import Store

FOLDER = "fleets"
RESUME_WITHIN = timedelta(hours=24)
"""An older fleet is not resumed: its nodes may have changed."""


class HostDone(msgspec.Struct, frozen=True, kw_only=True):
    run_ids: tuple[str, ...] = ()
    """Of its runs, whose records are in the store."""
    failed: str = ""
    """Why it has no result, in a sentence."""


class PairsDone(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...]
    """In the order in which the pairs number them."""
    pairs: tuple[PairLink, ...] = ()
    failed: str = ""


class SavedFleet(msgspec.Struct, kw_only=True):
    """One fleet as far as it got."""

    created: str
    trainmark: str
    words: tuple[str, ...]
    """What every host was told to run."""
    hosts: tuple[str, ...]
    done: dict[str, HostDone] = {}
    links: PairsDone | None = None

    @property
    def to_do(self) -> list[str]:
        """Hosts that have no result yet: those that failed are tried again."""
        return [host for host in self.hosts if host not in self.done or self.done[host].failed]


def begin(store: Store, words: Sequence[str], hosts: Sequence[str], trainmark: str) -> tuple[SavedFleet, Path]:
    now = datetime.now(timezone.utc)
    fleet = SavedFleet(
        created=now.isoformat(timespec="seconds"), trainmark=trainmark, words=tuple(words), hosts=tuple(hosts)
    )
    path = store.folder / FOLDER / f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}.json"
    save(fleet, path)
    return fleet, path


def save(fleet: SavedFleet, path: Path) -> None:
    """On disk before this returns."""
    try:
        write_atomic(path, msgspec.json.encode(fleet), synced=True)
    except OSError as error:
        raise NotReadyError(f"{path} cannot be written: {error.strerror}") from error


def newest(store: Store) -> tuple[SavedFleet, Path] | None:
    """The fleet that was begun last; None where there was none, UsageError where its file is damaged."""
    paths = sorted((store.folder / FOLDER).glob("*.json"))
    if not paths:
        return None
    try:
        return msgspec.json.decode(paths[-1].read_bytes(), type=SavedFleet), paths[-1]
    except OSError as error:
        raise UsageError(f"fleet file {paths[-1]} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"fleet file {paths[-1]} is damaged: {error}") from error


def find_unfinished(
    store: Store, words: Sequence[str], hosts: Sequence[str], trainmark: str
) -> tuple[SavedFleet, Path] | None:
    """The newest fleet, where it ran the same on the same hosts, not long ago, and some have no result."""
    with contextlib.suppress(UsageError, ValueError, TypeError):
        if found := newest(store):
            fleet, _ = found
            same = (fleet.words, fleet.hosts, fleet.trainmark) == (tuple(words), tuple(hosts), trainmark)
            age = datetime.now(timezone.utc) - datetime.fromisoformat(fleet.created)
            if same and fleet.to_do and age < RESUME_WITHIN:
                return found
    return None
