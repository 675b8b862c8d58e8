"""Collects the runs of a fleet by host, from a saved fleet, a folder or records; refuses runs that are not alike."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec

from trainmark.analysis import quantities
from trainmark.analysis.comparison import list_differences
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.links import PairLink
from trainmark.record.record import Record, parse
from trainmark.record.run_folder import read_head
from trainmark.record.store import Store, Subject, read_record

FOLDER = "fleets"
RESUME_WITHIN = timedelta(hours=24)
"""An older fleet is not resumed: its nodes may have changed."""


class HostDone(msgspec.Struct, frozen=True, kw_only=True):
    run_ids: tuple[str, ...] = ()
    """Runs whose records are in the store."""
    failed: str = ""
    """Why it has no result."""


class PairsDone(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...]
    """Indexed by the node numbers of the pairs."""
    pairs: tuple[PairLink, ...] = ()
    failed: str = ""


class SavedFleet(msgspec.Struct, kw_only=True):
    """One fleet as far as it got."""

    created: str
    trainmark: str
    words: tuple[str, ...]
    """The command that every host runs."""
    hosts: tuple[str, ...]
    done: dict[str, HostDone] = {}
    links: PairsDone | None = None

    @property
    def to_do(self) -> list[str]:
        """Hosts that have no result yet: those that failed are tried again."""
        return [host for host in self.hosts if host not in self.done or self.done[host].failed]


def begin_fleet(store: Store, words: Sequence[str], hosts: Sequence[str], trainmark: str) -> tuple[SavedFleet, Path]:
    now = datetime.now(timezone.utc)
    fleet = SavedFleet(
        created=now.isoformat(timespec="seconds"), trainmark=trainmark, words=tuple(words), hosts=tuple(hosts)
    )
    path = store.folder / FOLDER / f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}.json"
    save_fleet(fleet, path)
    return fleet, path


def save_fleet(fleet: SavedFleet, path: Path) -> None:
    """On disk before this returns."""
    try:
        write_atomic(path, msgspec.json.encode(fleet), synced=True)
    except OSError as error:
        raise NotReadyError(f"{path} cannot be written: {error.strerror}") from error


def find_newest(store: Store) -> tuple[SavedFleet, Path] | None:
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
        if found := find_newest(store):
            fleet, _ = found
            same = (fleet.words, fleet.hosts, fleet.trainmark) == (tuple(words), tuple(hosts), trainmark)
            age = datetime.now(timezone.utc) - datetime.fromisoformat(fleet.created)
            if same and fleet.to_do and age < RESUME_WITHIN:
                return found
    return None


LINKS_FILE = "links.json"
"""What `doctor --pairs --json` printed, where it lies beside the records."""
_MAX_NAMED = 4
"""Differences named in a refusal."""


@dataclass(frozen=True, kw_only=True)
class HostRuns:
    """The runs of one host."""

    host: str
    records: tuple[Record, ...] = ()
    """Its valid runs, repeats of one plan; none where it failed."""
    failed: str = ""
    """Why it has none."""


@dataclass(frozen=True, kw_only=True)
class FleetRuns:
    """All runs and links of a fleet."""

    hosts: Sequence[HostRuns]
    links: PairsDone | None = None


def read_saved_fleet(fleet: SavedFleet, store: Store) -> FleetRuns:
    hosts = []
    for host in fleet.hosts:
        done = fleet.done.get(host)
        if done is None or done.failed:
            failed = done.failed if done else "it has not been run yet; the same command again resumes the fleet"
            hosts.append(HostRuns(host=host, failed=failed))
        else:
            records = tuple(read_record(store.path(run_id)) for run_id in done.run_ids)
            hosts.append(HostRuns(host=host, records=records))
    return FleetRuns(hosts=hosts, links=fleet.links)


def read_folder(folder: Path) -> FleetRuns:
    """A store, or a folder of record files; UsageError where a file in it is damaged, or there is no record."""
    store = Store(folder)
    files = store.records if store.records.is_dir() else folder
    paths = [path for path in sorted(files.glob("*.json")) if path.name[0] != "." and path.name != LINKS_FILE]
    hosts = group_by_host([read_record(path) for path in paths])
    known = {one.host for one in hosts}
    for row in store.contents().unrecorded if files is store.records else ():
        host = row.run_id
        with contextlib.suppress(NotReadyError):
            host = read_head(store.runs / row.run_id).launcher_host or host
        if host not in known:
            why = f"run {row.run_id} has no record: it still runs, or ended too early"
            hosts.append(HostRuns(host=host, failed=why))
    if not hosts:
        raise UsageError(f"folder {folder} holds no records of runs; name the --store that the hosts wrote to")
    links = folder / LINKS_FILE
    return FleetRuns(hosts=hosts, links=_read_links(links) if links.is_file() else None)


def _read_links(path: Path) -> PairsDone:
    """From the document of a doctor that measured pairs."""
    try:
        document: Any = parse(path.read_bytes())
        section = document["sections"][0]
        pairs = msgspec.convert(section["pairs"], tuple[PairLink, ...])
        hosts = msgspec.convert(section["hosts"], tuple[str, ...])
    except OSError as error:
        raise UsageError(f"links file {path} cannot be read: {error.strerror}") from error
    except (UsageError, KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
        raise UsageError(f"links file {path} is not what 'trainmark doctor --pairs --json' prints: {error}") from error
    if not pairs or any(not 0 <= node < len(hosts) for pair in pairs for node in (pair.first, pair.second)):
        raise UsageError(f"links file {path} is damaged: its pairs are not of the hosts that it names")
    return PairsDone(hosts=hosts, pairs=pairs)


def group_by_host(records: Sequence[Record]) -> list[HostRuns]:
    """A host's valid runs count; one that has none has failed, for the reason its last run ended."""
    found: dict[str, list[Record]] = {}
    for record in {record.run_id: record for record in records}.values():
        found.setdefault(find_host(record), []).append(record)
    return [_summarize_host(host, found[host]) for host in sorted(found)]


