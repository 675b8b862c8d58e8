"""With `--lang zh` the tables, headlines and doubts of run, show and compare are Chinese; errors stay English."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.records import a_vocoder_record, doubt, make_plan, make_record, make_timeline, renamed

from trainmark.cli.main import extract_language, main
from trainmark.record.language import use_language
from trainmark.record.metrics import Quantity
from trainmark.record.record import Record
from trainmark.record.store import Store
from trainmark.view import headline, table


def doubtful() -> Record:
    """A record with doubts of some kinds, and with metrics that are missing for reasons."""
    doubts = (
        doubt("few-steps", percent="9.1", more=1173),
        doubt("generated-data", data="imagenet", quality="accuracy", outcome="learnt"),
        doubt("power-sampling", gap_s="3.1"),
    )
    record = make_record(doubts=doubts)
    missing = {"power": "the platform file names no sensors", "exchange": "the run has one rank"}
    lacking = {alias: Quantity(value=None, unit="", unavailable=why) for alias, why in missing.items()}
    return replace(record, metrics={**record.metrics, **lacking})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    filled = Store(tmp_path / "store")
    filled.add(doubtful())
    two = make_record(timeline=make_timeline(ranks=2), doubts=())
    filled.add(renamed(replace(two, plan=make_plan(topology="1x2")), "two-ranks", "2026-11-14T00:00:00+00:00"))
    return filled


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "show a1b2",
            ("p_core 只精确到 ±9.1 %，未达到 ±1 %：大约还需要 1173 步", "吞吐涵盖的范围：", "全部内容：", "运行："),
        ),
        ("show a1b2 --all", ("功耗采样未达到", "平台文件没有列出传感器", "时间用在哪里", "疑点")),
        pytest.param(
            "compare a1b2 two-ranks --anyway",
            ("置信区间", "拓扑 1x1 与 1x2", "B 的 p_core 是 A 的", "合成数据"),
            marks=pytest.mark.features,
        ),
        ("explain p_core", ("计算吞吐",)),
    ],
)
def test_a_view_is_chinese(
    words: str,
    shown: tuple[str, ...],
    store: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main([*words.split(), "--lang", "zh"]) == 0
    said = capsys.readouterr().out
    assert [text for text in shown if text not in said] == []


def test_what_a_run_ends_with_is_chinese_and_the_record_stays_english() -> None:
    records = [doubtful(), a_vocoder_record()]
    with use_language("zh"):
        said = table.render(records, sentences=headline.write_headlines(records, []), width=400)
    assert "在本机上" in said and "功耗采样未达到" in said
    assert "synthetic data" in records[0].dumps()


def test_a_chinese_locale_does_the_same_and_errors_stay_english(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert main(["show", "a1b2"]) == 0
    assert "全部内容：" in capsys.readouterr().out
    assert main(["run", "resnet5"]) == 2
    assert capsys.readouterr().err == "trainmark: workload 'resnet5' is not known; did you mean 'resnet50'?\n"
    assert main(["show", "a1b2", "--lang=en"]) == 0
    assert "Everything there is to know:" in capsys.readouterr().out


def test_programs_read_the_same_in_every_language(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("show a1b2 --json", "runs --json", "audit a1b2 --json", "explain p_core --lang en --json"):
        main(words.split())
        english = capsys.readouterr().out
        main(words.split() if "--lang" in words else [*words.split(), "--lang", "zh"])
        assert capsys.readouterr().out == english


def test_the_language_may_stand_anywhere_and_a_wrong_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert extract_language(["data", "make", "--lang", "zh", "x"]) == ("zh", ["data", "--lang", "zh", "make", "x"])
    assert extract_language(["runs", "--lang=zh"]) == ("zh", ["runs", "--lang", "zh"])
    assert extract_language(["runs"]) == (None, ["runs"])
    assert main(["runs", "--lang", "fr"]) == 2
    assert "--lang 'fr' is not known" in capsys.readouterr().err
