"""The reader's language is the locale's, and the catalogue says there what we write in English."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from trainmark.record.language import LOCALE, _, catalogue, locale_language, read_po, translator, use_language
from trainmark.record.metrics import METRICS, PRICED

ROOT = Path(__file__).parents[2]
CATALOGUE = catalogue("zh")
NUMBER_IN_WORDS = {"1 node", "2 nodes", "1 device"}


def placeholders(sentence: str) -> set[str]:
    return set(re.findall(r"\{\w*\}", sentence))


def code_words(text: str) -> set[str]:
    """Numbers, names with an underscore or digit, options and quoted commands: the same in every language."""
    return set(re.findall(r"`[^`]+`|--[a-z-]+|\b\d+(?:\.\d+)?|[A-Za-z]+_[A-Za-z_]+|\w+\d+\w*", text, re.ASCII))


def test_a_translation_has_the_same_placeholders_numbers_and_words_of_code() -> None:
    names = {metric.name for metric in (METRICS | PRICED).values()}
    for key, chinese in CATALOGUE.items():
        english = key.rpartition("\x04")[2]
        assert placeholders(chinese) == placeholders(english), english
        if "\x04" not in key and english not in names | NUMBER_IN_WORDS:
            assert code_words(chinese) == code_words(english), english


def test_metrics_have_chinese_names_of_their_own() -> None:
    names = {alias: CATALOGUE[metric.name] for alias, metric in (METRICS | PRICED).items() if metric.name in CATALOGUE}
    assert len(set(names.values())) == len(names)
    assert [names[word] for word in ("p_whole", "p_train", "p_core", "e2e_time")] == [
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
    assert locale_language(variables) == language


def test_a_sentence_is_said_in_the_language_asked_for_and_one_without_an_entry_stays_english() -> None:
    assert translator("en")("Step time") == "Step time"
    assert translator("zh")("Step time") == "单步时间"
    assert translator("zh")("nobody has {translated} this") == "nobody has {translated} this"
    assert translator("zh")(METRICS["mfu"].definition).startswith("训练在数学上")


def test_the_language_of_a_process_is_chosen_and_given_back() -> None:
    assert _("no records") == "no records"
    with use_language("zh"):
        assert _("no records") == "没有记录"
    assert _("no records") == "no records"


def test_a_word_may_be_another_one_in_another_table() -> None:
    assert (translator("zh")("Metric"), translator("zh", "flagperf")("Metric")) == ("指标", "指标名称")
    assert translator("zh", "flagperf")("Notes:") == translator("zh")("Notes:") == "注："


def test_a_catalogue_is_read_as_gettext_reads_it() -> None:
    assert read_po(
        '# a comment\nmsgid ""\nmsgstr "Language: zh\\n"\n\n#: x.py:3\nmsgid "a "\n"\\"b\\""\nmsgstr "甲\\n"\n'
    ) == {'a "b"': "甲\n"}
    assert read_po('msgid "not yet translated"\nmsgstr ""\n') == {}
    text = (LOCALE / "zh" / "LC_MESSAGES" / "trainmark.po").read_text(encoding="utf-8")
    keys = re.findall(r'^(?:msgctxt .*\n)?msgid (?:.*\n)(?:".*\n)*', text, re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(CATALOGUE) + 1, "an English sentence stands in it twice"


def test_the_script_lists_what_is_missing_and_what_nobody_writes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "translations"))
    entries = {key: value for key, value in CATALOGUE.items() if key != "no records"} | {"never written": "从不"}
    monkeypatch.setitem(script, "catalogue", lambda language: entries)
    monkeypatch.setitem(script["main"].__globals__, "catalogue", lambda language: entries)
    script["main"](["zh"])
    said = capsys.readouterr().out
    assert re.search(r"zh: missing: view/table.py:\d+: 'no records'", said)
    assert "zh: unused: 'never written'" in said
