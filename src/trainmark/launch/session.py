"""From options to records in the store: plans, checks the machine, joins other launchers, and runs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from trainmark import features
from trainmark.launch import launcher, planning, preflight, signals
from trainmark.launch.coordinator import Coordinator, join_launchers
from trainmark.launch.launcher import Watcher
from trainmark.launch.options import RunOptions
from trainmark.launch.workers import QUIET
from trainmark.platforms import detection
from trainmark.record import cores
from trainmark.record.endings import CAP, CAP_OF_ITEMS, CAP_OF_STEPS, TARGET
from trainmark.record.errors import InvalidResultError, NotReadyError, TrainmarkError, UsageError
from trainmark.record.index import parse_tags
from trainmark.record.machine import FillSearch
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Record
from trainmark.record.run_folder import read_plan
from trainmark.record.store import Store, default_folder, read_record
from trainmark.record.trust import check_plan, trust_file

PAGE_S = 5.0
"""Reserved for the table and the page, per budget."""
FOLDER = "trainmark: run folder "
"""Prefix of the line with the run folder, for the machine that started this process by ssh."""
MIN_LOAD_S = 0.5
"""How long the load of other processes is watched, at least."""
AFTER_RUN_S = 3.0
"""Reserved for the end of processes and for the record, per run."""
REFUSED_WHERE_STRICT = ("target-missed", "few-steps", "drifting", "precision-differs", "cpu-differs", "device-clock")
"""Doubts that make a result invalid with --strict."""

Say = Callable[[str], None]
OpenWatcher = Callable[[Plan], AbstractContextManager[Watcher]]
"""Called before each run; the returned watcher is called on new events of the ranks."""


def _silence(sentence: str) -> None: ...


def _no_watcher(plan: Plan) -> AbstractContextManager[Watcher]:
    return nullcontext(lambda ranks: None)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of all runs of a command."""

    records: tuple[Record, ...] = ()
    """The records of all runs, which are in the store; the last may be of a failed run."""
    error: TrainmarkError | None = None
    """Why it ended early, or why its last result is invalid."""
    complaints: tuple[str, ...] = ()
    """What went wrong, in sentences."""
    left_out: tuple[str, ...] = ()
    """What was not run for lack of memory or time, in sentences."""
    is_leader: bool = True
    """False on the other launchers of a job, which print nothing."""

    @property
    def exit_code(self) -> int:
        return self.error.exit_code if self.error else 0


def run(
    options: RunOptions,
    *,
    own_command: Sequence[str] | None = None,
    say: Say = _silence,
    watching: OpenWatcher = _no_watcher,
    fill: FillSearch | None = None,
) -> Result:
    """Runs all requested plans and repeats, until a run fails.

    `own_command` starts this process again: as a step of its batch job, or as one of several launchers. None in a
    library, which cannot be started again. `fill` is how the batch was found. A feature's `run_way` takes over where it
    claims the options, and calls this for each of its runs.
    """
    for way in features.offers("run_way"):
        if way.claims(options):
            result: Result = way.run(options, own_command=own_command, say=say, watching=watching)
            return result
    if options.sweep is not None or options.hosts:
        raise UsageError("--sweep and --hosts need the features sweep and hosts, which are not installed")
    session = _Session(options, say, watching, budget_s=options.shared_s, fill=fill)
    if not options.resume and (unused := detection.find_undescribed_if_auto(options.platform)):
        say(f"trainmark: {unused}")
    decided = [session.resume_plan(options.resume)] if options.resume else planning.make_plans(options)
    if not options.resume and any(planning.needs_search(plan, options) for plan in decided):
        raise UsageError("recipe fill needs the feature fill, which is not installed; give --set batch_per_device=N")
    return session.run_here(decided, own_command)


def run_plan(plan: Plan, options: RunOptions, *, say: Say = _silence, watching: OpenWatcher = _no_watcher) -> Result:
    """Runs an existing plan on this machine; of the options only repeats, store and output are used."""
    session = _Session(options, say, watching)
    session.get_ready([plan])
    return session.run_all([plan])


def open_store(options: RunOptions) -> Store:
    return Store(Path(options.store).expanduser() if options.store else default_folder())


def choose_group(options: RunOptions) -> str | None:
    """The group of the repeats of one plan."""
    return options.group or (secrets.token_hex(4) if options.repeat > 1 else None)


def share_budget_s(budget_s: float | None, began_s: float, runs_left: int) -> float | None:
    """The share of the next run in the remaining time budget."""
    if budget_s is None:
        return None
    left_s = budget_s - (time.monotonic() - began_s) - PAGE_S
    return max(1.0, left_s / runs_left - AFTER_RUN_S)


