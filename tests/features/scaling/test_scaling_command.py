from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from support.records import make_record

from trainmark.features.scaling import command as scaling
from trainmark.record.errors import UsageError
from trainmark.record.metrics import Quantity
from trainmark.record.store import Store


def add(store: Store, run_id: str, topology: str, p_core: float, batch: int = 32, group: str | None = None) -> None:
    interval = (0.99 * p_core, 1.01 * p_core)
    store.add(
        make_record(
            run_id=run_id,
            group=group,
            plan={"topology": topology, "recipe": {"batch_per_device": batch}},
            metrics={"p_core": Quantity(value=p_core, unit="images/s", interval=interval)},
        )
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    filled = Store(tmp_path)
    add(filled, "resnet50-one", "1x1", 100)
    add(filled, "resnet50-two", "1x2", 150)
    return filled


def call(store: Store, *words: str) -> int:
    parser = argparse.ArgumentParser()
    scaling.add_arguments(parser)
    return scaling.run(parser.parse_args(["--store", str(store.folder), *words]))


def test_runs_are_compared_by_parts_of_their_ids(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(store, "one", "two") == 0
    out, err = capsys.readouterr()
    assert "0.750" in out
    assert "[0.739, 0.761]" in out
    assert "Weak scaling by p_core" in out
    assert err == ""


def test_without_words_every_group_of_the_store_is_shown(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    add(store, "resnet50-shared", "1x2", 140, batch=16)
    assert call(store) == 0
    out = capsys.readouterr().out
    assert "Weak scaling" in out
    assert "Strong scaling" in out
    assert "0.700" in out


def test_a_store_with_nothing_to_compare_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    add(store, "resnet50-one", "1x1", 100)
    assert call(store) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "--topology 1x2" in err


def test_a_damaged_record_is_named_and_the_rest_is_shown(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.path("torn").write_text("{")
    assert call(store) == 0
    out, err = capsys.readouterr()
    assert "0.750" in out
    assert "torn.json is left out" in err


def test_a_group_stands_for_its_runs(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("three", "four"):
        add(store, f"resnet50-{name}", "1x2", 160, group="5a8c9d0e")
    assert call(store, "one", "5a8c", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["scalings"]
    assert sum("three" in json.dumps(point) or "four" in json.dumps(point) for point in found["points"]) >= 1
    with pytest.raises(UsageError, match="is a published row, and only runs can stand here"):
        call(store, "one", "published:flagperf-a100-resnet50-1x1")
