"""What samplers wrote becomes numbers over the training part, and doubts where the samples are not enough."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from support.records import make_record

from trainmark.record import doubts, events, telemetry_summary as telemetry
from trainmark.record.events import EventWriter
from trainmark.record.machine import DeviceInfo, Environment, MachineFacts, Sensed, Telemetry
from trainmark.record.metrics import Measured, Quantity, measure
from trainmark.record.run_folder import RankLog, RunFolder

S = 1_000_000_000


class Machine:
    """One machine's file; time is in seconds since the launch, training goes from 10 s to 110 s."""

    def __init__(self, folder: Path, launcher: int = 0, *, devices: list[int] | None = None, **changes: Any) -> None:
        self.events = EventWriter(folder / f"telemetry{launcher}.jsonl")
        begin = {"host": f"node-{launcher}", "pid": 1, "first_rank": launcher, "launched_ns": 5 * S, "at_ns": 6 * S}
        self.events.write(
            events.SamplerBegin(
                **{**begin, "every_s": 0.5, "devices": [0] if devices is None else devices, "cores": 4, **changes}
            )
        )

    def read(self, at_s: float, *readings: dict[str, Any]) -> None:
        every = [{"device": device, **reading} for device, reading in enumerate(readings)]
        self.events.write(events.DeviceSamples(at_ns=int((5 + at_s) * S), readings=every))

    def host(self, at_s: float, busy_s: float, own_s: float | None) -> None:
        self.events.write(events.HostSample(at_ns=int((5 + at_s) * S), busy_s=busy_s, own_s=own_s, load=1.0))

    def missing(self, **reasons: str) -> None:
        self.events.write(events.Unavailable(at_ns=6 * S, fields=reasons))

    def end(self) -> None:
        self.events.write(events.SamplerEnd(at_ns=200 * S, cpu_s=0.1))


class Span(NamedTuple):
    """When a rank trained."""

    from_ns: int
    until_ns: int | None = None


def sampled(path: Path, spans: dict[int, Span]) -> list[telemetry.NodeSums]:
    folder = RunFolder(path)
    folder.update()
    for rank, span in spans.items():
        folder.ranks[rank] = RankLog(rank=rank, trained_from_ns=span.from_ns, trained_until_ns=span.until_ns)
    return telemetry.summarise_nodes(folder)


TRAINED = {rank: Span(from_ns=15 * S, until_ns=115 * S) for rank in range(4)}


def seen(folder: Path, nodes: int = 1, spans: dict[int, Span] | None = None) -> Sensed:
    return telemetry.summarise_sensors(sampled(folder, TRAINED if spans is None else spans), nodes)


def told(folder: Path) -> dict[str, str]:
    """The doubts about a run with these samples."""
    machines = sampled(folder, TRAINED)
    record = make_record()
    measured = Measured(
        item="images", timeline=record.timeline, sensed=telemetry.summarise_sensors(machines, len(machines))
    )
    record = replace(
        record,
        metrics=measure(measured),
        environment=Environment(),
        telemetry=Telemetry(machines=[machine.telemetry for machine in machines]),
    )
    return {doubt.code: doubt.text for doubt in doubts.collect_doubts(record, reference_global_batch=1)}


