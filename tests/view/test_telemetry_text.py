"""What the samplers saw is shown: in the table where power is known, and series by series for one record."""

from __future__ import annotations

from typing import Any

from support.records import make_record, make_timeline

from trainmark.record.machine import Sensed
from trainmark.record.metrics import Measured, measure
from trainmark.record.record import Record
from trainmark.view import describe, table


def machine(**changes: Any) -> dict[str, Any]:
    at_s = [0.5 * step for step in range(40)]
    return {
        "host": "node-a",
        "first_rank": 0,
        "every_s": 0.5,
        "samples": 40,
        "ended_early": False,
        "sampler_cpu_s": 0.1,
        "last_s": 20.0,
        "training_s": [2.0, 19.0],
        "unavailable": {"energy_j": "no counter", "clock_mhz": "no counter"},
        "host_series": {"cpu_percent": {"at_s": at_s, "values": [50.0] * 40}},
        "devices": [
            {
                "device": 0,
                "series": {"power_w": {"at_s": at_s, "values": [100.0 + step for step in range(40)]}},
                "throttled": {},
                "ecc_errors_new": 0.0,
                "power_samples": 34,
                "power_gap_s": 0.5,
            }
        ],
        **changes,
    }


def a_record(power_w: float | None, **changes: Any) -> Record:
    sensed = Sensed(power_w=power_w)
    metrics = measure(Measured(item="images", timeline=make_timeline(), sensed=sensed))
    return make_record(metrics=metrics, **changes)


def test_the_table_has_a_column_for_power_only_where_some_device_said_it() -> None:
    known, unknown = a_record(312.4), a_record(None)
    assert "power" not in table.render([unknown], width=200)
    drawn = table.render([known, unknown], width=200)
    assert "power" in drawn
    assert "312" in drawn
    assert "power (W)" in table.markdown([known])
    assert "power" not in table.markdown([unknown])


def test_a_record_is_shown_with_its_series_and_what_could_not_be_read() -> None:
    shown = describe.describe(make_record(telemetry={"machines": [machine()]}), width=100)
    assert "node-a: 40 samples, one every 0.500 s" in shown
    assert "Power" in shown
    assert "Mean 120, from 100 to 139 W" in shown
    assert "Energy, Clock: no counter" in " ".join(shown.split())
    assert "ended early" not in shown


def test_a_sampler_that_ended_early_and_many_devices_are_said() -> None:
    one = machine()
    devices = [{**one["devices"][0], "device": number} for number in range(10)]
    shown = describe.describe(make_record(telemetry={"machines": [machine(devices=devices, ended_early=True)]}))
    assert "the sampler ended early" in " ".join(shown.split())
    assert "Power, device 7" in shown
    assert "Power, device 8" not in shown
    assert "and 2 more devices" in shown
