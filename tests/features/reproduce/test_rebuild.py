"""A record of a stranger runs nothing on this machine that its reader did not ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.records import make_record

from trainmark.cli.main import main
from trainmark.features.hosts import remote_run
from trainmark.features.reproduce.rebuild import rebuild_plan
from trainmark.launch import session
from trainmark.launch.options import RunOptions
from trainmark.record.errors import UsageError
from trainmark.record.plan import DataChoice, WorkloadSource
from trainmark.record.record import Record

NOWHERE = {"data": DataChoice(name="none", folder="", synthetic=True)}


FILE = 'title = "Lumen"\ndevice_type = "cpu"\ncollectives = "gloo"\nprecisions = ["fp32"]\n'


def of_platform_file(folder: Path) -> Record:
    for name in ("lumen.toml", "mine.toml"):
        (folder / name).write_text(FILE, encoding="utf-8")
    return make_record(plan={"platform": str(folder / "lumen.toml"), **NOWHERE})


def test_a_platform_file_that_a_record_names_is_taken_only_with_trust(tmp_path: Path) -> None:
    record = of_platform_file(tmp_path)
    with pytest.raises(UsageError, match=r"names .*lumen\.toml \(sha256 \w+\), which would run code.*--platform"):
        rebuild_plan([record])
    assert rebuild_plan([record], trust=True).platform == str(tmp_path / "lumen.toml")
    mine = str(tmp_path / "mine.toml")
    assert rebuild_plan([record], platform=mine).platform == mine


def test_a_workload_file_that_a_record_names_is_run_only_with_trust(tmp_path: Path) -> None:
    source = WorkloadSource(file=str(tmp_path / "theirs.py"), sha256="0" * 64)
    record = make_record(plan={"workload_source": source, **NOWHERE})
    with pytest.raises(UsageError, match=r"theirs\.py .*add --trust"):
        rebuild_plan([record])
    assert rebuild_plan([record], trust=True).workload_source == source


@pytest.mark.features
def test_reproduce_refuses_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(of_platform_file(tmp_path).dumps(), encoding="utf-8")
    monkeypatch.setattr(session, "run_plan", lambda *words, **more: pytest.fail("it ran"))
    assert main(["reproduce", str(file), "--store", str(tmp_path)]) == 2
    assert "add --trust" in capsys.readouterr().err


def test_hosts_are_not_entered_by_a_file_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainmark.toml").write_text('[remote]\nssh_config = "evil.ssh"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote_run, "run_on_hosts", lambda *words, **more: pytest.fail("ssh was called"))
    options = RunOptions(workloads=("resnet50",), topology="2x1", hosts="a,b", store=str(tmp_path), platform="cpu")
    with pytest.raises(UsageError, match=r"ssh_config of \[remote\]"):
        session.run(options)
