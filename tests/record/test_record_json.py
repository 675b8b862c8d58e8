from __future__ import annotations

import dataclasses
import json

import pytest
from support.records import a_vocoder_record, make_record, make_timeline

from trainmark.record.errors import UsageError
from trainmark.record.record import Record, Restart
from trainmark.record.timeline import RankTrace, Timeline


@pytest.mark.parametrize("record", [make_record(), a_vocoder_record(), make_record(timeline=make_timeline(ranks=3))])
def test_a_record_survives_its_json(record: Record) -> None:
    again = Record.from_json(json.loads(record.dumps()))
    assert again.to_json() == record.to_json()
    assert again.dumps() == record.dumps()


def test_every_field_of_a_rank_is_written_and_read() -> None:
    trace = RankTrace(
        rank=3,
        host="node",
        phases_ns={"init": 5},
        wait_ns=(1, 2, 3, 4),
        compute_ns=[5, 6, 7, 8],
        exchange_ns=(1, 1, 1, 1),
        items=[9, 9, 8, 9],
        memory_peak_bytes=77,
    )
    record = make_record(timeline=Timeline(ranks=(trace,)), metrics={}, restarts=(Restart(step=2, lost_s=1.5),))
    [read] = Record.from_json(json.loads(record.dumps())).timeline.ranks
    for field in dataclasses.fields(RankTrace):
        written, found = getattr(trace, field.name), getattr(read, field.name)
        assert found == (list(written) if isinstance(written, tuple) else written), field.name


@pytest.mark.parametrize(
    ("items", "packed"),
    [([], []), ([4], [[1, 4]]), ([4, 4, 4, 2], [[3, 4], [1, 2]]), ([1, 2, 1], [[1, 1], [1, 2], [1, 1]])],
)
def test_items_are_packed_as_counts_of_equal_neighbours(items: list[int], packed: list[list[int]]) -> None:
    steps = [1] * len(items)
    trace = RankTrace(rank=0, wait_ns=steps, compute_ns=steps, items=items)
    document = make_record(timeline=Timeline(ranks=(trace,)), metrics={}).to_json()
    assert document["series"]["ranks"][0]["items"] == packed
    assert Record.from_json(document).timeline.ranks[0].items == items


def test_a_rank_that_measured_no_exchange_writes_none() -> None:
    assert "exchange_ns" not in make_record().to_json()["series"]["ranks"][0]


def test_changing_a_document_does_not_change_the_record_it_came_from() -> None:
    record = make_record()
    before = record.dumps()
    document = record.to_json()
    document["series"]["ranks"][0]["compute_ns"][0] = -1
    document["series"]["ranks"][0]["phases_ns"]["init"] = -1
    document["series"]["loss"].clear()
    document["quality"]["history"] = ()
    assert record.dumps() == before


def test_a_count_that_no_run_can_have_is_refused_before_it_takes_all_memory() -> None:
    document = make_record().to_json()
    document["series"]["ranks"][0]["items"] = [[10**15, 32]]
    with pytest.raises(UsageError, match=r"series.ranks\[0\]: 60 steps have one wait and one count of items each"):
        Record.from_json(document)
