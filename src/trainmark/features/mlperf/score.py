"""What MLPerf logs come to: the score of a result, and its throughputs."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.features.mlperf.benchmarks import find_unit
from trainmark.features.mlperf.convergence import olympic_mean
from trainmark.features.mlperf.log import RunLog

TOKENS = 2048
"""Of a sequence, where logs count tokens."""
MAX_PER_EPOCH = 100
"""A number so many times the epochs that were trained counts something else."""


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
        return place / TOKENS if unit == "tokens" else place
    if size is None:
        return None
    if place is not None and place != int(place):
        return place * size
    return size * epochs if epochs else None


def compute_training_rate(log: RunLog) -> float | None:
    """Samples a second from run_start to run_stop, without evaluation."""
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
