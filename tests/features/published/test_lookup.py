"""Lookup of runs, groups, files and published rows by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.records import make_record

from trainmark.analysis.published_lookup import find_subject
from trainmark.cli.main import main
from trainmark.record.errors import UsageError
from trainmark.record.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    filled = Store(tmp_path / "store")
    for number in range(3):
        filled.add(make_record(run_id=f"resnet50-r{number}aaa", group="5a8c9d0e"))
    for number in range(2):
        filled.add(make_record(run_id=f"resnet50-s{number}bbb", group="5a8c1111"))
    filled.add(make_record(run_id="resnet50-other", plan={"topology": "1x8"}))
    return filled


def find_ids(word: str, store: Store) -> list[str]:
    return [record.run_id for record in find_subject(word, store).records]


def test_a_run_is_meant_by_a_part_of_its_id(store: Store) -> None:
    assert find_ids("r1aaa", store) == ["resnet50-r1aaa"]
    assert find_subject("r1aaa", store).label == "run resnet50-r1aaa"
    assert len(find_ids("last", store)) == 1


@pytest.mark.parametrize("word", ["5a8c9d0e", "5a8c9"])
def test_a_group_is_meant_by_its_id_or_the_beginning_of_it(store: Store, word: str) -> None:
    assert sorted(find_ids(word, store)) == ["resnet50-r0aaa", "resnet50-r1aaa", "resnet50-r2aaa"]
    assert find_subject(word, store).label == "group 5a8c9d0e (3 runs)"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("5a8c", "any of 2 groups: 5a8c1111, 5a8c9d0e"),
        ("zzzz", "no run 'zzzz'"),
        ("r0aaa,other", r"resnet50-r0aaa and resnet50-other .* not repeats of one plan"),
        ("gone.json", "cannot be read"),
        ("results.md", r"'trainmark import results\.md'"),
        ("published:flagperf", "could be any of"),
        ("published:resnet50", "could be any of 12 published rows"),
        (
            "published:flagperf-a100-resnet51-1x1-fp32-bs256",
            "did you mean 'published:flagperf-a100-resnet50-1x1-fp32-bs256'",
        ),
        ("r0aaa,published:flagperf-a100-resnet50-1x1", "only runs can stand here"),
    ],
)
def test_a_word_that_means_nothing_or_several_is_refused_with_a_hint(store: Store, word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_subject(word, store)


def test_runs_joined_by_commas_are_repeats_and_each_counts_once(store: Store) -> None:
    assert find_ids("r0aaa,r1aaa, r0aaa", store) == ["resnet50-r0aaa", "resnet50-r1aaa"]
    assert find_subject("r0aaa,r1aaa", store).label == "runs r0aaa, r1aaa"


def test_a_record_file_is_read_and_a_list_of_records_is_a_group(store: Store, tmp_path: Path) -> None:
    records = [make_record(run_id=f"filed-{number}") for number in range(2)]
    one, several = tmp_path / "one.json", tmp_path / "several.json"
    one.write_text(records[0].dumps())
    several.write_text(json.dumps([record.to_json() for record in records]))
    assert find_ids(str(one), store) == ["filed-0"]
    assert find_ids(str(several), store) == ["filed-0", "filed-1"]


@pytest.mark.parametrize("content", ["[1]", "[", '[{"kind": "other"}]', "[]"])
def test_a_list_that_holds_no_records_is_a_sentence(store: Store, tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"odd\.json"):
        find_subject(str(path), store)


def test_a_published_row_is_meant_by_a_unique_beginning(store: Store) -> None:
    found = find_subject("published:flagperf-a100-resnet50-1x1", store)
    assert found.row is not None
    assert found.label == found.row.name == "published:flagperf-a100-resnet50-1x1-fp32-bs256"
    assert found.records == ()
    exact = find_subject("published:flagperf-a100-resnet50-1x8-fp32", store)  # also the beginning of another
    assert exact.row is not None
    assert exact.row.fix_hp == "/"


@pytest.mark.parametrize("word", ["published:resnet50", "published:flagperf-a100-resnet50-1x"])
def test_of_several_rows_the_one_most_like_the_run_is_compared_and_named(
    store: Store, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {"flops": {"per_item": 24.5e9}, "device": {"name": "AMD EPYC"}}
    store.add(make_record(run_id="resnet50-full", environment=full))
    for pair in ([word, "full"], ["full", word]):
        main(["compare", *pair, "--anyway", "--store", str(store.folder)])
        shown = " ".join(capsys.readouterr().out.split())
        assert "published:flagperf-a100-resnet50-1x1-fp32-bs256," in shown and "most like the run" in shown
    assert main(["compare", word, "other", "--store", str(store.folder)]) == 2, "no row is like a reduced network"
    assert "could be any of" in capsys.readouterr().err
