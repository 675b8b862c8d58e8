"""`trainmark audit` as a user calls it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Cli
from support.clean_records import QUICK, TWO_RANKS
from support.mlperf_logs import write_result
from support.records import make_record

from trainmark.cli.main import main
from trainmark.record.record import Record
from trainmark.record.store import Store

PAGE = """\
* 通用指标

| 指标名称 | 指标值 | 特殊说明 |
| --- | --- | --- |
| 模型 | Vision Transformer | |
| 硬件设备简称 | nvidia A100 | |
| 训练结果 | val_loss,见“性能指标” | 验证loss |

* 性能指标

| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | final_acc1 | mem |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| A100单机8卡(1x8) | fp32 | bs=256 | 73258 | 5109 | 5316 | 5441 | 80.024 | 39.3/40.0 |
| A100单机单卡(1x1) | fp32 | bs=256 | / | 700 | 1144 | 1151 | / | 29.4/40.0 |
"""


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """In the store, with the events it was made of beside it."""
    found = TWO_RANKS.leave(tmp_path / "store")
    Store(tmp_path / "store").add(found)
    return found


def test_the_newest_run_is_audited_with_its_events(cli: Cli, record: Record) -> None:
    ended = cli("audit")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.rstrip().endswith("could not be checked.")
    assert " 0 failed" in ended.stdout
    everything = cli("audit", record.run_id, "--all").stdout
    assert "passed: the record is what its events make of it" in everything


def test_a_record_file_that_was_changed_exits_5_and_says_what_is_wrong(
    cli: Cli, record: Record, tmp_path: Path
) -> None:
    document = record.to_json()
    document["metrics"]["p_core"]["value"] *= 2
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document), encoding="utf-8")
    ended = cli("audit", changed)
    assert ended.returncode == 5
    assert ended.stdout.startswith("wrong: ")
    assert "p_core" in ended.stdout
    document = json.loads(cli("audit", changed, "--json").stdout)
    assert document["wrong"] is True
    assert "steps" in {finding["code"] for finding in document["findings"]}


def test_a_record_file_from_elsewhere_says_that_its_events_were_not_at_hand(
    cli: Cli, record: Record, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.json"
    copy.write_text(record.dumps(), encoding="utf-8")
    ended = cli("audit", copy, "--all")
    assert ended.returncode == 0
    assert "not checked: the record is what its events make of it (the run's events were not read;" in ended.stdout


def test_a_store_that_was_rewritten_does_not_agree_with_its_events(cli: Cli, tmp_path: Path) -> None:
    honest = QUICK.leave(tmp_path / "store")
    Store(tmp_path / "store").add(replace(QUICK, step_ms=100.0).leave(tmp_path / "elsewhere"))
    ended = cli("audit", honest.run_id)
    assert ended.returncode == 5
    assert "by its events" in ended.stdout


def test_every_run_of_a_group_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    for name in ("r-0001", "r-0002"):
        store.add(make_record(run_id=name, group="5a8c9d0e"))
    assert main(["audit", "5a8c", "--store", str(tmp_path), "--all"]) in (0, 5)
    out = capsys.readouterr().out
    assert "r-0001" in out
    assert "r-0002" in out


def test_a_published_page_is_read_and_audited(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE, encoding="utf-8")
    ended = cli("audit", page)
    assert ended.returncode == 5, ended.stderr
    for said in ("621 % of fp32", "39 %", "0.91 by p_whole", "val_loss (", "final_acc1 ("):
        assert said in ended.stdout, said
    assert ended.stdout.index("wrong:") < ended.stdout.index("doubtful:")


def test_pages_are_audited_from_a_folder_and_in_either_encoding(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "pages" / "b.md").write_bytes(PAGE.replace("fp32", "amp").encode("gb18030"))
    ended = cli("audit", tmp_path / "pages", "--json")
    assert ended.returncode == 5, ended.stderr
    assert [audited["title"] for audited in json.loads(ended.stdout)["audited"]] == [
        "Vision Transformer on nvidia A100"
    ] * 2


@pytest.mark.parametrize(
    "text",
    ["just words", "# vit\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", PAGE.partition("73258")[0].replace("bs=256 |", "/ |")],
    ids=["no table", "no results", "no figures"],
)
def test_a_page_of_which_nothing_was_read_is_no_pass(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    ended = cli("audit", tmp_path / "page.md")
    assert ended.returncode == 2, ended.stdout
    assert "nothing to check" in ended.stderr


def test_published_rows_are_audited_by_name_by_workload_and_all(cli: Cli) -> None:
    assert cli("audit", "published:vit").returncode == 5
    assert cli("audit", "published:ViT").returncode == 5
    assert "75.5 %" in cli("audit", "published:resnet50").stdout
    one = cli("audit", "published:flagperf-a100-tacotron2-1x8-tf32")
    assert one.returncode == 0
    assert "mel frames" in one.stdout
    unknown = cli("audit", "published:vitt")
    assert unknown.returncode == 2
    assert "did you mean 'vit'" in unknown.stderr


def test_a_run_folder_whose_events_were_changed_is_wrong(cli: Cli, record: Record, tmp_path: Path) -> None:
    folder = tmp_path / "store" / "runs" / record.run_id
    assert cli("audit", folder).returncode == 0
    log = folder / "rank0.jsonl"
    text = log.read_text(encoding="utf-8")
    assert '"first":31' in text
    log.write_text(text.replace('"first":31', '"first":32'), encoding="utf-8")
    for word in (folder, record.run_id):
        ended = cli("audit", word)
        assert ended.returncode == 5
        assert "SHA-256" in ended.stdout


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nothing.md", "cannot be read"),
        ("no-such-run", "no"),
        ("missing.jsonl", "no"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(cli: Cli, record: Record, word: str, said: str) -> None:
    ended = cli("audit", word)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["train.log", "events.jsonl", "result_0.txt"])
def test_a_log_of_no_known_kind_is_no_pass(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("epoch 1: loss 6.9\nepoch 2: loss 6.1\n")
    ended = cli("audit", str(tmp_path / name))
    assert ended.returncode == 2
    assert "no known kind" in ended.stderr or "this is not a pass" in ended.stderr


def test_a_folder_of_mlperf_logs_is_audited_and_imported(cli: Cli, tmp_path: Path) -> None:
    place = write_result(tmp_path / "training_results_v4.0" / "Lumen")
    store = str(tmp_path / "store")
    assert cli("audit", str(tmp_path)).returncode == 0
    ended = cli("import", str(tmp_path), "--store", store, "--json")
    [page] = json.loads(ended.stdout)["pages"]
    assert page["rows"][0]["workload"] == "resnet50" and page["new"]
    assert "imported before" in cli("import", str(place), "--store", store).stderr
    assert (
        cli("audit", "published:" + page["rows"][0]["name"].removeprefix("published:"), "--store", store).returncode
        == 0
    )
    (place / "result_4.txt").write_bytes((place / "result_3.txt").read_bytes())
    ended = cli("audit", str(place), "--json")
    said = json.loads(ended.stdout)
    assert (ended.returncode, said["wrong"]) == (5, True)
    assert "result-same-bytes" in {finding["code"] for finding in said["findings"]}


def test_a_hostile_page_cannot_speak_to_the_terminal(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        PAGE.replace("final_acc1", "final_\x1b[31macc1").replace("A100单机8卡", "\x1b]0;x\x07A100"), "utf-8"
    )
    ended = cli("audit", page, "--all")
    assert "\x1b" not in ended.stdout + ended.stderr
