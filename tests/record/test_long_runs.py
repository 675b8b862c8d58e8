"""A run too long for its record leaves its series in a file beside it; what is said of it stays the same."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.clean_records import CUT_OFF, EVERY_KIND, TWO_RANKS, Run
from support.records import make_plan
from support.run_folders import Folder

from trainmark.analysis.audit_record import audit_document
from trainmark.analysis.comparison import Comparison, compare
from trainmark.features.hosts.remote_run import restore_series
from trainmark.features.report.run_page import ReportInputs, render
from trainmark.record import events, gather, timeline
from trainmark.record.events import EventWriter
from trainmark.record.record import Record
from trainmark.record.store import Store, Subject, read_record, series_reader
from trainmark.view.describe import describe
from trainmark.view.publish import make_publishable

MS = 1_000_000
LONG = {**EVERY_KIND, "cut off in the middle of a step": replace(CUT_OFF, steps=61)}


def gathered(folder: Path, monkeypatch: pytest.MonkeyPatch, *, inside: int = 10) -> Record:
    """The record of a run as if it were long."""
    with monkeypatch.context() as patched:
        patched.setattr(gather, "MAX_INSIDE", inside)
        return gather.gather_record(folder)


def left(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Record, Record]:
    """A run's record with its series inside, and the one it leaves if it is long."""
    with monkeypatch.context() as patched:
        patched.setattr(Run, "span_ns", lambda run, folder: _span_ns(folder))
        inside = run.leave(folder)
    return inside, gathered(folder / "runs" / inside.run_id, monkeypatch)


def _span_ns(folder: Path) -> tuple[int, int]:
    lines = (folder / "rank0.jsonl").read_bytes().splitlines()
    told = [json.loads(line) for line in lines if line]
    begin = next(event["at_ns"] for event in told if event["event"] == "ready")
    return begin, next((event["at_ns"] for event in reversed(told) if event["event"] == "phases"), begin + 10**10)


def held_together(a: Record, b: Record) -> Comparison:
    other = replace(b, run_id="other")
    return compare(Subject(word="a", label="a", records=(a,)), Subject(word="b", label="b", records=(other,)))


def kept(store: Path, record: Record) -> tuple[Record, Path]:
    path = Store(store).add(record)
    return read_record(path), path


