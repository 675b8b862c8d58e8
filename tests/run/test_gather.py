"""One record out of what the ranks wrote down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from records import make_plan

from trainmark.run import gather
from trainmark.run.events import EventWriter
from trainmark.spec.errors import NotReadyError
from trainmark.spec.plan import Plan
from trainmark.spec.recipe import Limits
from trainmark.spec.record import Record

MS = 1_000_000


class Folder:
    """A run folder as a launcher and its workers leave it."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        head = {
            "run_id": "a-run",
            "created": "2026-01-01T00:00:00Z",
            "group": None,
            "item": "images",
            "target": {"name": "acc1", "unit": "%", "better": "higher"},
            "reference_global_batch": 256,
        }
        (path / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
        (path / "run.json").write_text(json.dumps(head), encoding="utf-8")

    def rank(
        self, rank: int, compute_ms: list[int], *, ended: str | None = "the target is reached", **failed: Any
    ) -> None:
        events = EventWriter(self.path / f"rank{rank}.jsonl")
        events.write("begin", rank=rank, host="here", pid=1, startup_ns=2 * MS)
        events.write("ready", steps_per_epoch=100, first_step=0)
        for first in range(0, len(compute_ms), 7):
            some = compute_ms[first : first + 7]
            events.write(
                "steps",
                first=first,
                wait_ns=[MS] * len(some),
                compute_ns=[ms * MS for ms in some],
                items=[8] * len(some),
                loss=[1.0] * len(some),
            )
        events.write("evaluation", step=50, epoch=0.5, values={"acc1": 80.0}, samples=100, elapsed_ns=77 * MS)
        if failed:
            events.write("failed", rank=rank, at_ns=5, **failed)
        if ended:
            phases = {"startup": 2 * MS, "init": 3 * MS, "evaluate": 100 * MS, "other": 5 * MS}
            events.write("phases", phases_ns=phases, memory_peak_bytes=2**30 * (rank + 1))
            events.write("end", ended=ended, skipped=[])

    def record(self) -> Record:
        record = gather.record(self.path)
        assert Record.from_json(json.loads(record.dumps())) == record
        return record


def values(record: Record) -> dict[str, float | None]:
    return {alias: quantity.value for alias, quantity in record.metrics.items()}


def test_a_full_run_covers_every_step(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits()))
    folder.rank(0, [90] * 5 + [10] * 95)
    record = folder.record()
    assert (record.status, record.coverage, record.quality.reached) == ("valid", "all training steps", True)
    compute = 5 * 0.09 + 95 * 0.01
    found = values(record)
    assert found["p_core"] == pytest.approx(800 / compute)
    assert found["p_train"] == pytest.approx(800 / (compute + 0.1 + 0.005))
    assert found["p_whole"] == pytest.approx(800 / (compute + 0.1 + 0.005 + 0.1))
    assert found["e2e_time"] == pytest.approx(compute + 0.1 + 0.11)
    assert found["time_to_target"] == pytest.approx(0.077)
    assert found["completed"] == 100
    # the interval is that of the steady part, which is exactly even here
    assert record.metrics["p_core"].interval == pytest.approx((800 / compute, 800 / compute))


def test_a_short_run_covers_the_steady_part_and_says_so(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits(steps=100)))
    folder.rank(0, [90] * 5 + [10] * 95)
    record = folder.record()
    assert record.timeline.warmup_steps == record.timeline.steady_from == 5
    assert record.coverage == "the steady part: 95 steps after 5 of warm-up"
    assert values(record)["p_core"] == pytest.approx(800)
    assert sum(record.timeline.phases_ns.values()) == sum(
        ns for trace in record.timeline.ranks for ns in (*trace.phases_ns.values(), *trace.wait_ns, *trace.compute_ns)
    )


def test_the_slowest_rank_sets_the_time_and_all_ranks_count_items(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits()))
    folder.rank(0, [10] * 50)
    folder.rank(1, [20] * 50)
    record = folder.record()
    assert values(record)["p_core"] == pytest.approx(2 * 8 / 0.020)
    assert values(record)["mem"] == 2
    assert any("rank 1 took 2.00 times as long" in doubt.text for doubt in record.doubts)


def test_a_rank_cut_off_one_step_early_does_not_spoil_the_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(topology="1x2", limits=Limits()))
    folder.rank(0, [10] * 50, ended=None)
    folder.rank(1, [10] * 49, ended=None)
    record = folder.record()
    assert (record.status, record.ended) == ("incomplete", "the run was cut off")
    assert record.timeline.steps == 49
    assert values(record)["p_core"] == pytest.approx(2 * 8 / 0.010, rel=0.03)


def test_a_torn_last_line_is_dropped_and_said_on_the_record(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan(limits=Limits()))
    folder.rank(0, [10] * 50, ended=None)
    with (tmp_path / "rank0.jsonl").open("ab") as file:
        file.write(b'{"event": "steps", "first": 50, "wait_ns": [1')
    record = folder.record()
    assert record.timeline.steps == 50
    assert any("rank 0 end in the middle of a line" in doubt.text for doubt in record.doubts)


def test_no_throughput_is_published_from_an_invalid_run(tmp_path: Path) -> None:
    folder = Folder(tmp_path, make_plan())
    folder.rank(0, [10] * 50, exit_code=5, sentence="the loss was not finite at step 49")
    record = folder.record()
    assert (record.status, record.ended) == ("invalid", "the loss was not finite at step 49")
    assert values(record)["p_core"] is None
    assert record.metrics["p_core"].unavailable == "the result is not valid"


def test_a_run_that_never_got_to_a_step_still_has_a_record(tmp_path: Path) -> None:
    record = Folder(tmp_path, make_plan()).record()
    assert record.status == "incomplete"
    assert values(record)["p_core"] is None


def test_a_folder_that_is_no_run_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="is not a run folder"):
        gather.record(tmp_path)
