"""Reads the power logs beside a result: what every node drew while it trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainmark.features.mlperf.log import TOKEN, RunLog, as_number, decode_entry, read_lines


@dataclass(frozen=True, kw_only=True)
class NodePower:
    """One node, or one switch."""

    name: str
    energy_j: float | None
    """Over the time of the run, at the power that was measured; None where that cannot be said."""
    began_ms: float | None
    ended_ms: float | None


def measure_power(folder: Path, log: RunLog) -> list[NodePower]:
    """What lies in power/RESULT/ for a log."""
    return [_measure_node(path, log) for kind in ("node", "sw") for path in sorted(folder.glob(f"{kind}_*"))]


def sum_energy_j(nodes: list[NodePower]) -> float | None:
    parts = [node.energy_j for node in nodes]
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None


def _measure_node(path: Path, log: RunLog) -> NodePower:
    began = ended = last = None
    aggregate, efficiency, estimate = 0.0, 1.0, None
    for key, time_ms, value in _read_entries(path):
        if key == "power_measurement_start":
            began = last = time_ms
        elif key == "power_measurement_stop":
            ended = time_ms
        elif key == "conversion_eff" and value is not None:
            efficiency = value
        elif key == "interconnect_power_est" and value is not None:
            estimate = (estimate or 0.0) + value
        elif key == "power_reading" and value is not None and last is not None and ended is None:
            aggregate += value * max(0.0, time_ms - last)
            last = max(time_ms, last)
    ended = last if ended is None else ended
    energy = None
    if log.run_s is not None and estimate is not None:
        energy = estimate * efficiency * log.run_s
    elif log.run_s is not None and aggregate and began is not None and ended is not None and ended > began:
        energy = efficiency * aggregate * log.run_s / (ended - began)
    return NodePower(name=path.name, energy_j=energy, began_ms=began, ended_ms=ended)


def _read_entries(path: Path) -> Iterator[tuple[str, float, float | None]]:
    """Line by line: key, time and number; what is damaged is passed over."""
    try:
        with path.open("rb") as stream:
            for line, whole in read_lines(stream):
                _, token, text = line.rpartition(TOKEN)
                try:
                    found = decode_entry(text) if token and whole else None
                except ValueError:
                    continue
                if found:
                    yield found["key"], found["time_ms"], as_number(found.get("value"))
    except OSError:
        return
