from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trainmark.record.doubts import TEMPLATES
from trainmark.record.metrics import METRICS, PRICED
from trainmark.record.timeline import PHASES
from trainmark.view import glossary

ROOT = Path(__file__).parents[2]


def test_the_page_of_metrics_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("metrics_page", ROOT / "docs" / "metrics_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main(["--check"]) == 0, capsys.readouterr().err
    page = script.page()
    for word in (*METRICS, *PRICED, *PHASES):
        assert f"`{word}`" in page


def test_every_phase_is_explained_in_order() -> None:
    assert tuple(glossary.PHASES_EXPLAINED) == PHASES


def test_every_doubt_a_run_can_raise_is_explained() -> None:
    assert TEMPLATES.keys() <= glossary.DOUBTS.keys()