class _Session:
    def __init__(
        self,
        options: RunOptions,
        say: Say,
        watching: OpenWatcher,
        budget_s: float | None = None,
        fill: FillSearch | None = None,
    ) -> None:
        self._options, self._budget_s, self._fill = options, budget_s, fill
        self._say, self._watching = say, watching
        self._quiet = options.quiet
        self._began_s = time.monotonic()
        self._foreign_s = cores.read_foreign_s()
        self._left_out: list[str] = []
        self._together: Coordinator | None = None
        self._store = open_store(options)
        self._store.check_writable()
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)

    def run_here(self, decided: list[Plan], own_command: Sequence[str] | None) -> Result:
        """On this machine, together with the other launchers of its job."""
        options, topology = self._options, Topology.parse(decided[0].topology)
        joined = join_launchers(topology, own_command, port=options.port, wait_s=options.join_timeout_s)
        with joined as self._together:
            if self._together is None:
                decided = self._select_fitting(decided)
                self.get_ready(decided)
                return replace(self.run_all(decided), left_out=tuple(self._left_out))
            self._get_ready_together(decided, self._together)
            return replace(self.run_all(decided), is_leader=self._together.env.is_leader)

    def run_all(self, decided: Sequence[Plan]) -> Result:
        """Every plan with its repeats, until one fails."""
        records: list[Record] = []
        left = len(decided) * self._options.repeat
        for plan in decided:
            group = choose_group(self._options)
            for number in range(self._options.repeat):
                if self._options.repeat > 1:
                    self._report(f"{plan.workload}: run {number + 1} of {self._options.repeat}")
                share_s = share_budget_s(self._budget_s, self._began_s, left)
                result = self._run_once(planning.set_time_share(plan, share_s), group)
                left -= 1
                records += result.records
                if result.error:
                    return replace(result, records=tuple(records))
        return Result(records=tuple(records))

    def resume_plan(self, word: str) -> Plan:
        if self._options.workloads:
            raise UsageError("--resume takes the workload of the run it resumes; leave the workload's name out")
        folder = self._store.run_folder(word)
        plan = read_plan(folder)
        path = self._store.path(folder.name)
        ended = read_record(path).ended if path.is_file() else ""
        if ended in (TARGET, CAP, CAP_OF_STEPS, CAP_OF_ITEMS) and not self._options.has_limit:
            raise UsageError(f"run {folder.name} is complete: {ended}; give --epochs, --steps or --items to go on")
        check_plan(plan, f"the plan of run {folder.name}", trust=self._options.trust)
        if self._options.trust:
            trust_file(folder)
        return planning.resume_plan(plan, folder, self._options)

    def get_ready(self, decided: Iterable[Plan]) -> None:
        """Generates missing synthetic data and runs preflight checks."""
        for plan in decided:
            preflight.get_ready(plan, self._store.folder, self._report)
        if self._quiet or self._say is _silence:
            return
        time.sleep(max(0.0, MIN_LOAD_S - (time.monotonic() - self._began_s)))
        all_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        if sentence := preflight.describe_foreign_load((cores.read_foreign_s() - self._foreign_s) / all_s):
            self._report(sentence)

    def _get_ready_together(self, decided: Iterable[Plan], coordinator: Coordinator) -> None:
        """The same on every machine of a run; one that is not ready tells the others, so that nobody waits."""
        if coordinator.env.first_local_rank:  # the first rank of this machine checks it for all
            self._quiet = True
            return
        try:
            self.get_ready(decided)
        except TrainmarkError as error:
            coordinator.refuse_run(error)
            raise

    def _select_fitting(self, decided: list[Plan]) -> list[Plan]:
        """The plans that fit the machine and the time budget; NotReadyError where none does."""
        share_s = share_budget_s(self._budget_s, self._began_s, len(decided) * self._options.repeat)
        if share_s is None:
            return decided
        lacks = [(plan, preflight.check_budget(plan, share_s)) for plan in decided]
        self._left_out = [sentence for _, sentence in lacks if sentence]
        if fitting := [plan for plan, sentence in lacks if not sentence]:
            for sentence in self._left_out:
                self._report(sentence)
            return fitting
        raise NotReadyError(" ".join(self._left_out))

    def _run_once(self, plan: Plan, group: str | None) -> Result:
        coordinator = self._together
        shown = not self._quiet and (coordinator is None or coordinator.env.is_leader)
        with (self._watching if shown else _no_watcher)(plan) as watch:
            outcome = launcher.run(
                plan,
                self._store,
                group=group,
                tags=parse_tags(self._options.tags),
                note=self._options.note,
                watch=watch,
                coordinator=coordinator,
                fill=self._fill,
            )
        if outcome.record is None:
            return Result(error=outcome.error, complaints=(outcome.sentence,) if outcome.sentence else ())
        complaints: tuple[str, ...] = ()
        error = outcome.error
        if error:
            traceback = f", the traceback in {error.log}" if error.log else ""
            complaints = (str(error), f"what was measured is kept in {outcome.folder}{traceback}")
        elif self._options.strict and (complaints := find_strict_violations(outcome.record)):
            error = InvalidResultError("; ".join(complaints))
        result = Result(records=(outcome.record,), error=error, complaints=complaints)
        if coordinator:
            coordinator.finish(result.exit_code)
        if signals.is_bound_to_stdin():
            self._say(f"{FOLDER}{outcome.folder}")
        return result

    def _report(self, sentence: str) -> None:
        if not self._quiet:
            self._say(sentence)


def find_strict_violations(record: Record) -> tuple[str, ...]:
    """Why a result is invalid with --strict; empty where it is valid."""
    return tuple(
        f"not valid under --strict: {doubt.text}" for doubt in record.doubts if doubt.code in REFUSED_WHERE_STRICT
    )
