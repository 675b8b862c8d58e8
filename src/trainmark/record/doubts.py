"""Finds reasons to trust a result less: a code and values, which `doubt_text` puts into words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmark.record import learning, statistics
from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.doubt_text import doubt_text
from trainmark.record.events import Resumed
from trainmark.record.format import number
from trainmark.record.intervals import TOO_NOISY
from trainmark.record.language import ENGLISH
from trainmark.record.machine import Environment, MachineTelemetry, Telemetry
from trainmark.record.metrics import Quantity
from trainmark.record.numbers import digits_to_tell_apart
from trainmark.record.plan import Plan, Topology
from trainmark.record.precision import describe_inside, describe_matmuls
from trainmark.record.record import Doubt, Quality, Restart, Status
from trainmark.record.timeline import Timeline
from trainmark.record.workload_facts import QualityFacts

RANK_SKEW = 0.05
CLOCKS_APART, CLOCKS_FAR_APART = 0.03, 0.10
"""Share by which a device's events and the host's clock may differ over training before it is reported, and before the
result is invalid."""
MAX_OTHER, MAX_OTHER_S = 0.10, 0.5
"""Share, and seconds, of training that no step accounts for."""
MAX_SKIPPED = 0.01
"""Share of steps that a loss scaler may skip."""
MIN_POWER_SAMPLES = 60
LONGEST_POWER_GAP_S = 2.0
"""MLPerf's rule for power: sixty samples, at least one per second; a pause of two seconds is a gap."""
MIN_OF_FLOOR = 0.98
"""Of the lowest possible loss: part of the validation text may be easier than the whole."""
WANTED_HALF_WIDTH = 0.01
JUST_ABOVE_PERCENT = 1.1
"""Values in between are shown as this: "known to ±1.0 %, not ±1 %" would puzzle a reader."""
MAX_MORE = 50
"""Beyond this many times the steps made, more steps are no advice."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a check may use."""

    plan: Plan
    status: Status
    timeline: Timeline
    metrics: Mapping[str, Quantity]
    quality: Quality
    environment: Environment
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Sampled sensors, as recorded."""
    reference_global_batch: int
    resumed: Resumed | None = None
    restarts: tuple[Restart, ...] = ()
    torn_ranks: tuple[int, ...] = ()
    """Ranks whose event file ends in the middle of a line."""
    loss: Sequence[float | None] = ()
    """Of each step's global batch."""
    data_facts: Mapping[str, float] = field(default_factory=dict)
    """Facts about the data, such as the accuracy of guessing."""
    no_sample: str | None = None
    """Why the trained model left no sample of its work, where it should have."""
    judged: QualityFacts | None = None
    """The workload's facts about its target quality."""


def collect_doubts(facts: Facts) -> tuple[Doubt, ...]:
    return tuple(
        Doubt(code=code, text=doubt_text(code, values, ENGLISH), values=values)
        for check in CHECKS
        for code, values in check(facts)
    )


Found = Iterator[tuple[str, dict[str, Any]]]


def check_stand_in(f: Facts) -> Found:
    if f.environment.device.stand_in:
        yield "stand-in", {}


def check_synthetic_data(f: Facts) -> Found:
    if f.plan.data.synthetic:
        outcome = "not evaluated" if f.quality.value is None else "learnt" if _has_learnt(f) else "not learnt"
        # the code on records of every version
        yield "generated-data", {"data": f.plan.data.name, "quality": _quality_name(f.quality), "outcome": outcome}


def _has_learnt(f: Facts) -> bool:
    """True unless something shows that it did not."""
    found = (
        learning.find_chance_level(f.quality, f.data_facts),
        learning.find_missed_bar(f.quality, f.judged, f.data_facts),
        learning.loss_rise(f.loss),
    )
    return found == (None, None, None)


def check_loss_rise(f: Facts) -> Found:
    if rise := learning.loss_rise(f.loss):
        before, after = (number(value) for value in rise)
        yield "loss-rose", {"before": before, "after": after}


