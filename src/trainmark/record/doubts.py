"""Reasons to trust a result less: found as a code with values, and written as a sentence in the reader's language."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from trainmark.record import statistics
from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.events import Resumed
from trainmark.record.format import TOO_NOISY_WORDS, number
from trainmark.record.language import ENGLISH, Say
from trainmark.record.numbers import TOO_NOISY, digits_to_tell_apart
from trainmark.record.plan import Plan, Topology
from trainmark.record.precision import describe_inside, describe_matmuls
from trainmark.record.record import Doubt, Quality, Record
from trainmark.record.tables import load_toml
from trainmark.record.timeline import PHASES
from trainmark.record.workload_facts import CHANCE, CLASSES, QualityFacts

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
STALL_TIMES, MIN_STALL_S, FIRST_STEPS = 20, 2.0, 3
"""A step this many times as long as the median, by at least so many seconds, is a stall; the first ones compile."""
MAX_POWER = 1.5
"""Times the data sheet's power that short peaks may reach."""
MIN_CONSTANT_SAMPLES = 20
MIN_CONSTANT_LOSSES = 6
MIN_SLEEP_S = 1.0
MAX_CLOCK_GAP, MIN_CLOCK_GAP_S = 0.03, 1.0
"""Share, and seconds, by which the steps and phases of a rank may differ from its own clock."""
JUST_ABOVE_PERCENT = 1.1
"""Values in between are shown as this: "known to ±1.0 %, not ±1 %" would puzzle a reader."""
MAX_MORE = 50
"""Beyond this many times the steps made, more steps are no advice."""

Values = Mapping[str, Any]
"""What a check found, formatted, by placeholder name."""

TEMPLATES: Mapping[str, str] = load_toml(Path(__file__).with_suffix(".toml"))
"""The sentence of each doubt, by its code."""


def translate_doubt(doubt: Doubt, say: Say) -> str:
    """The doubt in the reader's language; the recorded text where an earlier version worded it otherwise."""
    try:
        known = doubt_text(doubt.code, doubt.values, ENGLISH) == doubt.text
        return doubt_text(doubt.code, doubt.values, say) if known else doubt.text
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # a record may hold anything
        return doubt.text


def doubt_text(code: str, values: Values, say: Say) -> str:
    if code == "few-steps" and "steps" in values:
        return say("too few counted steps for a 95 % interval: {size}").format(size=values["steps"])
    text = say(TEMPLATES[code]).format(**{**values, **_write_phrases(code, values, say)})
    further = {"resumed": "damaged", "restarted": "reasons"}.get(code)
    return say("; ").join([text, *values[further]]) if further else text


