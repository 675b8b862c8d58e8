"""Plans a verify from its options, and starts its ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trainmark import workloads
from trainmark.features.reproduce.rebuild import locate_data
from trainmark.launch import launcher, planning, preflight
from trainmark.launch.coordinator import join_launchers
from trainmark.launch.launcher import Outcome
from trainmark.launch.options import RunOptions
from trainmark.platforms import detection, files
from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.plan import Plan, Topology
from trainmark.record.precision import Precision
from trainmark.record.recipe import Limits
from trainmark.record.store import Store
from trainmark.record.trust import check_plan, trust_file

STEPS = 30
"""The default: ten more than the rule for losses leaves out."""
Say = Callable[[str], None]


def make_plan(options: RunOptions, soak_s: float = 0.0, against: Plan | None = None) -> Plan:
    """The plan of a verify: by the options, or the same steps as another verify."""
    if options.steps is not None and options.steps < 1:
        raise UsageError(f"--steps must be more than 0, not {options.steps}")
    if against is None:
        name = (options.workloads or (workloads.names()[0],))[0]
        decided = planning.make_plan(name, options)
        steps = options.steps or STEPS
    else:
        decided = _replan(against, options)
        steps = options.steps or against.limits.steps or STEPS
    return replace(
        decided,
        limits=Limits(steps=steps, wall_s=soak_s or None),
        max_restarts=0,
        resume_from=None,
    )


def run_ranks(
    plan: Plan,
    options: RunOptions,
    store: Store,
    *,
    own_command: Sequence[str],
    say: Say,
    watch: Callable[[Path], None] = lambda folder: None,
) -> Outcome | None:
    """Starts the ranks of this node, joins the other launchers of the job if any, and waits until they end.

    None on a launcher that does not lead, which has nothing to report.
    """
    topology = Topology.parse(plan.topology)
    joined = join_launchers(topology, own_command, port=options.port, wait_s=options.join_timeout_s)
    with joined as together:
        store.check_writable()
        leads = together is None or together.env.is_leader
        if together is None or not together.env.first_local_rank:
            try:
                preflight.get_ready(plan, store.folder, say if leads else lambda sentence: None)
            except TrainmarkError as error:
                if together:
                    together.refuse_run(error)
                raise
        shown = watch if leads else lambda folder: None
        outcome = launcher.run_task(plan, store.folder / "verify", "verify", coordinator=together, watch=shown)
        if together and leads:
            together.finish(outcome.exit_code)
    if leads:
        return outcome
    if outcome.sentence:
        say(f"trainmark: {outcome.sentence}")
    return None


def _replan(other: Plan, options: RunOptions) -> Plan:
    """Another verify's plan on this machine: only the chip, the precision and the topology may differ."""
    if options.workloads and workloads.find(options.workloads[0])[0].name != other.workload:
        raise UsageError(
            f"--against is a verify of {other.workload}, not of {options.workloads[0]}; leave the workload's name out"
        )
    words = [word for word in ("recipe", "seed", "init_from") if getattr(options, word) is not None]
    if words or options.settings:
        word = (words or ["set"])[0].replace("_", "-")
        raise UsageError(f"--against repeats the steps of the other verify; leave out --{word}")
    chosen = detection.choose_platform() if options.platform in (None, "auto") else str(options.platform)
    file = files.load(chosen)
    decided = replace(other, platform=str(Path(chosen).absolute()) if file.is_own else file.name)
    if file.is_own:
        trust_file(Path(chosen))
    check_plan(decided, "the other verify", trust=options.trust)
    precision = Precision.parse(options.precision or other.precision)
    if precision.name not in file.precisions:
        raise UsageError(
            f"precision {precision} does not run on platform {file.name}; it has {', '.join(file.precisions)}"
        )
    decided = replace(decided, precision=precision.name)
    if options.topology is not None:
        decided = planning.change_topology(decided, Topology.parse(options.topology))
    return locate_data(decided, options.data)


def read_switches(plan: Plan) -> dict[str, str]:
    """The variables that make the platform's libraries deterministic, with their values in the workers."""
    settings = files.load(plan.platform).deterministic_settings
    return {name: os.environ.get(name, value) for name, value in settings.items()}
