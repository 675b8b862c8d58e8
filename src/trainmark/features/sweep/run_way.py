"""`run --sweep`: one training at several topologies, which continues where it stopped when it is requested again.

Its runs are found by group: the name of the sweep, which begins with a hash of the request, and the topology.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import trainmark
from trainmark.launch import planning, session
from trainmark.launch.launcher import read_revision
from trainmark.launch.options import RunOptions
from trainmark.launch.session import OpenWatcher, Result, Say
from trainmark.record.errors import UsageError
from trainmark.record.index import StoreRow
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Record
from trainmark.record.store import Store
from trainmark.train.ranks import read_host_name

ORDER = 1
_HASH_LETTERS = 6
"""Letters of the hash in the name of a sweep; random letters follow."""


def claims(options: RunOptions) -> bool:
    return options.sweep is not None


def run(options: RunOptions, *, own_command: Sequence[str] | None, say: Say, watching: OpenWatcher) -> Result:
    """Every unfinished topology, until a run fails; returns the records of all finished ones."""
    store, began_s = session.open_store(options), time.monotonic()
    store.check_writable()
    records: list[Record] = []
    legs = plan_legs(options, store)
    for index, leg in enumerate(legs):
        records += [store.record(run_id) for run_id in leg.finished]
        done = len(leg.finished)
        if done and not options.quiet:
            runs = ", ".join(leg.finished)
            say(f"sweep {leg.options.group}: {done} of {options.repeat} finished before: {runs}")
        if done == options.repeat:
            continue
        share_s = session.share_budget_s(options.budget_s, began_s, len(legs) - index)
        leg_options = replace(leg.options, repeat=options.repeat - done, budget_s=share_s)
        result = session.run(leg_options, own_command=own_command, say=say, watching=watching)
        records += result.records
        if result.error:
            return replace(result, records=tuple(records))
    return Result(records=tuple(records))


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One topology of a sweep."""

    options: RunOptions
    """The options of this topology alone, with its group."""
    finished: tuple[str, ...]
    """Its runs in the store, oldest first."""


def plan_legs(options: RunOptions, store: Store) -> list[Leg]:
    """All topologies, smallest first, with the finished runs of an unfinished sweep."""
    alone = [_make_leg_options(options, topology) for topology in options.sweep_topologies()]
    decided = [planning.make_plans(each)[0] for each in alone]
    for plan, each in zip(decided, alone, strict=True):
        if planning.needs_search(plan, each):
            raise UsageError(
                "--sweep needs one batch for every topology, and recipe fill searches for one; find it with a run at "
                "1x1, then add --set batch_per_device=N"
            )
    asked = _compute_hash(decided, options.hosts or read_host_name(os.environ))
    rows = [row for row in store.rows() if row.group and row.group.startswith(asked) and row.status == "valid"]
    newest = str(rows[0].group).partition("-")[0] if rows else ""
    done = {plan.topology: _find_finished(rows, f"{newest}-{plan.topology}") for plan in decided}
    if not newest or all(len(runs) >= options.repeat for runs in done.values()):
        newest, done = asked + secrets.token_hex(2), {}
    return [
        Leg(
            options=replace(each, group=f"{newest}-{plan.topology}"),
            finished=done.get(plan.topology, ())[: options.repeat],
        )
        for plan, each in zip(decided, alone, strict=True)
    ]


def _make_leg_options(options: RunOptions, topology: Topology) -> RunOptions:
    """The options of one topology: a smaller one uses the first hosts."""
    hosts = options.hosts and ",".join(options.hosts.split(",")[: topology.nodes])
    return replace(options, sweep=None, topology=str(topology), hosts=hosts)


def _compute_hash(decided: Sequence[Plan], where: str) -> str:
    """Of all plans, the machines and the version: where one differs, a new sweep begins."""
    words = [*(plan.fingerprint for plan in decided), where, trainmark.__version__, read_revision() or ""]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:_HASH_LETTERS]


def _find_finished(rows: Sequence[StoreRow], group: str) -> tuple[str, ...]:
    return tuple(row.run_id for row in reversed(rows) if row.group == group)
