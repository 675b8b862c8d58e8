"""A site of a folder: what is shown of every result, what is refused, and that all it leads to is there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from support.mlperf_logs import write_result
from support.records import make_record, make_timeline, renamed
from support.site_folders import imported_page, many_rows

from trainmark.analysis import published_library as library
from trainmark.features.site import contents
from trainmark.features.site.build import MARK, build
from trainmark.record.errors import UsageError
from trainmark.record.published_row import PREFIX

PAGE = """\
# ResNet-50

| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | final_acc1 | mem |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| A100单机8卡(1x8) | fp32 | bs=256 | 20000 | 5000 | 5300 | 5400 | 76.1 | 39.3/40.0 |
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, an imported page, a page in Markdown, an MLPerf result, and files about other things."""
    place = tmp_path / "results"
    for number, name in enumerate(("a1b2", "c3d4")):
        record = renamed(make_record(), f"20261115-205100-resnet50-{name}", f"2026-11-1{number}T10:00:00+00:00")
        (place / "lumen").mkdir(parents=True, exist_ok=True)
        (place / "lumen" / f"{name}.json").write_text(record.dumps(), encoding="utf-8")
    imported_page(place / "pages", many_rows(3))
    (place / "pages" / "resnet50.md").write_text(PAGE, encoding="utf-8")
    (place / "README.md").write_text("# About\n\nSend one JSON.\n", encoding="utf-8")
    (place / "package.json").write_text("{}", encoding="utf-8")
    (place / ".git").mkdir()
    (place / ".git" / "x.json").write_text("{", encoding="utf-8")
    write_result(place / "mlperf")
    return place


def test_every_kind_of_result_below_a_folder_is_found(folder: Path) -> None:
    found = contents.find_contents(folder, with_library=False)
    assert [run.record.run_id[-4:] for run in found.runs] == ["c3d4", "a1b2"], "the newest first"
    rows = {entry.row.name.removeprefix(PREFIX) for entry in found.rows}
    assert {"made-up-0", "made-up-1", "made-up-2"} <= rows
    assert any(name.startswith("mlperf-4.0-lumen") for name in rows)
    assert len(rows) == 5
    assert found.left_out == ()
    assert len(contents.find_contents(folder).rows) == 5 + len(library.load_rows())


def test_a_damaged_file_is_named_and_the_rest_is_shown(folder: Path) -> None:
    (folder / "torn.json").write_text('{"kind": "trainmark record", "schema"', encoding="utf-8")
    record = json.loads((folder / "lumen" / "a1b2.json").read_text())
    (folder / "wrong.json").write_text(json.dumps({**record, "run_id": "x", "series": {}}), encoding="utf-8")
    found = contents.find_contents(folder, with_library=False)
    assert len(found.runs) == 2
    assert [Path(sentence.split(" is left out")[0]).name for sentence in found.left_out] == ["torn.json", "wrong.json"]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no record, no page of results and no MLPerf log"):
        contents.find_contents(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        contents.find_contents(tmp_path / "nothing")


def test_everything_a_site_leads_to_is_there(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "public"
    count = build(contents.find_contents(folder), out, made="2026-11-17")
    pages = sorted(out.rglob("*.html"))
    assert count == len(pages)
    assert {"index.html", "resnet50.html", "vit.html"} <= {page.name for page in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        ids = set(re.findall(r' id="([^"]+)"', text))
        assert "default-src &#x27;none&#x27;" in text
        for link in re.findall(r'href="([^"]+)"', text):
            if link.startswith("#"):
                assert link[1:] in ids, f"{page.name}: {link}"
            elif not link.startswith(("https://", "http://")):
                assert (page.parent / link).is_file(), f"{page.name}: {link}"
    kept = json.loads((out / "runs" / "20261115-205100-resnet50-a1b2.json").read_text())
    assert kept["run_id"] == "20261115-205100-resnet50-a1b2", "the record itself lies beside its page"


def test_every_row_shows_its_doubts_and_the_audits_verdict(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "public"
    build(contents.find_contents(folder), out)
    text = (out / "resnet50.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr data-kind=.*?</tr>", text, re.DOTALL)
    assert len(rows) > 5
    assert all('class="severity ' in row and "data-severity=" in row for row in rows)
    assert "What the audit found" in text
    vit = (out / "vit.html").read_text(encoding="utf-8")
    assert 'data-severity="wrong"' in vit, "of which the library has rows"


FULL_SIZE = {"flops": {"per_item": 24.5e9}}


@pytest.mark.parametrize(
    ("changes", "fastest"),
    [
        ({"environment": FULL_SIZE}, True),
        ({}, False),
        ({"environment": {**FULL_SIZE, "device": {"name": "Stand-in", "stand_in": True}}}, False),
        ({"environment": FULL_SIZE, "timeline": make_timeline(steps=12)}, False),
    ],
    ids=["the published network", "another network", "no device", "too few steps for an interval"],
)
def test_only_a_known_speed_of_the_published_network_is_called_the_fastest(
    changes: dict[str, Any], fastest: bool, tmp_path: Path
) -> None:
    run = contents.SiteRun(record=make_record(**changes), checks=(), folder=None)
    build(contents.SiteContents(runs=(run,), rows=()), tmp_path / "out")
    table, index = ((tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("resnet50.html", "index.html"))
    assert ("another network than the published one" in table) is (changes == {})
    assert ("fastest sound result" in index) is fastest


def test_names_from_outside_stay_inside_the_site(tmp_path: Path) -> None:
    hostile: dict[str, Any] = {"run_id": '../../<img src=x onerror="harm()">', "created": "2026-11-15T20:51:00+00:00"}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "r.json").write_text(replace(make_record(), **hostile).dumps(), encoding="utf-8")
    build(contents.find_contents(tmp_path / "in", with_library=False), tmp_path / "deep" / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "deep"}
    assert all("<img" not in page.read_text(encoding="utf-8") for page in (tmp_path / "deep" / "out").rglob("*.html"))


def test_only_a_site_is_replaced(folder: Path, tmp_path: Path) -> None:
    found = contents.find_contents(folder, with_library=False)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="is not a trainmark site"):
        build(found, theirs)
    with pytest.raises(UsageError, match="is a file"):
        build(found, theirs / "thesis.txt")
    out = tmp_path / "out"
    build(found, out)
    (out / "runs" / "old.html").write_text("x")
    build(found, out)
    assert (out / MARK).is_file() and not (out / "runs" / "old.html").exists()


def test_the_site_speaks_chinese(folder: Path, tmp_path: Path) -> None:
    build(contents.find_contents(folder), tmp_path / "out", language="zh")
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert 'lang="zh-CN"' in text and "训练结果" in text and "最新结果" in text


def test_the_command_makes_a_site_that_is_safe_to_share(cli: Cli, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = cli("site", str(folder), "--out", str(out), "--publish", "--title", "Our machines", "--lang", "en")
    assert ended.returncode == 0, ended.stderr
    assert "2 runs" in ended.stdout and "replaced" in ended.stderr
    assert "Our machines" in (out / "index.html").read_text(encoding="utf-8")
    assert "node-a" not in "".join(page.read_text(encoding="utf-8") for page in out.rglob("*.html"))
    assert cli("site", str(tmp_path / "none"), "--out", str(out)).returncode == 2
