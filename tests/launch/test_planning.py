"""What words on the command line become: one workload or several, and batches by recipe and topology."""

from __future__ import annotations

import pytest

from trainmark import workloads
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.spec.errors import UsageError


@pytest.mark.parametrize("word", ["--data", "--init-from"])
def test_a_file_or_folder_is_for_one_workload(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "names", lambda: ("resnet50", "another"))
    name = word.removeprefix("--").replace("-", "_")
    with pytest.raises(UsageError, match=f"{word} is for one workload; name it: resnet50, another"):
        planning.plans(RunOptions(**{name: "somewhere"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("workload", workloads.names())
def test_smoke_keeps_its_global_batch_on_every_topology_unless_one_is_given(workload: str) -> None:
    def batch(topology: str, *settings: str) -> object:
        words = RunOptions(recipe="smoke", platform="cpu", topology=topology, settings=settings)
        return planning.decide(workload, words).recipe["batch_per_device"]

    alone = workloads.load(workload).recipes["smoke"].batch_per_device
    assert [batch("1x1"), batch("1x2"), batch("2x2")] == [alone, alone // 2, alone // 4]
    assert batch("8x64") == 1
    assert batch("1x2", "batch_per_device=24") == 24
