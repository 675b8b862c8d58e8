"""`run --hosts`: the same command on every host, one run after the other; records are copied from the first host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from trainmark import workloads
from trainmark.features.hosts import remote_run
from trainmark.launch import planning
from trainmark.launch.options import MIN_BUDGET_S, RunOptions
from trainmark.launch.session import OpenWatcher, Result, Say, choose_group, open_store, share_budget_s
from trainmark.record import site
from trainmark.record.errors import UsageError, error_from_exit_code
from trainmark.record.plan import Topology
from trainmark.record.record import Record

ORDER = 2


def claims(options: RunOptions) -> bool:
    return bool(options.hosts)


def run(options: RunOptions, *, own_command: Sequence[str] | None, say: Say, watching: OpenWatcher) -> Result:
    if options.resume:
        raise UsageError("--resume needs the checkpoints: run it on the first host, not with --hosts")
    began_s, store = time.monotonic(), open_store(options)
    store.check_writable()
    topology = Topology.parse(options.topology or "1x1")
    known = site.load().entering_hosts(trust=options.trust)
    decided = planning.make_plans(options)  # an invalid argument fails here and not on every host
    if topology.nodes > 1:
        planning.refuse_search(decided, options)
    remote_options = replace(options, hosts=None, store=None, repeat=1, quiet=False, trust=False)
    records: list[Record] = []
    groups = [(workloads.word_of(plan), choose_group(options)) for plan in decided]
    runs = [run for run in groups for _ in range(options.repeat)]
    for index, (name, group) in enumerate(runs):
        share_s = share_budget_s(options.shared_s, began_s, len(runs) - index)
        if share_s is not None:
            share_s = max(share_s, MIN_BUDGET_S)  # the command there refuses less
        run_options = replace(remote_options, workloads=(name,), group=group, budget_s=share_s)
        argv = [word for typed in run_options.to_argv() for word in typed]
        record, code = remote_run.run_on_hosts(
            str(options.hosts), argv, topology, known, store.folder, quiet=options.quiet
        )
        if record:
            records.append(remote_run.keep_record(record, store))
        if code:
            return Result(records=tuple(records), error=error_from_exit_code(code, ""))
    return Result(records=tuple(records))