@pytest.mark.parametrize("kind", LONG)
def test_what_is_said_of_a_long_run_is_what_its_series_inside_the_record_would_say(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, long = left(LONG[kind], tmp_path, monkeypatch)
    assert inside.series_file is None
    assert long.series_file
    for name in ("metrics", "doubts", "coverage", "status", "quality", "restarts", "telemetry", "event_files"):
        assert getattr(long, name) == getattr(inside, name), name
    assert long.loss == inside.loss
    assert long.timeline.phases_ns == inside.timeline.phases_ns
    for one, other in zip(inside.timeline.ranks, long.timeline.ranks, strict=True):
        assert (one.steps, one.whole, one.busy_ns) == (other.steps, other.whole, other.busy_ns)
        assert inside.timeline.sum_counted(one) == long.timeline.sum_counted(other)
    assert np.array_equal(inside.timeline.step_items, long.timeline.step_items)
    assert np.array_equal(inside.timeline.step_s, long.timeline.step_s)


@pytest.mark.parametrize("kind", LONG)
def test_a_long_run_s_record_is_read_with_its_series_and_passes_every_check(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, long = left(LONG[kind], tmp_path, monkeypatch)
    found, path = kept(tmp_path, long)
    assert found == long
    monkeypatch.setattr(gather, "MAX_INSIDE", 10)  # as the audit gathers it anew
    for folder in (None, tmp_path / "runs" / long.run_id):
        checked = audit_document(json.loads(path.read_text()), path.name, folder, series_reader(path))
        assert [finding for entry in checked for finding in entry.findings] == []
        assert sum(entry.verdict == "ok" for entry in checked) >= 3


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Record, Path]:
    """A long run in a store, and where its record lies."""
    _, long = left(TWO_RANKS, tmp_path, monkeypatch)
    return kept(tmp_path, long)


def test_a_record_sent_alone_still_shows_compares_and_reports_and_says_what_is_missing(
    two: tuple[Record, Path], tmp_path: Path
) -> None:
    whole, path = two
    alone = tmp_path / "alone" / path.name
    alone.parent.mkdir()
    alone.write_bytes(path.read_bytes())
    record = read_record(alone)
    assert record.means_only
    assert str(record.means_only) == f"{whole.run_id}.series.jsonl.gz is not beside the record"
    assert (record.metrics, record.doubts, record.timeline.phases_ns) == (
        whole.metrics,
        whole.doubts,
        whole.timeline.phases_ns,
    )
    assert "means of neighbouring steps: " in " ".join(describe(record).split())
    assert "means of neighbouring steps" not in " ".join(describe(whole).split())
    assert "Means of neighbouring steps are drawn" in render(ReportInputs(records=(record,)))
    assert "Means of neighbouring steps are drawn" not in render(ReportInputs(records=(whole,)))
    assert json.loads(record.dumps()) == json.loads(path.read_text())
    found = held_together(record, whole)
    assert found.a.interval
    assert any("means of neighbouring steps" in doubt for doubt in found.doubts)
    checked = {entry.name: entry for entry in audit_document(json.loads(alone.read_text()), alone.name)}
    assert not any(entry.findings for entry in checked.values())
    assert {"steps", "doubts"} <= {name for name, entry in checked.items() if entry.verdict == "unknown"}


def test_a_record_that_came_without_its_series_gets_them_from_the_run_s_events(
    two: tuple[Record, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = two
    monkeypatch.setattr(gather, "MAX_INSIDE", 10)
    alone = Record.from_json(json.loads(path.read_text()))
    folder = tmp_path / "runs" / whole.run_id
    assert restore_series(alone, folder) == whole
    assert restore_series(alone, tmp_path / "nowhere").means_only
    (folder / "rank1.jsonl").unlink()
    assert restore_series(alone, folder).means_only
    assert restore_series(whole, folder) is whole


def test_a_copy_to_be_shared_keeps_the_series_it_is_drawn_of(two: tuple[Record, Path]) -> None:
    [copy] = make_publishable([two[0]], environment={}).records
    assert copy.means_only is None
    assert copy.loss == two[0].loss
    assert copy.timeline.slowest.compute_ns == two[0].timeline.slowest.compute_ns


def test_series_that_were_changed_are_not_used_and_the_audit_says_so(two: tuple[Record, Path]) -> None:
    record, path = two
    assert record.series_file
    beside = path.with_name(record.series_file.name)
    content = gzip.decompress(beside.read_bytes())
    changes = {
        "other values": gzip.compress(content.replace(b'"items":[', b'"items":[1', 1)),
        "a step less": gzip.compress(content[: content.index(b"\n") - 40]),
        "torn": beside.read_bytes()[:-30],
        "no gzip": b"junk",
        "nothing": b"",
        "too much": gzip.compress(content + b'{"event":"steps","first":99,"wait_ns":[1],"compute_ns":[1]}' * 10),
    }
    for what, changed in changes.items():
        beside.write_bytes(changed)
        found = read_record(path)
        assert found.means_only, what
        assert found.means_only.damaged, what
        checked = audit_document(json.loads(path.read_text()), path.name, None, series_reader(path))
        [finding] = [finding for entry in checked for finding in entry.findings]
        assert (finding.name, finding.verdict) == ("steps", "failed"), what


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept["points"]["compute_ns"].__setitem__(5, 1),
        lambda kept: kept["ranks"][1]["sums"]["counted"].__setitem__(3, 9),
        lambda kept: kept["ranks"][0]["sums"]["counted"].__setitem__(1, 9),
    ],
)
def test_a_summary_that_does_not_follow_from_the_series_is_found(two: tuple[Record, Path], change: Any) -> None:
    document = json.loads(two[1].read_text())
    change(document["series"])
    checked = audit_document(document, "x.json", None, series_reader(two[1]))
    assert [finding for entry in checked for finding in entry.findings if finding.verdict == "failed"]


def test_a_record_cannot_name_a_file_elsewhere(two: tuple[Record, Path], tmp_path: Path) -> None:
    record, path = two
    assert record.series_file
    for name in ("../x.series.jsonl.gz", "/etc/x.series.jsonl.gz", "passwd", ".series.jsonl.gz"):
        with pytest.raises(ValueError, match="not that of a series file"):
            series_reader(path)(timeline.SeriesFile(name=name, sha256="", steps=1))


def test_means_never_mix_warm_up_with_steady_steps_and_are_bounded() -> None:
    for count, steady in ((1, 0), (7, 3), (999, 0), (5000, 13), (5000, 2500), (100_003, 50_001), (100_003, 1)):
        steps = timeline.StepSeries(
            wait_ns=[3] * count,
            compute_ns=[1000] * steady + list(range(2000, 2000 + count - steady)),
            items=[8] * count,
            loss=[1.0] * (count - 1) + [None],
        )
        points = timeline.thin_series(steps, steady)
        assert len(points.compute_ns) <= timeline.MAX_POINTS
        back = timeline.expand_means(points, count, steady)
        assert list(back.compute_ns[:steady]) == [1000] * steady
        assert sum(back.compute_ns) == pytest.approx(sum(steps.compute_ns), rel=1e-4)
        assert (len(back.loss), back.loss[-1]) == (count, None)


def test_the_interval_by_means_is_about_that_by_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    folder = Folder(tmp_path, make_plan(topology="1x1"))
    wander = np.convolve(draw.normal(0, 1, 30_100), np.ones(100) / 10, "valid")[:30_000]
    folder.rank(0, [int(ms) for ms in 500 + 20 * wander + draw.normal(0, 5, 30_000)])
    whole = gather.gather_record(tmp_path)
    assert whole.series_file
    alone = Record.from_json(json.loads(whole.dumps()))

    def width(record: Record) -> float:
        found = held_together(record, whole).a.interval
        assert found
        return found[1] - found[0]

    assert width(alone) == pytest.approx(width(whole), rel=0.25)


class LongRun:
    """Many ranks that train for long, as their event logs tell it."""

    def __init__(self, path: Path, *, ranks: int, steps: int) -> None:
        path.mkdir()
        self.path, self.ranks, self.steps = path, ranks, steps
        Folder(path, make_plan(topology=f"1x{ranks}"))
        draw = np.random.default_rng(0)
        for rank in range(ranks):
            log = EventWriter(path / f"rank{rank}.jsonl")
            log.write(events.Begin(rank=rank, host="node-a", pid=1, startup_ns=1))
            log.write(events.Ready(steps_per_epoch=None, first_step=0))
            values = zip(
                draw.normal(2.1e6, 2e5, steps).astype(int).tolist(),
                draw.normal(1e9, 1e7, steps).astype(int).tolist(),
                draw.normal(9e6, 6e5, steps).astype(int).tolist(),
                draw.normal(3, 0.1, steps).tolist(),
                strict=True,
            )
            for step, (wait, compute, exchange, loss) in enumerate(values):  # a step takes a second: a line each
                log.write(
                    events.Steps(
                        first=step,
                        wait_ns=[wait],
                        compute_ns=[compute],
                        exchange_ns=[exchange],
                        items=[64],
                        loss=[float(f"{loss:.7g}")],
                    )
                )
            log.write(events.Phases(phases_ns={"startup": 1, "init": 5 * MS}, memory_peak_bytes=2**30 + rank))
            log.write(events.End(ended="the steps asked for are done"))
            log.close()

    def memory_bytes(self) -> int:
        """What gathering it takes at most."""
        tracemalloc.start()
        try:
            gather.gather_record(self.path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.slow
def test_the_stated_bounds_hold(tmp_path: Path) -> None:
    few = LongRun(tmp_path / "few", ranks=2, steps=6000)
    many = LongRun(tmp_path / "many", ranks=8, steps=6000)
    record = gather.gather_record(many.path)
    store = Store(tmp_path / "store")
    path = store.add(record)
    assert path.stat().st_size < 100_000 + 500 * many.ranks
    assert record.series_file
    assert path.with_name(record.series_file.name).stat().st_size / many.steps < 20
    # a rank more costs a line of sums, and not its steps
    assert many.memory_bytes() < few.memory_bytes() + (many.ranks - few.ranks) * 20_000
