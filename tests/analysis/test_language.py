"""What is said in English is said in Chinese too, with the same numbers and the same words of code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from records import make_record

from trainmark.analysis import meanings_zh
from trainmark.analysis.audit.records import CHECKS
from trainmark.analysis.language import by_locale, speaker
from trainmark.analysis.words_zh import WORDS
from trainmark.cli import explain
from trainmark.spec.metrics import METRICS

PAGE = Path(__file__).parents[2] / "src" / "trainmark" / "report" / "html"

CHINESE = re.compile("[\u4e00-\u9fff]")
SAME_IN_BOTH = {"autocast", "tf32", "batch"}
"""Words that Chinese pages keep."""

ENGLISH_AND_CHINESE = {
    "definitions of metrics": (
        {alias: metric.definition for alias, metric in METRICS.items()},
        {alias: said.definition for alias, said in meanings_zh.METRICS.items()},
    ),
    "formulas": (
        {alias: metric.formula for alias, metric in METRICS.items()},
        {alias: said.formula for alias, said in meanings_zh.METRICS.items()},
    ),
    "phases": (explain.PHASES_EXPLAINED, meanings_zh.PHASES),
    "words": (explain.WORDS, meanings_zh.WORDS),
    "doubts": (explain.DOUBTS, meanings_zh.DOUBTS),
    "checks": ({check.code: check.title for check in CHECKS}, meanings_zh.CHECKS),
}


PASSED_ON = ("check.title", "formula", "reason")
"""What the page says in words of other modules, whose Chinese is kept beside theirs."""


def sentences_of_the_page() -> Iterator[tuple[str, ast.expr]]:
    """What code of the page gives to `say`, with where it stands."""
    for path in sorted(PAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name == "say" and ast.unparse(node.args[0]) not in PASSED_ON:
                yield f"{path.name}:{node.lineno}", node.args[0]


def placeholders(sentence: str) -> list[str]:
    return sorted(re.findall(r"\{\w*\}", sentence))


def code_words(text: str) -> set[str]:
    """Numbers, names with an underscore or digit, options and quoted commands: the same in every language."""
    return set(re.findall(r"`[^`]+`|--[a-z-]+|\b\d+(?:\.\d+)?|[A-Za-z]+_[A-Za-z_]+|\w+\d+\w*", text, re.ASCII))


def test_every_sentence_of_the_page_can_be_looked_up() -> None:
    for where, sentence in sentences_of_the_page():
        assert isinstance(sentence, ast.Constant), f"{where}: say() takes a sentence as it stands, so that it is found"
        assert isinstance(sentence.value, str), where


def test_every_sentence_of_the_page_has_chinese_and_none_is_left_over() -> None:
    said = {sentence.value for _, sentence in sentences_of_the_page() if isinstance(sentence, ast.Constant)}
    assert said
    assert not sorted(said - set(WORDS)), "add these to spec/words_zh.py"
    assert not sorted(set(WORDS) - said), "no page says these any more: remove them from spec/words_zh.py"


@pytest.mark.parametrize("english", WORDS)
def test_a_sentence_has_the_same_places_for_values_in_chinese(english: str) -> None:
    chinese = WORDS[english]
    assert placeholders(chinese) == placeholders(english)
    assert set(re.findall(r"\d+", chinese)) == set(re.findall(r"\d+", english))


def test_titles_of_checks_formulas_and_reasons_are_said_in_chinese_too() -> None:
    say = speaker("zh")
    for sentence in (CHECKS[0].title, METRICS["e2e_time"].formula, *meanings_zh.REASONS):
        assert say(sentence) != sentence
    assert speaker("en")(CHECKS[0].title) == CHECKS[0].title


@pytest.mark.parametrize("subject", ENGLISH_AND_CHINESE)
def test_every_meaning_has_chinese_and_none_is_left_over(subject: str) -> None:
    english, chinese = ENGLISH_AND_CHINESE[subject]
    assert list(chinese) == list(english)


@pytest.mark.parametrize("subject", ENGLISH_AND_CHINESE)
def test_numbers_and_words_of_code_are_the_same_in_both_languages(subject: str) -> None:
    english, chinese = ENGLISH_AND_CHINESE[subject]
    for name, text in english.items():
        assert code_words(chinese[name]) == code_words(text), name


def test_chinese_is_chinese() -> None:
    for english, chinese in WORDS.items():
        kept = english in SAME_IN_BOTH or english == "Rank"
        assert kept or CHINESE.search(chinese), english
    for _, texts in ENGLISH_AND_CHINESE.values():
        for name, text in texts.items():
            assert CHINESE.search(text) or re.fullmatch(r"[a-z_ /()+]+", text), name
            assert not re.search(r"[\u4e00-\u9fff][,;:?!]", text), f"{name}: Chinese has its own signs"


def test_every_reason_a_metric_is_missing_for_has_chinese() -> None:
    assert {entry.missing for entry in METRICS.values() if isinstance(entry.missing, str)} <= set(meanings_zh.REASONS)
    one_rank = make_record().metrics
    assert {quantity.unavailable for quantity in one_rank.values() if quantity.unavailable} <= set(meanings_zh.REASONS)


def test_metrics_have_chinese_names_of_their_own() -> None:
    names = [said.name for said in meanings_zh.METRICS.values()]
    assert len(set(names)) == len(names)
    assert [meanings_zh.METRICS[word].name for word in ("p_whole", "p_train", "p_core", "e2e_time")] == [
        "整体吞吐", "训练吞吐", "计算吞吐", "端到端时间",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({}, "en"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
        ({"LANG": "pl_PL.UTF-8"}, "en"),
    ],
)
def test_the_locale_chooses_the_language(variables: dict[str, str], language: str) -> None:
    assert by_locale(variables) == language


def test_a_sentence_is_said_in_the_language_asked_for() -> None:
    assert speaker("en")("Step time") == "Step time"
    assert speaker("zh")("Step time") == "单步时间"
    assert speaker("zh")("nobody has said this") == "nobody has said this"
