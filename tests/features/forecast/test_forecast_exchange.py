"""The exchange of clusters with known links is recovered from their records, and larger sizes are forecast by it."""

from __future__ import annotations

import dataclasses
import random

import pytest
from support.made_clusters import Cluster

from trainmark.features.forecast import rates
from trainmark.features.forecast.rates import ExchangeModel, RateForecast, fit_exchange
from trainmark.record.errors import UsageError
from trainmark.record.machine import Environment
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.timeline import RankSums, RankTrace, StepSums

LARGE = 2_000_000_000
"""Bytes of a step that no computing hides."""
CLUSTERS = {
    "hidden": Cluster(),
    "slow network": Cluster(bytes=LARGE, nodes=(30e-6, 1e9)),
    "long latency": Cluster(messages=200, node=(1e-3, 20e9), nodes=(3e-3, 2e9)),
    "sharded": Cluster(parallel="fsdp", bytes=LARGE),
    "sharded inside nodes": Cluster(parallel="hsdp", bytes=LARGE),
    "nothing hidden": Cluster(backward=0.0, bytes=LARGE),
}


def model_of(record: Record) -> ExchangeModel:
    found = fit_exchange(record)
    assert found is not None
    return found


def forecast(records: list[Record], topology: str, batch: int | None = None) -> RateForecast:
    return rates.forecast(rates.read_records(records), Topology.parse(topology), batch)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_run_on_two_nodes_tells_the_step_of_any_other_size(name: str) -> None:
    cluster = CLUSTERS[name]
    model = model_of(cluster.record("2x4"))
    assert model.slowdown == pytest.approx(1.0, rel=1e-3)
    for words in ("1x1", "1x8", "4x4", "32x8"):
        topology = Topology.parse(words)
        assert model.wire_s(topology) == pytest.approx(cluster.wire_s(topology), rel=1e-3, abs=1e-6)
        # one message more or less is hidden where the exchange grows longer than backward
        assert model.step_s(topology) == pytest.approx(cluster.own_s() + cluster.exposed_s(topology), rel=0.02)


def test_a_long_run_that_kept_sums_alone_tells_the_same() -> None:
    record = Cluster(bytes=LARGE).record("1x8")

    def summed(trace: RankTrace) -> RankTrace:
        sums = RankSums(steps=60, exchanged=60, warmup=StepSums(), counted=record.timeline.sum_counted(trace))
        return dataclasses.replace(trace, sums=sums)

    timeline = dataclasses.replace(record.timeline, ranks=tuple(map(summed, record.timeline.ranks)))
    assert model_of(dataclasses.replace(record, timeline=timeline)).overlap == pytest.approx(model_of(record).overlap)


def test_links_of_a_node_alone_explain_what_is_inside_and_the_usual_loss_what_is_beyond() -> None:
    cluster = Cluster(bytes=LARGE)
    known = rates.read_records([cluster.record("1x2")])
    inside, beyond = (rates.forecast(known, Topology.parse(words)).rate for words in ("1x8", "2x8"))
    assert inside is not None and beyond is not None
    assert inside == pytest.approx(cluster.rate("1x8"), rel=0.01)
    assert 0.97 < beyond / (2 * inside) < 1.001


def test_an_exchange_slower_than_the_links_were_measured_is_as_slow_at_other_sizes() -> None:
    cluster = Cluster(backward=0.0, bytes=LARGE)
    faster = Cluster(backward=0.0, bytes=LARGE, node=(5e-6, 40e9))
    mixed = dataclasses.replace(cluster.record("1x4"), environment=faster.environment(Topology.parse("1x4")))
    model = model_of(mixed)
    assert model.slowdown == pytest.approx(2.0, rel=0.01)
    size = Topology.parse("1x8")
    assert model.step_s(size) == pytest.approx(cluster.own_s() + cluster.exposed_s(size), rel=0.01)


def test_ranks_that_compute_layers_together_are_forecast_by_their_sizes_alone() -> None:
    assert fit_exchange(Cluster(parallel="fsdp+tp2").record("1x4")) is None


def test_one_global_batch_is_divided_with_a_range_for_what_a_smaller_batch_costs() -> None:
    cluster = Cluster(fixed_s=0.003)
    found = forecast([cluster.record("1x4"), cluster.record("2x4")], "4x4", 256)
    assert found.batch_per_device == 16
    assert found.rate == pytest.approx(cluster.rate("4x4", 16), rel=0.05)
    assert found.interval is not None
    assert found.interval[0] < cluster.rate("4x4", 16) < found.interval[1]


def test_another_batch_at_sizes_over_unmeasured_links_goes_by_compute_alone() -> None:
    runs = [Cluster().record("2x1"), Cluster().record("4x1")]
    usual, twice = (forecast(runs, "2x4", batch).rate for batch in (None, 8 * 64))
    assert usual is not None and twice is not None
    assert 1 < twice / usual < 1.03


@pytest.mark.parametrize("name", CLUSTERS)
def test_more_nodes_are_forecast_from_the_links_and_two_sizes(name: str) -> None:
    cluster = CLUSTERS[name]
    found = forecast([cluster.record("1x4"), cluster.record("2x4")], "4x8")
    assert found.rate == pytest.approx(cluster.rate("4x8"), rel=0.05)
    assert found.interval is not None
    assert found.interval[0] < cluster.rate("4x8") < found.interval[1]


def test_a_slow_network_is_seen_by_its_links_where_a_law_of_sizes_alone_misses_it() -> None:
    cluster = CLUSTERS["slow network"]
    runs = [cluster.record("1x8"), cluster.record("2x8")]
    # as before records had links and bytes
    blind = [dataclasses.replace(run, environment=Environment()) for run in runs]
    outcome = cluster.rate("8x8")
    assert forecast(runs, "8x8").rate == pytest.approx(outcome, rel=0.02)
    missed = forecast(blind, "8x8").rate
    assert missed is None or abs(missed / outcome - 1) > 0.1


def test_batches_that_changed_with_the_size_are_refused() -> None:
    usual = Cluster()
    with pytest.raises(UsageError, match="differ in their batch"):
        rates.read_records([usual.record("1x4"), usual.record("2x4", 16)])


@pytest.mark.slow
def test_a_range_holds_nine_of_ten_clusters_whose_loss_nothing_on_their_records_explains() -> None:
    draw, inside, count = random.Random(11), 0, 120
    for seed in range(count):
        cluster = Cluster(
            bytes=round(10 ** draw.uniform(7, 9.3)),
            messages=draw.randint(2, 40),
            nodes=(draw.uniform(5e-6, 2e-4), 10 ** draw.uniform(8.5, 10.5)),
            backward=draw.uniform(0.3, 0.7),
            noise=draw.uniform(0, 0.03),
            ranks_differ=draw.uniform(0, 0.02),
            hidden_loss=draw.gauss(-0.02, 0.05),
            seed=seed,
        )
        found = forecast([cluster.record("1x2", steps=20), cluster.record("2x2", steps=20)], "4x2")
        outcome = cluster.record("4x2", steps=20).metrics["p_core"].value or 0.0
        assert found.interval is not None
        inside += found.interval[0] <= outcome <= found.interval[1]
    assert 0.85 * count <= inside < 0.99 * count
