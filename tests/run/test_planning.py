"""Words that can mean only one workload are not spread over several."""

from __future__ import annotations

import argparse

import pytest

from trainmark import workloads
from trainmark.cli.words import add_plan_words, plans
from trainmark.spec.errors import UsageError


@pytest.mark.parametrize("word", ["--data", "--init-from"])
def test_a_file_or_folder_is_for_one_workload(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "NAMES", ("resnet50", "another"))
    parser = argparse.ArgumentParser()
    add_plan_words(parser)
    with pytest.raises(UsageError, match=f"{word} is for one workload; name it: resnet50, another"):
        plans(parser.parse_args([word, "somewhere"]))
