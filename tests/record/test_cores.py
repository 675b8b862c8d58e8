"""How many threads a rank takes, and how many ranks a machine bears."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from support.records import make_plan, make_record

from trainmark.launch import preflight
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record import cores, doubts
from trainmark.record.machine import CpuInfo, DeviceInfo, Environment


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "read_cgroup", lambda root: cores.Allowance())


@pytest.mark.parametrize(
    ("local_ranks", "environ", "threads"),
    [
        (1, {}, 8),
        (2, {}, 4),
        (16, {}, 1),
        (1, {"OMP_NUM_THREADS": "3"}, 3),
        (2, {"OMP_NUM_THREADS": "3"}, 3),
        (2, {"OMP_NUM_THREADS": "1"}, 1),
        (2, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "theirs"}, 4),
        (1, {"OMP_NUM_THREADS": "many"}, 8),
    ],
)
def test_a_rank_takes_what_the_user_says_or_its_part_of_the_cores(
    local_ranks: int, environ: dict[str, str], threads: int
) -> None:
    assert cores.choose_threads(local_ranks, environ) == threads


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (12.0, 8), (3.9, 3), (0.5, 1)])
def test_a_quota_of_the_control_group_is_kept_to(
    quota: float | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "read_cgroup", lambda root: cores.Allowance(cores=quota))
    assert cores.count_usable_cores() == cores.choose_threads(1, {}) == threads
    assert Platform(files.load("cpu")).device_count == threads


def test_far_more_ranks_than_cores_are_refused_and_some_more_are_not() -> None:
    platform = Platform(files.load("cpu"))
    refused = preflight.check_devices(make_plan(platform="cpu", topology="1x64"), platform)
    assert refused.verdict == "failed"
    assert "needs 64 ranks on 8 usable cores" in refused.sentence
    assert "try --topology 1x8" in refused.sentence
    assert preflight.check_devices(make_plan(platform="cpu", topology="1x32"), platform).verdict == "ok"


def crowd(topology: str, *, device: str = "cpu", usable: int | None = 2) -> list[str]:
    environment = Environment(device=DeviceInfo(type=device), cpu=CpuInfo(usable_cores=usable))
    record = replace(make_record(plan={"topology": topology}), environment=environment)
    found = doubts.collect_doubts(record, reference_global_batch=256)
    return [doubt.text for doubt in found if doubt.code == "crowded-cores"]


def test_more_ranks_than_cores_are_a_doubt() -> None:
    assert "4 ranks shared 2 usable cores" in crowd("1x4")[0]
    for fine in (crowd("1x2"), crowd("2x2"), crowd("1x8", device="cuda"), crowd("1x8", usable=None)):
        assert fine == []
