"""From options to records in the store: plans, checks the machine, joins other launchers, and runs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from trainmark import workloads
from trainmark.launch import cluster_env, fill, launcher, planning, preflight, signals, ssh_run, sweep
from trainmark.launch.coordinator import Coordinator
from trainmark.launch.cpu_usage import MIN_INTERVAL_S, track_foreign_load
from trainmark.launch.fill import FillResult
from trainmark.launch.launcher import Watcher
from trainmark.launch.options import RunOptions
from trainmark.launch.workers import QUIET
from trainmark.platforms import detection
from trainmark.record import site
from trainmark.record.errors import InvalidResultError, NotReadyError, TrainmarkError, UsageError, error_from_exit_code
from trainmark.record.index import parse_tags
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Record
from trainmark.record.run_folder import read_plan
from trainmark.record.store import Store, default_folder

PAGE_S = 5.0
"""Reserved for the table and the page, per budget."""
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
) -> Result:
    """Runs all requested plans and repeats, until a run fails.

    `own_command` starts this process again: as a step of its batch job, or as one of several launchers. None in a
    library, which cannot be started again.
    """
    if options.sweep is not None:
        return _run_sweep(options, own_command, say, watching)
    session = _Session(options, say, watching, budget_s=options.shared_s)
    if options.hosts:
        return session.run_on_hosts(options.hosts)
    if not options.resume and (unused := detection.find_undescribed_if_auto(options.platform)):
        say(f"trainmark: {unused}")
    decided = [session.resume_plan(options.resume)] if options.resume else planning.make_plans(options)
    return session.run_here(decided, own_command)


def _run_sweep(options: RunOptions, own_command: Sequence[str] | None, say: Say, watching: OpenWatcher) -> Result:
    """Every unfinished topology, until a run fails; returns the records of all finished ones."""
    store, began_s = open_store(options), time.monotonic()
    store.check_writable()
    records: list[Record] = []
    legs = sweep.plan_legs(options, store)
    for index, leg in enumerate(legs):
        records += [store.record(run_id) for run_id in leg.finished]
        done = len(leg.finished)
        if done and not options.quiet:
            runs = ", ".join(leg.finished)
            say(f"sweep {leg.options.group}: {done} of {options.repeat} finished before: {runs}")
        if done == options.repeat:
            continue
        left_s = None if options.budget_s is None else options.budget_s - (time.monotonic() - began_s)
        share_s = None if left_s is None else max(1.0, left_s / (len(legs) - index))
        session = _Session(leg.options, say, watching, budget_s=share_s, done=done)
        hosts = leg.options.hosts
        result = session.run_on_hosts(hosts) if hosts else session.run_here([leg.plan], own_command)
        records += result.records
        if result.error:
            return replace(result, records=tuple(records))
    return Result(records=tuple(records))


def run_plan(plan: Plan, options: RunOptions, *, say: Say = _silence, watching: OpenWatcher = _no_watcher) -> Result:
    """Runs an existing plan on this machine; of the options only repeats, store and output are used."""
    session = _Session(options, say, watching)
    session.get_ready([plan])
    return session.run_all([(plan, None)])


def open_store(options: RunOptions) -> Store:
    return Store(Path(options.store).expanduser() if options.store else default_folder())


class _Session:
    def __init__(
        self, options: RunOptions, say: Say, watching: OpenWatcher, budget_s: float | None = None, done: int = 0
    ) -> None:
        """`done` repeats are in the store already."""
        self._options, self._budget_s, self._done = options, budget_s, done
        self._say, self._watching = say, watching
        self._quiet = options.quiet
        self._began_s = time.monotonic()
        self._others = track_foreign_load()
        self._left_out: list[str] = []
        self._site = site.load()
        self._coordinator: Coordinator | None = None
        self._store = open_store(options)
        self._store.check_writable()
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)

    def run_here(self, decided: list[Plan], own_command: Sequence[str] | None) -> Result:
        """On this machine, together with the other launchers of its job."""
        topology = Topology.parse(decided[0].topology)
        here = cluster_env.detect_env(topology, os.environ, self._options.port or self._site.network.port)
        if own_command is None and (here.is_batch or here.launchers > 1):
            raise UsageError(
                f"topology {topology} needs several processes of this job, and a script is only one of them; "
                "start 'trainmark run' in the job instead, and read its record with trainmark.load('last')"
            )
        if here.is_batch:
            cluster_env.start_tasks(here, topology, list(own_command or ()))
        secret = signals.end_with_stdin() if signals.is_bound_to_stdin() else None
        self._quiet = self._quiet or here.first_local_rank > 0
        if here.launchers == 1:
            decided = self._select_fitting(decided)
            self.get_ready(decided)
            result = self.run_all([self._find_batch(plan) for plan in decided])
            return replace(result, left_out=tuple(self._left_out))
        if not self._options.resume:
            fill.refuse_several_launchers(decided, self._options)
        self._coordinator = Coordinator(
            here,
            secret=secret,
            interface=self._site.network.interface,
            join_timeout_s=self._options.join_timeout_s,
        )
        try:
            self._get_ready_together(decided, self._coordinator)
            return replace(self.run_all([(plan, None) for plan in decided]), is_leader=here.is_leader)
        finally:
            self._coordinator.leave()

    def run_all(self, decided: Iterable[tuple[Plan, FillResult | None]]) -> Result:
        """Every plan with its repeats, until one fails."""
        records: list[Record] = []
        decided = list(decided)
        left = len(decided) * (self._options.repeat - self._done)
        for plan, found in decided:
            group = self._choose_group()
            for number in range(self._done, self._options.repeat):
                if self._options.repeat > 1:
                    self._report(f"{plan.workload}: run {number + 1} of {self._options.repeat}")
                result = self._run_once(planning.set_time_share(plan, self._compute_share_s(left)), found, group)
                left -= 1
                records += result.records
                if result.error:
                    return replace(result, records=tuple(records))
        return Result(records=tuple(records))

    def run_on_hosts(self, hosts: str) -> Result:
        """The same command on every host, one run after the other; records are copied from the first host."""
        options = self._options
        if options.resume:
            raise UsageError("--resume needs the checkpoints: run it on the first host, not with --hosts")
        topology = Topology.parse(options.topology or "1x1")
        known = self._site.entering_hosts(trust=options.trust)
        decided = planning.make_plans(options)  # an invalid argument fails here and not on every host
        if topology.nodes > 1:
            fill.refuse_several_launchers(decided, options)
        remote_options = replace(options, hosts=None, store=None, repeat=1, quiet=False, trust=False)
        records: list[Record] = []
        groups = [(workloads.word_of(plan), self._choose_group()) for plan in decided]
        runs = [run for run in groups for _ in range(self._done, options.repeat)]
        for index, (name, group) in enumerate(runs):
            run_options = replace(
                remote_options, workloads=(name,), group=group, budget_s=self._compute_share_s(len(runs) - index)
            )
            argv = [word for typed in run_options.to_argv() for word in typed]
            folder = self._store.folder
            record, code = ssh_run.run_on_hosts(hosts, argv, topology, known, folder, quiet=options.quiet)
            if record:
                records.append(ssh_run.keep_record(record, self._store))
            if code:
                return Result(records=tuple(records), error=error_from_exit_code(code, ""))
        return Result(records=tuple(records))

    def _choose_group(self) -> str | None:
        """The group of the repeats of one plan."""
        return self._options.group or (secrets.token_hex(4) if self._options.repeat > 1 else None)

    def resume_plan(self, word: str) -> Plan:
        if self._options.workloads:
            raise UsageError("--resume takes the workload of the run it resumes; leave the workload's name out")
        folder = self._store.run_folder(word)
        return planning.resume_plan(read_plan(folder), folder, self._options)

    def get_ready(self, decided: Iterable[Plan]) -> None:
        """Generates missing synthetic data and runs preflight checks."""
        for plan in decided:
            preflight.get_ready(plan, self._store.folder, self._report)
        if self._quiet or self._say is _silence:
            return
        time.sleep(max(0.0, MIN_INTERVAL_S - (time.monotonic() - self._began_s)))
        if sentence := preflight.describe_foreign_load(self._others.share()):
            self._report(sentence)

    def _get_ready_together(self, decided: Iterable[Plan], coordinator: Coordinator) -> None:
        """The same on every machine of a run; one that is not ready tells the others, so that nobody waits."""
        if coordinator.env.first_local_rank:
            return  # the first rank of this machine checks it for all
        try:
            self.get_ready(decided)
        except TrainmarkError as error:
            coordinator.refuse_run(error)
            raise

    def _compute_share_s(self, runs_left: int) -> float | None:
        """The share of the next run in the remaining time budget."""
        if self._budget_s is None:
            return None
        left_s = self._budget_s - (time.monotonic() - self._began_s) - PAGE_S
        return max(1.0, left_s / runs_left - AFTER_RUN_S)

    def _select_fitting(self, decided: list[Plan]) -> list[Plan]:
        """The plans that fit the machine and the time budget; NotReadyError where none does."""
        share_s = self._compute_share_s(len(decided) * self._options.repeat)
        if share_s is None:
            return decided
        lacks = [(plan, preflight.check_budget(plan, share_s)) for plan in decided]
        self._left_out = [sentence for _, sentence in lacks if sentence]
        if fitting := [plan for plan, sentence in lacks if not sentence]:
            for sentence in self._left_out:
                self._report(sentence)
            return fitting
        raise NotReadyError(" ".join(self._left_out))

    def _find_batch(self, plan: Plan) -> tuple[Plan, FillResult | None]:
        """With recipe fill, the plan with the batch that is found here; other plans are unchanged."""
        if self._options.resume or not fill.needs_search(plan, self._options):
            return plan, None
        found = fill.find_batch(plan, say=self._report)
        settings = (*self._options.settings, f"batch_per_device={found.batch_per_device}")
        return planning.make_plan(workloads.word_of(plan), replace(self._options, settings=settings)), found

    def _run_once(self, plan: Plan, found: FillResult | None, group: str | None) -> Result:
        coordinator = self._coordinator
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
                interface=self._site.network.interface,
                fill=found.facts() if found else None,
            )
        if outcome.record is None:
            return Result(error=outcome.error, complaints=(outcome.sentence,) if outcome.sentence else ())
        complaints: tuple[str, ...] = ()
        error = outcome.error
        if error:
            complaints = (str(error), f"what was measured is kept in {outcome.folder}")
        elif self._options.strict and (complaints := find_strict_violations(outcome.record)):
            error = InvalidResultError("; ".join(complaints))
        result = Result(records=(outcome.record,), error=error, complaints=complaints)
        if coordinator:
            coordinator.finish(result.exit_code)
        if signals.is_bound_to_stdin():
            self._say(f"{ssh_run.FOLDER}{outcome.folder}")
        return result

    def _report(self, sentence: str) -> None:
        if not self._quiet:
            self._say(sentence)


def find_strict_violations(record: Record) -> tuple[str, ...]:
    """Why a result is invalid with --strict; empty where it is valid."""
    return tuple(
        f"not valid under --strict: {doubt.text}" for doubt in record.doubts if doubt.code in REFUSED_WHERE_STRICT
    )
