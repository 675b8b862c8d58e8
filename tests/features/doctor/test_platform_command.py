"""`trainmark platform check` as a vendor runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Cli

from trainmark.cli.main import main
from trainmark.features.doctor import conformance
from trainmark.platforms import files
from trainmark.record.checks import failed, ok


@pytest.mark.parametrize("name", ["cpu", "standin"])
def test_what_every_machine_has_conforms(name: str, cli: Cli) -> None:
    ended = cli("platform", "check", name, "--json", OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stdout
    document = json.loads(ended.stdout)
    assert document["passed"]
    verdicts = {finding["name"]: finding["verdict"] for finding in document["findings"]}
    assert "failed" not in verdicts.values()
    for check in ("opens", "synchronises", "events", "memory", "collectives"):
        assert verdicts[check] == "ok"
    assert {f"precision {precision}" for precision in files.load(name).precisions} <= set(verdicts)
    assert all(finding["sentence"] for finding in document["findings"])


def test_lines_are_for_people_and_a_failure_exits_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"opens": ok("Card [x], 1 device"), "events": failed("5 ms where 50 ms were", "elapsed_time")}
    checks = [(name, lambda result=result: result) for name, result in found.items()]
    monkeypatch.setattr(conformance, "list_checks", lambda word: iter(checks))
    assert main(["platform", "check", "standin"]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=2) == ["ok", "opens", "Card [x], 1 device"]
    assert lines[1].split(maxsplit=2) == ["failed", "events", "5 ms where 50 ms were"]
    assert lines[2].strip() == "→ elapsed_time"
    assert lines[3] == "Stand-in, not a device: not ready; 1 failed"


def test_a_platform_that_cannot_be_opened_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["platform", "check", "nvidia"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("  failed   opens")
    assert "has 0 cuda devices here" in out


def test_an_unknown_platform_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["platform", "check", "nvidja"]) == 2
    assert "did you mean 'nvidia'?" in capsys.readouterr().err


def test_a_check_that_never_ends_is_named_and_exits_124(process: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text("hang_after = 1\n", encoding="utf-8")
    ended = process("platform", "check", "standin", "--hang-timeout", "2", TRAINMARK_STANDIN=str(script))
    assert ended.returncode == 124
    assert "the check 'synchronises' did not end within 2 s" in ended.stderr
