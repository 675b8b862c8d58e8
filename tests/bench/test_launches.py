"""What bench/launches.py counts of plain networks is what anybody can count in them by hand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmark.features.flops.step_count import BACKWARD, FORWARD

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("launches")
    for name in [path.stem for path in BENCH.glob("*.py")]:
        sys.modules.pop(name, None)


def test_two_linear_layers_and_a_relu(launches: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 8)).sum()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    count = launches.counted(step)
    found: dict[str, int] = {}
    for launch, times in count.launches:
        found[launch.operator] = found.get(launch.operator, 0) + times
    assert found["addmm"] == 2
    assert found["mm"] == 3  # weights of both, and what the second read
    assert found["add_"] == 4  # an update of each parameter
    assert dict(count.waits) == {"_local_scalar_dense": 1}


@pytest.mark.slow
def test_one_more_frame_costs_ours_fewer_launches_than_the_textbooks(launches: Any) -> None:
    def frame(count: Any) -> dict[str, float]:
        few, many = launches.parts(count(4)), launches.parts(count(8))
        return {part: (many[part] - few[part]) / 4 for part in (FORWARD, BACKWARD)}

    ours = frame(lambda frames: launches.our_clips(frames, launches.FULL))
    plain = frame(launches.plain_clips)
    assert ours[FORWARD] < plain[FORWARD]
    assert ours[BACKWARD] < plain[BACKWARD]
