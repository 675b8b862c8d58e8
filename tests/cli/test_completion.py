"""The shells' completion: what the parser takes is offered, by real shells where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trainmark.cli.main import COMMANDS, main

DRIVERS = {
    "bash": """
source $1; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_trainmark; printf '%s\\n' "${COMPREPLY[@]}"
""",
    # what zsh's own functions would draw is printed, a word a line
    "zsh": """
compset() { }
_files() { print -l ${words[CURRENT]}*(N) }
_describe() {
    local word
    for word in "${(@P)${@[-1]}}"; do [[ $word != ${words[CURRENT]##*=}* ]] || print -r -- ${word%%:*}; done
}
fpath=(${1:h}) && autoload -U _trainmark; shift
words=("$@") CURRENT=$#
_trainmark
""",
    "fish": """
source $argv[1]
complete -C (string join ' ' -- $argv[2..]) | string replace -r '\\t.*' ''
""",
}
"""Shell programs that print what is offered for the last of their words."""
IDS = ("resnet50-smoke-1x1-fp32-20270101T000000-a1b2c3", "vit-smoke-1x1-fp32-20270101T000000-d4e5f6")
INDEX = f"""\
["run_id", "created"]
["{IDS[0]}.json", 10, 20, ["{IDS[0]}", "2027-01-01T00:00:00Z"], null]

["{IDS[1]}.json", 10, 20, ["{IDS[1]}", "2027-01-01T00:00:00Z"], null]
["damaged-1x1-000000.json", 10, 20, null, "is not a record"]
["torn
"""


@pytest.mark.slow
@pytest.mark.parametrize("shell", DRIVERS)
def test_a_shell_offers_what_the_parser_takes_and_the_runs_of_the_store(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    script, driver = tmp_path / "_trainmark", tmp_path / f"driver.{shell}"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    driver.write_text(DRIVERS[shell], encoding="utf-8")
    subprocess.run([program, "-n", script], check=True)
    for folder in ("store", "other store", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "store" / "index.jsonl").write_text(INDEX, encoding="utf-8")
    (tmp_path / "other store" / "index.jsonl").write_text(INDEX.replace("a1b2c3", "f00d00"), encoding="utf-8")
    (tmp_path / "here" / "my model.py").touch()

    def offered(*words: str) -> set[str]:
        said = subprocess.run(
            [program, driver, script, "trainmark", *words],
            cwd=tmp_path / "here",
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TRAINMARK_STORE": str(tmp_path / "store")},
            capture_output=True,
            text=True,
        )
        assert said.stderr == ""
        return {line for line in said.stdout.splitlines() if line}

    assert offered("") >= set(COMMANDS)
    assert offered("comp") == {"compare", "completion"}
    assert offered("run", "--rec") == {"--recipe"}
    assert offered("run", "vit", "--recipe", "") >= {"reference", "fill", "quick", "smoke"}
    assert offered("run", "--steps", "") == set()
    assert offered("run", "--precision", "amp-b") == {"amp-bf16"}
    assert offered("doctor", "--platform", "st") == {"standin"}
    assert offered("run", "res") == {"resnet50"}
    assert {name.replace("\\", "") for name in offered("run", "my")} >= {"my model.py"}
    assert offered("data", "ver") == {"verify"}
    assert offered("data", "make", "imagenet", "--train") == {"--train-per-class"}
    assert offered("report", "--format", "ju") == {"junit"}
    assert offered("report", "--trend", "") >= {"vit", "last", "a1b2c3"}
    assert offered("show", "") == {"last", "a1b2c3", "d4e5f6"}
    assert offered("compare", "a1b2c3", "vit") == {IDS[1]}
    assert offered("run", "--resume", "resnet") == {IDS[0]}
    if shell != "fish":  # its driver is given one line
        assert offered("show", "--store", str(tmp_path / "other store"), "f") == {"f00d00"}
    if shell == "bash":  # takes the sign for a word
        assert offered("run", "--recipe", "=", "smo") == offered("run", "--recipe", "smo") == {"smoke"}
    else:
        assert {word.removeprefix("--recipe=") for word in offered("run", "--recipe=smo")} >= {"smoke"}
