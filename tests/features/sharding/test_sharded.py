"""However ranks share a network, and however many they are, it learns the same; and any of them can go on from any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from support.gloo_ranks import on_ranks
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh

from trainmark import workloads
from trainmark.features.sharding import sharded_model as sharded
from trainmark.features.sharding.sharded_model import ShardedParallel, copy_into
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import UsageError
from trainmark.record.precision import PRECISIONS
from trainmark.train import checkpoint, setup
from trainmark.train.collectives import Collectives, RankGroup
from trainmark.train.parallel import DataParallel
from trainmark.train.schedule import Position
from trainmark.workloads import weights
from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import TextBatch

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
    together: Collectives = RankGroup() if world > 1 else Collectives()
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
                checkpoint.save(Path(save), SAVED, rest, held, together)
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


class Lesson(NamedTuple):
    """What ranks learn together, as arguments of `learn`."""

    change: dict[str, Any]
    precision: str
    local_ranks: int
    save: str
    resume: str


WAYS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "replicas": (2, 2, {"parallel": "ddp"}),
    "four replicas of a small gpt124m": (4, 4, {"parallel": "ddp", **GPT}),
    "shards of a small gpt124m": (2, 2, {"parallel": "fsdp", **GPT}),
    "shards": (2, 2, {"parallel": "fsdp"}),
    "shards of one rank": (2, 1, {"parallel": "hsdp", "tied": True}),
    "four shards computed again": (4, 4, {"parallel": "fsdp", "recompute": "full"}),
    "shards in two nodes, in part computed again": (4, 2, {"parallel": "hsdp", "recompute": "selective"}),
    "shards of two micro-batches": (2, 2, {"parallel": "fsdp", "accumulate": 2, "tied": True}),
    "blocks of two": (2, 2, {"parallel": "fsdp", "tensor_parallel": 2, "tied": True}),
    "shards of blocks of two": (
        *(4, 4),
        {"parallel": "fsdp", "tensor_parallel": 2, "recompute": "selective", "accumulate": 2},
    ),
    "blocks of two in two nodes": (4, 2, {"parallel": "hsdp", "tensor_parallel": 2}),
}
"""Ranks, ranks a node, and how they share the network."""
WIDE = {"width": 32, "kv_heads": 4, "ffn": 48, "context": 16}
"""Of whose sizes all are multiples of 16."""
IN_EIGHT_BITS: dict[str, dict[str, Any]] = {
    "replicas in fp8": {"parallel": "ddp"},
    "shards in fp8": {"parallel": "fsdp"},
    "shards in fp8, in part computed again": {"parallel": "fsdp", "recompute": "selective"},
}
SAVING = ("shards", "blocks to go on alone")
"""And all that compute in fewer bits than they keep."""
GONE_ON = {"two replicas": (2, "ddp", 1), "four shards": (4, "fsdp", 1), "four shards of blocks": (4, "fsdp", 2)}


def lessons(folder: Path) -> dict[int, dict[str, Lesson]]:
    """By how many ranks take them; one that goes on comes after the one that saved."""
    found: dict[int, dict[str, Lesson]] = {2: {}, 4: {}}

    def take(name: str, world: int, local_ranks: int, precision: str = "fp32", resume: str = "", **change: Any) -> None:
        saved = str(folder / name) if name in SAVING or precision != "fp32" else ""
        resumed = str(folder / resume) if resume else ""
        found[world][name] = Lesson(change, precision, local_ranks, saved, resumed)

    for name, (world, local_ranks, change) in WAYS.items():
        take(name, world, local_ranks, **change)
    for tensor in (1, 2):
        take(f"bf16 on {tensor}", 2, 2, "bf16", parallel="fsdp", tensor_parallel=tensor)
    for name, change in IN_EIGHT_BITS.items():
        take(name, 2, 2, "fp8", **WIDE, **change)
    for name, (world, parallel, tensor) in GONE_ON.items():
        take(name, world, world, resume="shards", parallel=parallel, tensor_parallel=tensor)
    take("blocks to go on alone", 4, 4, parallel="fsdp", tensor_parallel=2)
    for precision in ("fp32", "bf16"):
        take(f"after one in {precision}", 2, 2, precision, f"alone in {precision}", parallel="fsdp", tied=True)
    return found


def learn_each(lessons: dict[str, Lesson]) -> dict[str, dict[str, Any]]:
    return {name: learn(*lesson) for name, lesson in lessons.items()}


class Learnt(NamedTuple):
    folder: Path
    """Where each lesson left its checkpoint, by name."""
    by_name: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    """What two ranks and four found in all their lessons, which they take one after the other, as starting them and
    their first step take longest."""
    folder = tmp_path_factory.mktemp("sharded")
    for precision in ("fp32", "bf16"):
        learn({"tied": True}, precision, 1, str(folder / f"alone in {precision}"))
    found: dict[str, dict[str, Any]] = {}
    for world, taken in lessons(folder).items():
        ranks = on_ranks(world, learn_each, taken)
        for name in taken:
            assert all(one[name]["losses"] == ranks[0][name]["losses"] for one in ranks), name
            found[name] = {**ranks[0][name], "held": [one[name]["held"] for one in ranks]}
    return Learnt(folder, found)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_one_device(learnt: Learnt, way: str) -> None:
    world, local_ranks, change = WAYS[way]
    same = {name: value for name, value in change.items() if name not in ("parallel", "recompute", "accumulate")}
    found = learnt.by_name[way]
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
def test_bf16_is_computed_from_float32_masters_and_summed_in_float32(learnt: Learnt, tensor: int) -> None:
    found, folder = learnt.by_name[f"bf16 on {tensor}"], learnt.folder / f"bf16 on {tensor}"
    assert found["losses"] == pytest.approx(alone("bf16")["losses"], rel=1e-2)
    state = checkpoint.load_newest(folder)[0]["stepper"]
    assert {weight.dtype for weight in state["model"].values()} == {torch.float32}
    assert state["master_weights"] == []
    assert found["types"] == alone("bf16")["types"] == ["torch.bfloat16", "torch.float32"]  # norms stay float32
    # one device keeps weights and masters apart
    alone_from_there = learn({}, "bf16", 1, resume=str(folder))
    assert alone_from_there["losses"] == pytest.approx(found["losses"][SAVED:], rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("way", IN_EIGHT_BITS)
def test_fp8_learns_on_two_ranks_what_it_learns_on_one(learnt: Learnt, way: str) -> None:
    found = learnt.by_name[way]
    assert found["losses"] == pytest.approx(alone("fp8", **WIDE)["losses"], rel=5e-3)
    assert found["losses"] != alone("bf16", **WIDE)["losses"]
    assert found["losses"] == pytest.approx(alone("bf16", **WIDE)["losses"], rel=1e-2)
    state = checkpoint.load_newest(learnt.folder / way)[0]["stepper"]
    masters = state["model"].values() if IN_EIGHT_BITS[way]["parallel"] == "fsdp" else state["master_weights"]
    assert {weight.dtype for weight in masters} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one device", *GONE_ON])
def test_what_two_ranks_sharded_saved_goes_on_with_any_number_in_any_way(learnt: Learnt, way: str) -> None:
    saved = learnt.folder / "shards"
    [newest] = weights.checkpoints(saved)
    assert [path.name for path in sorted(newest.glob("rank*"))] == ["rank00000.safetensors", "rank00001.safetensors"]
    found = learnt.by_name[way] if way in GONE_ON else learn({}, "fp32", 1, resume=str(saved))
    assert found["losses"] == pytest.approx(alone()["losses"][SAVED:], rel=1e-4)


@pytest.mark.slow
def test_what_four_ranks_saved_that_share_blocks_goes_on_on_one_device(learnt: Learnt) -> None:
    found = learn({}, "fp32", 1, resume=str(learnt.folder / "blocks to go on alone"))
    assert found["losses"] == pytest.approx(alone()["losses"][SAVED:], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "differs"), [("fp32", 1e-4), ("bf16", 5e-3)])
def test_what_one_device_saved_goes_on_sharded(learnt: Learnt, precision: str, differs: float) -> None:
    found = learnt.by_name[f"after one in {precision}"]
    assert found["losses"] == pytest.approx(alone(precision, tied=True)["losses"][SAVED:], rel=differs)


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
        sharded.shard(
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
    assert "compiled=blocks does not work with tensor_parallel" in said[3]
    assert "fp8 does not work with tensor_parallel=2" in said[4]
    assert "it is not sharded" in said[5]
    assert "has no plan for tensor parallelism" in said[6]


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

    def begin_exchange(self) -> None:
        self.said.append("begins")

    def end_exchange(self) -> None:
        self.said.append("ends")

    @contextmanager
    def exchange(self) -> Iterator[None]:
        self.begin_exchange()
        yield
        self.end_exchange()


def waits() -> list[list[str]]:
    """What the clock is told in a step of two blocks, on a CPU and on what queues its work."""
    return [_told_of_a_step(is_cpu) for is_cpu in (True, False)]


def _told_of_a_step(is_cpu: bool) -> list[str]:
    device: Any = SimpleNamespace(is_cpu=is_cpu, torch=torch.device("cpu"))
    log: Any = Log()
    with torch.device("meta"):
        model = workloads.load("llama8b").build(TINY)
    parallel = ShardedParallel(
        device, PRECISIONS["fp32"], lambda empty: empty.initialise(copy_into), log, local_ranks=2
    )
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
    on_cpu, queued = on_ranks(2, waits)[0]
    assert on_cpu == ["begins", "ends"] * (len(on_cpu) // 2)
    # of evaluation nothing; of the step a wait for each block's weights, and one for the last gradients
    assert queued == ["begins", "ends"] * 3
