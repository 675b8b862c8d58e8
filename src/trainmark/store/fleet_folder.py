"""What a folder holds of a fleet: the records of its hosts, runs that left none, and what was measured of its links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainmark.spec.errors import UsageError
from trainmark.spec.links import PairLink
from trainmark.spec.record import Record, parse
from trainmark.spec.run_folder import RunFolder
from trainmark.store.fleets import PairsDone
from trainmark.store.store import Store, read_record

LINKS_FILE = "links.json"
"""What `doctor --pairs --json` printed, where it lies beside the records."""


@dataclass(frozen=True, kw_only=True)
class FleetFolder:
    records: tuple[Record, ...]
    unrecorded: Mapping[str, str]
    """By host, why its run left no record, in a sentence."""
    links: PairsDone | None


def read(folder: Path) -> FleetFolder:
    """A store, or a folder of record files; UsageError where a file in it is damaged, or there is no record."""
    store = Store(folder)
    files = store.records if store.records.is_dir() else folder
    paths = [path for path in sorted(files.glob("*.json")) if path.name[0] != "." and path.name != LINKS_FILE]
    records = tuple(read_record(path) for path in paths)
    unrecorded = {}
    for row in store.contents().unrecorded if files is store.records else ():
        run = RunFolder(store.runs / row.run_id, only_ranks=())
        run.open()
        host = run.head.launcher_host if run.head else ""
        unrecorded[host or row.run_id] = f"run {row.run_id} has no record: it still runs, or ended too early"
    if not records and not unrecorded:
        raise UsageError(f"folder {folder} holds no records of runs; name the --store that the hosts wrote to")
    links = folder / LINKS_FILE
    return FleetFolder(records=records, unrecorded=unrecorded, links=read_links(links) if links.is_file() else None)


def read_links(path: Path) -> PairsDone:
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
