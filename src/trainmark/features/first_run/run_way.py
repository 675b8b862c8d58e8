"""`trainmark run` without a workload: full-size networks for their speed, and a small one trained to its target.

Which, and in which order, is a fact of each workload. On a node with several devices every full-size network runs on
all of them and on one alone, in the precision that people train in there.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from trainmark import workloads
from trainmark.launch import cluster_env, planning, preflight, session
from trainmark.launch.options import LIMITS, RunOptions
from trainmark.launch.session import OpenWatcher, Result, Say
from trainmark.platforms import detection, files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import Topology
from trainmark.record.precision import Precision
from trainmark.record.record import Record

ORDER = 4
GROUP = "first-run"
ALL_FROM_S = 600.0
"""The budget from which every workload is tried."""
TRAINED = "smoke"
"""The recipe whose network reaches its target within the time."""


def claims(options: RunOptions) -> bool:
    others = (*LIMITS, "recipe", "sweep", "hosts", "resume", "data", "init_from", "group")
    if options.workloads or options.settings or options.repeat > 1:
        return False
    if any(getattr(options, name) is not None for name in others):
        return False
    return cluster_env.detect_env(Topology.parse(options.topology or "1x1"), os.environ, options.port).launchers == 1


def run(options: RunOptions, *, own_command: Sequence[str] | None, say: Say, watching: OpenWatcher) -> Result:
    began_s, budget_s = time.monotonic(), options.shared_s or 0.0
    if unused := detection.find_undescribed_if_auto(options.platform):
        say(f"trainmark: {unused}")
    if options.platform in (None, "auto"):
        options = replace(options, platform=detection.choose_platform())
    group = f"{GROUP}-{secrets.token_hex(3)}"
    records: list[Record] = []
    left_out: list[str] = []
    legs = list_legs(options, budget_s)
    heard: set[str] = set()

    def say_once(sentence: str) -> None:
        """What each run would say again, such as how busy the machine is."""
        kind = re.sub(r"\d+", "", sentence)
        if kind not in heard:
            heard.add(kind)
            say(sentence)

    for index, leg in enumerate(legs):
        share_s = session.share_budget_s(budget_s, began_s, len(legs) - index)
        one = replace(leg, group=group)
        plan = planning.set_time_share(planning.make_plans(one)[0], share_s)
        if reason := preflight.check_budget(plan, share_s or 0.0):
            left_out.append(reason)
            say(reason)
            continue
        result = session.run_plan(plan, one, say=say_once, watching=watching)
        records += result.records
        if result.error:
            return replace(result, records=tuple(records), left_out=tuple(left_out))
    if not records:
        raise NotReadyError(" ".join(left_out))
    return Result(records=tuple(records), left_out=tuple(left_out))


def list_legs(options: RunOptions, budget_s: float) -> list[RunOptions]:
    """The runs of the command: the small network first, which takes the least, then those for their speed."""
    platform = Platform(files.load(str(options.platform)))
    known = sorted((facts for facts in workloads.all_facts() if facts.first_run), key=lambda facts: facts.first_run)
    if budget_s >= ALL_FROM_S:
        known += [facts for facts in workloads.all_facts() if not facts.first_run]
    usual = Precision.parse(platform.file.usual_precision)
    precision = options.precision or (None if platform.open(0).explain_refusal(usual) else usual.name)
    topologies = [options.topology] if options.topology else list_topologies(platform)
    small = replace(options, topology=topologies[0], recipe=TRAINED)
    legs = [replace(small, workloads=(facts.name,)) for facts in workloads.all_facts() if facts.learns_first]
    for topology in topologies:
        full = replace(options, topology=topology, precision=precision)
        legs += [replace(full, workloads=(facts.name,)) for facts in known]
    return legs


def list_topologies(platform: Platform) -> list[str]:
    """All devices of the node, then one alone; the ranks of a CPU share its cores, so there it is one."""
    count = 1 if platform.is_cpu else platform.device_count
    return ["1x1"] if count < 2 else [f"1x{count}", "1x1"]
