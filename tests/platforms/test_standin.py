"""The stand-in behaves as a device does: work ends later than its launch, memory ends, and devices fail as scripted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from trainmark.platforms import files, sensors, standin
from trainmark.platforms.platform import Platform
from trainmark.platforms.standin_device import StandInDevice
from trainmark.record.errors import NotReadyError, UsageError, WorkloadError
from trainmark.record.precision import PRECISIONS

Opened = Callable[..., StandInDevice]

FP32 = PRECISIONS["fp32"]
LATE = "latency_us = 300000\n"
"""So late that a test on the busiest machine reads the old value first."""


def scripted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    path = tmp_path / "script.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(standin.VARIABLE, str(path))
    return Platform(files.load("standin"))


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    def open_device(text: str = "", index: int = 0) -> StandInDevice:
        device = scripted(text, tmp_path, monkeypatch).open(index)
        assert isinstance(device, StandInDevice)
        return device

    return open_device


def work(device: StandInDevice, operations: int = 10) -> torch.Tensor:
    numbers = torch.ones(8)
    with device.arithmetic(FP32):
        for _ in range(operations):
            numbers = numbers + 1
    return numbers


def test_a_mark_is_reached_later_than_it_is_recorded_and_a_wait_really_waits(opened: Opened) -> None:
    device = opened(LATE)
    work(device)
    mark = device.marks.mark()
    assert not device.marks.is_reached(mark)
    device.marks.wait_for(mark)
    assert device.marks.is_reached(mark)
    later = device.marks.mark()
    device.synchronize()
    assert device.marks.is_reached(later)


def test_the_time_between_marks_is_the_devices_and_not_the_hosts(opened: Opened) -> None:
    device = opened("operation_us = 2000\nslowdown = 2.5\nlatency_us = 100000\n")
    first = device.marks.mark()
    work(device, 10)
    last = device.marks.mark()
    device.marks.wait_for(last)
    assert device.marks.between_ns(first, last) >= 10 * 2_000_000 * 2.5
    assert device.marks.between_ns(last, last) == 0


def test_a_device_that_waits_too_little_is_named_and_not_our_code(opened: Opened) -> None:
    device = opened(LATE)
    first, last = device.marks.mark(), device.marks.mark()
    with pytest.raises(WorkloadError, match="the device said that its work was done before it was"):
        device.marks.between_ns(first, last)


def test_a_number_arrives_on_the_host_only_when_the_queue_gets_there(opened: Opened) -> None:
    device = opened(LATE)
    [slot, other] = device.host_buffer(2).unbind(0)
    slot.copy_(torch.tensor(7.0), non_blocking=True)
    assert float(slot) == 0.0
    device.synchronize()
    assert (float(slot), float(other)) == (7.0, 0.0)


def test_what_was_sent_is_what_arrives_though_the_source_changes_meanwhile(opened: Opened) -> None:
    device = opened(LATE)
    loss = torch.tensor(1.0)
    [slot] = device.host_buffer(1).unbind(0)
    slot.copy_(loss, non_blocking=True)
    loss.fill_(2.0)
    device.synchronize()
    assert float(slot) == 1.0


def test_a_copy_that_is_to_block_waits_for_all_before_it(opened: Opened) -> None:
    device = opened(LATE)
    mark = device.marks.mark()
    [slot] = device.host_buffer(1).unbind(0)
    slot.copy_(torch.tensor(7.0))
    assert float(slot) == 7.0
    assert device.marks.is_reached(mark)


def test_asking_for_a_value_waits_as_on_any_device(opened: Opened) -> None:
    device = opened(LATE)
    mark = device.marks.mark()
    with device.arithmetic(FP32):
        assert torch.ones(3).sum().item() == 3
    assert device.marks.is_reached(mark)


def test_a_batch_is_moved_to_memory_of_the_devices_own(opened: Opened) -> None:
    device = opened()
    batch = torch.arange(6.0)
    moved = device.to_device(batch)
    batch.zero_()
    assert moved.tolist() == [0, 1, 2, 3, 4, 5]
    assert device.memory_allocated() >= moved.untyped_storage().nbytes()


def test_memory_counts_what_training_holds_and_forgets_what_is_gone(opened: Opened) -> None:
    device = opened()
    layer = nn.Linear(256, 256)
    with device.arithmetic(FP32):
        layer(torch.ones(64, 256)).sum().backward()
    weights = 4 * (256 * 256 + 256)
    assert device.memory_allocated() == 2 * weights  # and their gradients: what was only on the way is gone
    assert (device.peak_memory_bytes() or 0) >= 2 * weights + 4 * 64 * 256  # the layer's input was kept for backward
    del layer
    assert device.memory_allocated() == 0


def test_more_than_the_limit_is_out_of_memory_by_the_name_torch_has_for_it(opened: Opened) -> None:
    device = opened("memory_mib = 1\n")
    with device.arithmetic(FP32):
        held = torch.ones(200_000)
        with pytest.raises(torch.OutOfMemoryError, match=r"stand-in device 0 is out of memory: 0\.8 MiB more than fit"):
            held + 1
        del held
        torch.ones(200_000)  # what was given back can be had again
    assert device.memory_capacity_bytes() == 1 << 20
    assert (device.peak_memory_bytes() or 0) <= 1 << 20


def test_a_hanging_device_reaches_nothing_launched_after_the_hang(opened: Opened) -> None:
    device = opened("hang_after = 5\n")
    work(device, 5)
    device.synchronize()
    work(device, 1)
    mark = device.marks.mark()
    [slot] = device.host_buffer(1).unbind(0)
    slot.copy_(torch.tensor(7.0), non_blocking=True)
    time.sleep(0.3)
    assert not device.marks.is_reached(mark)
    assert float(slot) == 0.0


def test_every_call_on_a_lost_device_fails(opened: Opened) -> None:
    device = opened("lost_after = 5\n")
    mark = device.marks.mark()
    work(device, 5)
    for call in (lambda: work(device, 1), device.marks.mark, device.synchronize, lambda: device.marks.wait_for(mark)):
        with pytest.raises(torch.AcceleratorError, match="stand-in device 0 is lost"):
            call()


def test_a_device_may_differ_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "devices = 3\npower_w = 90\n[[device]]\nindex = 1\npower_w = 300\nmemory_mib = 16\n"
    platform = scripted(script, tmp_path, monkeypatch)
    assert platform.device_count == 3
    assert [platform.open(index).memory_capacity_bytes() for index in range(3)] == [8 << 30, 16 << 20, 8 << 30]
    with pytest.raises(NotReadyError, match="platform standin has 3 standin devices here, device 3 was requested"):
        platform.open(3)
    readings = sensors.open_reader(platform.file.sensors).read()
    assert [reading.power_w for reading in readings] == [90, 300, 90]


def test_without_a_script_there_are_two_devices_and_their_sensors_say_only_what_is_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(standin.VARIABLE, raising=False)
    platform = Platform(files.load("standin"))
    assert platform.device_count == 2
    reader = sensors.open_reader(platform.file.sensors)
    [first, _] = reader.read()
    assert (first.memory_total_bytes, first.power_w, first.throttled, first.ecc_errors) == (8 << 30, None, (), 0)
    assert reader.unavailable["power_w"] == "the stand-in's script does not give it"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("slowdwn = 2\n", "key 'slowdwn' is not known; did you mean 'slowdown'?"),
        ("slowdown = 'much'\n", "slowdown must be a number of 0 or more, not 'much'"),
        ("latency_us = -1\n", "latency_us must be a number of 0 or more, not -1"),
        ("hang_after = 1.5\n", "hang_after must be a whole number of 0 or more, not 1.5"),
        ("float32_inside = 'bf16'\n", "float32_inside 'bf16' is not known; did you mean 'bfloat16'?"),
        ("exchanges = 1\n", "exchanges must be true or false, not 1"),
        ("throttled = 'thermal'\n", "throttled must be a list of reasons, not 'thermal'"),
        ("devices = 0\n", "devices must be 1 or more"),
        ("[[device]]\nindex = 2\n", "each [[device]] needs an index of its own"),
        ("[[device]]\nslowdown = 2\n", "each [[device]] needs an index of its own"),
        ("[[device]]\nindex = 0\n[[device]]\nindex = 0\n", "each [[device]] needs an index of its own"),
        ("[[device]]\nindex = 0\ndevices = 2\n", "key 'devices' is not known"),
        ("slowdown = ", "is not valid TOML"),
    ],
)
def test_a_wrong_script_is_refused_in_a_sentence(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as refused:
        scripted(text, tmp_path, monkeypatch).open(0)
    assert sentence in str(refused.value)


def test_events_count_as_the_script_says(opened: Opened) -> None:
    device = opened("operation_us = 1000\nevent_clock = 0.5\nlatency_us = 0\n")
    first = device.marks.mark()
    work(device, 40)
    last = device.marks.mark()
    device.synchronize()
    honest_ns = last.due_ns - first.due_ns
    assert honest_ns >= 40_000_000
    assert device.marks.between_ns(first, last) == round(honest_ns / 2)


@pytest.mark.parametrize(("inside", "product"), [("bfloat16", 1.0), ("float16", 1.0), ("tf32", 1.0), ("float32", None)])
def test_float32_may_be_multiplied_as_something_narrower(inside: str, product: float | None, opened: Opened) -> None:
    device = opened(f"float32_inside = '{inside}'\n")
    left, right = torch.tensor([[1 + 2**-12]]), torch.tensor([[1 + 2**-12]])
    with device.arithmetic(FP32):
        found = torch.mm(left, right)
    assert found.dtype == torch.float32
    assert float(found) == (float(left * right) if product is None else product)


def test_an_operator_may_be_wrong_lose_what_it_writes_or_not_be_there(opened: Opened) -> None:
    norm = nn.BatchNorm1d(3)
    with opened("wrong_operators = ['exp']\n").arithmetic(FP32):
        assert torch.zeros(1).exp().item() == pytest.approx(1.1)
    with opened("unwritten_operators = ['native_batch_norm']\n").arithmetic(FP32):
        norm(torch.randn(8, 3))
    assert torch.equal(norm.running_mean, torch.zeros(3))
    with opened("missing_operators = ['exp']\n").arithmetic(FP32):
        with pytest.raises(NotImplementedError, match="Could not run 'aten::exp' with arguments from the 'StandIn'"):
            torch.zeros(1).exp()
        assert torch.zeros(1).sin().item() == 0


def test_memory_that_ends_may_be_said_in_words_of_a_vendors_own(opened: Opened) -> None:
    device = opened("memory_mib = 1\nplain_memory_error = true\n")
    with device.arithmetic(FP32), pytest.raises(RuntimeError, match="standinMalloc returned 2") as failed:
        torch.ones(400_000)
    assert type(failed.value) is RuntimeError


def test_a_script_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(standin.VARIABLE, str(tmp_path / "nowhere.toml"))
    with pytest.raises(UsageError, match=r"TRAINMARK_STANDIN names .*nowhere\.toml, which cannot be read"):
        Platform(files.load("standin")).open(0)


def test_a_users_own_file_cannot_name_code(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((Path(files.__file__).parent / "standin.toml").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(UsageError, match="python is only for built-in platform files"):
        files.load(str(path))


@pytest.mark.parametrize("name", files.load("standin").precisions)
def test_the_stand_in_trains_in_what_its_file_lists(name: str, opened: Opened) -> None:
    assert opened().explain_refusal(PRECISIONS[name]) is None
