"""What several launchers agree on before a run, and what they hand each other at its end; the leader's word counts."""

from __future__ import annotations

import json
import platform as host_platform
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import trainmark
from trainmark.launch.coordinator import Coordinator, Heartbeat
from trainmark.launch.faults import Fault, first_fault
from trainmark.launch.workers import WorkerProcesses
from trainmark.platforms import files
from trainmark.spec.errors import HangError, TrainmarkError
from trainmark.spec.plan import Plan
from trainmark.spec.run_folder import HEAD_FILE, PLAN_FILE, RunHead
from trainmark.spec.whole_files import write_whole
from trainmark.train.store_client import LostStoreError


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What the launchers agreed on before a run."""

    folder: Path
    plan_file: Path
    shared: bool = True
    """The leader sees this launcher's folder, so no file has to be handed over."""


def settle(plan: Plan, store: Path, coordinator: Coordinator | None, make_folder: Callable[[str], Path]) -> Settled:
    """The run's folder, and with several launchers what they must know of each other first."""
    if coordinator is None:
        folder = make_folder("")
        return Settled(folder=folder, plan_file=folder / PLAN_FILE)
    everybody = coordinator.begin({"host": coordinator.host, **versions(plan)})
    if not coordinator.env.leads:
        return _settle_by(coordinator.terms(), plan, store, coordinator)
    if refused := _unlike(everybody):
        coordinator.announce({"refused": refused[0], "exit_code": refused[1]})
        raise RefusedError(*refused)
    token = secrets.token_hex(8)
    folder = make_folder(token)
    coordinator.announce({"folder": f"{folder.parent.name}/{folder.name}", "token": token})
    return Settled(folder=folder, plan_file=folder / PLAN_FILE)


def _settle_by(terms: Mapping[str, Any], plan: Plan, store: Path, coordinator: Coordinator) -> Settled:
    """A follower's side: the leader's folder where this machine sees it too, else one of its own."""
    if "refused" in terms:
        raise RefusedError(terms["refused"], terms["exit_code"])
    folder = store / terms["folder"]
    name = f"plan.launcher{coordinator.env.launcher}.json"
    try:
        head = msgspec.json.decode((folder / HEAD_FILE).read_bytes(), type=RunHead)
        shared = head.token == terms["token"]
    except (OSError, ValueError):
        shared = False
    if not shared:
        folder = store / "launchers" / f"{folder.name}-{coordinator.env.launcher}"
        folder.mkdir(parents=True)
    write_whole(folder / name, json.dumps(plan.to_json(), indent=1).encode())
    return Settled(folder=folder, plan_file=folder / name, shared=shared)


class RefusedError(TrainmarkError):
    """A run that the launchers cannot make together, with the reason the leader gave."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def refuse(coordinator: Coordinator, error: TrainmarkError) -> None:
    """Tells the other launchers that the next run cannot be made here, so that nobody waits for it."""
    coordinator.begin({"not_ready": str(error), "exit_code": error.exit_code, "host": coordinator.host})
    if coordinator.env.leads:
        coordinator.announce({"refused": f"{coordinator.host} is not ready: {error}", "exit_code": error.exit_code})


def versions(plan: Plan) -> dict[str, str]:
    """What must be the same on all machines of a run."""
    import torch

    plugin = files.load(plan.platform).plugin
    return {
        "python": ".".join(host_platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "trainmark": trainmark.__version__,
        **({plugin: _version(plugin)} if plugin else {}),
        "plan": plan.fingerprint[:16],
    }


def _unlike(everybody: list[dict[str, Any]]) -> tuple[str, int] | None:
    """Why these launchers cannot run together, and the exit code for it."""
    for launcher in everybody:
        if "not_ready" in launcher:
            return f"{launcher['host']} is not ready: {launcher['not_ready']}", launcher["exit_code"]
    names = [name for name in everybody[0] if name != "host"]
    rows = [name for name in names if len({launcher.get(name) for launcher in everybody}) > 1]
    if not rows:
        return None
    widths = [max(len(str(launcher.get(name, ""))) for name in ["host", *rows]) for launcher in everybody]
    lines = [
        f"  {name:<10}"
        + "  ".join(f"{launcher.get(name, '?'):<{width}}" for launcher, width in zip(everybody, widths, strict=True))
        for name in ["host", *rows]
    ]
    return "\n".join(["the machines of this run are not alike; make these the same on all of them:", *lines]), 3


def _version(plugin: str) -> str:
    from importlib import import_module

    return str(getattr(import_module(plugin), "__version__", "?"))


def fault_of_lost(workers: WorkerProcesses, heartbeat: Heartbeat, launchers: list[int]) -> Fault:
    what = "rank" if workers.env.is_rank else "node"
    who = f"{what} {', '.join(map(str, launchers))}" if workers.env.leads else "the leader"
    return Fault(
        exit_code=4,
        sentence=f"{who} was not heard from for {heartbeat.lost_after_s:.0f} s while training stood still at step "
        f"{workers.ranks[0].step}: its machine or the link to it is down",
    )


def follow(
    workers: WorkerProcesses, coordinator: Coordinator, heartbeat: Heartbeat, settled: Settled, fault: Fault | None
) -> Fault | None:
    """The end of a run on a follower: what is known goes to the leader, whose word is then everybody's."""
    if not heartbeat.lost_launchers():
        with suppress(LostStoreError, HangError):
            if fault:
                coordinator.report(fault.to_json())
            coordinator.send_files({} if settled.shared else workers.files())
            code = coordinator.conclusion()
            if not settled.shared:
                shutil.rmtree(settled.folder, ignore_errors=True)  # the leader has it all
            return Fault(exit_code=code, sentence="") if code else None
    sentence = fault.sentence if fault and not fault.consequence else "the leader was lost"
    kept = f"{sentence}; what this machine measured is kept in {settled.folder}"
    return Fault(exit_code=4, sentence=kept)


def collect_faults(coordinator: Coordinator, heartbeat: Heartbeat, folder: Path, own: Fault | None) -> Fault | None:
    """What went wrong first, once every follower has handed over or is lost."""
    if own:
        coordinator.report(own.to_json())
    gone = []
    for launcher in range(1, coordinator.env.launchers):

        def is_there(launcher: int = launcher) -> bool:
            return launcher not in heartbeat.lost_launchers()

        if not coordinator.receive_files(launcher, folder, is_there):
            gone.append(launcher)
    faults = [Fault.from_json(document) for document in coordinator.faults()]
    if gone and all(fault.consequence for fault in faults):
        names = ", ".join(coordinator.name_of(launcher) for launcher in gone)
        faults.insert(
            0,
            Fault(
                exit_code=4, sentence=f"{names} was lost: nothing was heard from it for {heartbeat.lost_after_s:.0f} s"
            ),
        )
    return first_fault(faults)
