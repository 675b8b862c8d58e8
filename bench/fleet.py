"""How often a fleet's judgement accuses good hosts, how many slow ones it finds, and what a thousand hosts take.

    python bench/fleet.py [--fleets 500] [--seed 1]

A drawn host lies off by the noise between hosts; its run has 50 steps that vary by 2 % each. A false alarm is a fleet
without a slow host in which anybody is named; found is the share of slow hosts that are named, one host in fifty slow.
With repeats, the noise is of the runs and not of the hosts, and shrinks as it does for a user who says --repeat.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterable

import numpy as np
from scipy.stats import binomtest

from trainmark.features.fleet import outliers, verdict, view
from trainmark.features.fleet.hosts import FleetRuns, PairsDone, group_by_host
from trainmark.features.links.rounds import plan_rounds
from trainmark.record.links import PairLink
from trainmark.record.metrics import Measured, measure
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.recipe import Limits
from trainmark.record.record import Quality, Record
from trainmark.record.timeline import RankTrace, Timeline

FLOOR = -math.log1p(-0.03)
STEPS, STEP_NOISE = 50, 0.02
WITHIN = STEP_NOISE / math.sqrt(STEPS)


def named(dice: np.random.Generator, hosts: int, noise: float, slow: float, repeats: int) -> tuple[int, int, int]:
    """Of one drawn fleet: good hosts that are named, slow hosts that are, and slow hosts."""
    values = dice.normal(0, math.hypot(noise, WITHIN), (repeats, hosts)).mean(axis=0)
    count = max(1, hosts // 50) if slow else 0
    values[:count] += math.log1p(-slow)
    error = math.hypot(WITHIN, 0.01) / math.sqrt(repeats)
    found = outliers.find_outliers(values, [error] * hosts, floor=FLOOR).named
    return sum(found[count:]), sum(found[:count]), count


def table(fleets: int, seed: int) -> None:
    print(f"{'hosts':>6} {'noise':>6} {'repeats':>7} {'fleets':>6} {'false alarms (95 %)':>24}", end="")
    print("".join(f" {f'{slow:.0%} slow':>9}" for slow in SLOW))
    for hosts in (3, 5, 10, 30, 100, 1000):
        for noise, repeats in ((0.005, 1), (0.01, 1), (0.02, 1), (0.02, 5), (0.02, 10)):
            dice = np.random.default_rng([seed, hosts, int(1e4 * noise), repeats])
            clean = [named(dice, hosts, noise, 0.0, repeats)[0] for _ in range(fleets)]
            alarms = sum(count > 0 for count in clean)
            low, high = binomtest(alarms, fleets).proportion_ci()
            found = [_found(dice, hosts, noise, slow, repeats, max(20, fleets // 10)) for slow in SLOW]
            rate = f"{alarms / fleets:.1%} ({low:.1%} to {high:.1%})"
            shares = "".join(f" {share:>9.0%}" for share in found)
            print(f"{hosts:>6} {noise:>6.1%} {repeats:>7} {fleets:>6} {rate:>24}{shares}", flush=True)


SLOW = (0.05, 0.08, 0.12)


def _found(dice: np.random.Generator, hosts: int, noise: float, slow: float, repeats: int, fleets: int) -> float:
    drawn = [named(dice, hosts, noise, slow, repeats) for _ in range(fleets)]
    return sum(found for _, found, _ in drawn) / sum(count for _, _, count in drawn)


def a_record(number: int, speed: float) -> Record:
    dice = random.Random(number)
    compute_ns = [int(3.2e8 / speed * (1 + dice.gauss(0, STEP_NOISE))) for _ in range(STEPS)]
    trace = RankTrace(
        rank=0, host=f"node{number:04}", wait_ns=[10**6] * STEPS, compute_ns=compute_ns, items=[256] * STEPS
    )
    timeline = Timeline(ranks=(trace,), warmup_steps=0)
    return Record(
        run_id=f"run-{number:04}",
        created="2026-11-17T20:00:00Z",
        trainmark="bench",
        status="valid",
        ended=f"{STEPS} steps were done",
        plan=Plan(
            workload="drawn",
            recipe_name="quick",
            recipe={"batch_per_device": 256, "target": 1.0},
            deviations=(),
            topology="1x1",
            precision="fp32",
            platform="cpu",
            data=DataChoice(name="drawn", folder="", synthetic=True),
            limits=Limits(steps=STEPS),
        ),
        item="images",
        metrics=measure(Measured(item="images", timeline=timeline)),
        coverage="",
        quality=Quality(name="acc1", unit="%", goal=1.0, better="higher"),
        timeline=timeline,
    )


def timings(seed: int) -> None:
    dice = random.Random(seed)
    slow, thin = {7, 400, 999}, {3, 500}
    records = [a_record(number, (0.9 if number in slow else 1.0) * (1 + dice.gauss(0, 0.01))) for number in range(1000)]
    hosts = [f"node{number:04}" for number in range(1000)]
    pairs = [
        PairLink(
            first=one,
            second=other,
            size_bytes=64 << 20,
            bus_gigabytes_per_s=(5.0 if {one, other} & thin else 10.0) * (1 + dice.gauss(0, 0.01)),
            latency_s=2e-5,
        )
        for together in plan_rounds(1000)
        for one, other in together
    ]
    began_s = time.perf_counter()
    found = outliers.judge_links(hosts, pairs)
    links_s = time.perf_counter() - began_s
    links = PairsDone(hosts=tuple(hosts), pairs=tuple(pairs))
    fleet = verdict.judge(FleetRuns(hosts=group_by_host(records), links=links))
    judged_s = time.perf_counter() - began_s - links_s
    print(f"1000 hosts judged in {judged_s:.2f} s, {found.pairs} pairs in {links_s:.2f} s")
    began_s = time.perf_counter()
    page = view.render_page(fleet, language="en", trainmark="bench", made="today")
    print(f"page of them drawn in {time.perf_counter() - began_s:.2f} s, {len(page.encode()) / 1e6:.1f} MB")
    named = _names(one.host for one in fleet.hosts_with("slow"))
    print(f"slow hosts {named}; drawn {_names(sorted(hosts[n] for n in slow))}")
    print(f"thin cables {_names(one.host for one in found.cables if one.slow)}; drawn {_names(hosts[n] for n in thin)}")


def links_table(fleets: int, seed: int) -> None:
    """Networks without a bad link: in how many a cable or a path is named, with even noise and with long tails."""
    for hosts in (3, 10, 100):
        for noise, tails in ((0.02, False), (0.05, False), (0.05, True)):
            dice = np.random.default_rng([seed, hosts, int(1e4 * noise), tails])
            pairs = [pair for together in plan_rounds(hosts) for pair in together]
            cables = paths = 0
            for _ in range(fleets):
                drawn = dice.standard_t(3, len(pairs)) if tails else dice.normal(0, 1, len(pairs))
                measured = [
                    PairLink(
                        first=one,
                        second=other,
                        size_bytes=64 << 20,
                        bus_gigabytes_per_s=10 * math.exp(-noise * abs(size)),
                        latency_s=2e-5,
                    )
                    for (one, other), size in zip(pairs, drawn, strict=True)
                ]
                found = outliers.judge_links([str(number) for number in range(hosts)], measured)
                cables += any(cable.slow for cable in found.cables)
                paths += bool(found.slow_paths)
            kind = "long tails" if tails else "even"
            share = f"{cables / fleets:.1%} name a cable, {paths / fleets:.1%} a path"
            print(f"links of {hosts:>3} hosts, noise {noise:.0%} {kind}: {share}", flush=True)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=500, help="fleets drawn for each line (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    timings(args.seed)
    links_table(args.fleets, args.seed)
    table(args.fleets, args.seed)


if __name__ == "__main__":
    main()