def _write_phrases(code: str, v: Values, say: Say) -> dict[str, str]:
    """The parts of a doubt's sentence that are words themselves, or may be missing."""
    match code:
        case "generated-data":
            outcomes = {
                "not evaluated": say("{name} was not evaluated"),
                "learnt": say("{name} only shows that training works"),
                "not learnt": say("{name} says nothing about the real one"),
            }
            return {"name": v["data"], "said": outcomes[v["outcome"]].format(name=say(v["quality"]))}
        case "loss-constant":
            if v.get("classes"):
                return {"why": say("the logarithm of {classes} classes").format(classes=v["classes"])}
            return {"why": say("to its last digit")}
        case "stalled-step":
            return {"counted": say("it is left out as warm-up") if v.get("warm") else say("it is in p_core")}
        case "at-chance":
            among = say(" among {classes} classes").format(classes=v["classes"]) if v.get("classes") else ""
            return {"quality": say(v["quality"]), "among": among}
        case "below-bar":
            return {name: say(v[name]) for name in ("quality", "side", "bar_word")}
        case "target-missed":
            measured = v.get("value") is not None
            return {"reached": say("{value}{unit} was reached").format(**v) if measured else say("none was measured")}
        case "few-steps":
            known = say("p_core is known to ±{percent} %, not ±1 %").format(percent=v.get("percent"))
            if v.get("percent") is None:
                known = say("{noisy} what p_core is").format(noisy=say(TOO_NOISY_WORDS))
            remedy = say("about {more} more steps would do").format(more=v.get("more"))
            return {"known": known, "remedy": say("a quieter machine would help") if v.get("more") is None else remedy}
        case "drifting":
            ratio = v["before"] / v["after"]
            times = say("{ratio} times as long").format(ratio=number(ratio))
            if 1 / 2 < ratio < 2:
                percent = number(abs(100 * (ratio - 1)), 2)
                times = (say("{percent} % longer") if ratio > 1 else say("{percent} % less")).format(percent=percent)
            step, until = v.get("step"), v.get("until")
            return {
                "how": say("slower") if ratio > 1 else say("faster"),
                "where": say("little by little") if step is None else say("at step {step}").format(step=step),
                "before": number(v["before"]),
                "after": number(v["after"]),
                "times": times,
                "until": "" if until is None else say(", until step {step}").format(step=until),
            }
        case "rank-skew":
            return {
                "slow": f"rank {v['rank']}" + (say(" on {host}").format(host=v["host"]) if v["host"] else ""),
                "own": say("its own computing") if v["exchange_known"] else say("its steps"),
                "rank": v["fastest"],
                "same": say(" for as many items") if v["more_items"] else "",
            }
        case "small-batch":
            batch = say("global batch {batch}")
            if v["all_data"]:
                batch = say("global batch {batch}, for want of more data than that,")
            return {"batch": batch.format(batch=v["batch"])}
        case "precision-differs":
            inside = say(", and the device itself computes {inside}").format(inside=v["inside"]) if v["inside"] else ""
            return {"seen": (v["seen"] or say("no matmul")) + inside}
        case "cpu-differs":
            finite = v.get("difference") is not None
            when = "" if v.get("after_step") is None else say(", after step {after_step},").format(**v)
            return {
                "when": when,
                "by": say("differs by {difference} %").format(**v) if finite else say("is not a number"),
            }
        case "mfu-above-100":
            return {"peak": v.get("peak") or say("unknown")}
        case "crowded-cores":
            cores = say("{cores} usable core") if v["cores"] == 1 else say("{cores} usable cores")
            return {"cores": cores.format(cores=v["cores"])}
        case "power-sampling":
            missed = {
                "samples": say("{samples} samples of {wanted}"),
                "rate_hz": say("{rate_hz} a second"),
                "gap_s": say("a gap of {gap_s} s"),
            }
            parts = [text.format(**v) for name, text in missed.items() if v.get(name) is not None]
            return {"missed": say(", ").join(parts)}
        case "throttled":
            return {"reasons": say(", ").join(say(reason) for reason in v["reasons"])}
        case "restarted":
            times = say("{count} time") if len(v["steps"]) == 1 else say("{count} times")
            where = say(" and ").join(str(step) for step in v["steps"])
            return {"times": times.format(count=len(v["steps"])), "where": where}
    return {}


def collect_doubts(
    record: Record,
    *,
    reference_global_batch: int,
    resumed: Resumed | None = None,
    torn_ranks: Sequence[int] = (),
    no_sample: str | None = None,
) -> tuple[Doubt, ...]:
    """The doubts about a record; those on it do not count.

    `torn_ranks` are ranks whose event file ends in the middle of a line; `no_sample` says why the trained model left no
    sample of its work, where it should have.
    """
    found = [
        *_doubt_training(record),
        *_doubt_learning(record),
        *_doubt_times(record),
        *_doubt_batch(record, reference_global_batch),
        *_doubt_arithmetic(record),
        *_doubt_machine(record),
        *_doubt_sensors(record),
    ]
    if record.plan.skip_bad:
        found.append(make_doubt("skip-bad", files=record.plan.skip_bad))
    if resumed:
        found.append(make_doubt("resumed", step=resumed.step, damaged=list(resumed.damaged)))
    if record.restarts:
        reasons = [restart.reason for restart in record.restarts if restart.reason]
        damaged = [sentence for restart in record.restarts for sentence in restart.damaged]
        steps, lost_s = [restart.step for restart in record.restarts], f"{record.timeline.seconds('restart'):.1f}"
        found.append(make_doubt("restarted", steps=steps, lost_s=lost_s, reasons=[*reasons, *damaged]))
    if torn_ranks:
        found.append(make_doubt("torn-events", ranks=", ".join(str(rank) for rank in torn_ranks)))
    if no_sample:
        found.append(make_doubt("no-sample", reason=no_sample))
    return tuple(found)


