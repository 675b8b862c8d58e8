"""With `--lang zh` every command speaks Chinese: no English sentence is left in what it shows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import TWO_SLOW, device_telemetry, host_record, pair_links
from records import a_vocoder_record, make_plan, make_record, make_timeline, renamed
from source_sentences import english_in

from trainmark.analysis.fleet import links
from trainmark.analysis.fleet.hosts import HostRuns, by_host
from trainmark.analysis.fleet.verdict import judge
from trainmark.cli.main import language_first, main
from trainmark.report import fleet_view, headline, table
from trainmark.report.html import fleet_page
from trainmark.spec.language import speaking
from trainmark.spec.metrics import Quantity
from trainmark.spec.record import Doubt, Record
from trainmark.store.store import Store

CHINESE = re.compile("[\u4e00-\u9fff]")


def doubtful() -> Record:
    """A record with doubts of many kinds, and with metrics that are missing for reasons."""
    texts = (
        ("few-steps", "p_core is known to ±9.1 %, not ±1 %: about 1173 more steps would do"),
        ("generated-data", "synthetic data, not the real imagenet set: accuracy only shows that training works"),
        ("target-missed", "target missed: acc ≥ 75.5 % asked, 71.2 % was reached"),
        ("small-batch", "global batch 8 is below the reference recipe's 256"),
        ("throttled", "a device was slowed in 12 % of the samples: software power cap"),
        ("power-sampling", "power does not keep to MLPerf's rule of 60 samples at 1 Hz: a gap of 3.1 s"),
        ("restarted", "restarted 2 times, at step 10, 31 s lost, which no throughput holds"),
    )
    record = make_record(doubts=tuple(Doubt(code=code, text=text) for code, text in texts))
    missing = {
        "mfu": "platform nvidia names no peak of X9 in fp32",
        "power": "the platform file names no sensors",
        "mem_device": "no device gave it",
        "exchange": "the run has one rank",
    }
    lacking = {alias: Quantity(value=None, unit="", unavailable=why) for alias, why in missing.items()}
    return replace(record, metrics={**record.metrics, **lacking})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    filled = Store(tmp_path / "store")
    filled.add(doubtful())
    filled.add(a_vocoder_record())
    two = make_record(timeline=make_timeline(ranks=2), doubts=())
    filled.add(renamed(replace(two, plan=make_plan(topology="1x2")), "two-ranks", "2026-11-14T00:00:00+00:00"))
    return filled


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("show a1b2", 0),
        ("show", 0),
        ("show a1b2 --all", 0),
        ("show --all", 0),
        ("show two-ranks --all", 0),
        ("show two-ranks", 0),
        ("runs", 0),
        ("audit a1b2 --all", 5),
        ("audit published:vit --all", 5),
        ("compare a1b2 two-ranks --anyway", 0),
        ("compare a1b2 two-ranks", 2),
        ("scaling", 0),
        ("scaling --published vit", 0),
        ("published vit", 0),
        ("explain", 0),
        ("fleet", 2),
        ("fleet a1b2 two-ranks", 2),
        ("fleet a1b2", 7),
        ("plan resnet50", 0),
        ("plan gpt124m --recipe smoke --flops --card A100 --platform cpu", 0),
        ("run resnet5", 2),
        ("run --set foo=1", 2),
        ("run resnet50 --topology 3", 2),
        ("run --steps 0", 2),
        ("show nothing-like-that", 2),
        ("report last --format xyz", 2),
        ("data verify imagenet /nowhere", 3),
        ("import /nowhere.md", 2),
        ("compare a", 2),
        ("runs --wrong", 2),
    ],
)
def test_a_command_speaks_chinese(
    words: str, code: int, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main([*words.split(), "--lang", "zh"]) == code
    said = "".join(capsys.readouterr())
    assert CHINESE.search(said)
    assert english_in(said) == []


@pytest.mark.slow
def test_the_doctor_speaks_chinese(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    main(["doctor", "--no-probe", "--lang", "zh"])
    said = capsys.readouterr().out
    assert "站点" in said and english_in(said) == []


def test_what_a_run_ends_with_is_chinese_and_the_record_stays_english() -> None:
    records = [doubtful(), a_vocoder_record()]
    with speaking("zh"):
        said = table.render(records, sentences=headline.sentences(records, []), width=400)
    assert english_in(said) == []
    assert "在 本机 上" in said and "功耗采样未达到" in said
    assert "synthetic data" in records[0].dumps()


def test_the_judgement_of_a_fleet_is_chinese() -> None:
    pairs = pair_links(10, thin={5: 4.0}, way=(0, 9))
    hot = device_telemetry("node07", clock=900, heat=95, errors=2)
    records = [host_record(host, speed, telemetry=device_telemetry(host)) for host, speed in TWO_SLOW.items()]
    records[7] = host_record("node07", 0.8, telemetry=hot)
    hosts = [*by_host(records), HostRuns(host="x", failed="it was interrupted")]
    fleet = judge(hosts, links=links.judge(list(TWO_SLOW), pairs), wanted=12)
    with speaking("zh"):
        said = fleet_view.render(fleet, width=400)
    assert "不予验收" in said and "主机 node07 偏慢" in said and "主机 node05 的线缆" in said
    assert english_in(said) == []
    page = fleet_page.render(fleet, language="zh", trainmark="0", made="2026-11-17")
    assert english_in(re.sub("<(style|script).*?</(style|script)>|<[^>]*>", "\n", page, flags=re.DOTALL)) == []


def test_a_chinese_locale_does_the_same(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert main(["run", "resnet5"]) == 2
    assert capsys.readouterr().err == "trainmark: 未知负载 'resnet5'；是否是 'resnet50'？\n"
    assert main(["run", "resnet5", "--lang=en"]) == 2
    assert capsys.readouterr().err == "trainmark: workload 'resnet5' is not known; did you mean 'resnet50'?\n"


def test_programs_read_the_same_in_every_language(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("show a1b2 --json", "runs --json", "audit a1b2 --json", "explain p_core --lang en --json"):
        main(words.split())
        english = capsys.readouterr().out
        main(words.split() if "--lang" in words else [*words.split(), "--lang", "zh"])
        assert capsys.readouterr().out == english


def test_the_language_may_stand_anywhere_and_a_wrong_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert language_first(["data", "make", "--lang", "zh", "x"]) == ("zh", ["data", "--lang", "zh", "make", "x"])
    assert language_first(["runs", "--lang=zh"]) == ("zh", ["runs", "--lang", "zh"])
    assert language_first(["runs"]) == (None, ["runs"])
    assert main(["runs", "--lang", "fr"]) == 2
    assert "--lang 'fr' is not known" in capsys.readouterr().err


def test_the_detector_finds_english() -> None:
    assert english_in("对的\nthis is a whole sentence of ours\n") == ["this is a whole sentence of ours"]
    assert english_in("→ sudo rm this and that thing\np_core 643 mel frames/s\nhtml, json, csv, junit, page") == []