def _summarize_host(host: str, records: Sequence[Record]) -> HostRuns:
    valid = tuple(record for record in records if record.status == "valid")
    if valid:
        return HostRuns(host=host, records=valid)
    last = max(records, key=lambda record: record.created)
    return HostRuns(host=host, failed=f"run {last.run_id} is {last.status} ({last.ended})")


def find_host(record: Record) -> str:
    """The one host of a run; UsageError where it ran on several or names none."""
    hosts = record.hosts
    if len(hosts) > 1:
        raise UsageError(
            f"run {record.run_id} ran on {len(hosts)} hosts at once ({', '.join(hosts[:_MAX_NAMED])}); a fleet "
            "needs runs of one host each"
        )
    if not hosts[0]:
        raise UsageError(f"run {record.run_id} names no host; leave it out")
    return hosts[0]


def check_alike(records: Sequence[Record], metric: str) -> None:
    """Raises UsageError that names the run which differs from the majority, and in what."""
    if not records:
        return
    versions = Counter(record.trainmark for record in records)
    usual, _ = versions.most_common(1)[0]
    if len(versions) > 1:
        odd = next(record for record in records if record.trainmark != usual)
        raise UsageError(
            f"run {odd.run_id} was made by trainmark {odd.trainmark} and most others by {usual}; install the same "
            "version on every host and run those again"
        )
    plans = Counter(record.plan.fingerprint for record in records)
    if len(plans) == 1:
        return
    fingerprint, _ = plans.most_common(1)[0]
    like = next(record for record in records if record.plan.fingerprint == fingerprint)
    odd = next(record for record in records if record.plan.fingerprint != fingerprint)
    raise UsageError(
        f"run {odd.run_id} has another plan than run {like.run_id}: {_name_differences(odd, like, metric)}; a fleet "
        "needs runs of one plan, name them or their folder"
    )


def _name_differences(odd: Record, like: Record, metric: str) -> str:
    sides = [Subject(word=one.run_id, label=one.run_id, records=(one,)) for one in (odd, like)]
    compared = quantities.find_compared(metric, sides)
    found = [str(one) for one in list_differences(sides[0], sides[1], compared) if one.unlike]
    if not found:
        found = [f"limits {odd.plan.limits} and {like.plan.limits}"]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"{', '.join(found[:_MAX_NAMED])}{more}"
