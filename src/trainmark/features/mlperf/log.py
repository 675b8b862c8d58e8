"""Reads an MLPerf result log line by line, keeping what the checks need; computes throughput and time to train."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from trainmark.features.mlperf.benchmarks import find_unit
from trainmark.features.mlperf.convergence import olympic_mean
from trainmark.record.errors import UsageError

LINE_MARK = b":::MLLOG "
OLDER_LINE_MARK = b":::MLL "
"""Begins the lines of rounds before 0.7, which have another form."""
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
    cut: bool = False
    """Whether it has more events than are kept."""

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
        return self._seconds_between("run_start", "run_stop")

    @property
    def init_s(self) -> float | None:
        return self._seconds_between("init_start", "init_stop")

    @property
    def evaluation_s(self) -> float:
        """Between eval_start and eval_stop, where both stand in the log."""
        total, began = 0.0, None
        for event in self.find("eval_start", "eval_stop"):
            if event.key == "eval_start":
                began = event.time_ms
            elif began is not None:
                total, began = total + max(0.0, event.time_ms - began) / 1000, None
        return total

    @property
    def seeds(self) -> list[int | float | str]:
        return self.values.get("seed", [])

    @property
    def epochs(self) -> float | None:
        """How many were trained from run_start to run_stop; None where the log does not count each of them."""
        stop = self.last("run_stop")
        until = stop.line if stop else math.inf
        ended = {event.place.get("epoch_num") for event in self.find("epoch_stop") if event.line < until} - {None}
        return len(ended) or sum(block.place.get("epoch_count", 0) for block in self.find("block_start")) or None

    def _seconds_between(self, start: str, stop: str) -> float | None:
        first, last = self.first(start), self.last(stop)
        return (last.time_ms - first.time_ms) / 1000 if first and last else None


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
        with path.open("rb") as stream:
            return any(LINE_MARK in line for line, _ in read_lines(stream, most=MAX_HEAD))
    except OSError:
        return False


def read_log(path: Path) -> RunLog:
    """UsageError where the file cannot be read or is of another kind."""
    log, older = RunLog(name=path.name, path=path), False
    content, untimed = hashlib.sha256(), hashlib.sha256()
    try:
        with path.open("rb") as stream:
            for number, (line, whole) in enumerate(read_lines(stream), 1):
                content.update(line)
                _, token, text = line.rpartition(LINE_MARK)
                older = older or OLDER_LINE_MARK in line
                if token and (found := _decode_line(log, number, text, whole=whole)):
                    untimed.update(repr((found["key"], found.get("value"), found.get("metadata"))).encode())
                    _keep_entry(log, number, found)
    except OSError as error:
        raise UsageError(f"log {path} cannot be read: {error.strerror}") from error
    if not log.entries and not log.damages:
        form = "; its lines have the form of rounds before 0.7, which is not read" if older else ""
        raise UsageError(
            f"log {path} holds no line of MLPerf's logger, which begin with {LINE_MARK.decode().strip()}{form}"
        )
    log.sha256, log.untimed_sha256 = content.hexdigest(), untimed.hexdigest()
    return log


def read_lines(stream: BinaryIO, most: float = math.inf) -> Iterator[tuple[bytes, bool]]:
    """Lines, and whether each is whole: the rest of an overlong line is skipped."""
    taken = 0
    while taken < most and (line := stream.readline(MAX_LINE)):
        taken += len(line)
        whole = line.endswith(b"\n") or len(line) < MAX_LINE
        yield line, whole
        while not whole and (rest := stream.readline(MAX_LINE)):
            taken += len(rest)
            if rest.endswith(b"\n"):
                break


def _decode_line(log: RunLog, number: int, text: bytes, *, whole: bool) -> dict[str, Any] | None:
    """The entry of a line; a damaged one is noted on the log, and gives None."""
    try:
        if not whole:
            raise ValueError(f"it is longer than {MAX_LINE // 2**10} KiB")
        return decode_entry(text)
    except ValueError as error:
        if len(log.damages) < MAX_DAMAGES:
            log.damages.append((number, str(error)))
        return None


def _keep_entry(log: RunLog, number: int, found: Mapping[str, Any]) -> None:
    key, value, metadata = found["key"], found.get("value"), found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    log.entries += 1
    known = log.values.setdefault(key, [])
    if len(known) < MAX_VALUES and not any(type(one) is type(value) and one == value for one in known):
        known.append(value)
    if key not in TIMELINE:
        return
    if len(log.events) >= MAX_EVENTS and key != "run_stop":
        log.cut = True
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
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        try:
            found = json.loads(text.decode("utf-8", "replace"))  # tolerates NaN and other encodings
        except (ValueError, RecursionError):
            raise ValueError("it is no whole JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("key"), str):
        raise ValueError("it names no key")
    time_ms = found.get("time_ms")
    if isinstance(time_ms, str):
        try:
            time_ms = float(time_ms)
        except ValueError:
            time_ms = None
    if (number := as_number(time_ms)) is None:
        raise ValueError("it has no time")
    found["time_ms"] = number
    return found


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
