"""Reads MLPerf result logs line by line, and the folders they lie in; computes throughput and time to train."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from trainmark.features.mlperf.benchmarks import Benchmark, find_round, find_unit, load_benchmarks, olympic_mean
from trainmark.record.errors import UsageError
from trainmark.record.foreign_files import open_plain

LINE_MARK = b":::MLLOG "
MAX_LINE = 1 << 20
MAX_EVENTS = 200_000
MAX_VALUES = 64
"""Different values kept of one key."""
MAX_DAMAGES = 1000
MAX_HEAD = 8 << 20
"""Bytes of a file within which the first log line must appear; launchers print much before it."""

TIMELINE = frozenset(
    f"{what}_{end}" for what in ("init", "run", "epoch", "block", "eval") for end in ("start", "stop")
) | {"eval_accuracy", "eval_error", "aggregated_eval_accuracy", "averaged_validation_loss"}
"""Keys whose every occurrence is kept, in order."""
PLACES = ("epoch_num", "first_epoch_num", "epoch_count", "samples_count", "step_num")
"""Metadata that locate an event in the training."""


@dataclass(frozen=True, kw_only=True)
class LogEvent:
    """One line of the timeline."""

    key: str
    time_ms: float
    line: int
    value: Any = None
    status: str | None = None
    place: Mapping[str, float] = field(default_factory=dict)

    @property
    def at(self) -> float | None:
        """Epochs or samples, as the log counts them."""
        return next(
            (self.place[name] for name in ("samples_count", "epoch_num", "step_num") if name in self.place), None
        )


@dataclass(kw_only=True)
class RunLog:
    """One result file, reduced to what readers and checks need."""

    name: str
    path: Path
    sha256: str = ""
    untimed_sha256: str = ""
    """Of keys, values and metadata without the times: two logs of one training share it."""
    entries: int = 0
    values: dict[str, list[Any]] = field(default_factory=dict)
    """Distinct values by key, in order, up to `MAX_VALUES`."""
    events: list[LogEvent] = field(default_factory=list)
    damages: list[tuple[int, str]] = field(default_factory=list)
    """Lines that cannot be read, and why."""

    def value(self, key: str) -> Any:
        """The first value of a key, or None."""
        found = self.values.get(key)
        return found[0] if found else None

    def number(self, key: str) -> float | None:
        return as_number(self.value(key))

    def word(self, key: str) -> str:
        value = self.value(key)
        return value if isinstance(value, str) else ""

    def find(self, *keys: str) -> list[LogEvent]:
        return [event for event in self.events if event.key in keys]

    def first(self, key: str) -> LogEvent | None:
        return next(iter(self.find(key)), None)

    def last(self, key: str) -> LogEvent | None:
        found = self.find(key)
        return found[-1] if found else None

    @property
    def benchmark(self) -> str:
        return self.word("submission_benchmark")

    @property
    def evaluations(self) -> list[LogEvent]:
        """Evaluations that count for the target."""
        return self.find("eval_accuracy", "eval_error", "averaged_validation_loss")

    @property
    def status(self) -> str:
        """`success`, `aborted`, or empty where the log does not state how the run ended."""
        stop = self.last("run_stop")
        return (stop.status or "") if stop else ""

    @property
    def run_s(self) -> float | None:
        """What MLPerf scores: from run_start to run_stop."""
        first, last = self.first("run_start"), self.last("run_stop")
        return (last.time_ms - first.time_ms) / 1000 if first and last else None

    @property
    def evaluation_s(self) -> float:
        """Between eval_start and eval_stop, where both stand in the log."""
        return sum(max(0.0, end.time_ms - begin.time_ms) for begin, end in self.pair_spans("eval")) / 1000

    def pair_spans(self, what: str) -> list[tuple[LogEvent, LogEvent]]:
        """Start events with their stops, in order; one without a stop is skipped."""
        found, begun = [], None
        for event in self.find(f"{what}_start", f"{what}_stop"):
            if event.key.endswith("_start"):
                begun = event
            elif begun is not None:
                found.append((begun, event))
                begun = None
        return found

    @property
    def epochs(self) -> float | None:
        """How many were trained from run_start to run_stop; None where the log does not count each of them."""
        stop = self.last("run_stop")
        until = stop.line if stop else math.inf
        ended = {event.place.get("epoch_num") for event in self.find("epoch_stop") if event.line < until} - {None}
        return len(ended) or sum(block.place.get("epoch_count", 0) for block in self.find("block_start")) or None


def as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def is_log(path: Path) -> bool:
    """Whether a file holds a line of such a log."""
    try:
        with open_plain(path) as stream:
            return any(LINE_MARK in line for line in read_lines(stream, most=MAX_HEAD))
    except OSError:
        return False


def read_log(path: Path) -> RunLog:
    """UsageError where the file cannot be read or is of another kind."""
    log, content, untimed = RunLog(name=path.name, path=path), hashlib.sha256(), hashlib.sha256()
    try:
        with open_plain(path) as stream:
            for number, line in enumerate(read_lines(stream), 1):
                content.update(line)
                _, token, text = line.rpartition(LINE_MARK)
                if not token:
                    continue
                try:
                    found = decode_entry(text)
                except ValueError as error:
                    if len(log.damages) < MAX_DAMAGES:
                        log.damages.append((number, str(error)))
                    continue
                untimed.update(repr((found["key"], found.get("value"), found.get("metadata"))).encode())
                _keep_entry(log, number, found)
    except OSError as error:
        raise UsageError(f"log {path} cannot be read: {error.strerror}") from error
    if not log.entries and not log.damages:
        mark = LINE_MARK.decode().strip()
        raise UsageError(f"log {path} holds no line of MLPerf's logger, which begin with {mark} since round 0.7")
    log.sha256, log.untimed_sha256 = content.hexdigest(), untimed.hexdigest()
    return log


def read_lines(stream: BinaryIO, most: float = math.inf) -> Iterator[bytes]:
    """Lines; an overlong one comes in pieces."""
    taken = 0
    while taken < most and (line := stream.readline(MAX_LINE)):
        taken += len(line)
        yield line


def _keep_entry(log: RunLog, number: int, found: Mapping[str, Any]) -> None:
    key, value, metadata = found["key"], found.get("value"), found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    log.entries += 1
    known = log.values.setdefault(key, [])
    if len(known) < MAX_VALUES and not any(type(one) is type(value) and one == value for one in known):
        known.append(value)
    if key not in TIMELINE:
        return
    if len(log.events) == MAX_EVENTS:
        log.damages.append((number, f"there are more than {MAX_EVENTS} events, and the rest is not read"))
    if len(log.events) > MAX_EVENTS and key != "run_stop":
        return
    status = metadata.get("status")
    log.events.append(
        LogEvent(
            key=key,
            time_ms=found["time_ms"],
            line=number,
            value=value,
            status=status if isinstance(status, str) else None,
            place={name: place for name in PLACES if (place := as_number(metadata.get(name))) is not None},
        )
    )


def decode_entry(text: bytes) -> dict[str, Any]:
    """The entry of a line; ValueError names what is wrong with it."""
    try:
        found = json.loads(text.decode("utf-8", "replace"))  # tolerates NaN and other encodings
    except (ValueError, RecursionError):
        raise ValueError("it is no whole JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("key"), str):
        raise ValueError("it names no key")
    time_ms = found.get("time_ms")
    try:
        number = as_number(float(time_ms) if isinstance(time_ms, str) else time_ms)
    except ValueError:
        number = None
    if number is None:
        raise ValueError("it has no time")
    return {**found, "time_ms": number}


# Score: samples, throughput and time to train


TOKENS_PER_SEQUENCE = 2048
"""Of a sequence, where logs count tokens."""
MAX_PER_EPOCH = 100
"""A count this many times the trained epochs is not of epochs."""


def find_convergence(log: RunLog) -> float | None:
    """Epochs, samples or tokens, as the log counts them, at its last evaluation; rounded as the rules round it."""
    places = [event.at for event in log.evaluations if event.at is not None]
    return round(places[-1], 3) if places else None


def count_samples(log: RunLog) -> float | None:
    """Trained on from run_start to run_stop, by what the log counts: samples, tokens, epochs, parts of one. None where
    it counts nothing; some benchmarks write samples or tokens where others write the epoch."""
    counts = [event.place["samples_count"] for event in log.evaluations if "samples_count" in event.place]
    if counts:
        return max(counts)
    place, size, epochs = find_convergence(log), log.number("train_samples"), log.epochs
    unit = find_unit(log.benchmark, place)
    if place is not None and (unit in ("samples", "tokens") or (epochs and place > MAX_PER_EPOCH * epochs)):
        return place / TOKENS_PER_SEQUENCE if unit == "tokens" else place
    if size is None:
        return None
    if place is not None and place != int(place):
        return place * size
    return size * epochs if epochs else None


def compute_training_rate(log: RunLog) -> float | None:
    """Samples per second from run_start to run_stop, without evaluation."""
    done, run_s = count_samples(log), log.run_s
    if not done or run_s is None or run_s - log.evaluation_s <= 0:
        return None
    return done / (run_s - log.evaluation_s)


def compute_whole_rate(log: RunLog) -> float | None:
    done, run_s = count_samples(log), log.run_s
    return done / run_s if done and run_s is not None and run_s > 0 else None


def compute_time_to_train(logs: Sequence[RunLog], dropped: int, runs: int) -> float | None:
    """Seconds: the mean without the fastest and the slowest runs, where a failed one is the slowest; None without a
    score. Of fewer runs than the rules ask for, the mean of those that converged."""
    times = [run_s for log in logs if log.status == "success" and (run_s := log.run_s) is not None and run_s > 0]
    if not times:
        return None
    if len(logs) < runs:
        return sum(times) / len(times)
    if len(times) < len(logs) - dropped:
        return None
    return olympic_mean([*times, *[float("inf")] * (len(logs) - len(times))], dropped)


def mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# Folders: a single file, or the results/SYSTEM/BENCHMARK folders of a submission

MAX_DESCRIPTION = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ResultFolder:
    """All logs of one benchmark on one system, or a log by itself."""

    path: Path
    logs: tuple[RunLog, ...]
    unreadable: tuple[str, ...] = ()
    """One sentence per file that is named like a result but is not one."""
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
            with open_plain(self.description_file) as stream:
                found = json.loads(stream.read(MAX_DESCRIPTION))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def has_logs(path: Path) -> bool:
    """Whether a folder has result logs anywhere inside."""
    return any(is_log(found) for found in _find_logs(path))


def find_result_folders(path: Path) -> Iterator[ResultFolder]:
    """Each benchmark of each system below a folder, by name; or one log. Lazily, so that few are in memory."""
    if path.is_file():
        yield ResultFolder(path=path, logs=(read_log(path),), whole=False)
        return
    members: dict[Path, list[Path]] = {}
    for found in _find_logs(path):
        members.setdefault(found.parent, []).append(found)
    for folder in sorted(members):
        yield _read_folder(folder, members[folder])


def _find_logs(path: Path) -> Iterator[Path]:
    return (found for found in path.rglob("result_*.txt") if found.is_file())


def _read_folder(folder: Path, found: Sequence[Path]) -> ResultFolder:
    logs, unreadable = [], []
    for path in sorted(found, key=_sort_key):
        try:
            logs.append(read_log(path))
        except UsageError as error:
            unreadable.append(str(error))
    return ResultFolder(path=folder, logs=tuple(logs), unreadable=tuple(unreadable))


def _sort_key(path: Path) -> tuple[int, str]:
    """result_2 before result_10."""
    number = re.search(r"([0-9]{1,9})", path.name)
    return (int(number[1]) if number else -1, path.name)
