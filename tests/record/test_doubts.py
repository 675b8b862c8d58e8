"""A doubt says what is wrong in words that do not puzzle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.clean_records import QUICK
from support.records import make_record, make_timeline

from trainmark.record import doubts, gather
from trainmark.record.machine import (
    DeviceInfo,
    DeviceTelemetry,
    Environment,
    FlopsFacts,
    MachineTelemetry,
    PrecisionProof,
    Series,
    Telemetry,
)
from trainmark.record.record import Doubt, Record


def by_code(record: Record) -> dict[str, Doubt]:
    return {doubt.code: doubt for doubt in doubts.collect_doubts(record, reference_global_batch=256)}


@pytest.mark.parametrize(("share", "shown"), [(0.0100001, "1.1"), (0.0104, "1.1"), (0.0118, "1.2"), (0.0912, "9.1")])
def test_a_speed_that_is_nearly_known_is_not_said_to_be_known_to_what_was_wanted(
    share: float, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record()
    monkeypatch.setattr(doubts.statistics, "mean_interval", lambda *series: SimpleNamespace(share=share))
    monkeypatch.setattr(doubts.statistics, "estimate_steps_needed", lambda *series: 40)
    found = doubts.collect_doubts(record, reference_global_batch=256)
    assert [doubt.values for doubt in found if doubt.code == "few-steps"] == [{"percent": shown, "more": 40}]


def test_weights_that_came_apart_are_another_network() -> None:
    environment = Environment(
        precision=PrecisionProof(asked="fp32", ran="fp32", weights={"float32": 411_648}),
        flops=FlopsFacts(per_item=1.0, parameters=371_712),
    )
    found = by_code(make_record(environment=environment))
    assert "has 411,648 weights where its plan has 371,712" in found["weights-differ"].text


def test_a_stop_in_the_middle_is_named_with_its_step() -> None:
    record = make_record(timeline=make_timeline(steps=60, compute_ms=300))
    [trace] = record.timeline.ranks
    compute = [*trace.compute_ns]
    compute[30] += 30_000_000_000
    stopped = replace(record, timeline=replace(record.timeline, ranks=(replace(trace, compute_ns=compute),)))
    assert "stalled-step" not in by_code(record)
    assert by_code(stopped)["stalled-step"].text.startswith("step 31 took 30.")


def test_a_loss_that_never_changes_is_named() -> None:
    constant = make_record(loss=(2.5, 2.4, *[2.302585] * 10), data_facts={"classes": 10})
    assert "the logarithm of 10 classes" in by_code(constant)["loss-constant"].text
    moving = make_record(loss=tuple(2.4 - 0.001 * step for step in range(12)))
    assert "loss-constant" not in by_code(moving)


def test_power_that_cannot_be_or_never_changes_is_named() -> None:
    def record_of(watts: list[float]) -> Record:
        series = {"power_w": Series(at_s=[float(at) for at in range(len(watts))], values=watts)}
        device = DeviceTelemetry(device=0, series=series, power_samples=len(watts))
        machine = MachineTelemetry(host="a", samples=len(watts), training_s=(0.0, 60.0), devices=[device])
        card = Environment(device=DeviceInfo(type="cuda", name="card", power_w=400.0))
        return make_record(telemetry=Telemetry(machines=[machine]), environment=card)

    assert "power-constant" in by_code(record_of([300.0] * 30))
    assert "300050 W" in by_code(record_of([300_000.0, 300_100.0] * 15))["power-impossible"].text
    honest = by_code(record_of([300.0, 310.0, 290.0] * 10))
    assert not {"power-constant", "power-impossible"} & honest.keys()


def test_a_machine_that_slept_says_so() -> None:
    assert "suspended" not in by_code(make_record())
    assert "slept for 40 s" in by_code(make_record(environment=Environment(suspended_s=40.0)))["suspended"].text


def test_step_times_that_were_scaled_in_the_log_do_not_add_up_to_its_clock(tmp_path: Path) -> None:
    assert "clock-gap" not in {doubt.code for doubt in QUICK.leave(tmp_path).doubts}
    [log] = tmp_path.glob("runs/*/rank0.jsonl")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for event in lines:
        if event["event"] == "steps":
            event["compute_ns"] = [round(0.8 * ns) for ns in event["compute_ns"]]
    log.write_text("".join(f"{json.dumps(event)}\n" for event in lines), encoding="utf-8")
    assert "clock-gap" in {doubt.code for doubt in gather.gather_record(log.parent).doubts}