def make_doubt(code: str, **values: Any) -> Doubt:
    return Doubt(code=code, text=doubt_text(code, values, ENGLISH), values=values)


def _doubt_training(record: Record) -> Iterator[Doubt]:
    """What was trained, on what, and from where."""
    plan, quality = record.plan, record.quality
    if record.status == "incomplete":
        yield make_doubt("incomplete")
    if record.environment.device.stand_in:
        yield make_doubt("stand-in")
    if plan.data.synthetic:
        shown = (find_chance_level(record), find_missed_bar(record), loss_rise(record.loss))
        learnt = "learnt" if shown == (None, None, None) else "not learnt"
        outcome = "not evaluated" if quality.value is None else learnt
        # the code on records of every version
        yield make_doubt("generated-data", data=plan.data.name, quality=_quality_name(quality), outcome=outcome)
    if plan.init_from and not is_fine_tuning(plan):
        yield make_doubt("init-from", name=Path(plan.init_from).name)
    if is_fine_tuning(plan) and not plan.init_from and not plan.resume_from:
        yield make_doubt("random-start")


def is_fine_tuning(plan: Plan) -> bool:
    """Whether the recipe starts from trained weights, as some published runs do."""
    return plan.recipe.get("begins_with") == "trained"


def _doubt_learning(record: Record) -> Iterator[Doubt]:
    quality, value = record.quality, record.quality.value
    name, unit = _quality_name(quality), "" if quality.unit == "-" else f" {quality.unit}"
    if record.plan.limits.full and not quality.reached and record.status == "valid":
        reached = None
        if value is not None:
            reached = f"{value:.{digits_to_tell_apart(value, quality.goal, quality.better)}g}"
        sign = ">=" if quality.better == "higher" else "<="
        yield make_doubt(
            "target-missed", name=quality.name, sign=sign, goal=f"{quality.goal:g}", unit=unit, value=reached
        )
    if rise := loss_rise(record.loss):
        yield make_doubt("loss-rose", before=number(rise[0]), after=number(rise[1]))
    yield from _find_constant_loss(record)
    if value is None:
        return
    if (chance := find_chance_level(record)) is not None:
        classes = record.data_facts.get(CLASSES)
        yield make_doubt(
            "at-chance",
            quality=name,
            value=f"{value:.2f}",
            chance=f"{chance:.3g}",
            classes=f"{classes:g}" if classes else None,
        )
    judged, bar = _judged_by(record), find_missed_bar(record)
    if judged is not None and bar is not None:
        side = "below" if quality.better == "higher" else "above"
        yield make_doubt(
            "below-bar",
            quality=name,
            value=f"{value:.2f}",
            unit=unit,
            side=side,
            bar_word=judged.bar_word,
            bar=f"{bar:.2f}",
        )
    floor = record.data_facts.get("loss_floor")
    if floor is not None and value < MIN_OF_FLOOR * floor:
        yield make_doubt("below-floor", name=quality.name, value=f"{value:.4g}", floor=f"{floor:.4g}")


