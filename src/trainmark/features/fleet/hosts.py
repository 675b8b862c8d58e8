"""Collects the runs of a fleet by host, from a saved fleet, a folder or records; refuses runs that are not alike."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from trainmark.analysis import quantities
from trainmark.analysis.comparison import list_differences
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.foreign_files import read_plain
from trainmark.record.links import PairLink
from trainmark.record.record import Record
from trainmark.record.run_folder import read_head
from trainmark.record.store import Store, Subject, read_record

FOLDER = "fleets"
RESUME_WITHIN = timedelta(hours=24)
"""An older fleet is not resumed: its nodes may have changed."""
LINKS_FILE = "links.json"
"""What `doctor --pairs --json` printed, where it lies beside the records."""
_MAX_NAMED = 4
"""Differences named in a refusal."""


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
        return msgspec.json.decode(read_plain(paths[-1]), type=SavedFleet), paths[-1]
    except OSError as error:
        raise UsageError(f"fleet file {paths[-1]} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"fleet file {paths[-1]} is damaged: {error}") from error


def open_fleet(
    store: Store, words: Sequence[str], hosts: Sequence[str], trainmark: str, *, rerun: bool
) -> tuple[SavedFleet, Path]:
    """The newest fleet, where it ran the same on the same hosts, lately, and some have no result; else a new one."""
    now = datetime.now(timezone.utc)
    created = now.isoformat(timespec="seconds")
    fleet = SavedFleet(created=created, trainmark=trainmark, words=tuple(words), hosts=tuple(hosts))
    with contextlib.suppress(UsageError, ValueError, TypeError):
        if not rerun and (found := find_newest(store)):
            last = found[0]
            same = (last.words, last.hosts, last.trainmark) == (fleet.words, fleet.hosts, trainmark)
            if same and last.to_do and now - datetime.fromisoformat(last.created) < RESUME_WITHIN:
                return found
    path = store.folder / FOLDER / f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}.json"
    save_fleet(fleet, path)
    return fleet, path


def read_saved_fleet(fleet: SavedFleet, store: Store) -> FleetRuns:
    unfinished = HostDone(failed="it has not been run yet; the same command again resumes the fleet")
    hosts = []
    for host in fleet.hosts:
        done = fleet.done.get(host, unfinished)
        records = () if done.failed else tuple(read_record(store.path(run_id)) for run_id in done.run_ids)
        hosts.append(HostRuns(host=host, records=records, failed=done.failed))
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


class _DoctorDocument(msgspec.Struct, frozen=True):
    sections: tuple[PairsDone]


def _read_links(path: Path) -> PairsDone:
    """From the document of a doctor that measured pairs."""
    try:
        [found] = msgspec.json.decode(read_plain(path), type=_DoctorDocument).sections
    except OSError as error:
        raise UsageError(f"links file {path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"links file {path} is not what 'trainmark doctor --pairs --json' prints: {error}") from error
    if not found.pairs or any({pair.first, pair.second} - {*range(len(found.hosts))} for pair in found.pairs):
        raise UsageError(f"links file {path} is damaged: its pairs are not of the hosts that it names")
    return found


def group_by_host(records: Sequence[Record]) -> list[HostRuns]:
    """A host's valid runs count; one that has none has failed, for the reason its last run ended."""
    found: dict[str, list[Record]] = {}
    for record in {record.run_id: record for record in records}.values():
        found.setdefault(_find_host(record), []).append(record)
    hosts = []
    for host, runs in sorted(found.items()):
        valid = tuple(record for record in runs if record.status == "valid")
        last = max(runs, key=lambda record: record.created)
        failed = "" if valid else f"run {last.run_id} is {last.status} ({last.ended})"
        hosts.append(HostRuns(host=host, records=valid, failed=failed))
    return hosts


def _find_host(record: Record) -> str:
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
    (version, fingerprint), _ = Counter((one.trainmark, one.plan.fingerprint) for one in records).most_common(1)[0]
    usual = next(one for one in records if (one.trainmark, one.plan.fingerprint) == (version, fingerprint))
    for odd in records:
        if odd.trainmark != version:
            raise UsageError(
                f"run {odd.run_id} was made by trainmark {odd.trainmark} and most others by {version}; install the "
                "same version on every host and run those again"
            )
        if odd.plan.fingerprint != fingerprint:
            odd_side, usual_side = (Subject(word=one.run_id, label=one.run_id, records=(one,)) for one in (odd, usual))
            compared = quantities.find_compared(metric, (odd_side, usual_side))
            found = [str(one) for one in list_differences(odd_side, usual_side, compared) if one.unlike]
            named = ", ".join(found[:_MAX_NAMED]) or f"limits {odd.plan.limits} and {usual.plan.limits}"
            raise UsageError(
                f"run {odd.run_id} has another plan than run {usual.run_id}: {named}; a fleet needs runs of one plan, "
                "name them or their folder"
            )
