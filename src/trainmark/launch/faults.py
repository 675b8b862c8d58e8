"""Says which rank failed first, where and how, in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainmark.launch.coordinator import Coordinator, Heartbeat
from trainmark.launch.workers import WorkerProcesses
from trainmark.record import endings
from trainmark.record.errors import HangError, TrainmarkError, WorkloadError, of_exit_code
from trainmark.record.events import Failed
from trainmark.record.plan import Topology
from trainmark.record.rank_log import RankLog
from trainmark.train.rendezvous_store import LostStoreError


@dataclass(frozen=True, kw_only=True)
class Fault:
    error: TrainmarkError
    consequence: bool = False
    """It only says that another rank went away."""

    def to_json(self) -> dict[str, Any]:
        return {
            "exit_code": self.error.exit_code,
            "sentence": str(self.error),
            "consequence": self.consequence,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Fault:
        error = of_exit_code(document["exit_code"], document["sentence"])
        return cls(error=error, consequence=document["consequence"])


def of_workers(workers: WorkerProcesses) -> Fault | None:
    """What went wrong under this launcher, if anything did: a rank that said so before one that ended without a word,
    and that before those that only noticed it. One that a signal killed before another said anything comes first."""
    told = workers.failures
    causes = [pair for pair in told if not pair[1].consequence]
    deaths = workers.deaths
    killed = [death for death in deaths if death.code < 0 and causes and death.at_ns < causes[0][1].at_ns]
    if causes and not killed:
        return _reported_fault(workers, *causes[0])
    if deaths:
        death = (killed or deaths)[0]
        log = next(log for log in workers.ranks if log.rank == death.rank)
        sentence = f"{_name(workers, log)} {death.how} {_at(log)}"
        return Fault(error=WorkloadError(_with_lines(workers, log, sentence)))
    if told:
        return _reported_fault(workers, *told[0])
    if workers.silent:  # we ended them, for what others will tell
        names = ", ".join(_name(workers, log) for log in workers.silent)
        return Fault(error=WorkloadError(f"{names} was ended with the others"), consequence=True)
    return None


def hang(workers: WorkerProcesses) -> Fault:
    where = ", ".join(f"{_name(workers, log)} was last seen {_at(log)}" for log in workers.ranks)
    stacks = f"stacks are in {workers.folder}/rank*.stacks"
    return Fault(error=HangError(f"no progress for {workers.limit_s:.0f} s: {where}; {stacks}"))


def lost_fault(workers: WorkerProcesses, heartbeat: Heartbeat, launchers: list[int]) -> Fault:
    who = f"{workers.env.unit} {', '.join(map(str, launchers))}" if workers.env.leads else "the leader"
    sentence = (
        f"{who} was not heard from for {heartbeat.lost_after_s:.0f} s while training stood still at step "
        f"{workers.ranks[0].step}: its machine or the link to it is down"
    )
    return Fault(error=WorkloadError(sentence))


def follow_leader(
    workers: WorkerProcesses, coordinator: Coordinator, heartbeat: Heartbeat, fault: Fault | None
) -> Fault | None:
    """The end of a run on a follower: faults and files go to the leader, whose exit code then counts everywhere."""
    if not heartbeat.lost_launchers():
        with suppress(LostStoreError, HangError):
            if fault:
                coordinator.report(fault.to_json())
            coordinator.send_files({} if coordinator.shares_folder else workers.files())
            code = coordinator.wait_for_end()
            if not coordinator.shares_folder:
                shutil.rmtree(workers.folder, ignore_errors=True)  # the leader has it all
            return Fault(error=of_exit_code(code, "")) if code else None
    sentence = str(fault.error) if fault and not fault.consequence else "the leader was lost"
    return Fault(error=WorkloadError(f"{sentence}; what this machine measured is kept in {workers.folder}"))


def collect_faults(
    workers: WorkerProcesses, coordinator: Coordinator, heartbeat: Heartbeat, fault: Fault | None
) -> Fault | None:
    """What went wrong first, once every follower has sent its files or is lost."""
    if fault:
        coordinator.report(fault.to_json())
    lost = []
    for launcher in range(1, coordinator.env.launchers):

        def is_alive(launcher: int = launcher) -> bool:
            return launcher not in heartbeat.lost_launchers()

        if not coordinator.receive_files(launcher, workers.folder, is_alive):
            lost.append(launcher)
    faults = [Fault.from_json(document) for document in coordinator.faults()]
    if lost and all(each.consequence for each in faults):
        names = ", ".join(coordinator.name_of(launcher) for launcher in lost)
        sentence = f"{names} was lost: nothing was heard from it for {heartbeat.lost_after_s:.0f} s"
        faults.insert(0, Fault(error=WorkloadError(sentence)))
    return first_fault(faults)


def first_fault(faults: Sequence[Fault]) -> Fault | None:
    """Of faults in the order they were noticed, the one the others followed from."""
    if faults and all(isinstance(fault.error, HangError) for fault in faults):
        return Fault(error=HangError("; ".join(str(fault.error) for fault in faults)))
    causes = [fault for fault in faults if not fault.consequence]
    return next(iter(causes), faults[0] if faults else None)


def _reported_fault(workers: WorkerProcesses, log: RankLog, failed: Failed) -> Fault:
    sentence = failed.sentence
    if Topology.parse(workers.plan.topology).devices > 1:
        sentence = f"{_name(workers, log)} failed {_at(log)}: {sentence}"
        if failed.exit_code not in endings.SAME_AGAIN:  # their sentence says all that the last lines would
            sentence = _with_lines(workers, log, sentence)
    return Fault(error=of_exit_code(failed.exit_code, sentence), consequence=failed.consequence)


def _name(workers: WorkerProcesses, log: RankLog) -> str:
    several_hosts = workers.env.launchers > 1 and log.host
    return f"rank {log.rank} on {log.host}" if several_hosts else f"rank {log.rank}"


def _at(log: RankLog) -> str:
    return f"in {log.phase} at step {log.step}"


def _with_lines(workers: WorkerProcesses, log: RankLog, sentence: str) -> str:
    lines = workers.last_lines(log.rank)
    return f"{sentence}; its last lines:\n{lines}" if lines else sentence