def _find_constant_loss(record: Record) -> Iterator[Doubt]:
    last = record.loss[-MIN_CONSTANT_LOSSES:]
    if len(last) < MIN_CONSTANT_LOSSES or last[0] is None or len(set(last)) > 1:
        return
    classes = int(record.data_facts.get(CLASSES) or 0)
    is_guess = classes > 1 and math.isclose(last[0], math.log(classes), abs_tol=1e-5)
    yield make_doubt("loss-constant", loss=number(last[0], 7), steps=len(last), classes=classes if is_guess else None)


def _quality_name(quality: Quality) -> str:
    return "accuracy" if quality.name == "acc1" else quality.name


def _judged_by(record: Record) -> QualityFacts | None:
    return record.workload_facts.find_quality(record.quality.name) if record.workload_facts else None


def _find_stalls(record: Record) -> Iterator[Doubt]:
    """The longest of the steps that took far longer than others."""
    t = record.timeline
    took_s = [(wait + compute) / 1e9 for wait, compute in zip(t.slowest.wait_ns, t.slowest.compute_ns, strict=True)]
    if len(took_s) <= FIRST_STEPS:
        return
    usual, longest_s = median(took_s), max(took_s[FIRST_STEPS:])
    if longest_s > max(STALL_TIMES * usual, usual + MIN_STALL_S):
        step, times = took_s.index(longest_s, FIRST_STEPS), f"{longest_s / usual:.0f}"
        yield make_doubt(
            "stalled-step", step=step + 1, took_s=f"{longest_s:.1f}", times=times, warm=step < t.warmup_steps
        )


def _doubt_times(record: Record) -> Iterator[Doubt]:
    t = record.timeline
    if record.environment.suspended_s > MIN_SLEEP_S:
        yield make_doubt("suspended", slept_s=f"{record.environment.suspended_s:.0f}")
    yield from _find_stalls(record)
    gap_s = record.environment.clock_gap_s
    told_s = t.seconds(*(phase for phase in PHASES if phase not in ("startup", "init", "restart")))
    if abs(gap_s) > max(MAX_CLOCK_GAP * told_s, MIN_CLOCK_GAP_S):
        yield make_doubt("clock-gap", told_s=f"{told_s:.2f}", clock_s=f"{told_s + gap_s:.2f}")
    if t.steps:
        compute_s, items = t.steady(t.compute_s), t.steady(t.step_items)
        found = statistics.mean_interval(compute_s, items)
        if found is None:
            yield make_doubt("few-steps", steps=int(compute_s.size))
        elif found.share > WANTED_HALF_WIDTH:
            more = int(statistics.estimate_steps_needed(compute_s, items, WANTED_HALF_WIDTH))
            yield make_doubt(
                "few-steps",
                percent=None if found.share > TOO_NOISY else f"{max(100 * found.share, JUST_ABOVE_PERCENT):.1f}",
                more=more if more < MAX_MORE * compute_s.size else None,
            )
        drift = statistics.detect_drift(compute_s, items)
        if drift is not None and drift.is_drifting:
            before, after = drift.rates
            step, until = (None if at is None else int(t.steady_from + at) for at in (drift.at, drift.until))
            unit = record.metrics["p_core"].unit
            yield make_doubt("drifting", before=float(before), after=float(after), unit=unit, step=step, until=until)
    if t.skew is not None and t.skew.factor > 1 + RANK_SKEW:
        slow, fast = t.skew.slow, t.skew.fast
        yield make_doubt(
            "rank-skew",
            rank=slow.rank,
            host=slow.host,
            factor=f"{t.skew.factor:.2f}",
            fastest=fast.rank,
            more_items=bool(sum(slow.items) > sum(fast.items)),
            exchange_known=bool(t.exchange_known),
        )
    clock = record.environment.clock
    if clock is not None and clock.apart > CLOCKS_APART:
        device_s, host_s = f"{clock.device_s:.2f}", f"{clock.host_s:.2f}"
        yield make_doubt("device-clock", rank=clock.rank, device_s=device_s, host_s=host_s)
        return  # time that no step accounts for follows from it
    other_s = t.seconds("other")
    training_s = other_s + t.seconds("warmup", "data_wait", "compute")
    if other_s > max(MAX_OTHER * training_s, MAX_OTHER_S):
        yield make_doubt("time-unaccounted", other_s=f"{other_s:.2f}", training_s=f"{training_s:.2f}")


