"""Rebuilds the plan of an earlier run for this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainmark import data as datasets
from trainmark.data import synthetic
from trainmark.launch import planning
from trainmark.platforms import files
from trainmark.record import escape
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import NO_FOLDER, Plan, Topology
from trainmark.record.record import Record
from trainmark.record.trust import check_plan, trust_file


def rebuild_plan(
    records: Sequence[Record], data: str | None = None, *, platform: str | None = None, trust: bool = False
) -> Plan:
    """The plan of these repeats, with the paths of its files on this machine.

    A record may come from anybody: files that it names and that run code are not used without `trust`.
    """
    record = records[0]
    for each in records:
        if each.status != "valid":
            raise UsageError(f"run {each.run_id} is {each.status} ({each.ended}); there is no result to reproduce")
    plan = replace(record.plan, platform=_choose_platform(record, platform, trust=trust))
    if Topology.parse(plan.topology).nodes > 1:
        raise UsageError(
            f"run {record.run_id} took {plan.topology}, and reproduce works on one machine; "
            "start it again with 'trainmark run --hosts', then 'trainmark compare'"
        )
    if plan.resume_from is not None:
        raise UsageError(f"run {record.run_id} went on from a checkpoint; reproduce the run it began with")
    if plan.init_from is not None and not Path(plan.init_from).is_file():
        raise NotReadyError(f"run {record.run_id} began with weights from {plan.init_from}, which is not there")
    check_plan(plan, f"the record of run {record.run_id}", trust=trust)
    planning.check_initial_weights(plan)
    return locate_data(plan, data)


def locate_data(plan: Plan, data: str | None) -> Plan:
    """The plan of another machine with the data folder of this one."""
    if plan.data.folder == NO_FOLDER and not data:
        return plan
    return replace(plan, data=replace(plan.data, folder=str(_find_data_folder(plan, data))))


def _choose_platform(record: Record, given: str | None, *, trust: bool) -> str:
    """The platform by name, or its file: as given, or with `trust` the recorded one if unchanged.

    A platform file may name programs and modules, and a record may come from anybody: a recorded file is written out
    for review, and used only where the user names it.
    """
    recorded, info = record.plan.platform, record.environment.platform
    if given and files.load(given).is_own:
        path = Path(given).expanduser().absolute()
        trust_file(path)
        return str(path)
    if given:
        return given
    if not recorded.endswith(".toml"):
        return recorded
    path = Path(recorded)
    if path.is_file() and (not info.sha256 or files.load(recorded).sha256 == info.sha256):
        own = ", or name yours with --platform"
        check_plan(record.plan, f"the record of run {record.run_id}", trust=trust, instead=own)
        return recorded
    gone = "is another one now" if path.is_file() else "is not on this machine"
    if not info.content:
        raise NotReadyError(f"the run's platform file {recorded} {gone}; name one with --platform FILE.toml")
    copy = Path(f"{escape.file_name(path.stem)}-{hashlib.sha256(info.content.encode()).hexdigest()[:8]}.toml")
    if not copy.exists():
        copy.write_text(info.content, encoding="utf-8")
    raise NotReadyError(
        f"the run's platform file {recorded} {gone}; the recorded content was written to {copy}: review the "
        f"programs and modules it names, then add --platform ./{copy}"
    )


def _find_data_folder(plan: Plan, given: str | None) -> Path:
    """The folder of the same data: as given, as recorded, or that of synthetic data of this user."""
    folder = Path(given).expanduser().absolute() if given else Path(plan.data.folder)
    if given and synthetic.is_synthetic(folder, given) != plan.data.synthetic:
        kind = "synthetic" if plan.data.synthetic else "real"
        raise UsageError(f"the run was trained on {kind} data, and {folder} holds the other kind; name a {kind} set")
    if given or folder.is_dir():
        return folder
    if plan.data.synthetic and plan.data.name in datasets.names():
        own = synthetic.folder(plan.data.name)
        if own.name == folder.name:  # synthetic data of another user
            return own
    raise NotReadyError(f"the run's data folder {folder} is not on this machine; name it with --data DIR")
