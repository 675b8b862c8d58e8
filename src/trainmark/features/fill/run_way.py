"""`run --recipe fill`: finds the batch of each workload, then runs with it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from trainmark import workloads
from trainmark.features.fill.search import find_batch
from trainmark.launch import cluster_env, planning, preflight, session
from trainmark.launch.options import RunOptions
from trainmark.launch.session import OpenWatcher, Result, Say
from trainmark.record.plan import Topology
from trainmark.record.recipe import get_recipe_kind
from trainmark.record.record import Record

ORDER = 3


def claims(options: RunOptions) -> bool:
    name = options.recipe or ""
    return not options.resume and get_recipe_kind(name).finds_batch and not options.is_set("batch_per_device")


def run(options: RunOptions, *, own_command: Sequence[str] | None, say: Say, watching: OpenWatcher) -> Result:
    began_s, folder = time.monotonic(), session.open_store(options).folder
    decided = planning.make_plans(options)
    if cluster_env.detect_env(Topology.parse(decided[0].topology), os.environ, options.port).launchers > 1:
        planning.refuse_search(decided, options)
    records: list[Record] = []
    for index, plan in enumerate(decided):
        preflight.get_ready(plan, folder, _silence if options.quiet else say)
        found = find_batch(plan, say=_silence if options.quiet else say)
        one = replace(
            options,
            workloads=(workloads.word_of(plan),),
            settings=(*options.settings, f"batch_per_device={found.batch_per_device}"),
            budget_s=session.share_budget_s(options.budget_s, began_s, len(decided) - index),
        )
        result = session.run(one, own_command=own_command, say=say, watching=watching, fill=found)
        records += result.records
        if result.error:
            return replace(result, records=tuple(records))
    return Result(records=tuple(records))


def _silence(sentence: str) -> None: ...
