from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pytest

from trainmark.features.published import command as published, import_command as import_
from trainmark.features.published.read import MAX_BYTES
from trainmark.record.errors import UsageError

PAGE = """\
# vit

| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem | mood |
|---|---|---|---|---|---|---|---|---|---|
| N7单机8卡(1x8) | fp32 | / | 1000 | 100 | 110 | 12345 | 75.0% | 30.5/48.0 | good |
"""


def call(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    import_.add_arguments(parser)
    return import_.run(parser.parse_args([str(word) for word in words]))


def show(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    published.add_arguments(parser)
    return published.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "README.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_rows_are_shown_and_kept_and_what_was_not_read_is_said(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(page, "--store", tmp_path / "store") == 0
    out, err = capsys.readouterr()
    assert "readme-n7-vit-1x8-fp32" in out
    assert "12 345" in out
    assert f"{page}: not read: line 3: column 'mood' is not known" in err
    assert f"{page}: 1 row kept in {tmp_path / 'store' / 'imported'}" in err
    assert call(page, "--store", tmp_path / "store") == 0
    assert "imported before" in capsys.readouterr().err
    assert len(list((tmp_path / "store" / "imported").iterdir())) == 1


def test_imported_rows_stand_beside_the_published_ones_and_are_labelled(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(page, "--store", tmp_path)
    capsys.readouterr()
    assert show("vit", "--store", tmp_path) == 0
    out = capsys.readouterr().out
    assert "flagperf-a100-vit-1x8-fp32" in out
    assert "readme-n7-vit-1x8-fp32" in out
    assert "vit (imported 20" in out
    assert show("--json", "--store", tmp_path) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows if row["imported"]] == ["published:readme-n7-vit-1x8-fp32"]
    silent = next(row for row in rows if row["name"] == "published:flagperf-c500-vit-1x8-fp32-bs256")
    assert (silent["p_core"], silent["quality"]) == (None, 79.822), "what was not published is null"
    assert show("resnet50", "--store", tmp_path) == 0
    assert "readme" not in capsys.readouterr().out


def test_a_workload_that_was_only_imported_can_be_asked_for(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page.write_text(PAGE.replace("# vit", "# bert"), encoding="utf-8")
    call(page, "--store", tmp_path)
    capsys.readouterr()
    assert show("bert", "--store", tmp_path) == 0
    assert "readme-n7-bert-1x8-fp32" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no published rows of 'gpt'"):
        show("gpt", "--store", tmp_path)


def test_files_from_which_nothing_can_be_read_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.md"
    path.write_text("nothing here", encoding="utf-8")
    with pytest.raises(UsageError, match=r"no rows of results could be read from .*notes\.md") as caught:
        call(path, "--store", tmp_path)
    assert caught.value.exit_code == 2
    assert "the page has no table" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists()
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        call(tmp_path / "missing.md", "--store", tmp_path)


def test_a_file_that_is_no_text_or_far_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.md"
    path.write_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(UsageError, match="not text"):
        call(path, "--store", tmp_path)
    path.write_bytes(b"|" * (MAX_BYTES + 1))
    with pytest.raises(UsageError, match="more than 8 MiB"):
        call(path, "--store", tmp_path)


def test_nothing_on_a_page_or_in_its_name_steers_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a\x1b[31m.md"
    path.write_text(PAGE.replace("N7", "\x1b[31m<img onerror=x>").replace("mood", "\x1b[2J"), encoding="utf-8")
    assert call(path, "--store", tmp_path) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out
    assert "\x1b" not in err


def test_a_folder_of_pages_is_read_with_what_is_inside_and_each_page_stays_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for vendor in ("north", "south"):
        folder = tmp_path / "training" / vendor / "vit-pytorch"
        folder.mkdir(parents=True)
        (folder / "README.md").write_text(PAGE + f"\n<!-- {vendor} -->\n", encoding="utf-8")
    (tmp_path / "training" / ".hidden.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "training" / "notes.md").write_text("nothing here", encoding="utf-8")
    assert call(tmp_path / "training", "--store", tmp_path / "store") == 0
    out, err = capsys.readouterr()
    assert "north-vit-pytorch-n7-vit-1x8-fp32" in out
    assert "south-vit-pytorch-n7-vit-1x8-fp32" in out
    assert "notes.md: not read: line 1: the page has no table" in err
    assert show("ViT", "--json", "--store", tmp_path / "store") == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["imported"]]
    assert len({row["source"]["address"] for row in rows}) == len({row["name"] for row in rows}) == 2
    with pytest.raises(UsageError, match="has no pages"):
        call(tmp_path / "store", "--store", tmp_path / "store")


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_a_page_is_read_from_standard_input_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PAGE.encode(encoding))))
    assert call("-", "--store", tmp_path, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["pages"]
    assert found["file"] == "standard input"
    assert found["new"] is True and Path(found["kept"]).exists()
    assert found["unread"] == ["line 3: column 'mood' is not known and kept as it stands"]
    assert found["rows"][0]["details"] == [{"name": "mood", "text": "good", "value": None, "unit": None}]
    assert (found["rows"][0]["line"], found["rows"][0]["framework"]) == (5, None)


def test_what_a_row_measured_beside_the_columns_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.md"
    path.write_text("# bert\n\n| GPU | FPS | AUC |\n|---|---|---|\n| N7 x8 | 346555 | 0.75 |\n", encoding="utf-8")
    assert call(path, "--store", tmp_path / "store", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "FPS 346555" in out and "AUC 0.75" in out
    assert not (tmp_path / "store").exists(), "a dry run keeps nothing"
