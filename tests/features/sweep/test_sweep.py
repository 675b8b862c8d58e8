"""A sweep runs every topology once, goes on where it was, and ends in scaling and forecast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.records import make_record, make_timeline

from trainmark import api
from trainmark.cli.main import main
from trainmark.features.hosts import remote_run
from trainmark.launch import launcher, planning, session
from trainmark.launch.options import RunOptions
from trainmark.record.errors import UsageError, WorkloadError
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Record
from trainmark.record.store import Store


class Machine:
    """Runs nothing: leaves the record a run would leave, or fails where the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.count = 0
        self.fails_at: str | None = None
        monkeypatch.setattr(session._Session, "get_ready", lambda self, decided: None)
        monkeypatch.setattr(launcher, "run", self._run)

    def _run(self, plan: Any, store: Store, *, group: str | None = None, **_: Any) -> launcher.Outcome:
        self.ran.append(plan.topology)
        record = self.leave(plan, group)
        failed = plan.topology == self.fails_at
        if failed:
            record = replace(record, status="incomplete", ended="rank 1 died")
        store.add(record)
        error = WorkloadError("rank 1 died") if failed else None
        return launcher.Outcome(folder=store.folder, record=record, error=error)

    def leave(self, plan: Plan, group: str | None) -> Record:
        self.count += 1
        devices = Topology.parse(plan.topology).devices
        return replace(
            make_record(timeline=make_timeline(ranks=devices, compute_ms=1000 * 1.02**devices), group=group),
            plan=plan,
            run_id=f"resnet50-{plan.topology}-{self.count}",
            created=f"2026-11-17T00:00:{self.count:02}Z",
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    sweep = "1x4,1x1,1x2"
    return RunOptions(workloads=("resnet50",), platform="cpu", steps=60, store=str(tmp_path), sweep=sweep, quiet=True)


def test_topologies_run_from_the_smallest_on_and_share_a_name(machine: Machine, options: RunOptions) -> None:
    records = api.run_all(options)
    assert machine.ran == ["1x1", "1x2", "1x4"]
    names = {str(record.group).partition("-")[0] for record in records}
    assert len(names) == 1
    assert [record.group for record in records] == [f"{min(names)}-{topology}" for topology in machine.ran]


def test_a_sweep_that_broke_off_goes_on_and_a_finished_one_begins_anew(machine: Machine, options: RunOptions) -> None:
    machine.fails_at = "1x2"
    result = session.run(replace(options, repeat=2))
    assert (result.exit_code, machine.ran) == (4, ["1x1", "1x1", "1x2"])
    machine.fails_at, machine.ran[:] = None, []
    told: list[str] = []
    result = session.run(replace(options, repeat=2, quiet=False), say=told.append)
    assert machine.ran == ["1x2", "1x2", "1x4", "1x4"]
    assert [record.plan.topology for record in result.records] == ["1x1"] * 2 + machine.ran
    assert len({str(record.group).partition("-")[0] for record in result.records}) == 1
    assert any("2 of 2 finished before" in sentence for sentence in told)
    machine.ran.clear()
    session.run(replace(options, repeat=2))
    assert machine.ran == ["1x1", "1x1", "1x2", "1x2", "1x4", "1x4"]


def test_another_plan_or_another_machine_carries_nothing_on(
    machine: Machine, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.fails_at = "1x4"
    session.run(options)
    machine.fails_at, machine.ran[:] = None, []
    session.run(replace(options, steps=80, sweep="1x1,1x2"))
    assert machine.ran == ["1x1", "1x2"]
    monkeypatch.setattr("trainmark.features.sweep.run_way.read_host_name", lambda environ: "elsewhere")
    session.run(options)
    assert machine.ran[2:] == ["1x1", "1x2", "1x4"]


@pytest.mark.features
def test_it_ends_in_scaling_and_a_forecast(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["run", "resnet50", "--platform", "cpu", "--steps", "60", "--sweep", "1x1,1x2", "--store", str(tmp_path)]
    assert main([*asked, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "Weak scaling by p_core" in out
    assert "Known from 1x1 and 1x2" in out
    assert all(size in out for size in ("1x4", "1x8", "2x8"))
    assert main([*asked, "--quiet", "--json"]) == 0
    assert [record["plan"]["topology"] for record in json.loads(capsys.readouterr().out)] == ["1x1", "1x2"]
    machine.fails_at = "1x2"
    assert main([*asked, "--quiet"]) == 4
    said = capsys.readouterr()
    assert "rank 1 died" in said.err
    assert "no scaling: run" in said.err


def test_plan_shows_every_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "resnet50", "--platform", "cpu", "--sweep", "1x2,1x1", "--json"]) == 0
    assert [plan["topology"] for plan in json.loads(capsys.readouterr().out)] == ["1x1", "1x2"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sweep": "1x2"}, "is one topology"),
        ({"sweep": "1x1,many"}, "is not NODESxDEVICES"),
        ({"sweep": "1x8,2x8"}, "needs several machines; name them with --hosts"),
        ({"topology": "1x2"}, "does not work with --topology"),
        ({"group": "mine"}, "does not work with --group"),
        ({"hosts": "a,b"}, "--hosts names 2 hosts, and the largest topology of --sweep has 1 nodes"),
        ({"resume": "last"}, "does not work with --resume"),
        ({"workloads": ("resnet50", "vit")}, "is for one workload"),
        ({"workloads": ()}, "is for one workload"),
        ({"recipe": "fill"}, "needs one batch for every topology"),
        ({"sweep": ""}, "--sweep: empty value"),
    ],
)
def test_what_does_not_go_with_a_sweep_is_refused(
    changes: dict[str, Any], said: str, machine: Machine, options: RunOptions
) -> None:
    with pytest.raises(UsageError, match=said):
        session.run(replace(options, **changes))
    assert machine.ran == []


def test_a_budget_is_shared_by_the_topologies_that_are_left(
    machine: Machine, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = api.run_all(replace(options, steps=None, budget_s=300.0))
    shares = [float(record.plan.limits.wall_s or 0) for record in records]
    assert 60 < shares[0] < 100
    assert shares[0] < shares[1] < shares[2] < 300


def test_on_hosts_every_topology_has_the_first_of_them_and_a_sweep_goes_on(
    machine: Machine, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def over_there(hosts: str, argv: Sequence[str], topology: Topology, *_: Any, **__: Any) -> tuple[Any, int]:
        asked.append((hosts, str(topology)))
        group = argv[argv.index("--group") + 1]
        if str(topology) == broken:
            return None, 4
        plan = planning.make_plan("resnet50", replace(options, sweep=None, topology=str(topology)))
        return machine.leave(plan, group), 0

    monkeypatch.setattr(remote_run, "run_on_hosts", over_there)
    several, broken = replace(options, sweep="1x2,2x2,4x2", hosts="a,b,c,d"), "4x2"
    assert session.run(several).exit_code == 4
    assert asked == [("a", "1x2"), ("a,b", "2x2"), ("a,b,c,d", "4x2")]
    asked.clear()
    broken = ""
    assert [record.plan.topology for record in session.run(several).records] == ["1x2", "2x2", "4x2"]
    assert asked == [("a,b,c,d", "4x2")]


def test_a_group_is_what_one_says_and_repeats_on_hosts_share_one(
    machine: Machine, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = replace(options, sweep=None)
    assert {record.group for record in api.run_all(replace(alone, group="week-47", repeat=2))} == {"week-47"}
    with pytest.raises(UsageError, match="is not a name"):
        replace(alone, group="week 47")
    groups: list[str] = []

    def over_there(hosts: str, argv: Sequence[str], *_: Any, **__: Any) -> tuple[Any, int]:
        groups.append(argv[argv.index("--group") + 1])
        return None, 0

    monkeypatch.setattr(remote_run, "run_on_hosts", over_there)
    session.run(replace(alone, hosts="a", repeat=2))
    assert len(groups) == 2
    assert len(set(groups)) == 1
