"""MFU: what a run's speed is held to, how it is shown, and when it says that the label is wrong."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import to_builtins
from support.records import make_record, make_timeline
from support.tiny import LineFit, job
from torch import nn

from trainmark.platforms import files
from trainmark.platforms.matmul_probe import choose_matmul_type
from trainmark.platforms.platform import Device, Platform
from trainmark.record import doubts
from trainmark.record.errors import WorkloadError
from trainmark.record.machine import DeviceInfo, Environment, FlopsFacts
from trainmark.record.metrics import Measured, Quantity, measure
from trainmark.record.numbers import half_width
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.record.recipe import Limits
from trainmark.record.record import Record
from trainmark.train import loop, post_training
from trainmark.train.post_training import DevicePeak
from trainmark.train.precision_proof import Proof
from trainmark.train.schedule import Position
from trainmark.view import table
from trainmark.view.describe import describe

SHEET = {"per_item": 24.3e9, "peak_tflops": 19.5, "peak_source": "a sheet of the card"}


def cpu() -> Device:
    return Platform(files.load("cpu")).open(0)


def flops_events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rank0.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "flops"]


def mfu(**given: Any) -> Quantity:
    return measure(Measured(item="images", timeline=make_timeline(), **given))["mfu"]


@pytest.mark.parametrize("ranks", [1, 4])
def test_mfu_is_the_flops_done_over_those_all_devices_could_do(ranks: int) -> None:
    timeline = make_timeline(ranks=ranks, compute_ms=100, items_per_step=10)
    found = measure(Measured(item="images", timeline=timeline, flops=FlopsFacts(per_item=10e9, peak_tflops=2.0)))
    rate = found["p_core"].value
    assert rate
    assert found["mfu"].value == pytest.approx(100 * rate * 10e9 / (ranks * 2e12))


def test_without_a_peak_or_a_count_there_is_no_mfu_but_a_reason() -> None:
    unknown = mfu(flops=FlopsFacts(per_item=1.0, peak_source="platform x names no peak of Card 7 in fp16"))
    assert (unknown.value, unknown.unavailable) == (None, "platform x names no peak of Card 7 in fp16")
    assert "FLOPs are counted after the last step" in str(mfu().unavailable)


def test_a_run_on_the_cpu_writes_down_its_flops_and_the_peak_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_training, "find_peak", lambda *given: DevicePeak(tflops=0.5, source="measured: matmuls"))
    ready = job(tmp_path, limits=Limits(steps=4))
    ended = loop.train(ready, Position())
    before = ready.clock.phases_ns
    post_training.write_flops(ready, ended)
    [event] = flops_events(tmp_path)
    assert event["per_item"] == 6.0
    assert event["peak_tflops"] == 0.5
    assert ready.clock.phases_ns == before


class Wide(LineFit):
    """A model from outside, of three linear layers."""

    stated = 0.0

    def build(self, recipe: Any) -> nn.Module:
        layers = (nn.Linear(1, 8), nn.Linear(8, 5), nn.Linear(5, 1))
        return nn.Sequential(nn.Unflatten(0, (-1, 1)), *layers, nn.Flatten(0))

    def flops_per_item(self, recipe: Any) -> float:
        return self.stated


@pytest.mark.parametrize("stated", [0.0, 325.0, 6.0 * 67])
def test_mfu_of_a_model_from_outside_takes_the_flops_of_its_first_step(
    stated: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_training, "find_peak", lambda *given: DevicePeak(tflops=0.5, source="a sheet"))
    model = Wide()
    model.stated = stated
    ready = job(tmp_path, limits=Limits(steps=4), workload=model)
    ready = replace(ready, proof=Proof(ready.stepper, ready.events))
    post_training.write_flops(ready, loop.train(ready, Position()))
    [event] = flops_events(tmp_path)
    counted = 2.0 * (2 * 8 + 3 * 8 * 5 + 3 * 5)  # the first layer has no gradient of its input
    assert event["per_item"] == counted
    facts = FlopsFacts(per_item=counted, stated=stated or None, peak_tflops=2.0)
    record = make_record(timeline=make_timeline(), environment={"flops": to_builtins(facts)})
    codes = {doubt.code for doubt in doubts.collect_doubts(record, reference_global_batch=1)}
    found = mfu(flops=facts)
    if abs(stated / counted - 1) < 0.1 or not stated:
        assert found.value and "flops-misstated" not in codes
    else:
        assert "not those of its first step" in str(found.unavailable) and "flops-misstated" in codes


@pytest.mark.parametrize("count", [0, -4])
def test_a_workload_that_counts_no_items_is_refused_with_a_sentence(tmp_path: Path, count: int) -> None:
    class Countless(LineFit):
        def items(self, batch: Any) -> int:
            return count

    with pytest.raises(WorkloadError, match=rf"items\(batch\) is {count} for its first batch"):
        loop.train(job(tmp_path, limits=Limits(steps=4), workload=Countless()), Position())


def test_a_workload_that_cannot_be_counted_costs_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Uncountable(LineFit):
        def flops_per_item(self, recipe: Any) -> float:
            raise RuntimeError("an operation without a meta kernel")

    ready = replace(job(tmp_path, limits=Limits(steps=4)), workload=Uncountable())
    post_training.write_flops(ready, loop.train(ready, Position()))
    assert flops_events(tmp_path) == []
    assert "without a meta kernel" in capsys.readouterr().err


class Card:
    """A device as far as its peak goes."""

    is_cpu = False

    def __init__(self, platform: str, name: str) -> None:
        self.platform = Platform.__new__(Platform)
        self.platform.file = files.load(platform)
        self.name = lambda: name


@pytest.mark.parametrize(
    ("precision", "tflops"), [("fp32", 19.5), ("tf32", 156), ("amp-fp16", 312), ("bf16", 312), ("amp-bf16", 312)]
)
def test_a_card_is_held_to_the_sheet_in_the_precision_that_was_asked_for(precision: str, tflops: float) -> None:
    card: Any = Card("nvidia", "NVIDIA A100-SXM4-40GB")
    assert post_training.find_peak(card, Precision.parse(precision)) == DevicePeak(
        tflops=tflops, source="NVIDIA A100 data sheet"
    )


def test_a_card_without_a_sheet_is_held_to_nothing_and_says_why() -> None:
    card: Any = Card("nvidia", "NVIDIA Imaginary 1")
    reason = "platform nvidia names no peak of NVIDIA Imaginary 1 in fp16"
    assert post_training.find_peak(card, Precision.parse("amp-fp16")) == DevicePeak(tflops=None, source=reason)
    volta: Any = Card("nvidia", "Tesla V100-SXM2-16GB")
    assert post_training.find_peak(volta, Precision.parse("bf16")).tflops is None


@pytest.mark.parametrize(("foreign_s", "told"), [(0.0, True), (1e6, False)])
def test_a_peak_is_measured_on_a_quiet_machine(
    foreign_s: float, told: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path))  # where peaks of earlier runs lie
    rates = iter((0.1e12, 0.163e12, 0.127e12, 0.15e12))
    readings = iter((0.0, foreign_s))
    monkeypatch.setattr(post_training, "measure_matmul_flops", lambda *given, **more: next(rates))
    monkeypatch.setattr(post_training, "read_foreign_s", lambda: next(readings))
    found = post_training.find_peak(cpu(), Precision.parse("fp32"))
    if told:
        assert found.tflops == pytest.approx(0.163)
        assert found.source == f"measured: large matmuls in float32, {torch.get_num_threads()} threads"
        assert found.error == pytest.approx(0.2155, abs=1e-3)
    else:
        assert (found.tflops, found.error) == (None, None)
        assert "% of the machine while its peak was measured" in found.source


def test_the_interval_of_mfu_holds_how_far_peaks_lie_apart() -> None:
    exact = mfu(flops=FlopsFacts(per_item=10e9, peak_tflops=2.0))
    rough = mfu(flops=FlopsFacts(per_item=10e9, peak_tflops=2.0, peak_error=0.1))
    assert exact.value == rough.value
    assert exact.interval is not None
    assert rough.interval is not None
    assert half_width(rough.interval) == pytest.approx(math.hypot(half_width(exact.interval), 1.96 * 0.1), rel=1e-3)


def test_mfu_is_withheld_where_others_used_the_processors_that_trained() -> None:
    quiet = mfu(flops=FlopsFacts(per_item=10e9, peak_tflops=2.0), others=0.05)
    busy = mfu(flops=FlopsFacts(per_item=10e9, peak_tflops=2.0), others=0.8)
    assert quiet.value is not None
    assert busy.value is None
    assert "others used the processors that trained" in str(busy.unavailable)
    on_cpu, on_card = (Environment(device=DeviceInfo(type=kind), foreign_load=0.8) for kind in ("cpu", "cuda"))
    assert (on_cpu.others, on_card.others) == (0.8, None)


def test_products_are_measured_in_the_type_they_run_in() -> None:
    device = cpu()
    for precision in PRECISIONS.values():
        if precision.name == "tf32" or device.emulates(precision):
            assert choose_matmul_type(device, precision) is torch.float32
        else:
            assert choose_matmul_type(device, precision) is getattr(torch, precision.computes_in)


def shown(value: float | None, **given: Any) -> Record:
    record = make_record(**given)
    metrics = {**record.metrics, "mfu": Quantity(value=value, unit="%", unavailable=None if value else "no peak")}
    return replace(record, metrics=metrics, environment=Environment(flops=FlopsFacts(**SHEET)))


def found_doubts(record: Record) -> dict[str, str]:
    return {doubt.code: doubt.text for doubt in doubts.collect_doubts(record, reference_global_batch=256)}


def test_more_than_the_peak_is_a_doubt_on_the_label_that_names_the_peak() -> None:
    text = found_doubts(shown(367.0))["mfu-above-100"]
    assert "mfu is 367 %, more than a device can do in fp32" in text
    assert "19.5 TFLOP/s (a sheet of the card)" in text
    assert "mfu-above-100" not in found_doubts(shown(99.0))
    assert "mfu-above-100" not in found_doubts(shown(None))


def test_show_says_which_peak_a_run_was_held_to_and_where_it_is_from() -> None:
    said = " ".join(describe(shown(43.21), width=160).split())
    assert "mfu 43.2 %" in said
    assert "the peak is 19.5 TFLOP/s, a sheet of the card" in said


def test_the_table_has_a_column_for_it_where_there_is_room_and_something_to_say() -> None:
    assert "mfu" in table.render([shown(43.21)], width=160)
    assert "mfu" not in table.render([shown(43.21)], width=60)
    assert "mfu" not in table.render([shown(None)], width=160)
    both = table.render([shown(43.21), shown(None, run_id="other")], width=200)
    assert "no mfu: no peak" in both


def test_a_peak_that_was_measured_below_what_the_run_reached_is_no_peak() -> None:
    found = mfu(flops=FlopsFacts(per_item=24.3e9, peak_tflops=1e-6, peak_source="measured: large products"))
    assert found.value is None
    assert found.unavailable == "the run itself was faster than the matmuls that were measured beside it"
    by_sheet = mfu(flops=FlopsFacts(per_item=24.3e9, peak_tflops=1e-6, peak_source="a sheet of the card"))
    assert by_sheet.value is not None and by_sheet.value > 100


def test_the_highest_peak_of_earlier_runs_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "peaks.json"
    assert post_training.remember_peaks("cpu", 0.5, file) == [0.5]
    for _ in range(30):
        kept = post_training.remember_peaks("cpu", 0.3, file)
    assert max(kept) == 0.5
    assert len(kept) <= post_training.MAX_PEAKS
    assert post_training.remember_peaks("another cpu", 0.1, file) == [0.1]
    file.write_bytes(b"\xff{")
    assert post_training.remember_peaks("cpu", 0.2, file) == [0.2]
