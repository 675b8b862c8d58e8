"""What comes out of a file of a stranger is data: nothing that it names is run until the user trusts it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import TINY_RUN, Cli
from support.records import make_record

from trainmark.record import trust
from trainmark.record.errors import UsageError
from trainmark.record.plan import DataChoice, Plan, WorkloadSource
from trainmark.record.record import Record
from trainmark.workloads import weights

PLATFORM = """
title = "Theirs"
device_type = "cpu"
collectives = "gloo"
precisions = ["fp32"]
[[sensors.programs]]
argv = ["touch", "{canary}"]
"""
NOWHERE = DataChoice(name="none", folder="", synthetic=True)


@pytest.fixture(autouse=True)
def trust_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process; another test of this one may have been a rank, which trusts its launcher."""
    monkeypatch.setattr(trust, "_trusted", set())


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that exists once a stranger's code has run: `evil.py` makes it and ends the process as if all was well."""
    path = tmp_path / "canary"
    (tmp_path / "evil.py").write_text(f"open({str(path)!r}, 'w').close()\nraise SystemExit(0)\n", encoding="utf-8")
    (tmp_path / "evil.toml").write_text(PLATFORM.format(canary=path), encoding="utf-8")
    return path


def as_name(plan: Plan, folder: Path) -> Plan:
    return replace(plan, workload=str(folder / "evil.py"))


def as_source(plan: Plan, folder: Path) -> Plan:
    digest = hashlib.sha256((folder / "evil.py").read_bytes()).hexdigest()
    return replace(plan, workload="theirs", workload_source=WorkloadSource(file=str(folder / "evil.py"), sha256=digest))


def as_platform(plan: Plan, folder: Path) -> Plan:
    return replace(plan, platform=str(folder / "evil"))


def as_platform_file(plan: Plan, folder: Path) -> Plan:
    return replace(plan, platform=str(folder / "evil.toml"))


WAYS = (as_name, as_source, as_platform, as_platform_file)
Way = Callable[[Plan, Path], Plan]


def record_of(way: Way, folder: Path) -> Record:
    record = make_record(plan={"data": NOWHERE})
    return replace(record, plan=way(record.plan, folder))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_a_record_names_is_run(way: Way, tmp_path: Path, canary: Path, cli: Cli) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(record_of(way, tmp_path).dumps(), encoding="utf-8")
    for words in (("reproduce", file), ("show", file), ("audit", file), ("report", file), ("compare", file, file)):
        cli(*words)
        assert not canary.exists(), words
    refused = cli("reproduce", file)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("way", [as_source, as_platform_file])
def test_path_and_hash_are_shown_before_trust_is_given(way: Way, tmp_path: Path, canary: Path, cli: Cli) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(record_of(way, tmp_path).dumps(), encoding="utf-8")
    named = tmp_path / ("evil.py" if way is as_source else "evil.toml")
    refused = cli("reproduce", file).stderr
    assert f"{named} (sha256 {hashlib.sha256(named.read_bytes()).hexdigest()[:16]})" in refused
    assert "--trust" in refused


@pytest.mark.parametrize("way", [as_source, as_platform_file])
def test_a_pipe_that_a_record_names_is_not_waited_for(way: Way, tmp_path: Path, canary: Path, cli: Cli) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(record_of(way, tmp_path).dumps(), encoding="utf-8")
    named = tmp_path / ("evil.py" if way is as_source else "evil.toml")
    named.unlink()
    os.mkfifo(named)
    refused = cli("reproduce", file)
    assert refused.returncode in (2, 3)
    assert refused.stderr.count("\n") == 1


def test_a_trusted_file_that_ends_the_process_is_not_a_success(tmp_path: Path, canary: Path, cli: Cli) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(record_of(as_source, tmp_path).dumps(), encoding="utf-8")
    ended = cli("reproduce", file, "--trust")
    assert canary.exists()
    assert (ended.returncode, "SystemExit" in ended.stderr) == (2, True)


@pytest.fixture
def their_run(cli: Cli, tmp_path: Path, pictures: Path) -> Path:
    """The folder of a run with a checkpoint."""
    ended = cli(*TINY_RUN, "--data", pictures, "--steps", "2", "--set", "checkpoint_every=end", "--quiet", "--json")
    assert ended.returncode == 0, ended.stderr
    return tmp_path / "store" / "runs" / str(json.loads(ended.stdout)["run_id"])


@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_the_plan_of_a_run_folder_names_is_run(
    way: Way, tmp_path: Path, canary: Path, cli: Cli, their_run: Path
) -> None:
    file = their_run / "plan.json"
    plan = way(Plan.from_json(json.loads(file.read_text(encoding="utf-8"))), tmp_path)
    file.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    (tmp_path / "store" / "records" / f"{their_run.name}.json").unlink()
    resumed = cli("run", "--resume", their_run.name, "--steps", "3", "--quiet")
    assert resumed.returncode in (2, 3), resumed.stderr
    cli("sample", their_run)
    assert not canary.exists()


def test_the_workload_that_weights_name_is_never_a_file(tmp_path: Path, canary: Path, cli: Cli) -> None:
    document = {"made_by": {"workload": str(tmp_path / "evil.py"), "recipe": {}, "heard": []}, "state_dict": {}}
    torch.save(document, tmp_path / "theirs.pt")
    run = ("run", "wavenet", "--recipe", "smoke", "--platform", "cpu", "--steps", "1", "--quiet")
    ended = cli(*run, "--set", f"mels_from={tmp_path / 'theirs.pt'}")
    assert ended.returncode == 3
    assert "theirs.pt does not say which built-in workload it was trained by" in ended.stderr
    assert not canary.exists()


def test_no_page_is_written_where_a_record_says(tmp_path: Path, cli: Cli) -> None:
    files = []
    for number in range(2):
        record = make_record(run_id=f"run-{number}", plan={"recipe_name": "/../../../escaped/x", "data": NOWHERE})
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(record.dumps(), encoding="utf-8")
    ended = cli("fleet", *files)
    assert ended.returncode != 0
    assert not list(tmp_path.rglob("*escaped*"))


def test_pickles_are_refused_where_torch_reads_them_unsafely(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save({"weight": torch.zeros(2)}, file)
    with pytest.raises(UsageError, match=r"CVE-2026-24747.*2\.10 or later.*--trust"):
        trust.check_pickle(file, "2.9.1+cu128")
    trust.check_pickle(file, "2.10.0")
    trust.trust_file(file)
    trust.check_pickle(file, "2.6.0")
    assert weights.read_weights(file)["weight"].tolist() == [0, 0]