def _doubt_batch(record: Record, reference: int) -> Iterator[Doubt]:
    recipe, facts = record.plan.recipe, record.data_facts
    micro_batches = int(recipe.get("accumulate", 1))  # records of older versions do not have it
    batch = int(recipe["batch_per_device"]) * micro_batches * Topology.parse(record.plan.topology).devices
    samples = int(facts.get("train_samples", batch))
    if min(batch, samples) < reference:
        yield make_doubt("small-batch", batch=min(batch, samples), all_data=batch > samples, reference=reference)
    if left_out := int(facts.get("left_out_samples", 0)):
        kept = int(facts["train_samples"])
        yield make_doubt("left-out", left_out=f"{left_out:,}", samples=f"{left_out + kept:,}", kept=f"{kept:,}")


def _doubt_arithmetic(record: Record) -> Iterator[Doubt]:
    environment, asked = record.environment, record.plan.precision
    if environment.emulated_precision:
        yield make_doubt("emulated-precision", precision=asked)
    proof = environment.precision
    if proof and proof.ran != proof.asked:
        seen, inside = describe_matmuls(proof.computed), describe_inside(proof.narrowed)
        yield make_doubt("precision-differs", asked=proof.asked, ran=proof.ran, seen=seen, inside=inside)
    step = environment.step_check
    if step is not None and step.differing:
        yield make_doubt(
            "cpu-differs",
            rank=step.rank,
            first=step.first,
            difference=None if step.difference is None else f"{100 * step.difference:.3g}",
            allowed=f"{100 * (step.allowed or 0):.2g}",
            differing=step.differing,
            quantities=step.quantities,
            after_step=step.after_step,
        )
    if proof and proof.skipped_steps > MAX_SKIPPED * record.timeline.steps:
        yield make_doubt("skipped-steps", skipped=proof.skipped_steps, steps=record.timeline.steps)
    if environment.ranks_apart_at is not None:
        yield make_doubt("ranks-apart", step=environment.ranks_apart_at)
    mfu, flops = record.metrics.get("mfu"), environment.flops
    found, wanted = sum(proof.weights.values()) if proof else 0, flops.parameters if flops else None
    if found and wanted and found != wanted:
        yield make_doubt("weights-differ", found=f"{found:,}", wanted=f"{wanted:,}")
    if flops and flops.is_misstated:
        stated, counted = (f"{value:.3g}" for value in (flops.stated or 0, flops.per_item))
        yield make_doubt("flops-misstated", stated=stated, counted=counted, item=record.item)
    if mfu is not None and mfu.value is not None and mfu.value > 100:
        peak = None if flops is None else f"{flops.peak_tflops or 0:.3g} TFLOP/s ({flops.peak_source})"
        yield make_doubt("mfu-above-100", value=f"{mfu.value:.0f}", precision=asked, peak=peak)


def _doubt_machine(record: Record) -> Iterator[Doubt]:
    environment = record.environment
    ranks, cores = Topology.parse(record.plan.topology).devices_per_node, environment.cpu.usable_cores
    if environment.device.type == "cpu" and cores and ranks > cores:
        yield make_doubt("crowded-cores", ranks=ranks, cores=cores)
    if environment.foreign_load is not None and environment.foreign_load > FOREIGN_LOAD:
        yield make_doubt("foreign-load", share=f"{100 * environment.foreign_load:.0f}")


