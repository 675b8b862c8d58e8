"""What is said in English is said in Chinese too, with the same numbers and the same words of code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from records import make_record
from source_sentences import EITHER, SOURCE, is_sentence, templates

from trainmark import workloads
from trainmark.analysis.audit_record import CHECKS
from trainmark.published import library
from trainmark.spec import endings, metrics
from trainmark.spec.glossary import DOUBTS, PHASES_EXPLAINED, WORDS
from trainmark.spec.language import by_locale, catalogue, read_po, speaker, unwrapped
from trainmark.spec.metrics import METRICS, PRICED
from trainmark.spec.record import ALL_STEPS

SPEAKING = ("report", "published")
"""Rooms whose modules say sentences by `say`."""

CATALOGUE = dict(catalogue("zh"))
"""By their English, without contexts: see `CONTEXTS`."""
CONTEXTS = {key: CATALOGUE.pop(key) for key in list(CATALOGUE) if "\x04" in key}

OTHERS_WORDS = {
    *("No such file or directory", "Permission denied", "Is a directory", "Not a directory", "File exists"),
    "No space left on device",
}
"""What systems say of files."""
SHOWN = (
    *("analysis", "cli", "datasets", "doctor", "launch", "platforms", "published", "report", "spec", "store", "train"),
    *("workloads", "api.py"),
)
NOT_SHOWN = {
    "api.py": "faults of calls in a script",
    "report/html": "the page says its sentences by say()",
    "launch/render": "files for schedulers, in their own words",
    "platforms/new_file.py": "a file that is written",
    "platforms/(sensor_table|files|standin_device|standin|nvml|sensors).py": "faults of platform files",
    "published/(heads|imported|results|cells|names).py": "words of other people's tables",
    "datasets/ljspeech/(sentences|formants|facts|make).py": "what the synthetic voice reads, and --help",
    "datasets/imagenet/(facts|make).py": "--help",
    "datasets/(input_pool|sample_pool).py": "faults of our own calls",
    "datasets/text/.*.py": "a made language",
    "workloads/tacotron2/(text|text_numbers|text_cleaning|plot|facts).py": "words that are spoken or drawn",
    "workloads/.*/facts.py": "read by `explain`, and words of pages",
    "spec/(statistics|events|metrics|series|record|checks|event_files|telemetry).py": "faults of our own calls",
    "spec/(glossary|retold|language).py": "looked for by its own names",
    "cli/(options|speak|watch|launch|platform|data|main|run|import_).py": "words of --help stand among them",
    "train/(global_batch_norm|collectives|rank_store|store_client).py": "faults of our own calls",
}
"""Modules of which not every sentence reaches people, and why; those that do are in the catalogue as well."""
ALL_OF_IT = ("spec/errors.py", "report/table.py", "report/describe.py", "report/headline.py",
             "report/compare_screen.py", "analysis/audit_record.py", "published/audit_", "doctor/")  # fmt: skip
"""Of these no sentence may lack its Chinese."""
LEFT_OVER = 0.06
"""What is young may wait for its translation, and what is gone for its removal, while work is under way."""
AS_IT_IS = (
    *(
        "^bold ",
        "^trainmark[: ]",
        "^python -m",
        "^import torch",
        "^export ",
        "^echo ",
        "^sudo ",
        "^ps aux",
        "^ip -brief",
    ),
    *("^printf", "^ls -ld", "^unset ", "pip install", "^--platform cpu", "^<", "can't start new thread", "^cd \\{"),
    *(
        "^,\\+",
        "^in \\{type\\}",
        "^No module named",
        "^p_core \\{value\\}",
        "^fix_hp",
        "^model name",
        "^FPS",
        "^p_steady",
    ),
    *(
        "^\\{batch\\}",
        "^strip ",
        "^rank \\{rank\\}$",
        "^val_loss",
        "^run_stop",
        "^expected uint8",
        "^body",
        "^:scope",
        "out of\\) memory",
        "^mel frames",
        "^audio samples",
        "^#",
    ),
)
"""Texts that are the same in every language."""

CHINESE = re.compile("[\u4e00-\u9fff]")
SAME_IN_BOTH = {"autocast", "tf32", "batch", "Rank", "rank {rank}: {sentence}"}
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
    found = {entry.missing for entry in (METRICS | PRICED).values() if isinstance(entry.missing, str)}
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
    for metric in (METRICS | PRICED).values():
        found |= {metric.name, metric.formula, unwrapped(metric.definition)}
    found |= {*PHASES_EXPLAINED.values(), *WORDS.values(), *DOUBTS.values()}
    found |= {ALL_STEPS, *endings_in_words(), *OTHERS_WORDS}
    found |= {quality.plain for quality in workloads.qualities() if quality.plain != quality.word}
    return found | reasons() | {check.title for check in CHECKS} | {facts.task for facts in workloads.all_facts()}


def placeholders(sentence: str) -> list[str]:
    """One of two endings is not a value."""
    return sorted(place for place in re.findall(r"\{\w*\}", sentence) if not place.startswith("{" + EITHER))


def written() -> dict[str, str]:
    """All that any module writes, with where it stands."""
    return {
        unwrapped(text): f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in templates(path)
    }


def code_words(text: str) -> set[str]:
    """Numbers, names with an underscore or digit, options and quoted commands: the same in every language."""
    return set(re.findall(r"`[^`]+`|--[a-z-]+|\b\d+(?:\.\d+)?|[A-Za-z]+_[A-Za-z_]+|\w+\d+\w*", text, re.ASCII))


def test_every_sentence_can_be_looked_up() -> None:
    for where, sentence in sentences_in_code():
        assert isinstance(sentence, ast.Constant), f"{where}: say() takes a sentence as it stands, so that it is found"
        assert isinstance(sentence.value, str), where


@pytest.mark.slow
def test_every_sentence_has_chinese_and_none_is_left_over() -> None:
    assert not sorted(said() - set(CATALOGUE)), "add these to locale/zh/LC_MESSAGES/trainmark.po"
    remarks = {row.remark for row in (*library.rows(), *library.further_rows())}
    left_over = set(CATALOGUE) - said() - set(written()) - remarks
    assert len(left_over) <= LEFT_OVER * len(CATALOGUE), sorted(left_over)  # remove them from the catalogue
    assert {key.partition("\x04")[2] for key in CONTEXTS} <= said()


def is_shown(where: str) -> bool:
    return where.startswith(SHOWN) and not re.match("|".join(NOT_SHOWN), where)


def test_what_commands_errors_and_records_say_has_chinese() -> None:
    english = {text: where for text, where in written().items() if is_sentence(text) and is_shown(where)}
    missing = {where: text for text, where in english.items() if text not in CATALOGUE and not as_it_is(text)}
    # add these to locale/zh/LC_MESSAGES/trainmark.po, or say in NOT_SHOWN who does not see them
    assert len(missing) <= LEFT_OVER * len(english), missing
    assert not {where: text for where, text in missing.items() if where.startswith(ALL_OF_IT)}


def as_it_is(text: str) -> bool:
    """Commands to paste, styles, and what is made of other sentences."""
    return bool(re.search("|".join(AS_IT_IS), text))


def test_a_sentence_has_the_same_numbers_words_of_code_and_places_for_values() -> None:
    names = {metric.name for metric in (METRICS | PRICED).values()}
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
    names = {alias: CATALOGUE[metric.name] for alias, metric in (METRICS | PRICED).items()}
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
