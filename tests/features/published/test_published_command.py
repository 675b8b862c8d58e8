from __future__ import annotations

import argparse
import json

import pytest

from trainmark.features.published import command as published
from trainmark.record.errors import UsageError


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    published.add_arguments(parser)
    return published.run(parser.parse_args(words))


def test_one_workload_is_shown_with_its_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("vit") == 0
    out, err = capsys.readouterr()
    assert "flagperf-a100-vit-1x8-fp32" in out
    assert "80.024" in out
    assert "https://github.com/FlagOpen/FlagPerf" in out
    assert "resnet50-pytorch" not in out
    assert err == ""


def test_programs_get_null_for_what_was_not_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 61
    silent = next(row for row in rows if row["name"] == "published:flagperf-c500-vit-1x8-fp32-bs256")
    assert silent["p_core"] is None
    assert silent["quality"] == 79.822
    assert silent["source"]["title"] == "FlagPerf: ViT on MetaX"


def test_an_unknown_workload_is_an_error_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="no published rows of 'tacotron'; did you mean 'tacotron2'"):
        call("tacotron")