def check_chance_level(f: Facts) -> Found:
    chance = learning.find_chance_level(f.quality, f.data_facts)
    if chance is not None:
        classes = f.data_facts.get(learning.CLASSES)
        yield (
            "at-chance",
            {
                "quality": _quality_name(f.quality),
                "value": f"{f.quality.value:.2f}",
                "chance": f"{chance:.3g}",
                "classes": f"{classes:g}" if classes else None,
            },
        )


def check_bar(f: Facts) -> Found:
    bar = learning.find_missed_bar(f.quality, f.judged, f.data_facts)
    if bar is not None and f.judged is not None and f.quality.value is not None:
        yield (
            "below-bar",
            {
                "quality": _quality_name(f.quality),
                "value": f"{f.quality.value:.2f}",
                "unit": _unit(f.quality),
                "side": "below" if f.quality.better == "higher" else "above",
                "bar_word": f.judged.bar_word,
                "bar": f"{bar:.2f}",
            },
        )


def check_floor(f: Facts) -> Found:
    floor, value = f.data_facts.get("loss_floor"), f.quality.value
    if floor is not None and value is not None and value < MIN_OF_FLOOR * floor:
        yield "below-floor", {"name": f.quality.name, "value": f"{value:.4g}", "floor": f"{floor:.4g}"}


def _quality_name(quality: Quality) -> str:
    return "accuracy" if quality.name == "acc1" else quality.name


def _unit(quality: Quality) -> str:
    return "" if quality.unit == "-" else f" {quality.unit}"


def check_target(f: Facts) -> Found:
    if f.plan.limits.full and not f.quality.reached and f.status == "valid":
        value = None
        if f.quality.value is not None:
            value = f"{f.quality.value:.{digits_to_tell_apart(f.quality.value, f.quality.goal, f.quality.better)}g}"
        yield (
            "target-missed",
            {
                "name": f.quality.name,
                "sign": ">=" if f.quality.better == "higher" else "<=",
                "goal": f"{f.quality.goal:g}",
                "unit": _unit(f.quality),
                "value": value,
            },
        )


def is_fine_tuning(plan: Plan) -> bool:
    """Whether the recipe starts from trained weights, as some published runs do."""
    return plan.recipe.get("begins_with") == "trained"


def check_random_start(f: Facts) -> Found:
    if is_fine_tuning(f.plan) and not f.plan.init_from and not f.plan.resume_from:
        yield "random-start", {}


def check_initial_weights(f: Facts) -> Found:
    if f.plan.init_from and not is_fine_tuning(f.plan):
        yield "init-from", {"name": Path(f.plan.init_from).name}


def check_step_count(f: Facts) -> Found:
    if not f.timeline.steps:
        return
    compute_s, items = f.timeline.steady(f.timeline.compute_s), f.timeline.steady(f.timeline.step_items)
    found = statistics.mean_interval(compute_s, items)
    if found is None:
        yield "few-steps", {"steps": int(compute_s.size)}
    elif found.share > WANTED_HALF_WIDTH:
        more = int(statistics.estimate_steps_needed(compute_s, items, WANTED_HALF_WIDTH))
        percent = max(100 * found.share, JUST_ABOVE_PERCENT)
        yield (
            "few-steps",
            {
                "percent": None if found.share > TOO_NOISY else f"{percent:.1f}",
                "more": more if more < MAX_MORE * compute_s.size else None,
            },
        )


def check_drift(f: Facts) -> Found:
    if not f.timeline.steps:
        return
    found = statistics.detect_drift(f.timeline.steady(f.timeline.compute_s), f.timeline.steady(f.timeline.step_items))
    if found is not None and found.is_drifting:
        before, after = found.rates
        places = {"step": found.at, "until": found.until}
        yield (
            "drifting",
            {
                "before": float(before),
                "after": float(after),
                "unit": f.metrics["p_core"].unit,
                **{name: None if at is None else int(f.timeline.steady_from + at) for name, at in places.items()},
            },
        )


