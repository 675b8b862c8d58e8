"""`trainmark rm`: what goes, what stays, and what is said of it."""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.records import make_record

from trainmark.cli import rm
from trainmark.cli.main import main
from trainmark.record.errors import UsageError
from trainmark.record.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Runs of 1, 40 and 50 days ago, the older ones a group, each with a checkpoint; and one that goes on."""
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    filled = Store(tmp_path / "store")
    for days, name in ((1, "new"), (40, "old"), (50, "older")):
        created = (datetime.now(timezone.utc) - timedelta(days=days)).isoformat(timespec="seconds")
        group = None if name == "new" else "5a8c9d0e"
        filled.add(make_record(run_id=f"resnet50-{name}", created=created, group=group))
        checkpoints = filled.runs / f"resnet50-{name}" / "checkpoints"
        checkpoints.mkdir(parents=True)
        (checkpoints / "weights.pt").write_bytes(bytes(1000))
    going = filled.runs / "vit-going"
    going.mkdir()
    head = {"run_id": going.name, "created": "", "item": "images", "reference_global_batch": 8}
    head |= {"target": {"name": "acc1", "unit": "%", "better": "higher"}}
    head |= {"launcher_host": socket.gethostname(), "launcher_pid": os.getpid()}
    (going / "run.json").write_text(json.dumps(head))
    os.utime(going, (5000, 5000))
    return filled


def left(store: Store) -> set[str]:
    return {*store.run_ids(), *(path.name for path in store.runs.iterdir())}


def test_a_dry_run_tells_the_bytes_and_removes_nothing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = left(store)
    assert main(["rm", "old", "--dry-run"]) == 2, "the end of one id, and the beginning of another's last part"
    assert "could be any of 2 runs" in capsys.readouterr().err
    assert main(["rm", "resnet50-old", "new", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "would remove resnet50-old: " in out
    assert "2 would be removed" in out
    assert left(store) == before


def test_a_run_goes_with_everything_and_the_others_stay(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (store.samples / "resnet50-new").mkdir(parents=True)
    outside = store.folder.parent / "precious"
    outside.write_text("x")
    (store.runs / "resnet50-new" / "link").symlink_to(outside)
    assert main(["rm", "new"]) == 0
    assert "removed resnet50-new: " in capsys.readouterr().out
    assert left(store) == {"resnet50-old", "resnet50-older", "vit-going"}
    assert not any(store.samples.iterdir())
    assert outside.exists()
    assert [row.run_id for row in store.rows()] == ["resnet50-old", "resnet50-older"]
    assert main(["rm", "5a8c"]) == 0
    assert left(store) == {"vit-going"}


def test_nothing_is_removed_with_a_run_that_goes_on_nor_outside_of_the_store(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(store)
    assert main(["rm", "new", "vit-going"]) == 2
    assert "run vit-going is still running, and nothing was removed" in capsys.readouterr().err
    assert main(["rm", str(store.path("resnet50-new"))]) == 2
    assert main(["rm", "../records"]) == 2
    assert main(["rm", "nobody"]) == 2
    stranger = rm.Removable(name="x", paths=(store.folder.parent / "x",))
    with pytest.raises(UsageError, match="is outside of"):
        rm.remove(stranger, store.folder)
    assert left(store) == before


def test_what_is_chosen_by_age_is_listed_and_goes_only_with_yes(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(store)
    assert main(["rm", "--older-than", "45d"]) == 0
    out, err = capsys.readouterr()
    assert "would remove resnet50-older: " in out and "1 would be removed" in out
    assert "run vit-going is still running and is left alone" in err
    assert main(["rm", "--older-than", "30d", "--checkpoints", "--yes"]) == 0
    assert "2 removed, 1.95 KiB" in capsys.readouterr().out
    assert left(store) == before
    assert (store.runs / "resnet50-new" / "checkpoints").exists()
    assert main(["rm", "new", "--checkpoints"]) == 0
    assert left(store) == before and not (store.runs / "resnet50-new" / "checkpoints").exists()
    assert main(["rm", "--older-than", "45d", "--yes", "--dry-run"]) == 0
    assert left(store) == before
    assert main(["rm", "--older-than", "45d", "--yes"]) == 0
    assert left(store) == before - {"resnet50-older"}


@pytest.mark.parametrize("words", [[], ["new", "--older-than", "1d"], ["new", "--caches"], ["--caches"]])
def test_a_removal_that_chooses_nothing_or_twice_is_refused(store: Store, words: list[str]) -> None:
    before = left(store)
    assert main(["rm", *words, "--yes"]) == 2
    assert left(store) == before


def test_of_the_cache_only_what_is_ours_and_old_goes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    cache = store.folder.parent / "cache"
    for name in ("mels", "taught-mels", "photos"):
        (cache / name).mkdir(parents=True)
    for name in ("mels", "photos"):
        os.utime(cache / name, (5000, 5000))
    words = ["rm", "--older-than", "30d", "--caches", "--yes"]
    assert main(words) == 0
    assert "caches are left alone while a run is in progress" in capsys.readouterr().err
    (store.runs / "vit-going" / "run.json").unlink()
    (store.runs / "vit-going").rmdir()
    assert main(words) == 0
    assert {path.name for path in cache.iterdir()} == {"taught-mels", "photos"}
