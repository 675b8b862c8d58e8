"""Several commands on one store at the same time get along, and nothing is lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from conftest import TINY_RUN
from support.background import Started
from support.records import make_record, renamed

from trainmark.record.store import Store

KEPT, REMOVED = 30, 8


def test_two_runs_at_once_leave_two_valid_records(environment: dict[str, str], pictures: Path) -> None:
    words = (*TINY_RUN, "--data", pictures, "--steps", "4", "--quiet", "--json")
    both = [Started(environment, *words) for _ in range(2)]
    records = []
    for code, out, err in (each.end() for each in both):
        assert code == 0, err
        records.append(json.loads(out))
    assert [record["status"] for record in records] == ["valid", "valid"]
    assert records[0]["series"]["loss"] == records[1]["series"]["loss"]
    assert {path.stem for path in (both[0].store / "records").glob("*.json")} == {each["run_id"] for each in records}


def test_twenty_commands_on_one_store_neither_fail_nor_remove_what_was_not_named(
    environment: dict[str, str], tmp_path: Path
) -> None:
    store = Store(Path(environment["TRAINMARK_STORE"]))
    names = [f"run-{number:02}" for number in range(KEPT + REMOVED)]
    for name in names:
        store.add(renamed(make_record(), name))
    commands = (
        [["rm", name] for name in names[KEPT:]]
        + [["runs"]] * 6
        + [["runs", "--json"]] * 3
        + [["rm", "--older-than", "30d", "--checkpoints", "--yes"]] * 3
    )
    random.Random(0).shuffle(commands)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "trainmark", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in commands
    ]
    for words, process in zip(commands, started, strict=True):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, (words, err)
        assert "Traceback" not in err
    assert sorted(row.run_id for row in store.rows()) == names[:KEPT]
