"""Forecasts recover clusters of a known law, hold published outcomes in their ranges, refuse what nothing carries."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator

import pytest
from support.records import make_record

from trainmark.analysis import published_library as library
from trainmark.analysis.clusters import Chain, find_chains, load_table
from trainmark.analysis.scaling import find_published_scalings
from trainmark.features.forecast import forecast as cost, rates, scaling_law
from trainmark.features.forecast.rates import Known
from trainmark.features.forecast.scaling_law import Size, backtest
from trainmark.record.errors import UsageError
from trainmark.record.metrics import Quantity
from trainmark.record.plan import Topology
from trainmark.record.record import Evaluation, Quality, Record
from trainmark.record.site import Price


def size(topology: str, rate: float, error: float = scaling_law.RUN_ERROR) -> Size:
    return Size(topology=Topology.parse(topology), rate=rate, error=error)


def known(*found: Size) -> Known:
    return Known(subject=("a", "b"), metric="p_core", unit="images/s", batch_per_device=32, sizes=found)


def cluster(topology: str, loss: float) -> Size:
    """One of which every device does 100 items a second alone, and less by a share with each doubling."""
    devices = Topology.parse(topology).devices
    return size(topology, 100 * devices * math.exp(loss * math.log2(devices)), error=0.002)


def record(run_id: str, topology: str, p_core: float, *, reached: int | None = None, half: float = 0.01) -> Record:
    interval = (p_core / (1 + half), p_core * (1 + half))
    history = tuple(
        Evaluation(step=step, epoch=step / 2, values={"acc1": 80.0 if step == reached else 10.0}, samples=8)
        for step in (2, 4)
    )
    return make_record(
        run_id=run_id,
        plan={"topology": topology, "recipe": {"batch_per_device": 32, "epochs": 90}},
        metrics={
            "p_core": Quantity(value=p_core, unit="images/s", interval=interval),
            "p_train": Quantity(value=0.9 * p_core, unit="images/s"),
            "energy_per_item": Quantity(value=36.0, unit="J/image"),
        },
        quality=Quality(name="acc1", unit="%", goal=75.5, better="higher", value=80.0, history=history),
    )


@pytest.mark.parametrize("loss", [-0.005, -0.02, -0.05])
def test_the_loss_of_a_cluster_is_found_from_three_of_its_sizes(loss: float) -> None:
    seen = [cluster(topology, loss) for topology in ("1x1", "1x8", "4x8")]
    assert scaling_law.fit_loss(seen) == pytest.approx(loss, abs=0.002)
    found = rates.forecast(known(*seen), Topology.parse("16x8"))
    assert found.kind == rates.FORECAST
    assert found.rate == pytest.approx(cluster("16x8", loss).rate, rel=0.01)


def test_one_size_goes_by_what_published_clusters_lose() -> None:
    assert scaling_law.fit_loss([size("1x8", 800)]) == pytest.approx(scaling_law.USUAL_LOSS)
    found = rates.forecast(known(size("1x8", 800)), Topology.parse("4x8"))
    assert found.rate == pytest.approx(3200 * math.exp(2 * scaling_law.USUAL_LOSS))
    assert found.efficiency == pytest.approx(math.exp(2 * scaling_law.USUAL_LOSS))


def test_a_measured_size_is_not_forecast() -> None:
    found = rates.forecast(known(size("1x1", 100), size("1x8", 780)), Topology.parse("1x8"))
    assert (found.kind, found.rate) == (rates.MEASURED, 780)


def test_a_measured_size_with_another_batch_is_forecast() -> None:
    seen = known(size("1x1", 100), size("1x8", 780))
    found = rates.forecast(seen, Topology.parse("1x8"), 8 * 64)
    assert (found.kind, found.rate) == (rates.FORECAST, pytest.approx(780 * 2 / (0.03 + 0.97 * 2)))


def test_micro_batches_share_the_global_batch() -> None:
    seen = dataclasses.replace(known(size("1x8", 780)), accumulate=2)
    found = rates.forecast(seen, Topology.parse("2x8"), 1024)
    assert found.batch_per_device == 32
    assert found.rate == rates.forecast(seen, Topology.parse("2x8")).rate


def test_one_device_gives_a_range_inside_a_node_and_nothing_beyond_it() -> None:
    inside = rates.forecast(known(size("1x1", 100)), Topology.parse("1x8"))
    assert (inside.kind, inside.rate, inside.efficiency) == (rates.RANGE, None, None)
    assert inside.interval is not None
    assert inside.interval[0] < 800 * 0.94 < inside.interval[1]
    beyond = rates.forecast(known(size("1x1", 100)), Topology.parse("2x8"))
    assert (beyond.kind, beyond.interval) == (rates.REFUSED, None)
    assert "run one whole node" in beyond.why


def test_far_beyond_the_largest_size_it_is_an_order_of_magnitude_and_the_range_widens() -> None:
    seen = known(size("1x1", 100), size("1x8", 780))
    near, far = (rates.forecast(seen, Topology.parse(topology)) for topology in ("2x8", "512x8"))
    assert (near.kind, far.kind) == (rates.FORECAST, rates.ROUGH)

    def width(found: rates.RateForecast) -> float:
        assert found.interval is not None
        return math.log(found.interval[1] / found.interval[0])

    assert width(far) > 2 * width(near)


def published(workload: str, metric: str) -> Iterator[tuple[Known, float]]:
    for group in find_published_scalings(library.load_rows(workload)):
        outcome = next((getattr(point.row, metric) for point in group.points if point.row.topology == "2x8"), None)
        found = rates.read_published(group, metric, below=16)
        if found and outcome:
            yield found, outcome


@pytest.mark.parametrize("workload", ["resnet50", "tacotron2"])
def test_two_nodes_of_the_published_tables_are_forecast_within_five_percent(workload: str) -> None:
    found = list(published(workload, "p_core"))
    assert found
    for seen, outcome in found:
        assert seen.several
        forecast = rates.forecast(seen, Topology.parse("2x8"))
        assert forecast.rate == pytest.approx(outcome, rel=0.05)
        assert forecast.interval is not None
        assert forecast.interval[0] < outcome < forecast.interval[1]


def test_a_published_row_that_contradicts_its_neighbours_is_named_and_not_believed() -> None:
    ((seen, outcome),) = published("vit", "p_core")
    assert [str(one.topology) for one in seen.sizes] == ["1x8"]
    assert seen.notes[0].startswith("1x1 is left out: a device of 1x8 does 0.59")
    assert rates.forecast(seen, Topology.parse("2x8")).rate == pytest.approx(outcome, rel=0.05)


def test_a_range_holds_as_many_published_outcomes_as_it_is_made_for() -> None:
    assert len(load_table()) > 400
    found = backtest(find_chains())
    assert found.count > 90
    assert 0.85 <= found.coverage <= 0.95
    assert sum(line.count for line in found.lines) == found.count
    assert all(line.median_error < 0.08 for line in found.lines)


def test_a_range_holds_the_outcomes_of_clusters_like_those_it_was_made_from() -> None:
    draw = random.Random(5)

    def drawn(number: int) -> Chain:
        loss = draw.gauss(-0.02, 0.02)
        noisy = [(n, n * math.exp(loss * math.log2(n) + draw.gauss(0, 0.01))) for n in (8, 16)]
        return Chain(round="drawn", submitter=str(number), benchmark="any", accelerator="any", rates=tuple(noisy))

    reach = scaling_law.measure_reach([drawn(number) for number in range(300)], several=False)
    later = scaling_law.measure_errors([drawn(number) for number in range(1000)], several=False)
    inside = sum(reach.low <= error <= reach.high for error, _ in later)
    assert 860 < inside < 940


def test_runs_that_shared_out_one_batch_or_are_noisy_carry_no_forecast() -> None:
    with pytest.raises(UsageError, match="known to ±20 % only"):
        rates.read_records([record("a", "1x1", 100, half=0.2)])
    strong = make_record(
        run_id="b",
        plan={"topology": "1x2", "recipe": {"batch_per_device": 16, "epochs": 90}},
        metrics={"p_core": Quantity(value=150, unit="images/s")},
    )
    with pytest.raises(UsageError, match="one batch_per_device"):
        rates.read_records([record("a", "1x1", 100), strong])


def test_time_energy_and_cost_follow_from_the_work_of_a_run_that_met_its_target() -> None:
    runs = [record("one", "1x1", 100), record("eight", "1x8", 784, reached=4)]
    seen = rates.read_records(runs)
    work = cost.measure_work(runs)
    assert work.why == "step 4, at which run eight met its target"
    assert work.items == pytest.approx(4 * work.items_per_step)
    rate = rates.forecast(seen, Topology.parse("2x8"))
    found = cost.forecast_cost(work, rate, Price(device_hour=2.0, currency="EUR", pue=1.5))
    assert found is not None and rate.rate is not None
    assert found.time_s.value == pytest.approx(sum(found.parts_s.values()))
    assert found.parts_s["train"] == pytest.approx(work.items / rate.rate / 0.9)
    assert found.time_s.low < (found.time_s.value or 0) < found.time_s.high
    assert found.cost is not None
    assert found.cost.value == pytest.approx((found.time_s.value or 0) / 3600 * 16 * 2.0)
    assert found.energy_kwh is not None
    assert found.energy_kwh.low == pytest.approx(work.items * 36.0 * 1.5 / 3.6e6)
    assert found.energy_kwh.low <= (found.energy_kwh.value or 0) <= found.energy_kwh.high


def test_so_much_training_may_be_asked_for_instead() -> None:
    runs = [record("one", "1x1", 100)]
    assert cost.measure_work(runs, "1e6 items").items == 1e6
    ten, twenty = (cost.measure_work(runs, f"{count} epochs").items for count in (10, 20))
    assert twenty == pytest.approx(2 * ten)
    assert cost.measure_work(runs).why == "the length of the recipe, as no run here has met its target"
    with pytest.raises(UsageError, match="is not a length of training"):
        cost.measure_work(runs, "soon")
