"""Finds result logs: a single file, or the results/SYSTEM/BENCHMARK folders of a submission."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainmark.features.mlperf.benchmarks import Benchmark, find_round, load_benchmarks
from trainmark.features.mlperf.log import LINE_MARK, RunLog, as_number, decode_entry, is_log, read_lines, read_log
from trainmark.record.errors import UsageError

RESULT = re.compile(r"result_[^/]*\.txt")
BESIDE = frozenset({"scaling.json", "package_checker_params", "power", "README.md"})
"""What may lie beside the logs of a result."""
MAX_LOGS = 20_000
MAX_DESCRIPTION = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ResultFolder:
    """All logs of one benchmark on one system, or a log by itself."""

    path: Path
    logs: tuple[RunLog, ...]
    unreadable: tuple[str, ...] = ()
    """One sentence per file that is named like a result but is not one."""
    others: tuple[str, ...] = ()
    """Files beside them that are not part of the rules."""
    whole: bool = True
    """False where a log was named by itself, so that the rules on sets of runs do not apply."""

    @property
    def title(self) -> str:
        """SUBMITTER/SYSTEM/BENCHMARK, as far as the path gives it."""
        parts = [part for part in self.path.parts if part not in ("results", "/")]
        return "/".join(parts[-3:])

    @property
    def system(self) -> str:
        return self.path.parent.name if self.whole else ""

    @property
    def benchmark(self) -> str:
        """As the logs call it, else the folder."""
        return next((log.benchmark for log in self.logs if log.benchmark), self.path.name if self.whole else "")

    @property
    def known(self) -> Benchmark | None:
        return load_benchmarks().get(self.benchmark)

    @property
    def division(self) -> str:
        return next((log.word("submission_division") for log in self.logs if log.word("submission_division")), "closed")

    @property
    def round(self) -> str | None:
        starts = [event.time_ms for log in self.logs if (event := log.first("run_start"))]
        return find_round(self.benchmark, path=str(self.path.absolute()), time_ms=max(starts, default=None))

    @property
    def description_file(self) -> Path:
        """Where a submission describes the system."""
        return self.path.absolute().parent.parent.parent / "systems" / f"{self.system}.json"

    @cached_property
    def description(self) -> Mapping[str, Any] | None:
        """The system as the submission describes it; None where that is not at hand or cannot be read."""
        if not self.whole:
            return None
        try:
            with self.description_file.open("rb") as stream:
                found = json.loads(stream.read(MAX_DESCRIPTION))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    @cached_property
    def power(self) -> Mapping[str, list[NodePower]]:
        """Power per node, by log; empty where power was not measured."""
        folder = self.path / "power"
        if not self.whole or not folder.is_dir():
            return {}
        return {log.name: measure_power(folder / Path(log.name).stem, log) for log in self.logs}


def has_logs(path: Path) -> bool:
    """Whether a folder has result logs anywhere inside."""
    return any(is_log(found) for found in _find_logs(path))


def find_result_folders(path: Path) -> Iterator[ResultFolder]:
    """Each benchmark of each system below a folder, by name; or one log. Lazily, so that few are in memory."""
    if path.is_file():
        yield ResultFolder(path=path, logs=(read_log(path),), whole=False)
        return
    members: dict[Path, list[Path]] = {}
    for count, found in enumerate(_find_logs(path)):
        if count == MAX_LOGS:
            raise UsageError(f"folder {path} has more than {MAX_LOGS} result logs; name a folder inside it")
        members.setdefault(found.parent, []).append(found)
    for folder in sorted(members):
        yield _read_folder(folder, members[folder])


def _find_logs(path: Path) -> Iterator[Path]:
    for found in path.rglob("result_*.txt"):
        if RESULT.fullmatch(found.name) and found.is_file():
            yield found


def _read_folder(folder: Path, found: Sequence[Path]) -> ResultFolder:
    logs, unreadable = [], []
    for path in sorted(found, key=_sort_key):
        try:
            logs.append(read_log(path))
        except UsageError as error:
            unreadable.append(str(error))
    names = {path.name for path in found}
    others = sorted(path.name for path in folder.iterdir() if path.name not in names | BESIDE)
    return ResultFolder(path=folder, logs=tuple(logs), unreadable=tuple(unreadable), others=tuple(others))


def _sort_key(path: Path) -> tuple[int, str]:
    """result_2 before result_10."""
    number = re.search(r"([0-9]{1,9})", path.name)
    return (int(number[1]) if number else -1, path.name)


# Power: what every node drew while it trained


@dataclass(frozen=True, kw_only=True)
class NodePower:
    """One node, or one switch."""

    name: str
    energy_j: float | None
    """Over the time of the run, at the power that was measured; None where unknown."""
    began_ms: float | None
    ended_ms: float | None


def measure_power(folder: Path, log: RunLog) -> list[NodePower]:
    """Reads power/RESULT/ of a log."""
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
    """Line by line: key, time and number; damaged lines are skipped."""
    try:
        with path.open("rb") as stream:
            for line, whole in read_lines(stream):
                _, token, text = line.rpartition(LINE_MARK)
                try:
                    found = decode_entry(text) if token and whole else None
                except ValueError:
                    continue
                if found:
                    yield found["key"], found["time_ms"], as_number(found.get("value"))
    except OSError:
        return
