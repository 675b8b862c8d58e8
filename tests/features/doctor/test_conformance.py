"""The conformance list passes what behaves as a run expects, and names what does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace as changed

from trainmark.features.doctor import conformance
from trainmark.features.links import measure
from trainmark.platforms import files
from trainmark.platforms.platform import Device, Platform
from trainmark.record.checks import CheckResult
from trainmark.record.links import AllReduce
from trainmark.record.precision import PRECISIONS


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.delenv("TRAINMARK_STANDIN", raising=False)
    monkeypatch.setattr(conformance, "WORK_S", 0.02)
    return Platform(files.load("standin")).open(0)


CHECKS = [conformance.check_synchronize, conformance.check_events, conformance.check_memory]


@pytest.mark.parametrize("check", CHECKS)
def test_the_stand_in_conforms(check: Callable[[Device], CheckResult], device: Device) -> None:
    found = check(device)
    assert found.verdict == "ok", found


@pytest.mark.parametrize("name", files.load("cpu").precisions)
def test_every_precision_of_the_processor_rounds_as_it_should(name: str) -> None:
    found = conformance.check_precision(Platform(files.load("cpu")).open(0), PRECISIONS[name])
    assert found.verdict == "ok", found


def test_a_wait_that_does_not_wait_fails(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "synchronize", lambda: None)
    found = conformance.check_synchronize(device)
    assert found.verdict == "failed"
    assert "a mark recorded before it was not reached" in found.sentence


def test_events_in_another_unit_fail(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    between = device.marks.between_ns
    monkeypatch.setattr(device.marks, "between_ns", lambda first, last: between(first, last) // 1000)
    found = conformance.check_events(device)
    assert found.verdict == "failed"
    assert "of wall time" in found.sentence


def test_memory_that_is_not_counted_fails(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "MAX_TENSORS", 2)
    monkeypatch.setattr(device, "peak_memory_bytes", lambda: 5 << 20)
    assert "the peak stayed at 5 MiB while 2 tensors of 64 MiB were made" in conformance.check_memory(device).sentence
    monkeypatch.setattr(device, "memory_capacity_bytes", lambda: None)
    assert "mem_get_info" in conformance.check_memory(device).remedy


def test_a_precision_that_is_only_a_name_fails(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "autocast", lambda precision: contextlib.nullcontext())
    found = conformance.check_precision(device, PRECISIONS["amp-bf16"])
    assert found.verdict == "failed"
    assert "matmul: computed in float32, not in bfloat16" in found.sentence


def test_a_precision_that_does_not_run_fails_with_its_reason(device: Device) -> None:
    found = conformance.check_precision(device, PRECISIONS["tf32"])
    assert (found.verdict, found.remedy) == ("failed", "remove it from the file's precisions, or fix it")
    assert "platform standin does not have it" in found.sentence


def test_a_check_that_raises_has_failed_with_what_was_raised(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise torch.AcceleratorError("device lost\nand a long story")

    monkeypatch.setattr(device, "synchronize", lost)
    found = conformance.run_check("synchronises", lambda: conformance.check_synchronize(device))
    assert (found.name, found.verdict) == ("synchronises", "failed")
    assert found.sentence == "raised AcceleratorError: device lost"


@pytest.mark.slow
def test_collectives_that_exchange_nothing_fail(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.toml").write_text("exchanges = false\n", encoding="utf-8")
    monkeypatch.setenv("TRAINMARK_STANDIN", str(tmp_path / "script.toml"))
    found = conformance.check_collectives("standin", device.platform)
    assert found.verdict == "failed"
    assert "collectives of gloo return wrong results" in found.sentence


def test_collectives_that_only_a_sharded_run_needs_are_doubted(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    result = AllReduce(size_bytes=4096, repeats=3, median_s=0.1, best_s=0.1, bus_gigabytes_per_s=1.0)
    found = measure.ProbeResult(results=(result,), absent=("all-gather", "reduce-scatter"))
    monkeypatch.setattr(measure, "probe_links", lambda *words, **more: found)
    checked = conformance.check_collectives("standin", device.platform)
    assert checked.verdict == "doubt"
    assert checked.sentence.startswith("gloo has no all-gather and no reduce-scatter; all-reduce among 2 ranks")


def test_devices_that_cannot_work_together_are_skipped(device: Device) -> None:
    platform = Platform(changed(device.platform.file, collectives=files.NO_COLLECTIVES))
    assert conformance.check_collectives("standin", platform).verdict == "unknown"
