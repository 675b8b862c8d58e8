"""`trainmark compare` as a person or a CI job calls it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from support.records import make_record, make_timeline

from trainmark.features.compare import command as compare
from trainmark.record.errors import UsageError
from trainmark.record.store import Store


def add(store: Store, group: str, *speeds: float) -> None:
    """Repeats of one plan, each so many times as fast as usual."""
    for number, speed in enumerate(speeds):
        timeline = make_timeline(compute_ms=1000 / speed)
        store.add(make_record(run_id=f"{group}-run{number}", group=group, timeline=timeline))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    filled = Store(tmp_path)
    add(filled, "base1234", 1.0, 1.002, 0.998, 1.001)
    add(filled, "slow5678", 0.9, 0.902, 0.898)
    add(filled, "fast9012", 1.2, 1.202, 1.198)
    add(filled, "same3456", 1.001, 0.999, 1.0)
    add(filled, "wild7890", 1.0, 1.3, 0.8)
    return filled


def call(store: Store, *words: str) -> int:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args(["--store", str(store.folder), *words]))


@pytest.mark.parametrize(
    ("group", "verdict", "code", "gated"),
    [
        ("slow5678", "slower", 6, 6),
        ("fast9012", "faster", 0, 0),
        ("same3456", "same", 0, 0),
        ("wild7890", "inconclusive", 0, 7),
    ],
)
def test_the_verdict_decides_the_exit_code(
    store: Store, capsys: pytest.CaptureFixture[str], group: str, verdict: str, code: int, gated: int
) -> None:
    assert call(store, "base1234", group) == code
    assert f"{verdict.capitalize()}: B's p_core is" in capsys.readouterr().out
    assert call(store, "base1234", group, "--gate", "--json") == gated
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == verdict
    assert document["threshold"] == 0.03


def test_what_cannot_be_told_is_blamed_on_the_noise_where_it_is_the_noise(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store, "busy1111", 0.5, 1.4, 0.9, 1.5, 0.95)
    add(store, "busy2222", 1.6, 0.7, 1.1, 0.6, 1.45)
    call(store, "busy1111", "busy2222")
    out = " ".join(capsys.readouterr().out.split())
    assert "The runs vary so much that 100 repeats of each would not decide; a quieter machine would help." in out
    assert "near the threshold" not in out
    call(store, "base1234", "same3456", "--threshold", "0.0001%")
    assert "The ratio is so near the threshold that 100 repeats" in " ".join(capsys.readouterr().out.split())


def test_the_threshold_is_the_users(store: Store) -> None:
    assert call(store, "base1234", "slow5678", "--threshold", "20%") == 0
    assert call(store, "base1234", "slow5678", "--threshold", "0.2") == 0
    assert call(store, "base1234", "slow5678", "--threshold", "0%") == 6


@pytest.mark.parametrize("word", ["three", "-1%", "100%", "nan", "3"])
def test_a_threshold_that_is_no_share_is_refused(store: Store, word: str) -> None:
    with pytest.raises(UsageError, match="--threshold"):
        call(store, "base1234", "slow5678", f"--threshold={word}")


@pytest.mark.parametrize("words", [(), ("base1234",), ("base1234", "slow5678", "fast9012")])
def test_two_results_are_compared_and_no_other_number(store: Store, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"not {len(words)}; join repeats with commas"):
        call(store, *words)


def test_files_and_single_runs_are_compared(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = store.path("slow5678-run0")
    assert call(store, "base1234-run0", str(path)) == 6
    assert "1 % a run for what changes between processes" in " ".join(capsys.readouterr().out.split())
