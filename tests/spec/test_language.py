"""What is said in English is said in Chinese too, with the same numbers and the same words of code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from records import make_record

from trainmark import workloads
from trainmark.analysis.audit_record import CHECKS
from trainmark.spec import endings, metrics
from trainmark.spec.glossary import DOUBTS, PHASES_EXPLAINED, WORDS
from trainmark.spec.language import by_locale, catalogue, read_po, speaker, unwrapped
from trainmark.spec.metrics import METRICS
from trainmark.spec.record import ALL_STEPS
from trainmark.spec.retold import TEMPLATES

SOURCE = Path(__file__).parents[2] / "src" / "trainmark"
SPEAKING = ("report", "published")
"""Rooms whose modules say sentences by `say`."""

CATALOGUE = dict(catalogue("zh"))
"""By their English, without contexts: see `CONTEXTS`."""
CONTEXTS = {key: CATALOGUE.pop(key) for key in list(CATALOGUE) if "\x04" in key}

CHINESE = re.compile("[\u4e00-\u9fff]")
SAME_IN_BOTH = {"autocast", "tf32", "batch", "Rank"}
"""Words that Chinese pages keep."""
NUMBER_IN_WORDS = {"1 node", "2 nodes", "1 device"}

PASSED_ON = (
    "check.claim",
    "check.title",
    "formula",
    "reason",
    "task",
    "sentence",
    "judged.plain",
    "entry.name",
    "entry.formula",
)
"""What is said in words of other modules: they are looked for there."""


def sentences_in_code() -> Iterator[tuple[str, ast.expr]]:
    """What code gives to `say`, with where it stands."""
    for path in sorted(path for room in SPEAKING for path in (SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name == "say" and ast.unparse(node.args[0]) not in PASSED_ON:
                yield f"{path.name}:{node.lineno}", node.args[0]


def reasons() -> set[str]:
    """Every sentence a metric gives for having no value."""
    found = {entry.missing for entry in METRICS.values() if isinstance(entry.missing, str)}
    found |= {metrics.NO_STEP, metrics.NO_MEMORY, metrics.NOTHING_SAMPLED, metrics.WITHHELD}
    for node in ast.walk(ast.parse(Path(metrics.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_no_"):
            found |= {
                part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
    return found


def endings_in_words() -> set[str]:
    return {value for name, value in vars(endings).items() if name.isupper() and isinstance(value, str)}


def said() -> set[str]:
    """All that anybody says in the reader's language."""
    found = {sentence.value for _, sentence in sentences_in_code() if isinstance(sentence, ast.Constant)}
    for metric in METRICS.values():
        found |= {metric.name, metric.formula, unwrapped(metric.definition)}
    found |= {*PHASES_EXPLAINED.values(), *WORDS.values(), *DOUBTS.values()}
    found |= {*TEMPLATES, ALL_STEPS, *endings_in_words()}
    found |= {quality.plain for quality in workloads.qualities() if quality.plain != quality.word}
    return found | reasons() | {check.title for check in CHECKS} | {facts.task for facts in workloads.all_facts()}


def placeholders(sentence: str) -> list[str]:
    return sorted(re.findall(r"\{\w*\}", sentence))


def code_words(text: str) -> set[str]:
    """Numbers, names with an underscore or digit, options and quoted commands: the same in every language."""
    return set(re.findall(r"`[^`]+`|--[a-z-]+|\b\d+(?:\.\d+)?|[A-Za-z]+_[A-Za-z_]+|\w+\d+\w*", text, re.ASCII))


def test_every_sentence_can_be_looked_up() -> None:
    for where, sentence in sentences_in_code():
        assert isinstance(sentence, ast.Constant), f"{where}: say() takes a sentence as it stands, so that it is found"
        assert isinstance(sentence.value, str), where


def test_every_sentence_has_chinese_and_none_is_left_over() -> None:
    assert not sorted(said() - set(CATALOGUE)), "add these to locale/zh/LC_MESSAGES/trainmark.po"
    assert not sorted(set(CATALOGUE) - said()), "nobody says these any more: remove them from the catalogue"
    assert {key.partition("\x04")[2] for key in CONTEXTS} <= said()


def test_a_sentence_has_the_same_numbers_words_of_code_and_places_for_values() -> None:
    names = {metric.name for metric in METRICS.values()}
    for english, chinese in CATALOGUE.items():
        assert placeholders(chinese) == placeholders(english), english
        if english not in names | NUMBER_IN_WORDS:
            assert code_words(chinese) == code_words(english), english


def test_chinese_is_chinese() -> None:
    for english, chinese in (CATALOGUE | CONTEXTS).items():
        kept = english in SAME_IN_BOTH or re.fullmatch(r"[a-z_ /()+*0-9.]+|。", chinese)
        assert kept or CHINESE.search(chinese) or not re.search("[A-Za-z]{3}", re.sub(r"\{\w+\}", "", english)), english
        if len(english) > 60:
            assert not re.search(r"[\u4e00-\u9fff][,;:?!]", chinese), f"{english}: Chinese has its own signs"


def test_every_reason_a_metric_is_missing_for_has_chinese() -> None:
    one_rank = make_record().metrics
    assert {quantity.unavailable for quantity in one_rank.values() if quantity.unavailable} <= reasons()


def test_metrics_have_chinese_names_of_their_own() -> None:
    names = {alias: CATALOGUE[metric.name] for alias, metric in METRICS.items()}
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
    assert by_locale(variables) == language


def test_a_sentence_is_said_in_the_language_asked_for() -> None:
    assert speaker("en")("Step time") == "Step time"
    assert speaker("zh")("Step time") == "单步时间"
    assert speaker("zh")("nobody has said this") == "nobody has said this"
    assert speaker("zh")(METRICS["mfu"].definition).startswith("训练在数学上")


def test_a_word_may_be_another_one_in_another_table() -> None:
    assert (speaker("zh")("Metric"), speaker("zh", "flagperf")("Metric")) == ("指标", "指标名称")
    assert speaker("zh", "flagperf")("Notes:") == speaker("zh")("Notes:") == "注："


def test_a_catalogue_is_read_as_gettext_reads_it(tmp_path: Path) -> None:
    assert read_po(
        '# a comment\nmsgid ""\nmsgstr "Language: zh\\n"\n\n#: x.py:3\nmsgid "a "\n"\\"b\\""\nmsgstr "甲\\n"\n'
    ) == {'a "b"': "甲\n"}
    assert read_po('msgid "not yet translated"\nmsgstr ""\n') == {}
    text = (SOURCE / "locale" / "zh" / "LC_MESSAGES" / "trainmark.po").read_text(encoding="utf-8")
    keys = re.findall(r'^(?:msgctxt .*\n)?msgid (?:.*\n)(?:".*\n)*', text, re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(catalogue("zh")) + 1, "an English sentence stands in it twice"
