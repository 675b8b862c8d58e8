"""A checkpoint that all ranks write, each what it holds, is whole or not there, and is read back by any number."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.aimed_kills import kill_at, kill_beyond
from support.gloo_ranks import on_ranks
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from trainmark.features.sharding.sharded_model import ShardedParallel, find_local_region
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import NotReadyError, WorkloadError
from trainmark.record.precision import PRECISIONS
from trainmark.train import checkpoint
from trainmark.train.collectives import RankGroup
from trainmark.workloads import pieces, weights

WHOLE = {"rows": torch.arange(15.0).view(5, 3), "columns": torch.arange(12.0).view(2, 6).bfloat16()}
CUTS = {"rows": 0, "columns": 1}


def state_of(step: int) -> dict[str, Any]:
    """What a rank holds of a state: tensors cut over the ranks, one that all hold, and plain values."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))

    def spread(whole: Tensor, *placements: Any) -> DTensor:
        empty = DTensor.from_local(torch.zeros(0), mesh, placements, run_check=False, shape=whole.shape, stride=(3, 1))
        return DTensor.from_local(
            whole[find_local_region(empty)].clone(),
            mesh,
            placements,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )

    model = {name: spread(whole + step, Shard(CUTS[name])) for name, whole in WHOLE.items()}
    alike = spread(torch.full((2, 2), float(step)), Replicate())
    optimizer = {"state": {0: {"mean": alike, "step": torch.tensor(2.0)}}, "rates": (0.5, None)}
    return {"stepper": {"model": model, "optimizer": optimizer}, "position": {"step": step}}


def save(folder: Path, step: int, together: RankGroup) -> None:
    device = Platform(files.load("cpu")).open(0)
    parallel = ShardedParallel(device, PRECISIONS["fp32"], lambda empty: None, local_ranks=2)
    rest, held = parallel.split(state_of(step))
    checkpoint.save(folder, step, rest, held, together)


def read(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = pieces.read_all(checkpoint.load_newest(folder)[0])
    return state


def is_of(state: dict[str, Any], step: int) -> bool:
    model, optimizer = state["stepper"]["model"], state["stepper"]["optimizer"]
    assert all(torch.equal(model[name], whole + step) for name, whole in WHOLE.items())
    assert torch.equal(optimizer["state"][0]["mean"], torch.full((2, 2), float(step)))
    assert optimizer["rates"] == (0.5, None)
    return bool(state["position"]["step"] == step)


def each_at_home(homes: list[str]) -> dict[str, Any]:
    """Saves and reads where every rank sees its own folder behind one path."""
    os.chdir(homes[distributed.get_rank()])
    together = RankGroup()
    folder = Path("/proc/self/cwd/checkpoints")
    for step in (1, 2, 3):
        save(folder, step, together)
    state: dict[str, Any] = pieces.read_all(checkpoint.load_newest_on_all_ranks(folder, together, mapped=True)[0])
    return state


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_each_rank_writes_what_it_holds_and_sends_it_where_it_does_not_see_the_folder(
    tmp_path: Path, shared: bool
) -> None:
    homes = [tmp_path / "one", tmp_path / ("one" if shared else "other")]
    for home in homes:
        home.mkdir(exist_ok=True)
    assert all(is_of(state, 3) for state in on_ranks(2, each_at_home, [*map(str, homes)]))
    folder = homes[0] / "checkpoints"
    assert is_of(read(folder), 3)
    assert [path.name for path in sorted(folder.iterdir())] == ["step-000000002", "step-000000003"]
    newest = folder / "step-000000003"
    names = ["manifest.json", "rank00000.safetensors", "rank00001.safetensors", "state.pt"]
    assert [path.name for path in sorted(newest.iterdir())] == names
    assert shared or not list(homes[1].iterdir())

    # what else reads checkpoints
    assert torch.equal(weights.read_weights(folder)["rows"], WHOLE["rows"] + 3)
    before = weights.weights_sha256(newest / "state.pt")
    shutil.copy(newest / "state.pt", tmp_path)
    with pytest.raises(NotReadyError, match="is separated from its shard files"):
        weights.read_weights(tmp_path / "state.pt")

    # a piece that is damaged or lost
    content = bytearray((newest / "rank00001.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "rank00001.safetensors").write_bytes(content)
    assert weights.weights_sha256(newest / "state.pt") != before
    state, damaged = checkpoint.load_newest(folder)
    assert is_of(pieces.read_all(state), 2)
    assert "(rank00001.safetensors: its content does not match its hash) and was set aside" in damaged[0]
    (folder / "step-000000002" / "rank00000.safetensors").unlink()
    with pytest.raises(NotReadyError, match="No such file"):
        checkpoint.load_newest(folder)


def killed(folder: str, rank: int, moment: str) -> None:
    together = RankGroup()
    save(Path(folder), 1, together)
    if distributed.get_rank() == rank:
        if moment == "in its piece":
            kill_beyond(200)
        else:
            kill_at(8, folder)  # after a folder, six files and the folder around them
    save(Path(folder), 2, together)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "moment"), [(1, "in its piece"), (0, "in its piece"), (0, "at the rename")])
def test_a_rank_killed_while_all_save_leaves_the_checkpoint_before(tmp_path: Path, rank: int, moment: str) -> None:
    # whichever ends first: the rank that was killed, or the other one, which lost it
    with pytest.raises((ProcessExitedException, ProcessRaisedException), match=r"SIGKILL|SIGXFSZ|[Cc]onnection"):
        on_ranks(2, killed, str(tmp_path), rank, moment)
    assert is_of(read(tmp_path), 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("step")] == ["step-000000001"]


def without_room(folder: str) -> str:
    together = RankGroup()
    save(Path(folder), 1, together)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200 if distributed.get_rank() == 1 else soft, hard))
    try:
        save(Path(folder), 2, together)
    except WorkloadError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return ""


@pytest.mark.slow
def test_a_rank_that_finds_no_room_is_heard_by_all_and_nothing_is_left_of_the_attempt(tmp_path: Path) -> None:
    sentence = f"cannot write the checkpoint of step 2 to {tmp_path}: File too large"
    assert on_ranks(2, without_room, str(tmp_path)) == [sentence, sentence]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert is_of(read(tmp_path), 1)


def test_pieces_that_do_not_make_up_a_tensor_are_refused(tmp_path: Path) -> None:
    held = [pieces.Piece("w", (0, 0), torch.ones(2, 3))]
    (tmp_path / "rank00000.safetensors").write_bytes(b"".join(pieces.blocks(held)))
    (tmp_path / "manifest.json").write_text('{"shards": {"rank00000.safetensors": {}}}', encoding="utf-8")
    for shape, refusal in (((4, 3), "do not make up the whole"), ((6,), "of another shape")):
        state = pieces.open_state({"w": torch.empty(shape, device="meta")}, tmp_path)
        with pytest.raises(NotReadyError, match=refusal):
            pieces.read_all(state)
    assert torch.equal(
        pieces.open_state({"w": torch.empty(2, 3, device="meta")}, tmp_path)["w"][1:2, 1:3], torch.ones(1, 2)
    )
    (tmp_path / "manifest.json").write_text('{"shards": {"../rank00000.safetensors": {}}}', encoding="utf-8")
    with pytest.raises(NotReadyError, match="no safetensors file beside it"):
        pieces.open_state({}, tmp_path)