def _doubt_sensors(record: Record) -> Iterator[Doubt]:
    machines = record.telemetry.machines
    devices = [(machine, device) for machine in machines for device in machine.devices]
    for machine in machines:
        if machine.ended_early:
            yield make_doubt("sampler-ended", host=machine.host, last_s=f"{machine.last_s:.0f}")
    power, throttled = record.metrics.get("power"), record.metrics.get("throttled")
    if power is not None and power.value is not None:
        fewest = min(device.power_samples for _, device in devices)
        trained_s = [max(1e-9, machine.training_s[1] - machine.training_s[0]) for machine, _ in devices]
        slowest_hz = min(device.power_samples / each_s for (_, device), each_s in zip(devices, trained_s, strict=True))
        longest_s = max(device.power_gap_s or 0.0 for _, device in devices)
        missed: dict[str, Any] = {}
        if fewest < MIN_POWER_SAMPLES:
            missed.update(samples=fewest, wanted=MIN_POWER_SAMPLES)
        if slowest_hz < 1:
            missed["rate_hz"] = f"{slowest_hz:.2f}"
        if longest_s > LONGEST_POWER_GAP_S:
            missed["gap_s"] = f"{longest_s:.1f}"
        if missed:
            yield make_doubt("power-sampling", **missed)
    if throttled is not None and throttled.value:
        reasons = [(count, reason) for _, device in devices for reason, count in device.throttled.items()]
        gravest = list(dict.fromkeys(reason for _, reason in sorted(reasons, reverse=True)))
        yield make_doubt("throttled", share=f"{throttled.value:.0f}", reasons=gravest)
    limit = record.environment.device.power_w
    for machine, device in devices:
        where = {"device": device.device, "host": machine.host}
        watts = device.series["power_w"].values if "power_w" in device.series else ()
        if limit and watts and fmean(watts) > MAX_POWER * limit:
            yield make_doubt("power-impossible", **where, power=f"{fmean(watts):.0f}", limit=f"{limit:.0f}")
        if device.power_samples >= MIN_CONSTANT_SAMPLES and len(set(watts)) == 1:
            yield make_doubt("power-constant", **where, power=number(watts[0]), samples=device.power_samples)
        if device.ecc_errors_new:
            errors = f"{device.ecc_errors_new:.0f}"
            yield make_doubt("ecc-errors", device=device.device, host=machine.host, errors=errors)


def loss_rise(loss: Sequence[float | None]) -> tuple[float, float] | None:
    """The loss at the start and at the end, if it certainly rose; None where it did not, or there are too few steps.

    The medians of the first quarter and the last are compared, so that single steps do not count. The rise must be
    above 2 %, and above four standard errors by the unrest of neighbouring steps, which no trend makes larger.
    """
    finite = [value for value in loss if value is not None]
    if len(finite) < 12:
        return None
    part = len(finite) // 4
    first, last = median(finite[:part]), median(finite[-part:])
    unrest = 1.4826 * median(abs(b - a) for a, b in pairwise(finite)) / math.sqrt(2)
    error = 1.25 * unrest * math.sqrt(2 / part)  # the standard error of a median is 1.25 times that of a mean
    return (first, last) if last - first > max(0.02 * abs(first), 4 * error) else None


def find_chance_level(record: Record) -> float | None:
    """The accuracy of guessing, if the quality is no better; None where it is, or chance is unknown.

    No better means within two binomial standard errors.
    """
    quality, chance = record.quality, record.data_facts.get(CHANCE)
    if chance is None or quality.value is None or quality.unit != "%" or not quality.history or not 0 < chance < 100:
        return None
    samples = max(1, quality.history[-1].samples)
    return chance if quality.value <= chance + 2 * math.sqrt(chance * (100 - chance) / samples) else None


def find_missed_bar(record: Record) -> float | None:
    """The quality of a simpler method on the same samples, if the network's is no better; None otherwise."""
    quality, judged = record.quality, _judged_by(record)
    bar = record.data_facts.get(judged.bar) if judged and judged.bar else None
    if bar is None or quality.value is None:
        return None
    better = quality.value > bar if quality.better == "higher" else quality.value < bar
    return None if better else bar
