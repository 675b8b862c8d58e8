"""Runs a function on real ranks, each a process of its own, joined by gloo."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing import start_processes

# ranks are forked off one process that has imported what they need, which takes longer than what most of them do
multiprocessing.set_forkserver_preload(
    [
        "pytest",
        "torch._dynamo",
        "torch.multiprocessing",
        "trainmark.features.sharding.sharded_model",
        "trainmark.train.setup",
        "trainmark.train.stepper",
    ]
)


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returned on every rank: tensors and plain values. It must be importable."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (world, Path(folder), function, arguments), nprocs=world, start_method="forkserver")
        return [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True) for rank in range(world)]


def _rank(rank: int, world: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(function(*arguments), folder / f"rank{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