def check_rank_skew(f: Facts) -> Found:
    skew = f.timeline.skew
    if skew is not None and skew.factor > 1 + RANK_SKEW:
        yield (
            "rank-skew",
            {
                "rank": skew.slow.rank,
                "host": skew.slow.host,
                "factor": f"{skew.factor:.2f}",
                "fastest": skew.fast.rank,
                "more_items": bool(sum(skew.slow.items) > sum(skew.fast.items)),
                "exchange_known": bool(f.timeline.exchange_known),
            },
        )


def check_device_clock(f: Facts) -> Found:
    found = f.environment.clock
    if found is not None and found.apart > CLOCKS_APART:
        yield (
            "device-clock",
            {"rank": found.rank, "device_s": f"{found.device_s:.2f}", "host_s": f"{found.host_s:.2f}"},
        )


def check_unaccounted_time(f: Facts) -> Found:
    clock = f.environment.clock
    if clock is not None and clock.apart > CLOCKS_APART:
        return  # check_device_clock reports it
    other_s = f.timeline.seconds("other")
    training_s = other_s + f.timeline.seconds("warmup", "data_wait", "compute")
    if other_s > max(MAX_OTHER * training_s, MAX_OTHER_S):
        yield "time-unaccounted", {"other_s": f"{other_s:.2f}", "training_s": f"{training_s:.2f}"}


def check_batch_size(f: Facts) -> Found:
    micro_batches = int(f.plan.recipe.get("accumulate", 1))  # records of older versions do not have it
    batch = int(f.plan.recipe["batch_per_device"]) * micro_batches * Topology.parse(f.plan.topology).devices
    samples = int(f.data_facts.get("train_samples", batch))
    if min(batch, samples) < f.reference_global_batch:
        yield (
            "small-batch",
            {"batch": min(batch, samples), "all_data": batch > samples, "reference": f.reference_global_batch},
        )


def check_left_out_samples(f: Facts) -> Found:
    if samples := int(f.data_facts.get("left_out_samples", 0)):
        kept = int(f.data_facts["train_samples"])
        yield "left-out", {"left_out": f"{samples:,}", "samples": f"{samples + kept:,}", "kept": f"{kept:,}"}


def check_emulation(f: Facts) -> Found:
    if f.environment.emulated_precision:
        yield "emulated-precision", {"precision": f.plan.precision}


def check_precision(f: Facts) -> Found:
    found = f.environment.precision
    if found and found.ran != found.asked:
        yield (
            "precision-differs",
            {
                "asked": found.asked,
                "ran": found.ran,
                "seen": describe_matmuls(found.computed),
                "inside": describe_inside(found.narrowed),
            },
        )


def check_step(f: Facts) -> Found:
    found = f.environment.step_check
    if found is not None and found.differing:
        yield (
            "cpu-differs",
            {
                "rank": found.rank,
                "first": found.first,
                "difference": None if found.difference is None else f"{100 * found.difference:.3g}",
                "allowed": f"{100 * (found.allowed or 0):.2g}",
                "differing": found.differing,
                "quantities": found.quantities,
            },
        )


def check_skipped_steps(f: Facts) -> Found:
    skipped = f.environment.precision.skipped_steps if f.environment.precision else 0
    if skipped > MAX_SKIPPED * f.timeline.steps:
        yield "skipped-steps", {"skipped": skipped, "steps": f.timeline.steps}


def check_mfu(f: Facts) -> Found:
    mfu = f.metrics.get("mfu")
    if mfu is not None and mfu.value is not None and mfu.value > 100:
        flops = f.environment.flops
        peak = None if flops is None else f"{flops.peak_tflops or 0:.3g} TFLOP/s ({flops.peak_source})"
        yield "mfu-above-100", {"value": f"{mfu.value:.0f}", "precision": f.plan.precision, "peak": peak}


def check_core_count(f: Facts) -> Found:
    ranks, cores = Topology.parse(f.plan.topology).devices_per_node, f.environment.cpu.usable_cores
    if f.environment.device.type == "cpu" and cores and ranks > cores:
        yield "crowded-cores", {"ranks": ranks, "cores": cores}


