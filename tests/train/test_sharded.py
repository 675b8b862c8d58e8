"""However ranks share a network, and however many they are, it learns the same; and any of them can go on from any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from gloo_ranks import on_ranks
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh

from trainmark import workloads
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.spec.errors import UsageError
from trainmark.spec.precision import PRECISIONS
from trainmark.train import checkpoint, setup, tensor_parallel
from trainmark.train.collectives import Collectives, RankGroup, SingleRank
from trainmark.train.parallel import DataParallel
from trainmark.train.schedule import Position
from trainmark.train.sharded import ShardedParallel, place
from trainmark.workloads import weights
from trainmark.workloads.decoder.batches import TextBatch
from trainmark.workloads.decoder.recipes import DecoderRecipe

TINY = DecoderRecipe(
    batch_per_device=4,
    learning_rate=1e-2,
    weight_decay=0.1,
    steps=10,
    target=1.0,
    layers=2,
    width=16,
    heads=4,
    kv_heads=2,
    ffn=24,
    vocabulary=50,
    context=8,
    clip_gradient_norm=0.5,
    memory_format="contiguous",
)
GPT = {
    "tied": True,
    "activation": "gelu",
    "norm_weights": False,
    "scale_attention": True,
    "init": "torch",
    "kv_heads": 4,
}
"""What makes it a small gpt124m."""
STEPS, SAVED = 4, 2
BATCH = 8


def batch_of(step: int, rank: int, world: int, context: int = TINY.context) -> TextBatch:
    lot = torch.Generator().manual_seed(step)
    tokens = torch.randint(TINY.vocabulary, (BATCH, context + 1), generator=lot)
    return TextBatch(tokens=tokens.chunk(world)[rank], count=BATCH // world, global_count=BATCH)


def learn(change: dict[str, Any], precision: str, local_ranks: int, save: str = "", resume: str = "") -> dict[str, Any]:
    """Losses of a few steps, with a checkpoint after the second; begins at the newest where a folder is given."""
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    rank = distributed.get_rank() if world > 1 else 0
    together: Collectives = RankGroup() if world > 1 else SingleRank()
    recipe = replace(TINY, **change)
    tensor = recipe.tensor_parallel if world > 1 else 1
    device = Platform(files.load("cpu")).open(0)
    stepper = setup.build_stepper(
        workloads.load("llama8b"), recipe, PRECISIONS[precision], device, world, local_ranks=local_ranks
    )
    if resume:
        log: Any = SimpleNamespace(write=lambda event: None)
        assert setup.resume_from_checkpoint(resume, stepper, log, together).step == SAVED
    losses = []
    for step in range(SAVED if resume else 0, STEPS):
        losses.append(stepper.step(batch_of(step, rank // tensor, world // tensor, recipe.context)))
        if save and step == SAVED - 1:
            state = {"stepper": stepper.state(), "position": asdict(Position(step=SAVED))}
            rest, held = stepper.parallel.split(state)
            if rank == 0 or held is not None:
                checkpoint.save_in_pieces(Path(save), SAVED, rest, held, together)
    total = torch.stack(losses)
    if world > 1:
        distributed.all_reduce(total)
    tally = stepper.parallel.exchanged
    shape = tally.shape(parameters=0, backward_s=None) if tally else None
    counted = msgspec.to_builtins(shape) if shape else {}
    computed_with = {str(stepper.parallel.type_of(weight)) for weight in _weights(stepper)}
    held_here = sum(
        weight.to_local().numel() if hasattr(weight, "to_local") else weight.numel() for weight in _weights(stepper)
    )
    return {
        "losses": (total / world).tolist(),
        "exchanged": counted,
        "held": held_here,
        "types": sorted(computed_with),
    }


def _weights(stepper: Any) -> list[Tensor]:
    return list(stepper.bare_model.parameters())


@cache
def alone(precision: str = "fp32", **change: Any) -> dict[str, Any]:
    return learn(change, precision, 1)


def ranks(
    world: int, local_ranks: int, *, precision: str = "fp32", save: str = "", resume: str = "", **change: Any
) -> dict[str, Any]:
    if world == 1:
        return learn(change, precision, 1, save, resume)
    found = on_ranks(world, learn, change, precision, local_ranks, save, resume)
    assert all(one["losses"] == found[0]["losses"] for one in found)
    return {**found[0], "held": [one["held"] for one in found]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "local_ranks", "change"),
    [
        (2, 2, {"parallel": "ddp"}),
        (4, 4, {"parallel": "ddp", **GPT}),
        (2, 2, {"parallel": "fsdp", **GPT}),
        (2, 2, {"parallel": "fsdp"}),
        (2, 1, {"parallel": "hsdp", "tied": True}),
        (4, 4, {"parallel": "fsdp", "recompute": "full"}),
        (4, 2, {"parallel": "hsdp", "recompute": "selective"}),
        (2, 2, {"parallel": "fsdp", "accumulate": 2, "tied": True}),
        (2, 2, {"parallel": "fsdp", "tensor_parallel": 2, "tied": True}),
        (4, 4, {"parallel": "fsdp", "tensor_parallel": 2, "recompute": "selective", "accumulate": 2}),
        (4, 2, {"parallel": "hsdp", "tensor_parallel": 2}),
    ],
)
def test_losses_are_those_of_one_device(world: int, local_ranks: int, change: dict[str, Any]) -> None:
    same = {name: value for name, value in change.items() if name not in ("parallel", "recompute", "accumulate")}
    found = ranks(world, local_ranks, **change)
    assert found["losses"] == pytest.approx(alone(**same)["losses"], rel=1e-4)
    whole = alone(**same)["held"]
    if change["parallel"] == "ddp":
        assert found["held"] == [whole] * world
        sent = {"kind": "all-reduce", "parallel": "ddp", "messages": 1, "bytes": 4 * whole, "last_bytes": 4 * whole}
        assert sent.items() <= found["exchanged"].items()
        assert found["exchanged"]["dtypes"] == {"float32": 4 * whole}
    elif change.get("tensor_parallel"):
        cut = TINY.layers * (2 * TINY.width * TINY.width + 2 * TINY.width * TINY.width // 2 + 3 * TINY.width * TINY.ffn)
        shards = local_ranks if change["parallel"] == "hsdp" else world
        assert sum(found["held"]) == (cut + 2 * (whole - cut)) * world // shards  # what is not cut, both have
        assert found["exchanged"]["kind"] == "all-reduce, reduce-scatter and all-gather"
        stream = 4 * BATCH * TINY.context * TINY.width * 2 // world
        assert found["exchanged"]["bytes"] >= 4 * TINY.layers * stream
    else:
        shards = local_ranks if change["parallel"] == "hsdp" else world
        assert sum(found["held"]) == whole * world // shards
        if shards > 1:
            sent = found["exchanged"]
            assert (sent["kind"], sent["parallel"]) == ("reduce-scatter and all-gather", change["parallel"])
            assert sent["bytes"] >= 2 * 4 * whole
            assert sent["gathered_bytes"] > sent["bytes"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("tensor", [1, 2])
def test_bf16_is_computed_from_float32_masters_and_summed_in_float32(tmp_path: Path, tensor: int) -> None:
    found = ranks(2, 2, precision="bf16", parallel="fsdp", tensor_parallel=tensor, save=str(tmp_path))
    assert found["losses"] == pytest.approx(alone("bf16")["losses"], rel=1e-2)
    state = checkpoint.load_newest(tmp_path)[0]["stepper"]
    assert {weight.dtype for weight in state["model"].values()} == {torch.float32}
    assert state["master_weights"] == []
    assert found["types"] == ["torch.bfloat16"]


WIDE = {"width": 32, "kv_heads": 4, "ffn": 48, "context": 16}
"""Of whose sizes all are multiples of 16."""


@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "change"), [("ddp", {}), ("fsdp", {}), ("fsdp", {"recompute": "selective"})])
def test_fp8_learns_on_two_ranks_what_it_learns_on_one(tmp_path: Path, parallel: str, change: dict[str, Any]) -> None:
    found = ranks(2, 2, precision="fp8", parallel=parallel, save=str(tmp_path), **WIDE, **change)
    assert found["losses"] == pytest.approx(alone("fp8", **WIDE)["losses"], rel=5e-3)
    assert found["losses"] != alone("bf16", **WIDE)["losses"]
    assert found["losses"] == pytest.approx(alone("bf16", **WIDE)["losses"], rel=1e-2)
    state = checkpoint.load_newest(tmp_path)[0]["stepper"]
    masters = state["model"].values() if parallel == "fsdp" else state["master_weights"]
    assert {weight.dtype for weight in masters} == {torch.float32}


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    ranks(2, 2, parallel="fsdp", save=str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "parallel", "tensor"), [(1, "ddp", 1), (2, "ddp", 1), (4, "fsdp", 1), (4, "fsdp", 2)]
)
def test_what_two_ranks_sharded_saved_goes_on_with_any_number_in_any_way(
    world: int, parallel: str, tensor: int, saved_by_two: Path
) -> None:
    [newest] = weights.checkpoints(saved_by_two)
    assert [path.name for path in sorted(newest.glob("rank*"))] == ["rank00000.safetensors", "rank00001.safetensors"]
    found = ranks(world, world, parallel=parallel, tensor_parallel=tensor, resume=str(saved_by_two))
    assert found["losses"] == pytest.approx(alone()["losses"][SAVED:], rel=1e-4)


@pytest.mark.slow
def test_what_four_ranks_saved_that_share_blocks_goes_on_on_one_device(tmp_path: Path) -> None:
    ranks(4, 4, parallel="fsdp", tensor_parallel=2, save=str(tmp_path))
    found = ranks(1, 1, resume=str(tmp_path))
    assert found["losses"] == pytest.approx(alone()["losses"][SAVED:], rel=1e-4)


@pytest.mark.slow
def test_what_one_device_saved_goes_on_sharded(tmp_path: Path) -> None:
    learn({}, "fp32", 1, str(tmp_path))
    found = ranks(2, 2, parallel="fsdp", resume=str(tmp_path))
    assert found["losses"] == pytest.approx(alone()["losses"][SAVED:], rel=1e-4)


def refused() -> list[str]:
    device = Platform(files.load("cpu")).open(0)
    said = []
    for name, precision, change in (
        ("gpt124m", "amp-fp16", {"parallel": "fsdp"}),
        ("gpt124m", "fp32", {"parallel": "fsdp", "compiled": "yes"}),
        ("gpt124m", "fp32", {"parallel": "fsdp", "average_decay": 0.9}),
        ("gpt124m", "fp32", {"parallel": "fsdp", "tensor_parallel": 2, "compiled": "blocks"}),
        ("gpt124m", "fp8", {"parallel": "fsdp", "tensor_parallel": 2}),
    ):
        recipe = replace(TINY, **change)
        try:
            setup.build_stepper(workloads.load(name), recipe, PRECISIONS[precision], device, 2, local_ranks=2)
        except UsageError as error:
            said.append(str(error))
    vision = workloads.load("resnet50")
    recipe = replace(vision.recipes["smoke"], parallel="fsdp")
    try:
        setup.build_stepper(vision, recipe, PRECISIONS["fp32"], device, 2, local_ranks=2)
    except UsageError as error:
        said.append(str(error))
    try:
        tensor_parallel.share(
            torch.nn.Linear(2, 2), init_device_mesh("cpu", (2,)), lambda message, gathered=False: nullcontext()
        )
    except UsageError as error:
        said.append(str(error))
    return said


@pytest.mark.slow
def test_what_cannot_be_sharded_is_refused_in_a_sentence() -> None:
    said = on_ranks(2, refused)[0]
    assert "loss scaler" in said[0]
    assert "set compiled=blocks" in said[1]
    assert "no rank holds all weights to average" in said[2]
    assert "compiled=blocks does not go with tensor_parallel" in said[3]
    assert "fp8 does not go with tensor_parallel=2" in said[4]
    assert "it is not sharded" in said[5]
    assert "does not say how devices could share its blocks" in said[6]


def test_one_rank_has_nothing_to_shard() -> None:
    device = Platform(files.load("cpu")).open(0)
    recipe = replace(TINY, parallel="fsdp")
    stepper = setup.build_stepper(workloads.load("llama8b"), recipe, PRECISIONS["fp32"], device, 1)
    assert not isinstance(stepper.parallel, DataParallel)
    assert not stepper.parallel.together


class Log:
    """Is told what the clock would be told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def exchange_begins(self) -> None:
        self.said.append("begins")

    def exchange_ends(self) -> None:
        self.said.append("ends")

    @contextmanager
    def exchange(self) -> Iterator[None]:
        self.exchange_begins()
        yield
        self.exchange_ends()


def waits(is_cpu: bool) -> list[str]:
    """What the clock is told in a step of two blocks, on a CPU and on what queues its work."""
    device: Any = SimpleNamespace(is_cpu=is_cpu, torch=torch.device("cpu"))
    log: Any = Log()
    with torch.device("meta"):
        model = workloads.load("llama8b").build(TINY)
    parallel = ShardedParallel(device, PRECISIONS["fp32"], lambda empty: empty.initialise(place), log, local_ranks=2)
    parallel.wrap(model)
    batch = batch_of(0, distributed.get_rank(), 2)
    model(batch.tokens[:, :-1], batch.tokens[:, 1:]).backward()
    parallel.after_backward()
    with torch.no_grad():
        model(batch.tokens[:, :-1], batch.tokens[:, 1:])
    said: list[str] = log.said
    return said


@pytest.mark.slow
def test_the_clock_is_told_of_the_exchanges_that_computing_does_not_hide() -> None:
    on_cpu, queued = on_ranks(2, waits, True)[0], on_ranks(2, waits, False)[0]
    assert on_cpu == ["begins", "ends"] * (len(on_cpu) // 2)
    # of evaluation nothing; of the step a wait for each block's weights, and one for the last gradients
    assert queued == ["begins", "ends"] * 3
