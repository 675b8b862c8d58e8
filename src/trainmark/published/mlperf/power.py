"""Reads the power logs beside a result: what every node drew while it trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainmark.published.mlperf.log import TOKEN, RunLog, as_number, decoded, lines_of

FEWEST_READINGS = 60
LONGEST_GAP_S = 1.5
"""The rules ask for a reading a second."""


@dataclass(frozen=True, kw_only=True)
class NodePower:
    """One node, or one switch."""

    name: str
    energy_j: float | None
    """Over the time of the run, at the power that was measured; None where that cannot be said."""
    readings: int
    least_w: float | None
    most_w: float | None
    began_ms: float | None
    ended_ms: float | None
    longest_gap_s: float
    backwards: int
    """Readings that are older than the one before them."""
    damaged: tuple[int, ...]
    """Lines that could not be read."""


@dataclass(frozen=True, kw_only=True)
class RunEnergy:
    nodes: tuple[NodePower, ...]
    switches: tuple[NodePower, ...]
    missing: bool
    """Whether there is no folder for the run."""

    @property
    def energy_j(self) -> float | None:
        parts = [node.energy_j for node in (*self.nodes, *self.switches)]
        known = [part for part in parts if part is not None]
        return sum(known) if self.nodes and len(known) == len(parts) else None


def measured(folder: Path, log: RunLog) -> RunEnergy:
    """What lies in power/RESULT/ for a log."""
    if not folder.is_dir():
        return RunEnergy(nodes=(), switches=(), missing=True)
    found = {kind: sorted(folder.glob(f"{kind}_*")) for kind in ("node", "sw")}
    return RunEnergy(
        nodes=tuple(_node(path, log) for path in found["node"]),
        switches=tuple(_node(path, log) for path in found["sw"]),
        missing=False,
    )


def _node(path: Path, log: RunLog) -> NodePower:
    began = ended = last = least = most = None
    aggregate, efficiency, estimate = 0.0, 1.0, None
    readings = backwards = 0
    gap, damaged = 0.0, []
    for line, found in _entries(path):
        if found is None:
            damaged.append(line)
            continue
        key, time_ms, value = found
        if key == "power_measurement_start":
            began = last = time_ms
        elif key == "power_measurement_stop":
            ended = time_ms
        elif key == "conversion_eff" and value is not None:
            efficiency = value
        elif key == "interconnect_power_est" and value is not None:
            estimate = (estimate or 0.0) + value
        elif key == "power_reading" and value is not None and began is not None and ended is None:
            readings += 1
            least = value if least is None else min(least, value)
            most = value if most is None else max(most, value)
            passed = time_ms - (began if last is None else last)
            backwards += passed < 0
            gap = max(gap, passed / 1000)
            aggregate += value * max(0.0, passed)
            last = max(time_ms, began if last is None else last)
    ended = last if ended is None else ended
    energy, run_s = None, log.run_s
    if run_s is not None:
        if estimate is not None:
            energy = estimate * efficiency * run_s
        elif readings and began is not None and ended is not None and ended > began:
            energy = efficiency * aggregate * run_s / (ended - began)
    return NodePower(
        name=path.name,
        energy_j=energy,
        readings=readings,
        least_w=least,
        most_w=most,
        began_ms=began,
        ended_ms=ended,
        longest_gap_s=gap,
        backwards=backwards,
        damaged=tuple(damaged),
    )


def _entries(path: Path) -> Iterator[tuple[int, tuple[str, float, float | None] | None]]:
    """Line by line: key, time and number, or None where a line is damaged."""
    try:
        with path.open("rb") as stream:
            for number, (line, whole) in enumerate(lines_of(stream), 1):
                _, token, text = line.rpartition(TOKEN)
                if not token:
                    continue
                try:
                    found = decoded(text) if whole else None
                except ValueError:
                    found = None
                known = (found["key"], found["time_ms"], as_number(found.get("value"))) if found else None
                yield number, known
    except OSError:
        yield 0, None
