"""The shells' completion: real shells take the script, and offer what the parser takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.records import make_record, renamed

from trainmark.cli.main import main
from trainmark.record.store import Store, default_folder

BASH = """
source $1; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_trainmark; printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = """
source $argv[1]
complete -C (string join ' ' -- $argv[2..]) | string replace -r '\\t.*' ''
"""


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "driver"), [("bash", BASH), ("fish", FISH), ("zsh", None)])
def test_a_shell_offers_what_the_parser_takes(
    shell: str, driver: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    script = tmp_path / "_trainmark"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    subprocess.run([program, "-n", script], check=True)
    if driver is None:  # its functions work inside of a line that is edited, and nowhere else
        return
    (tmp_path / "driver").write_text(driver, encoding="utf-8")

    def offered(*words: str) -> set[str]:
        said = subprocess.run(
            [program, tmp_path / "driver", script, "trainmark", *words], cwd=tmp_path, capture_output=True, text=True
        )
        return {line for line in said.stdout.splitlines() if line}

    assert offered("comp") == {"compare", "completion"}
    assert offered("run", "--rec") == {"--recipe"}
    assert offered("run", "--recipe", "") >= {"reference", "fill", "quick", "smoke"}
    assert offered("run", "--precision", "amp-b") == {"amp-bf16"}
    assert offered("run", "res") == {"resnet50"}
    assert offered("data", "ver") == {"verify"}
    assert offered("report", "--format", "ju") == {"junit"}


def test_runs_are_offered_by_the_ends_of_their_ids_and_by_whole_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path))
    for minute, name in enumerate(("vit-smoke-a1b2c3", "resnet50-smoke-d4e5f6")):
        Store(default_folder()).add(renamed(make_record(), name, f"2026-11-15T20:0{minute}:00Z"))
    assert main(["completion", "runs"]) == 0
    assert capsys.readouterr().out.split() == [
        "last", "d4e5f6", "a1b2c3", "resnet50-smoke-d4e5f6", "vit-smoke-a1b2c3"
    ]  # fmt: skip
