"""A checkpoint is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainmark.record.errors import NotReadyError, WorkloadError
from trainmark.train import checkpoint


def test_the_newest_checkpoint_is_loaded_and_only_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, {"w": torch.full((3,), float(step)), "position": {"step": step}})
    state, damaged = checkpoint.load_newest(tmp_path)
    assert (state["position"]["step"], state["w"].tolist(), damaged) == (3, [3.0] * 3, [])
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-000000002", "step-000000003"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "no manifest", "torn manifest"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    for step in (1, 2):
        newest = checkpoint.save(tmp_path, step, {"step": step})
    content = bytearray((newest / "state.pt").read_bytes())
    if damage == "truncate":
        (newest / "state.pt").write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        (newest / "state.pt").write_bytes(content)
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text('{"step": 2, "si', encoding="utf-8")
    state, sentences = checkpoint.load_newest(tmp_path)
    assert state == {"step": 1}
    assert "checkpoint step-000000002 is damaged" in sentences[0]
    assert (tmp_path / "step-000000002.corrupt").is_dir()


def test_nothing_whole_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="no whole checkpoint in"):
        checkpoint.load_newest(tmp_path)


def test_a_half_written_checkpoint_is_never_seen(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"step": 1})
    (tmp_path / ".step-000000002.part-1").mkdir()
    (tmp_path / ".step-000000002.part-1" / "state.pt").write_bytes(b"half")
    assert checkpoint.load_newest(tmp_path)[0] == {"step": 1}


def test_a_folder_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(WorkloadError, match="cannot write the checkpoint of step 5"):
        checkpoint.save(tmp_path / "file" / "checkpoints", 5, {})


def test_code_hidden_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "owned"),))  # type: ignore[return-value]

    checkpoint.save(tmp_path, 1, {"payload": Hostile()})
    with pytest.raises(NotReadyError, match=r"no whole checkpoint .* holds more than tensors and numbers"):
        checkpoint.load_newest(tmp_path)
    assert not (tmp_path / "owned").exists()
