"""Clusters of known links, batches, noise and slow ranks are recovered from their records, and forecast by them."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from analysis.made_clusters import BATCH, Cluster

from trainmark.analysis.forecast import rates, sizes
from trainmark.analysis.forecast.computing import USUAL_FIXED, batch_line
from trainmark.analysis.forecast.physics import StepModel, step_model
from trainmark.analysis.forecast.rates import BatchAsked, RateForecast
from trainmark.analysis.forecast.stragglers import Stragglers, stragglers
from trainmark.spec.errors import UsageError
from trainmark.spec.links import AllReduce
from trainmark.spec.machine import Environment, ExchangeShape
from trainmark.spec.record import Record
from trainmark.spec.timeline import RankSums, StepSums
from trainmark.spec.topology import Topology

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


def model_of(record: Record) -> StepModel:
    found = step_model(record)
    assert found is not None
    return found


def forecast(records: list[Record], topology: str, batch: BatchAsked | None = None) -> RateForecast:
    return rates.forecast(sizes.of_records(records), Topology.parse(topology), batch)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_run_on_two_nodes_tells_the_step_of_any_other_size(name: str) -> None:
    cluster = CLUSTERS[name]
    model = model_of(cluster.record("2x4"))
    assert model.scale == pytest.approx(1.0, rel=1e-3)
    for words in ("1x1", "1x8", "4x4", "32x8"):
        topology = Topology.parse(words)
        parts = model.parts(topology)
        assert parts is not None
        assert parts.computing_s == pytest.approx(cluster.own_s())
        assert parts.exchange_s == pytest.approx(cluster.exposed_s(topology), rel=1e-3, abs=1e-6)
        assert parts.exchange_s + parts.hidden_s == pytest.approx(cluster.wire_s(topology), rel=1e-3, abs=1e-6)


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


def test_links_of_a_node_alone_are_physics_inside_and_the_usual_loss_beyond() -> None:
    cluster = Cluster(bytes=LARGE)
    known = sizes.of_records([cluster.record("1x2")])
    inside = rates.forecast(known, Topology.parse("1x8"))
    assert inside.parts is not None
    assert inside.rate == pytest.approx(cluster.rate("1x8"), rel=0.01)
    beyond = rates.forecast(known, Topology.parse("2x8"))
    assert beyond.parts is None
    assert inside.rate is not None and beyond.rate is not None
    assert 0.97 < beyond.rate / (2 * inside.rate) < 1.001


def test_an_exchange_slower_than_the_links_were_measured_is_as_slow_at_other_sizes() -> None:
    cluster = Cluster(backward=0.0, bytes=LARGE)
    faster = Cluster(backward=0.0, bytes=LARGE, node=(5e-6, 40e9))
    mixed = dataclasses.replace(
        cluster.record("1x4"), environment=faster.environment(Topology.parse("1x4"), fill=False)
    )
    model = model_of(mixed)
    assert model.scale == pytest.approx(2.0, rel=0.01)
    parts = model.parts(Topology.parse("1x8"))
    assert parts is not None
    assert parts.exchange_s == pytest.approx(cluster.exposed_s(Topology.parse("1x8")), rel=0.01)


def test_a_record_of_before_links_were_told_apart_still_tells_those_of_its_one_node() -> None:
    cluster = Cluster(bytes=LARGE)
    record = cluster.record("1x4")
    level, shape = record.environment.link_levels[0], record.environment.exchange
    rows = [
        AllReduce(size_bytes=size, median_s=seconds, best_s=seconds, bus_gigabytes_per_s=1.0)
        for size, seconds in level.times
    ]
    assert shape is not None
    older = ExchangeShape(kind="all-reduce", messages=shape.messages, size_bytes=shape.size_bytes)
    model = model_of(dataclasses.replace(record, environment=Environment(link=rows, exchange=older)))
    assert model.assumed_cover
    parts = model.parts(Topology.parse("1x8"))
    assert parts is not None
    assert parts.exchange_s == pytest.approx(cluster.exposed_s(Topology.parse("1x8")), rel=0.2)
    assert model.parts(Topology.parse("2x4")) is None


def test_the_slowest_of_many_is_what_endless_draws_from_the_seen_ranks_give() -> None:
    draw = np.random.default_rng(3)
    factors = np.sort(draw.normal(1, 0.02, 400))
    seen = Stragglers(factors=factors, by_step=True)
    for ranks in (2, 8, 64):
        drawn = draw.choice(factors, size=(20_000, ranks)).max(axis=1).mean()
        assert seen.slowest(ranks) == pytest.approx(drawn, abs=3e-4)
    assert seen.slowest(100_000) == pytest.approx(factors[-1])
    assert seen.slowest(1) == pytest.approx(1.0, abs=0.003)


def test_noise_and_slow_ranks_of_a_run_tell_what_more_ranks_wait() -> None:
    cluster = Cluster(noise=0.03, ranks_differ=0.01)
    found = stragglers(cluster.record("2x8", steps=200).timeline)
    assert found is not None
    many = [cluster.own_s() * math.exp(x) for x in np.random.default_rng(1).normal(0, math.hypot(0.03, 0.01), 64_000)]
    waited = np.array(many).reshape(1000, 64).max(axis=1).mean() / cluster.own_s()
    assert found.slowest(64) == pytest.approx(waited, abs=0.015)
    assert forecast([cluster.record("1x8"), cluster.record("2x8")], "4x8").rate == pytest.approx(
        cluster.rate("4x8"), rel=0.02
    )


def test_of_a_long_run_the_sums_of_each_rank_tell_the_slow_ones() -> None:
    record = Cluster(ranks_differ=0.05).record("1x8")
    whole = stragglers(record.timeline)

    def shortened(trace: object) -> object:
        counted = record.timeline.counted(trace)  # type: ignore[arg-type]
        sums = RankSums(steps=60, exchanged=60, warmup=StepSums(), counted=counted)
        return dataclasses.replace(trace, sums=sums)  # type: ignore[type-var]

    ranks = tuple(map(shortened, record.timeline.ranks))
    summed = stragglers(dataclasses.replace(record.timeline, ranks=ranks))  # type: ignore[arg-type]
    assert whole is not None and summed is not None
    assert (whole.by_step, summed.by_step) == (True, False)
    assert summed.slowest(16) == pytest.approx(whole.slowest(16), rel=1e-6)


def test_the_fixed_part_of_a_step_is_found_from_the_batch_search_or_from_runs_of_two_batches() -> None:
    cluster = Cluster(fixed_s=0.02, sample_s=0.001)
    wanted = 0.02 / cluster.own_s()
    tried = batch_line(BATCH, [cluster.record("1x1", fill=True)], [])
    assert (tried.fixed, tried.batches) == (pytest.approx(wanted, rel=1e-3), (8, 16, 32))
    run_twice = batch_line(BATCH, [cluster.record("1x4")], [cluster.record("1x4", 8)])
    assert (run_twice.fixed, run_twice.batches) == (pytest.approx(wanted, rel=1e-3), (8, 32))
    assert tried.error < 0.02 and run_twice.error < 0.03
    usual = batch_line(BATCH, [cluster.record("1x1")], [])
    assert (usual.fixed, usual.source) == (USUAL_FIXED, "")


def test_one_global_batch_is_shared_out_where_two_batches_are_known_and_refused_far_below_them() -> None:
    cluster = Cluster(fixed_s=0.02, sample_s=0.001)
    runs = [cluster.record("1x4"), cluster.record("2x4"), cluster.record("2x4", 16)]
    found = forecast(runs, "4x4", BatchAsked(overall=256))
    assert found.batch_per_device == 16
    assert found.rate == pytest.approx(cluster.rate("4x4", 16), rel=0.05)
    assert found.interval is not None
    assert found.interval[0] < cluster.rate("4x4", 16) < found.interval[1]
    refused = forecast(runs, "16x4", BatchAsked(overall=256))
    assert refused.kind == rates.REFUSED
    assert refused.why.startswith("a batch of 4 a device is more than 2 times below the smallest known one, 16")
    uneven = forecast(runs, "3x4", BatchAsked(overall=256))
    assert uneven.why == "a global batch of 256 does not share out evenly over 12 devices"


def test_another_batch_without_a_second_one_known_goes_by_the_usual_share_and_a_wide_range() -> None:
    cluster = Cluster(fixed_s=0.003)
    one, two = cluster.record("2x4"), cluster.record("2x4", fill=True)
    blind, seeing = (forecast([run], "2x4", BatchAsked(per_device=16)) for run in (one, two))
    assert blind.interval is not None and seeing.interval is not None

    def width(found: RateForecast) -> float:
        assert found.interval is not None
        return math.log(found.interval[1] / found.interval[0])

    assert width(blind) > 2 * width(seeing)
    assert blind.interval[0] < cluster.rate("2x4", 16) < blind.interval[1]


def test_ranks_that_compute_blocks_together_are_forecast_by_their_sizes_alone() -> None:
    assert step_model(Cluster(parallel="fsdp+tp2").record("1x4")) is None


def test_links_that_changed_and_batches_that_changed_with_the_size_are_refused() -> None:
    usual, slow = Cluster(), Cluster(node=(10e-6, 2e9))
    again = dataclasses.replace(slow.record("1x4"), run_id="after")
    with pytest.raises(UsageError, match=r"the links changed between runs 1x4-32 and after: all-reduce inside a node"):
        sizes.of_records([usual.record("1x4"), again])
    with pytest.raises(UsageError, match="differ in batch and devices together"):
        sizes.of_records([usual.record("1x4"), usual.record("2x4", 16)])


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
