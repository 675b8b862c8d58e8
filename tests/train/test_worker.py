"""What a worker says when the machine has not enough memory, which threads it takes, how batches get to a device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.records import make_plan
from torch import Tensor

from trainmark.platforms.device_errors import describe, find_missing_operator, is_out_of_memory
from trainmark.record import cores
from trainmark.train import setup, transfers
from trainmark.train.failures import describe_out_of_memory
from trainmark.train.ranks import Ranks


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: 1 bytes"),
            True,
        ),
        (MemoryError("out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_known_whatever_the_device_calls_it(error: Exception, out_of_memory: bool) -> None:
    assert is_out_of_memory(error) is out_of_memory


def test_a_vendors_own_words_for_it_are_known_by_the_platform_files_pattern() -> None:
    error = RuntimeError("vendorMalloc returned 2 (no room)\n  in allocator.cpp:117")
    assert not is_out_of_memory(error)
    assert is_out_of_memory(error, r"vendorMalloc returned \d")
    assert not is_out_of_memory(ValueError("vendorMalloc returned 2"), r"vendorMalloc returned \d")


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (
            NotImplementedError(
                "Could not run 'aten::unfold' with arguments from the 'X' backend. It\nregistered at a\n"
            ),
            "aten::unfold",
        ),
        (
            NotImplementedError("The operator 'aten::_linalg_eigh' is not currently implemented for the MPS device."),
            "aten::_linalg_eigh",
        ),
        (RuntimeError("\"nll_loss_forward\" not implemented for 'Half'"), "nll_loss_forward"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (NotImplementedError(""), None),
    ],
)
def test_a_missing_operator_is_named_in_one_line(error: Exception, name: str | None) -> None:
    assert find_missing_operator(error) == name
    said = describe(error)
    assert (said is None) is (name is None)
    if said:
        assert f"the device has no operator {name}" in said
        assert "\n" not in said
        assert "registered" not in said


def test_a_failing_compiler_is_named_and_what_to_leave_out() -> None:
    code = compile("def lower(device):\n    return {}[device]\n", "/x/torch/_inductor/scheduler.py", "exec")
    scope: dict[str, Any] = {}
    exec(code, scope)
    with pytest.raises(KeyError) as failed:
        scope["lower"]("lumen")
    said = describe(failed.value) or ""
    assert said.startswith("torch.compile cannot compile the network for this device (KeyError: 'lumen')")
    with pytest.raises(KeyError) as own:
        {}["lumen"]
    assert describe(own.value) is None


def test_a_real_allocation_that_cannot_be_had_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(failed.value)


@pytest.mark.parametrize(("batch", "hint"), [(256, "try --set batch_per_device=128"), (1, "the model does not fit")])
def test_the_sentence_names_the_batch_the_peak_and_the_next_to_try(batch: int, hint: str) -> None:
    said = describe_out_of_memory(batch, 3 * 2**30, RuntimeError("no room\nand a long story"))
    assert said == f"out of memory with batch_per_device={batch} after holding 3.00 GiB: no room; {hint}"


@dataclass(frozen=True)
class Batch:
    images: Tensor
    labels: Tensor
    count: int


class Accelerator:
    """Stands in for a device whose memory is not the host's."""

    is_cpu = False

    def __init__(self) -> None:
        self.taken: list[Tensor] = []

    def to_device(self, tensor: Tensor) -> Tensor:
        self.taken.append(tensor)
        return tensor.clone()


def test_every_tensor_of_a_batch_is_taken_to_the_device_and_nothing_else() -> None:
    device: Any = Accelerator()
    batch = Batch(torch.ones(2, 3), torch.zeros(2), 2)
    [moved] = transfers.move_batches([batch], device)
    assert [tensor.data_ptr() for tensor in device.taken] == [batch.images.data_ptr(), batch.labels.data_ptr()]
    assert moved.images.data_ptr() != batch.images.data_ptr()
    assert torch.equal(moved.images, batch.images)
    assert moved.count == 2


class Pair(NamedTuple):
    weight: float
    mask: Tensor


@dataclass(frozen=True)
class Tokens:
    """A batch of another kind: what a model needs stands in dicts, tuples and dataclasses."""

    inputs: dict[str, Tensor]
    layers: tuple[Tensor, ...]
    pairs: list[Pair]
    inner: Batch
    lengths: tuple[int, ...]
    name: str
    count: int


def test_tensors_are_found_wherever_they_stand_in_a_batch() -> None:
    device: Any = Accelerator()
    one = [torch.full((2,), float(number)) for number in range(6)]
    batch = Tokens(
        inputs={"tokens": one[0]},
        layers=(one[1], one[2]),
        pairs=[Pair(0.5, one[3])],
        inner=Batch(one[4], one[5], 2),
        lengths=(3, 4),
        name="shard 7",
        count=2,
    )
    [moved] = transfers.move_batches([batch], device)
    found = [moved.inputs["tokens"], *moved.layers, moved.pairs[0].mask, moved.inner.images, moved.inner.labels]
    assert [float(tensor[0]) for tensor in found] == [0, 1, 2, 3, 4, 5]
    assert not {tensor.data_ptr() for tensor in found} & {tensor.data_ptr() for tensor in one}
    assert (moved.pairs[0].weight, moved.lengths, moved.name, moved.count) == (0.5, (3, 4), "shard 7", 2)
    assert moved.lengths is batch.lengths


@pytest.mark.parametrize(
    ("asked", "local_ranks", "threads"), [("3", 1, 3), ("3", 2, 3), ("", 1, 8), ("", 2, 4), ("4,2", 1, 8), ("1", 2, 4)]
)
def test_on_a_cpu_a_rank_takes_the_threads_it_is_told_to_or_its_part_of_the_cores(
    asked: str, local_ranks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "read_cgroup", lambda root: cores.Allowance())
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "theirs")
    ranks = Ranks(rank=0, world=local_ranks, local_rank=0, local_ranks=local_ranks)
    setup.open_device(make_plan(platform="cpu", precision="fp32"), ranks)
    assert told == [threads]


def test_what_a_process_runs_in_is_told_by_the_marks_it_finds(tmp_path: Path) -> None:
    assert setup.detect_container(tmp_path, {}) == "none"
    (tmp_path / ".dockerenv").touch()
    assert setup.detect_container(tmp_path, {}) == "docker"
    assert setup.detect_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "x"}) == "kubernetes"
