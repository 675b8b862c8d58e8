"""docs/ci.md can be copied: its jobs are YAML of the right shape, and its commands are ones we take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from trainmark.cli.main import build_parser

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def job(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    found = re.search(rf"<!-- {name} -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return yaml.safe_load(found[1])


def commands(text: str) -> list[list[str]]:
    """The words of each trainmark command, without what the shell does with it."""
    found = re.findall(r"^ *(?:- )?(?:.*run: )?(?:\.venv/bin/)?trainmark (.*)$", text, re.MULTILINE)
    return [shlex.split(re.split(r" > | \|\| ", line)[0], comments=True) for line in found]


def test_every_command_of_the_page_is_one_we_take() -> None:
    words = commands(PAGE)
    assert len(words) == PAGE.count("trainmark run ") + PAGE.count("trainmark report ") + PAGE.count("trainmark comp")
    assert {line[0] for line in words} == {"run", "compare", "report"}
    for line in words:
        build_parser(line).parse_words(line)


def test_the_github_workflow_keeps_the_page_and_the_tests_even_where_the_gate_fails() -> None:
    workflow = job("github")
    (runner,) = workflow["jobs"].values()
    steps = {step.get("name", step.get("uses")): step for step in runner["steps"]}
    assert list(steps) == [
        "actions/checkout@v4",
        "install",
        "run",
        "gate",
        "tests and page",
        "actions/upload-artifact@v4",
    ]
    assert all(steps[name]["if"] == "always()" for name in ("tests and page", "actions/upload-artifact@v4"))
    written = {Path(word).name for line in commands(steps["tests and page"]["run"]) for word in line[-1:]}
    assert {"now.json", *written} == set(steps["actions/upload-artifact@v4"]["with"]["path"].split())
    assert [line[0] for line in commands(steps["gate"]["run"])] == ["compare"]


def test_the_gitlab_job_gates_last_and_lets_what_cannot_be_told_pass() -> None:
    (described,) = job("gitlab").values()
    lines = [commands(line)[0] for line in described["script"] if "/trainmark " in line]
    assert [line[0] for line in lines] == ["run", "report", "report", "report", "compare"]
    assert "--gate" in lines[-1] and described["allow_failure"] == {"exit_codes": [7]}
    kept = described["artifacts"]
    assert kept["when"] == "always" and kept["paths"][1] in lines[3]
    assert [lines[1][-1], lines[2][-1]] == [kept["reports"]["junit"], kept["reports"]["metrics"]]
