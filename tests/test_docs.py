"""The documents say what the code says, can be found, and lead nowhere that is not there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trainmark.cli.main import list_commands
from trainmark.record.doubts import TEMPLATES
from trainmark.record.metrics import METRICS, PRICED
from trainmark.record.timeline import PHASES
from trainmark.view import glossary

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.glob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")))


@pytest.fixture(scope="module")
def written() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "generated_pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_written_pages_are_what_the_code_says(written: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert written.main(["--check"]) == 0, capsys.readouterr().err


def test_every_metric_phase_and_command_is_on_its_page(written: ModuleType) -> None:
    metrics, commands = written.metrics_page(), written.commands_page()
    assert [word for word in (*METRICS, *PRICED, *PHASES) if f"`{word}`" not in metrics] == []
    assert [name for name in list_commands() if f"\n## trainmark {name}\n" not in commands] == []
    for option in ("--topology NxM", "--set key=value", "--gate", "--publish", "--hosts A,B"):
        assert f"`{option}`" in commands


def test_every_phase_is_explained_in_order() -> None:
    assert tuple(glossary.PHASES_EXPLAINED) == PHASES


def test_every_doubt_a_run_can_raise_is_explained() -> None:
    assert TEMPLATES.keys() <= glossary.DOUBTS.keys()


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_is_dead(page: Path) -> None:
    """To files, and to headings of files; addresses outside are not followed."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page)):
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        found = (page.parent / name).resolve() if name else page
        if not found.exists() or (anchor and anchor not in _anchors(found)):
            dead.append(target)
    assert dead == []


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.slow
def test_the_model_of_the_page_for_own_models_reaches_its_target(environment: dict[str, str], tmp_path: Path) -> None:
    page = (DOCS / "your_model.md").read_text(encoding="utf-8")
    (tmp_path / "waves.py").write_text(page.split("```python\n")[1].split("```")[0], encoding="utf-8")
    words = ["run", "./waves.py", "--recipe", "smoke", "--platform", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "trainmark", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "reached" in done.stdout and "signals/s" in done.stdout
    assert [*(Path(environment["TRAINMARK_STORE"]) / "reports").glob("waves-*.html")]