def check_foreign_load(f: Facts) -> Found:
    share = f.environment.foreign_load
    if share is not None and share > FOREIGN_LOAD:
        yield "foreign-load", {"share": f"{100 * share:.0f}"}


def check_sampling(f: Facts) -> Found:
    machines = f.telemetry.machines
    for machine in machines:
        if machine.ended_early:
            yield "sampler-ended", {"host": machine.host, "last_s": f"{machine.last_s:.0f}"}
    power = f.metrics.get("power")
    if power is None or power.value is None:
        return
    devices = [(machine, device) for machine in machines for device in machine.devices]
    fewest = min(device.power_samples for _, device in devices)
    slowest_hz = min(device.power_samples / _training_s(machine) for machine, device in devices)
    longest_s = max(device.power_gap_s or 0.0 for _, device in devices)
    missed: dict[str, Any] = {}
    if fewest < MIN_POWER_SAMPLES:
        missed.update(samples=fewest, wanted=MIN_POWER_SAMPLES)
    if slowest_hz < 1:
        missed["rate_hz"] = f"{slowest_hz:.2f}"
    if longest_s > LONGEST_POWER_GAP_S:
        missed["gap_s"] = f"{longest_s:.1f}"
    if missed:
        yield "power-sampling", missed


def _training_s(machine: MachineTelemetry) -> float:
    begin_s, end_s = machine.training_s
    return max(1e-9, float(end_s - begin_s))


def check_throttling(f: Facts) -> Found:
    share = f.metrics.get("throttled")
    if share is None or not share.value:
        return
    reasons = [
        (count, reason)
        for machine in f.telemetry.machines
        for device in machine.devices
        for reason, count in device.throttled.items()
    ]
    gravest = list(dict.fromkeys(reason for _, reason in sorted(reasons, reverse=True)))
    yield "throttled", {"share": f"{share.value:.0f}", "reasons": gravest}


def check_memory_errors(f: Facts) -> Found:
    for machine in f.telemetry.machines:
        for device in machine.devices:
            if device.ecc_errors_new:
                errors = f"{device.ecc_errors_new:.0f}"
                yield "ecc-errors", {"device": device.device, "host": machine.host, "errors": errors}


def check_skipped_files(f: Facts) -> Found:
    if f.plan.skip_bad:
        yield "skip-bad", {"files": f.plan.skip_bad}


def check_resume(f: Facts) -> Found:
    if f.resumed:
        yield "resumed", {"step": f.resumed.step, "damaged": list(f.resumed.damaged)}


def check_restarts(f: Facts) -> Found:
    if f.restarts:
        reasons = [restart.reason for restart in f.restarts if restart.reason]
        yield (
            "restarted",
            {
                "steps": [restart.step for restart in f.restarts],
                "lost_s": f"{f.timeline.seconds('restart'):.1f}",
                "reasons": [*reasons, *(sentence for restart in f.restarts for sentence in restart.damaged)],
            },
        )


def check_torn_events(f: Facts) -> Found:
    if f.torn_ranks:
        yield "torn-events", {"ranks": ", ".join(str(rank) for rank in f.torn_ranks)}


def check_no_sample(f: Facts) -> Found:
    if f.no_sample:
        yield "no-sample", {"reason": f.no_sample}


def check_completeness(f: Facts) -> Found:
    if f.status == "incomplete":
        yield "incomplete", {}


CHECKS = (
    check_completeness,
    check_stand_in,
    check_synthetic_data,
    check_initial_weights,
    check_random_start,
    check_target,
    check_loss_rise,
    check_chance_level,
    check_bar,
    check_floor,
    check_step_count,
    check_drift,
    check_rank_skew,
    check_device_clock,
    check_unaccounted_time,
    check_batch_size,
    check_left_out_samples,
    check_emulation,
    check_precision,
    check_step,
    check_skipped_steps,
    check_mfu,
    check_core_count,
    check_foreign_load,
    check_sampling,
    check_throttling,
    check_memory_errors,
    check_skipped_files,
    check_resume,
    check_restarts,
    check_torn_events,
    check_no_sample,
)
