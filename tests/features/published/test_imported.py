from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmark.analysis import published_library as library, published_lookup as imported
from trainmark.analysis.published_library import PublishedPage
from trainmark.features.published import read
from trainmark.features.published.audit import add_findings
from trainmark.record.errors import NotReadyError

TEXT = """\
# vit

| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem |
|---|---|---|---|---|---|---|---|---|
| N7单机8卡(1x8) | fp32 | / | 1000 | 100 | 110 | 120 | 75.0% | 30.5/48.0 |
| A100单机单卡(1x1) | tf32 | bs=64 | | 10 | 11 | 12 | | |
"""


def keep(store: Path, text: str = TEXT, name: str = "page.md", day: str = "2026-11-16") -> imported.SavedPage:
    page = add_findings(read.read_page(text, name=name))
    return imported.save_page(store, page, content=text.encode(), day=day)


def test_what_is_kept_is_read_back_with_the_day_it_was_imported(tmp_path: Path) -> None:
    keep(tmp_path)
    found = imported.load_rows(tmp_path)
    wanted = add_findings(read.read_page(TEXT, name="page.md")).rows
    assert [replace(row, source=wanted[0].source) for row in found] == list(wanted)
    assert {(row.source.title, row.source.address, row.source.date) for row in found} == {
        ("vit", "page.md", "imported 2026-11-16")
    }
    assert all(imported.is_imported(row) for row in found)
    assert not any(imported.is_imported(row) for row in library.load_rows())


def test_what_the_audit_finds_at_the_import_is_kept_with_the_row(tmp_path: Path) -> None:
    keep(tmp_path, TEXT.replace("| tf32 | bs=64 | | 10 | 11 | 12 |", "| fp32 | bs=64 | | 10 | 11 | 9000 |"))
    other, wrong = imported.load_rows(tmp_path)
    assert not other.is_wrong
    assert wrong.is_wrong


def test_a_page_imported_by_an_earlier_version_has_no_findings(tmp_path: Path) -> None:
    path = keep(tmp_path).path
    document = json.loads(path.read_text())
    for row in document["rows"]:
        del row["findings"]
    path.write_text(json.dumps(document))
    assert [row.findings for row in imported.load_rows(tmp_path)] == [(), ()]


def test_the_same_page_again_changes_nothing_whatever_its_name(tmp_path: Path) -> None:
    first = keep(tmp_path)
    before = first.path.read_bytes()
    again = keep(tmp_path, name="copy.md", day="2027-01-01")
    assert (first.new, again.new) == (True, False)
    assert again.path == first.path
    assert first.path.read_bytes() == before
    assert len(imported.load_rows(tmp_path)) == 2


def test_a_changed_page_is_kept_beside_the_first_and_its_rows_can_be_told_apart(tmp_path: Path) -> None:
    keep(tmp_path)
    later = keep(tmp_path, TEXT.replace("| 120 |", "| 130 |"), day="2026-11-17")
    assert later.new
    found = imported.load_rows(tmp_path)
    assert [row.p_core for row in found] == [120, 12, 130, 12]
    assert len({row.name for row in found}) == 4
    assert found[2].name.startswith(found[0].name + "-")


def test_a_page_cannot_take_the_name_of_a_row_that_comes_with_trainmark(tmp_path: Path) -> None:
    keep(tmp_path, TEXT.replace("N7", "C500").replace("| / |", "| bs=256 |"), name="flagperf.md")
    names = [row.name for row in (*library.load_rows(), *imported.load_rows(tmp_path))]
    assert "published:flagperf-c500-vit-1x8-fp32-bs256" in names
    assert len(set(names)) == len(names)


def spoil(change: Any) -> str:
    row = {**vars(read.read_page(TEXT, name="page.md").rows[0])}
    row["source"] = vars(row["source"])
    document = {"kind": imported.KIND, "schema": 1, "imported": "2026-11-16", "rows": [row]}
    change(document, row)
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "{}",
        "[" * 100_000,
        spoil(lambda document, row: document.update(kind="another")),
        spoil(lambda document, row: document.update(rows=7)),
        spoil(lambda document, row: row.update(p_core="fast")),
        spoil(lambda document, row: row.update(p_core=float("nan"))),
        spoil(lambda document, row: row.update(topology="many")),
        spoil(lambda document, row: row.update(device=None)),
        spoil(lambda document, row: row.update(source={"title": 1, "address": "", "date": None})),
        spoil(lambda document, row: row.pop("mem_used_gib")),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path, text: str) -> None:
    path = keep(tmp_path).path.with_name("damaged-000000000000.json")
    path.write_text(text, encoding="utf-8")
    found = imported.load_pages(tmp_path)
    assert len(found.rows) == 2
    assert len(found.damaged) == 1
    assert str(path) in found.damaged[0]


def test_the_files_that_tests_spoil_are_whole_before(tmp_path: Path) -> None:
    folder = tmp_path / "imported"
    folder.mkdir()
    (folder / "whole-000000000000.json").write_text(spoil(lambda document, row: None), encoding="utf-8")
    assert len(imported.load_rows(tmp_path)) == 1


def test_a_store_that_cannot_hold_pages_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "imported").write_text("a file")
    with pytest.raises(NotReadyError, match="imported"):
        keep(tmp_path)


def test_a_page_of_odd_signs_can_be_kept(tmp_path: Path) -> None:
    page = PublishedPage(title="\ud800", rows=(), unread=("\x1b",))
    assert imported.save_page(tmp_path, page, content=b"x", day="2026-11-16").new
    assert imported.load_pages(tmp_path).damaged == ()
