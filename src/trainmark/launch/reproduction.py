"""The plan of an earlier run, made to run again on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainmark import datasets
from trainmark.datasets import synthetic
from trainmark.spec.errors import NotReadyError, UsageError
from trainmark.spec.plan import NO_FOLDER, Plan
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology


def plan_again(
    records: Sequence[Record], data: str | None = None, *, platform: str | None = None, trust: bool = False
) -> Plan:
    """What these repeats of one plan were told, with its files where they lie on this machine.

    A record may come from a stranger: files it names that run programs are not opened unless there is `trust`.
    """
    record = records[0]
    for each in records:
        if each.status != "valid":
            raise UsageError(f"run {each.run_id} is {each.status} ({each.ended}); there is no result to reproduce")
    plan = record.plan
    if Topology.parse(plan.topology).nodes > 1:
        raise UsageError(
            f"run {record.run_id} took {plan.topology}, and reproduce works on one machine; "
            "start it again with 'trainmark run --hosts', then 'trainmark compare'"
        )
    if plan.resume_from is not None:
        raise UsageError(f"run {record.run_id} went on from a checkpoint; reproduce the run it began with")
    if plan.init_from is not None and not Path(plan.init_from).is_file():
        raise NotReadyError(f"run {record.run_id} began with weights from {plan.init_from}, which is not there")
    if plan.workload_source and plan.workload_source.file and not trust:
        raise UsageError(
            f"run {record.run_id} trained a workload from {plan.workload_source}, and reproducing it runs that file; "
            "say --trust if you know what it holds"
        )
    if platform:
        plan = replace(plan, platform=platform)
    elif plan.platform.endswith(".toml") and not trust:
        raise UsageError(
            f"run {record.run_id} took the platform file {plan.platform}, which may name programs to run; "
            "name yours with --platform, or say --trust if you know what it holds"
        )
    if plan.data.folder == NO_FOLDER and not data:
        return plan
    return replace(plan, data=replace(plan.data, folder=str(_data_folder(plan, data))))


def _data_folder(plan: Plan, given: str | None) -> Path:
    """Where the same data lies here: as given, as on the record, or where this installation makes its own."""
    folder = Path(given).expanduser().absolute() if given else Path(plan.data.folder)
    if given and synthetic.is_synthetic(folder, given) != plan.data.synthetic:
        kind = "synthetic" if plan.data.synthetic else "real"
        raise UsageError(f"the run was trained on {kind} data, and {folder} holds the other kind; name a {kind} set")
    if given or folder.is_dir():
        return folder
    if plan.data.synthetic and plan.data.name in datasets.names():
        own = synthetic.folder(plan.data.name)
        if own.name == folder.name:  # another user's copy of what we can make too
            return own
    raise NotReadyError(f"the run's data folder {folder} is not on this machine; name it with --data DIR")
