"""Forecasts three nodes from one and two over cables of a set speed, runs them, and holds the two together.

    sudo python bench/three_nodes.py [--mbit 40]

Nodes are network namespaces, as in the tests, each behind a token bucket (`tc tbf`). Computing is sleep, so that three
nodes on two cores do not disturb each other: what changes with the size is the exchange.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.hosts import Hosts, missing_shaper  # type: ignore[import-not-found]  # of the tests

from trainmark.features.forecast import rates
from trainmark.record.plan import Topology
from trainmark.record.record import Record

WORKLOAD = Path(__file__).with_name("sleeping.py")


def run(hosts: Hosts, nodes: int, folder: Path) -> Record:
    """One run on the first hosts; the record is the first one's."""
    words = [sys.executable, "-m", "trainmark", "run", WORKLOAD, "--recipe", "smoke", "--platform", "cpu"]
    words += ["--set", "batch_per_device=8", "--topology", f"{nodes}x1"]
    started = [
        hosts[number].popen(
            words,
            env={
                **os.environ,
                "TRAINMARK_STORE": str(folder / f"{nodes}-{number}"),
                "OMP_NUM_THREADS": "1",
                "PET_NNODES": str(nodes),
                "PET_NODE_RANK": str(number),
                "PET_NPROC_PER_NODE": "1",
                "PET_MASTER_ADDR": hosts[0].name,
                "PET_MASTER_PORT": "29400",
                "TRAINMARK_SECRET": "what all nodes know",
            },
            stdout=subprocess.DEVNULL,
        )
        for number in range(nodes)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        sys.exit(f"{nodes}x1 failed")
    [path] = (folder / f"{nodes}-0" / "records").glob("*.json")
    return Record.from_json(json.loads(path.read_text(encoding="utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=40.0)
    args = parser.parse_args()
    if why := missing_shaper():
        sys.exit(why)
    with Hosts(3) as hosts, tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            hosts.slow(number, args.mbit)
        records = [run(hosts, nodes, Path(folder)) for nodes in (1, 2, 3)]
    for record in records:
        speed, link = record.metrics["p_core"], record.environment.link_levels
        told = f", {8 * link[0].bytes_per_s / 1e6:.1f} Mbit/s, latency {1e3 * link[0].latency_s:.2f} ms" if link else ""
        low, high = speed.interval or (0.0, 0.0)
        print(f"{record.plan.topology}: {speed.value:.2f} {speed.unit} [{low:.2f}, {high:.2f}]{told}")
    found = rates.forecast(rates.read_records(records[:2]), Topology(nodes=3, devices_per_node=1))
    outcome, two = records[2].metrics["p_core"].value or 0.0, records[1].metrics["p_core"].value or 0.0
    if found.rate is None or found.interval is None:
        sys.exit("no forecast")
    print(f"3x1 forecast: {found.rate:.2f} [{found.interval[0]:.2f}, {found.interval[1]:.2f}]")
    for name, rate in (("forecast", found.rate), ("linear from 2x1", 1.5 * two)):
        print(f"  {name}: {rate:.2f}, {100 * (rate / outcome - 1):+.1f} %")
    inside = found.interval[0] <= outcome <= found.interval[1]
    print(f"3x1 was {outcome:.2f}: {'inside' if inside else 'OUTSIDE'} the range")


if __name__ == "__main__":
    main()
