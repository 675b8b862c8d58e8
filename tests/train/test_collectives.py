"""All ranks hear the same, and a checkpoint that only rank 0 can see resumes them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.gloo_ranks import on_ranks
from torch import distributed

from trainmark.record.errors import NotReadyError
from trainmark.train import checkpoint, collectives
from trainmark.train.collectives import Collectives, RankGroup
from trainmark.train.loop import reduce_sums

MESSAGES = (b"", b"x", bytes(range(256)) * 4)


def test_one_rank_alone_hears_itself() -> None:
    alone = Collectives()
    assert [alone.broadcast(message) for message in MESSAGES] == list(MESSAGES)
    assert alone.reduce_max(1, 2) == [1, 2]
    with pytest.raises(ValueError, match="rank 0 must pass the bytes"):
        alone.broadcast(None)


def _agree() -> dict[str, Any]:
    collectives.BROADCAST_BYTES = 100
    together = RankGroup()
    return {
        "heard": [list(together.broadcast(message if together.rank == 0 else None)) for message in MESSAGES],
        "largest": together.reduce_max(together.rank, -together.rank),
        "total": together.reduce_sum({"b": together.rank, "a": 1}),
        "gathered": [list(one) for one in together.gather(bytes(together.rank))],
        "sums": reduce_sums(
            together, {"seen": torch.tensor([1, 2]) if together.rank else 0, "loss": torch.tensor(0.5)}
        ),
    }


@pytest.mark.slow
def test_every_rank_gets_the_bytes_of_rank_0_the_largest_and_the_total() -> None:
    expected = {
        "heard": [list(message) for message in MESSAGES],
        "largest": [2, 0],
        "total": {"a": 3, "b": 3},
        "gathered": [[], [0], [0, 0]],
        "sums": {"seen": [2, 4], "loss": 1.5},
    }
    assert on_ranks(3, _agree) == [expected] * 3


def _resume(whole: Path, empty: Path, nowhere: Path) -> dict[str, Any]:
    together = RankGroup()
    on_rank_0 = distributed.get_rank() == 0
    state, damaged = checkpoint.load_newest_on_all_ranks(whole if on_rank_0 else nowhere, together, mapped=False)
    try:
        checkpoint.load_newest_on_all_ranks(empty if on_rank_0 else nowhere, together, mapped=False)
    except NotReadyError as error:
        refusal = str(error)
    return {"state": state, "damaged": damaged, "refusal": refusal}


@pytest.mark.slow
def test_all_ranks_resume_from_what_rank_0_finds_or_fail_with_its_sentence(tmp_path: Path) -> None:
    whole, empty = tmp_path / "whole", tmp_path / "empty"
    empty.mkdir()
    saved = {"stepper": {"w": torch.arange(5.0), "rates": [0.5]}, "position": {"step": 1}}
    checkpoint.save(whole, 1, saved)
    torn = checkpoint.save(whole, 2, {"position": {"step": 2}})
    (torn / "state.pt").write_bytes(b"torn")
    for rank in on_ranks(2, _resume, whole, empty, tmp_path / "nowhere"):
        assert rank["state"]["position"] == {"step": 1}
        assert rank["state"]["stepper"]["rates"] == [0.5]
        assert torch.equal(rank["state"]["stepper"]["w"], torch.arange(5.0))
        assert len(rank["damaged"]) == 1
        assert "step-000000002 is damaged (4 bytes, not " in rank["damaged"][0]
        assert rank["refusal"] == f"no whole checkpoint in {empty}"