def test_power_is_that_of_the_training_part(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(121):
        machine.read(at_s, {"power_w": 300.0 if 10 <= at_s <= 110 else 50.0})
    found = seen(tmp_path)
    assert found.power_w == pytest.approx(300)
    assert found.energy_j == pytest.approx(300 * 100)
    assert found.power_peak_w == 300


def test_the_device_s_own_counter_goes_before_its_samples_of_power(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(121):
        machine.read(at_s, {"power_w": 999.0, "energy_j": 7000.0 + 250 * at_s})
    found = seen(tmp_path)
    assert found.energy_j == pytest.approx(250 * 100)
    assert found.power_w == pytest.approx(250)
    assert found.power_peak_w == 999


def test_a_counter_that_began_again_is_not_used(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(121):
        machine.read(at_s, {"power_w": 200.0, "energy_j": 200.0 * (at_s if at_s < 50 else at_s - 50)})
    assert seen(tmp_path).energy_j == pytest.approx(200 * 100)


def test_energy_is_summed_and_power_is_a_mean_over_devices_and_machines(tmp_path: Path) -> None:
    for launcher in range(2):
        machine = Machine(tmp_path, launcher, devices=[0, 1])
        for at_s in range(121):
            machine.read(
                at_s, {"power_w": 100.0}, {"power_w": 300.0 + 100 * launcher, "temperature_c": 50.0 + launcher}
            )
    found = seen(tmp_path, nodes=2)
    assert found.power_w == pytest.approx((100 + 300 + 100 + 400) / 4)
    assert found.energy_j == pytest.approx(100 * 900)
    assert found.power_peak_w == 400
    assert found.temperature_peak_c is None  # half of the devices do not say it


def test_a_machine_whose_samples_are_missing_makes_the_sum_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(121):
        machine.read(at_s, {"power_w": 100.0})
    assert seen(tmp_path, nodes=1).energy_j is not None
    found = seen(tmp_path, nodes=2)
    assert found.energy_j is None
    assert found.reasons["energy_j"] == "of 2 machines 1 sent their samples"


def test_why_there_is_no_power_is_said_in_the_sensor_s_words(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(121):
        machine.read(at_s, {"memory_used_bytes": 2.0**30 * (1 + at_s / 100)})
    machine.missing(power_w="smi: not found", temperature_c="it needs root")
    found = seen(tmp_path)
    assert found.memory_peak_bytes == pytest.approx(2**30 * 2.1)
    assert found.reasons["power_w"] == found.reasons["energy_j"] == "smi: not found"
    assert found.reasons["temperature_peak_c"] == "it needs root"
    metrics = measure(Measured(item="images", timeline=make_record().timeline, sensed=found))
    assert metrics["mem_device"].value == pytest.approx(2.1)
    assert metrics["energy_per_item"] == Quantity(value=None, unit="J/item", unavailable="smi: not found")


def test_nothing_sampled_is_said_of_every_metric(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert set(found.reasons) == {field.name for field in fields(Sensed)}
    assert found.reasons["power_w"] == telemetry.NOTHING_SAMPLED


@pytest.mark.parametrize(
    ("spans", "until_s", "reason"),
    [
        ({}, 120, telemetry.NOT_TRAINED),
        ({0: Span(from_ns=15 * S, until_ns=15 * S + 1)}, 120, telemetry.TOO_SHORT),
        (TRAINED, 60, telemetry.CUT_SHORT),
    ],
)
def test_samples_that_do_not_cover_the_training_give_no_number(
    tmp_path: Path, spans: dict[int, Span], until_s: int, reason: str
) -> None:
    machine = Machine(tmp_path)
    for at_s in range(until_s):
        machine.read(at_s + 0.25, {"power_w": 100.0, "temperature_c": 40.0, "throttled": []})
    found = seen(tmp_path, spans=spans)
    assert replace(found, reasons={}) == Sensed()
    assert found.reasons["power_w"] == found.reasons["throttled_percent"] == reason


def test_a_run_that_was_cut_off_is_measured_to_its_last_sample(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(61):
        machine.read(at_s, {"power_w": 100.0})
    assert seen(tmp_path, spans={0: Span(from_ns=15 * S)}).energy_j == pytest.approx(100 * 50)


def test_power_sampled_as_mlperf_asks_is_not_doubted(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for step in range(242):
        machine.read(step / 2, {"power_w": 100.0, "throttled": [], "ecc_errors": 4})
    machine.end()
    assert not {"power-sampling", "throttled", "ecc-errors", "sampler-ended"} & set(told(tmp_path))


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([*range(10), *range(10, 121, 3)], ["34 samples of 60", "0.34 a second", "a gap of 3.0 s"]),
        ([at / 2 for at in range(240) if not 100 < at < 110], ["a gap of 5.0 s"]),
    ],
)
def test_power_that_misses_mlperf_s_rule_is_doubted(tmp_path: Path, times: list[float], said: list[str]) -> None:
    machine = Machine(tmp_path, every_s=1.0)
    for at_s in times:
        machine.read(at_s, {"power_w": 100.0})
    machine.end()
    doubt = told(tmp_path)["power-sampling"]
    assert doubt.endswith(": " + ", ".join(said))


def test_throttling_and_memory_errors_are_doubted_with_their_reasons(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(121):
        slowed = ["thermal"] if 20 <= at_s < 45 else []
        machine.read(at_s, {"throttled": slowed, "ecc_errors": 3 if at_s < 60 else 5})
    machine.end()
    found = told(tmp_path)
    assert found["throttled"] == "a device was slowed in 25 % of the samples: thermal"
    assert found["ecc-errors"].startswith("device 0 of node-0 counted 2 memory errors")


def test_a_sampler_without_a_last_line_is_said_to_have_ended(tmp_path: Path) -> None:
    Machine(tmp_path).read(30, {"power_w": 1.0})
    assert told(tmp_path)["sampler-ended"].startswith("the sampler on node-0 ended by itself 30 s after the launch")


def test_foreign_load_is_the_worst_machine_s_share_without_our_own(tmp_path: Path) -> None:
    for launcher, others in enumerate((0.25, 1.0)):
        machine = Machine(tmp_path, launcher)
        for at_s in range(200):  # after the training our own processes are gone, and with them their counters
            own = 2.0 * at_s if at_s <= 110 else 0.0
            machine.host(at_s, busy_s=1000 + (2.0 + others) * at_s, own_s=own)
    assert telemetry.foreign_load(sampled(tmp_path, TRAINED)) == pytest.approx(0.25)


def test_foreign_load_is_unknown_where_our_own_share_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for at_s in range(20):
        machine.host(at_s, busy_s=at_s, own_s=None)
    assert telemetry.foreign_load(sampled(tmp_path, TRAINED)) is None
    assert telemetry.foreign_load([]) is None


def test_a_long_run_s_record_stays_small_and_keeps_the_shape(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for step in range(20_000):
        machine.read(step / 100, {"power_w": 100.0 + step / 100})
        machine.host(step / 100, busy_s=step / 100, own_s=step / 200)
    found = Telemetry(machines=[machine.telemetry for machine in sampled(tmp_path, TRAINED)])
    series = found.machines[0].devices[0].series["power_w"]
    assert len(series.values) == len(series.at_s) == telemetry.MAX_POINTS
    assert series.values == sorted(series.values)
    hosts = found.machines[0].host_series
    assert len(hosts["cpu_percent"].values) == telemetry.MAX_POINTS
    assert hosts["cpu_percent"].at_s == hosts["foreign_percent"].at_s == hosts["load"].at_s
    assert hosts["cpu_percent"].values == pytest.approx([25.0] * telemetry.MAX_POINTS, rel=1e-4)
    assert len(msgspec.json.encode(found)) < 120_000


def test_steady_power_and_memory_are_means_of_what_the_tool_said_after_the_run_had_settled(tmp_path: Path) -> None:
    machine = Machine(tmp_path, devices=[0, 1])
    for at_s in range(121):
        settled = at_s >= 30
        machine.read(
            at_s,
            {"power_w": 300.0 if settled else 900.0, "memory_used_bytes": 8e9, "energy_j": 7.0 * at_s},
            {"power_w": 100.0, "memory_used_bytes": 4e9 if settled else 1e9, "energy_j": 7.0 * at_s},
        )
    folder = RunFolder(tmp_path)
    folder.update()
    for rank, span in TRAINED.items():
        folder.ranks[rank] = RankLog(rank=rank, trained_from_ns=span.from_ns, trained_until_ns=span.until_ns)
    found = telemetry.summarise_sensors(telemetry.summarise_nodes(folder, settling_ns=20 * S), 1)
    assert found.steady_power_w == pytest.approx(200)
    assert found.steady_memory_bytes == pytest.approx(6e9)
    assert found.power_w == pytest.approx(7), "the counter's"
    assert telemetry.summarise_sensors([], 1).reasons["steady_power_w"] == telemetry.NOTHING_SAMPLED


@pytest.mark.parametrize(("kind", "watts"), [("cuda", 61.0), ("cpu", None)])
def test_idle_power_is_what_a_device_drew_before_any_rank_of_its_machine_touched_it(
    tmp_path: Path, kind: str, watts: float | None
) -> None:
    machine = Machine(tmp_path)
    for at_s, power in ((1.0, 60.0), (1.5, 61.0), (2.0, 62.0), (3.0, 180.0), (20.0, 400.0), (30.0, 400.0)):
        machine.read(at_s, {"power_w": power})
    machine.end()
    folder = RunFolder(tmp_path)
    folder.update()
    for rank, opened_s in ((0, 3.0), (1, 2.5)):  # a processor starts the ranks itself, so it is never idle then
        folder.ranks[rank] = RankLog(rank=rank, host="node-0", trained_from_ns=15 * S, trained_until_ns=115 * S)
        folder.ranks[rank].add(events.DeviceOpening(at_ns=int((5 + opened_s) * S)))
        folder.ranks[rank].environment = MachineFacts(device=DeviceInfo(type=kind))
    assert telemetry.idle_power(telemetry.summarise_nodes(folder)) == watts
