from __future__ import annotations

import argparse
import json

import pytest

from trainmark.cli import explain
from trainmark.record.errors import UsageError
from trainmark.record.metrics import METRICS, PRICED
from trainmark.record.timeline import PHASES
from trainmark.view import glossary


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may read Chinese."""
    monkeypatch.setenv("LC_ALL", "C")


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    return explain.run(parser.parse_args(list(words)))


def test_a_metric_is_explained_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("p_core") == 0
    out = capsys.readouterr().out
    for word in ("p_core", "compute_throughput", "images/s", "items / compute", "comparing devices"):
        assert word in out


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("compute_throughput", "p_core"),
        ("P_CORE", "p_core"),
        ("p-core", "p_core"),
        ("data-wait", "data_wait"),
        ("few_steps", "few-steps"),
        ("acc1", "quality"),
        ("val_loss", "val_loss"),
        ("doubt", "doubts"),
    ],
)
def test_a_word_is_found_by_the_names_people_use(word: str, meant: str) -> None:
    assert glossary.find_meaning(word).word == meant


def test_every_word_is_listed_without_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert call() == 0
    out = capsys.readouterr().out
    for word in (*METRICS, *PRICED, *PHASES, *glossary.WORDS, *glossary.DOUBTS):
        assert f"\n  {word} " in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_every_metric_and_phase_can_be_asked_for() -> None:
    for word in (*METRICS, *(metric.name for metric in METRICS.values()), *PHASES, *glossary.ALSO):
        assert glossary.find_meaning(word).definition


def test_an_unknown_word_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'p_train'"):
        call("p_trian")


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("p_train", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "training_throughput"
    assert document["unit"] == "items/s"
    assert document["formula"] == METRICS["p_train"].formula
    assert call("--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == len(list(glossary.list_meanings()))


def test_a_word_is_explained_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("p_core", "--lang", "zh") == 0
    out = capsys.readouterr().out
    for word in ("p_core", "计算吞吐", "compute_throughput", "单位", "items / compute", "比较设备"):
        assert word in out
    assert "unit" not in out


def test_a_chinese_locale_is_answered_in_chinese(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    call("drifting")
    assert "疑点" in capsys.readouterr().out
    call("drifting", "--lang", "en")
    assert "doubt" in capsys.readouterr().out


def test_every_word_is_listed_in_chinese_within_the_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", "80")
    assert call("--lang", "zh") == 0
    out = capsys.readouterr().out
    for word in (*METRICS, *PRICED, *PHASES, *glossary.WORDS, *glossary.DOUBTS):
        assert f"\n  {word} " in out
    for heading in ("指标", "阶段", "词语", "疑点"):
        assert f"{heading}" in out
    assert max(cell_len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(("name", "meant"), [("整体吞吐", "p_whole"), ("显存", "mem"), ("端到端时间", "e2e_time")])
def test_a_metric_is_found_by_its_chinese_name(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert glossary.find_meaning(name).word == meant
    call(name)
    assert "公式" in capsys.readouterr().out


@pytest.mark.parametrize("language", ["en", "zh"])
def test_json_says_which_language_it_is_in(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    call("mem", "--json", "--lang", language)
    assert json.loads(capsys.readouterr().out)["language"] == language
    call("--json", "--lang", language)
    documents = json.loads(capsys.readouterr().out)
    assert {document["language"] for document in documents} == {language}
    assert documents == [
        {field: value for field, value in entry._asdict().items() if value}
        for entry in glossary.list_meanings(language)
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("计算吞吐量", "p_core"),
        ("总吞吐量", "p_whole"),
        ("训练吞吐量", "p_train"),
        ("疑点", "doubts"),
        ("超参修改", "fix_hp"),
        ("训练结果", "quality"),
    ],
)
def test_the_words_of_chinese_tables_are_known(capsys: pytest.CaptureFixture[str], word: str, meant: str) -> None:
    assert call(word, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["word"], said["language"]) == (meant, "zh")


def test_a_word_with_dots_in_it_does_not_end_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "amp-... where autocast lowered them from float32 weights, or fp8" in said
