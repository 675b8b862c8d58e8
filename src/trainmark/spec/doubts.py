"""Reasons to trust a result less, found by looking at it, and said in words on its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainmark.spec import learning, statistics
from trainmark.spec.cores import FOREIGN_LOAD
from trainmark.spec.events import Resumed
from trainmark.spec.format import TOO_NOISY_WORDS, number
from trainmark.spec.intervals import TOO_NOISY
from trainmark.spec.machine import Environment
from trainmark.spec.metrics import Quantity
from trainmark.spec.plan import Plan
from trainmark.spec.precision import said_of_inside, said_of_products
from trainmark.spec.record import Doubt, Quality, Restart, Status
from trainmark.spec.target import telling_digits
from trainmark.spec.telemetry import MachineTelemetry, Telemetry
from trainmark.spec.timeline import Timeline
from trainmark.spec.topology import Topology
from trainmark.spec.workload_facts import QualityFacts

RANK_SKEW = 0.05
CLOCKS_APART, CLOCKS_FAR_APART = 0.03, 0.10
"""Share by which a device's events and the host's clock may differ over training before it is worth a word, and before
the result is not valid."""
MOST_OTHER, MOST_OTHER_S = 0.10, 0.5
"""Share of the training that no step accounts for, where it is more than a moment."""
MOST_SKIPPED = 0.01
"""Share of the steps that a loss scaler may skip."""
LEAST_POWER_SAMPLES = 60
LONGEST_POWER_GAP_S = 2.0
"""MLPerf's rule for power is sixty samples, one a second at least; a pause of two seconds is a gap."""
LEAST_OF_FLOOR = 0.98
"""Of the least loss that data makes possible: what a part of the validation text may be easier than all of it."""
WANTED_HALF_WIDTH = 0.01
JUST_ABOVE_PERCENT = 1.1
"""What lies between is told as this: "known to ±1.0 %, not ±1 %" would puzzle a reader."""
MOST_MORE = 50
"""Times as many steps as were made: beyond that, more steps are no advice."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a doubt may look at."""

    plan: Plan
    status: Status
    timeline: Timeline
    metrics: Mapping[str, Quantity]
    quality: Quality
    environment: Environment
    telemetry: Telemetry = field(default_factory=Telemetry)
    """What the samplers saw, as the record keeps it."""
    reference_global_batch: int
    resumed: Resumed | None = None
    restarts: tuple[Restart, ...] = ()
    torn_ranks: tuple[int, ...] = ()
    """Ranks whose event file ends in the middle of a line."""
    loss: Sequence[float | None] = ()
    """Of each step's global batch."""
    data_facts: Mapping[str, float] = field(default_factory=dict)
    """What the reader of the data says of it, such as what guessing would give."""
    no_sample: str | None = None
    """Why the trained model left no sample of its work, where it should have."""
    judged: QualityFacts | None = None
    """What the workload says of the quality it is trained to."""


def collect(facts: Facts) -> tuple[Doubt, ...]:
    return tuple(Doubt(code=code, text=text) for check in CHECKS for code, text in check(facts))


Found = Iterator[tuple[str, str]]


def stand_in(f: Facts) -> Found:
    if f.environment.device.stand_in:
        yield "stand-in", "this is a stand-in, not a device: its speed, memory and power mean nothing"


def synthetic_data(f: Facts) -> Found:
    if f.plan.data.synthetic:
        name = _called(f.quality)
        if f.quality.value is None:
            said = f"{name} was not evaluated"
        elif _learnt(f):
            said = f"{name} only shows that training works"
        else:
            said = f"{name} says nothing about the real one"
        # the code on records of every version
        yield "generated-data", f"synthetic data, not the real {f.plan.data.name} set: {said}"


def _learnt(f: Facts) -> bool:
    """As far as anything tells that it did not."""
    shown = learning.guessed(f.quality, f.data_facts), learning.below_bar(f.quality, f.judged, f.data_facts)
    return shown == (None, None) and learning.loss_rise(f.loss) is None


def loss_rose(f: Facts) -> Found:
    if rise := learning.loss_rise(f.loss):
        before, after = (number(value) for value in rise)
        yield (
            "loss-rose",
            f"the loss rose from {before} to {after} over the run: it did not learn; a smaller learning_rate may help",
        )


def at_chance(f: Facts) -> Found:
    chance = learning.guessed(f.quality, f.data_facts)
    if chance is not None:
        classes = f.data_facts.get(learning.CLASSES)
        among = f" among {classes:g} classes" if classes else ""
        yield (
            "at-chance",
            f"{_called(f.quality)} of {f.quality.value:.2f} % is what guessing{among} gives ({chance:.3g} %): nothing "
            "shows yet that the network learnt",
        )


def below_bar(f: Facts) -> Found:
    bar = learning.below_bar(f.quality, f.judged, f.data_facts)
    if bar is not None and f.judged is not None and f.quality.value is not None:
        side = "below" if f.quality.better == "higher" else "above"
        unit = "" if f.quality.unit == "-" else f" {f.quality.unit}"
        yield (
            "below-bar",
            f"has not learnt: {_called(f.quality)} of {f.quality.value:.2f}{unit} is {side} {f.judged.bar_word}, which "
            f"gives {bar:.2f} on the same samples",
        )


def below_floor(f: Facts) -> Found:
    floor, value = f.data_facts.get("loss_floor"), f.quality.value
    if floor is not None and value is not None and value < LEAST_OF_FLOOR * floor:
        yield (
            "below-floor",
            f"{f.quality.name} of {value:.4g} is below what the data makes possible, {floor:.4g}: validation text was "
            "trained on, or something is counted wrongly",
        )


def _called(quality: Quality) -> str:
    return "accuracy" if quality.name == "acc1" else quality.name


def target_missed(f: Facts) -> Found:
    if f.plan.limits.full and not f.quality.reached and f.status == "valid":
        unit = "" if f.quality.unit == "-" else f" {f.quality.unit}"
        reached = "none was measured"
        if f.quality.value is not None:
            digits = telling_digits(f.quality.value, f.quality.goal, f.quality.better)
            reached = f"{f.quality.value:.{digits}g}{unit} was reached"
        sign = ">=" if f.quality.better == "higher" else "<="
        yield "target-missed", f"target missed: {f.quality.name} {sign} {f.quality.goal:g}{unit} asked, {reached}"


def begins_trained(plan: Plan) -> bool:
    """Whether the recipe is meant to begin with weights that were trained before, as some workloads' published runs."""
    return plan.recipe.get("begins_with") == "trained"


def random_start(f: Facts) -> Found:
    if begins_trained(f.plan) and not f.plan.init_from and not f.plan.resume_from:
        yield (
            "random-start",
            "training began with random weights where the published run began with trained ones: its quality will stay "
            "far below; give a file with --init-from",
        )


def given_weights(f: Facts) -> Found:
    if f.plan.init_from and not begins_trained(f.plan):
        yield (
            "init-from",
            f"training began with the weights of {Path(f.plan.init_from).name}, so its time to target is not that of "
            "training from scratch",
        )


def few_steps(f: Facts) -> Found:
    if not f.timeline.steps:
        return
    compute_s, items = f.timeline.steady(f.timeline.compute_s), f.timeline.steady(f.timeline.step_items)
    found = statistics.mean_interval(compute_s, items)
    if found is None:
        yield "few-steps", f"too few counted steps for a 95 % interval: {compute_s.size}"
    elif found.share > WANTED_HALF_WIDTH:
        more = statistics.steps_needed(compute_s, items, WANTED_HALF_WIDTH)
        enough = more < MOST_MORE * compute_s.size
        remedy = f"about {more} more steps would do" if enough else "a quieter machine would help"
        noisy = found.share > TOO_NOISY
        percent = max(100 * found.share, JUST_ABOVE_PERCENT)
        known = f"{TOO_NOISY_WORDS} what p_core is" if noisy else f"p_core is known to ±{percent:.1f} %, not ±1 %"
        yield "few-steps", f"{known}: {remedy}"


def drifting(f: Facts) -> Found:
    if not f.timeline.steps:
        return
    found = statistics.drift(f.timeline.steady(f.timeline.compute_s), f.timeline.steady(f.timeline.step_items))
    if found is not None and found.drifting:
        before, after = found.rates
        p_core = f.metrics["p_core"]
        how = "slower" if after < before else "faster"
        where = "little by little" if found.at is None else f"at step {f.timeline.steady_from + found.at}"
        until = "" if found.until is None else f", until step {f.timeline.steady_from + found.until}"
        yield (
            "drifting",
            f"the run became {how} {where}: from {number(before)} to {number(after)} {p_core.unit}, so that a step "
            f"takes {_in_times(before / after)}{until}; p_core is the mean over all of it",
        )


def _in_times(ratio: float) -> str:
    """How a time changed that is now so many times as long."""
    if not 1 / 2 < ratio < 2:
        return f"{number(ratio)} times as long"
    return f"{number(abs(100 * (ratio - 1)), 2)} % {'longer' if ratio > 1 else 'less'}"


def rank_skew(f: Facts) -> Found:
    skew = f.timeline.skew
    if skew is not None and skew.factor > 1 + RANK_SKEW:
        slow = f"rank {skew.slow.rank}" + (f" on {skew.slow.host}" if skew.slow.host else "")
        same = " for as many items" if sum(skew.slow.items) > sum(skew.fast.items) else ""
        own = "its own computing" if f.timeline.exchange_known else "its steps"
        yield (
            "rank-skew",
            f"ranks differ by more than 5 %: {slow} took {skew.factor:.2f} times as long for {own} as "
            f"rank {skew.fast.rank}, the fastest{same}",
        )


def device_clock(f: Facts) -> Found:
    found = f.environment.clock
    if found is not None and found.apart > CLOCKS_APART:
        yield (
            "device-clock",
            f"the events of rank {found.rank}'s device count {found.device_s:.2f} s of training where the host's clock "
            f"shows {found.host_s:.2f} s: its step times are not to be trusted; `trainmark platform check` looks at "
            "its events",
        )


def time_unaccounted(f: Facts) -> Found:
    clock = f.environment.clock
    if clock is not None and clock.apart > CLOCKS_APART:
        return  # which says more
    other_s = f.timeline.seconds("other")
    training_s = other_s + f.timeline.seconds("warmup", "data_wait", "compute")
    if other_s > max(MOST_OTHER * training_s, MOST_OTHER_S):
        yield (
            "time-unaccounted",
            f"{other_s:.2f} of {training_s:.2f} s of training belong to no step: p_core does not tell how long "
            "training takes",
        )


def small_batch(f: Facts) -> Found:
    micro_batches = int(f.plan.recipe.get("accumulate", 1))  # records of older versions do not have it
    batch = int(f.plan.recipe["batch_per_device"]) * micro_batches * Topology.parse(f.plan.topology).devices
    samples = int(f.data_facts.get("train_samples", batch))
    if min(batch, samples) < f.reference_global_batch:
        asked = (
            f"global batch {batch}" if batch <= samples else f"global batch {samples}, for want of more data than that,"
        )
        yield "small-batch", f"{asked} is below the reference recipe's {f.reference_global_batch}"


def left_out(f: Facts) -> Found:
    if samples := int(f.data_facts.get("left_out_samples", 0)):
        kept = int(f.data_facts["train_samples"])
        yield (
            "left-out",
            f"the recipe left {samples:,} of {samples + kept:,} training samples out: it trained on {kept:,}",
        )


def emulated_precision(f: Facts) -> Found:
    if f.environment.emulated_precision:
        yield (
            "emulated-precision",
            f"this CPU has no instructions for {f.plan.precision}: products are computed in float32 and rounded",
        )


def precision_differs(f: Facts) -> Found:
    found = f.environment.precision
    if found and found.ran != found.asked:
        seen = said_of_products(found.computed) or "no product"
        inside = said_of_inside(found.narrowed)
        yield (
            "precision-differs",
            f"{found.asked} was asked for and {found.ran} ran: the first step had {seen}"
            + (f", and the device itself computes {inside}" if inside else ""),
        )


def step_differs(f: Facts) -> Found:
    found = f.environment.step_check
    if found is not None and found.differing:
        by = "is not a number" if found.difference is None else f"differs by {100 * found.difference:.3g} %"
        yield (
            "cpu-differs",
            f"one step of this network on rank {found.rank}'s device does not come out as on the CPU: {found.first} "
            f"{by}, where rounding explains {100 * (found.allowed or 0):.2g} %, and {found.differing} of "
            f"{found.quantities} quantities differ; `trainmark platform check` names operators that are wrong",
        )


def skipped_steps(f: Facts) -> Found:
    skipped = f.environment.precision.skipped_steps if f.environment.precision else 0
    if skipped > MOST_SKIPPED * f.timeline.steps:
        yield (
            "skipped-steps",
            f"{skipped} of {f.timeline.steps} steps changed no weight: their gradients were not finite under the loss "
            "scale of the time",
        )


def mfu_above_100(f: Facts) -> Found:
    mfu = f.metrics.get("mfu")
    if mfu is not None and mfu.value is not None and mfu.value > 100:
        flops = f.environment.flops
        peak = "unknown" if flops is None else f"{flops.peak_tflops or 0:.3g} TFLOP/s ({flops.peak_source})"
        yield (
            "mfu-above-100",
            f"mfu is {mfu.value:.0f} %, more than a device can do in {f.plan.precision}: that label is wrong, or "
            f"its peak of {peak}",
        )


def crowded_cores(f: Facts) -> Found:
    ranks, cores = Topology.parse(f.plan.topology).devices_per_node, f.environment.cpu.usable_cores
    if f.environment.device.type == "cpu" and cores and ranks > cores:
        yield (
            "crowded-cores",
            f"{ranks} ranks shared {cores} usable core{'s' if cores > 1 else ''}: they took turns, so the speed says "
            "little of more devices",
        )


def foreign_load(f: Facts) -> Found:
    share = f.environment.foreign_load
    if share is not None and share > FOREIGN_LOAD:
        yield (
            "foreign-load",
            f"other programs, or other guests of the host, used {100 * share:.0f} % of the machine meanwhile",
        )


def sampling(f: Facts) -> Found:
    machines = f.telemetry.machines
    for machine in machines:
        if machine.ended_early:
            yield (
                "sampler-ended",
                f"the sampler on {machine.host} ended by itself {machine.last_s:.0f} s after the launch: what "
                "devices and host did later is not known",
            )
    power = f.metrics.get("power")
    if power is None or power.value is None:
        return
    devices = [(machine, device) for machine in machines for device in machine.devices]
    fewest = min(device.power_samples for _, device in devices)
    slowest_hz = min(device.power_samples / _training_s(machine) for machine, device in devices)
    longest_s = max(device.power_gap_s or 0.0 for _, device in devices)
    missed = []
    if fewest < LEAST_POWER_SAMPLES:
        missed.append(f"{fewest} samples of {LEAST_POWER_SAMPLES}")
    if slowest_hz < 1:
        missed.append(f"{slowest_hz:.2f} a second")
    if longest_s > LONGEST_POWER_GAP_S:
        missed.append(f"a gap of {longest_s:.1f} s")
    if missed:
        yield "power-sampling", f"power does not keep to MLPerf's rule of 60 samples at 1 Hz: {', '.join(missed)}"


def _training_s(machine: MachineTelemetry) -> float:
    begin_s, end_s = machine.training_s
    return max(1e-9, float(end_s - begin_s))


def throttled(f: Facts) -> Found:
    share = f.metrics.get("throttled")
    if share is None or not share.value:
        return
    reasons = [
        (count, reason)
        for machine in f.telemetry.machines
        for device in machine.devices
        for reason, count in device.throttled.items()
    ]
    words = ", ".join(dict.fromkeys(reason for _, reason in sorted(reasons, reverse=True)))
    yield "throttled", f"a device was slowed in {share.value:.0f} % of the samples: {words}"


def memory_errors(f: Facts) -> Found:
    for machine in f.telemetry.machines:
        for device in machine.devices:
            if device.ecc_errors_new:
                yield (
                    "ecc-errors",
                    f"device {device.device} of {machine.host} counted {device.ecc_errors_new:.0f} memory "
                    "errors it could not correct during the run",
                )


def skipped_files(f: Facts) -> Found:
    if f.plan.skip_bad:
        yield "skip-bad", f"up to {f.plan.skip_bad} unreadable data files were allowed to be left out"


def resumed(f: Facts) -> Found:
    if f.resumed:
        said = [f"resumed at step {f.resumed.step}: times cover only the part after it", *f.resumed.damaged]
        yield "resumed", "; ".join(said)


def restarted(f: Facts) -> Found:
    if f.restarts:
        times = f"{len(f.restarts)} time{'s' if len(f.restarts) > 1 else ''}"
        where = " and ".join(str(restart.step) for restart in f.restarts)
        lost_s = f.timeline.seconds("restart")
        said = [f"restarted {times}, at step {where}, {lost_s:.1f} s lost, which no throughput holds"]
        said += [restart.reason for restart in f.restarts if restart.reason]
        said += [sentence for restart in f.restarts for sentence in restart.damaged]
        yield "restarted", "; ".join(said)


def torn_events(f: Facts) -> Found:
    if f.torn_ranks:
        ranks = ", ".join(str(rank) for rank in f.torn_ranks)
        yield "torn-events", f"the events of rank {ranks} end in the middle of a line, which was dropped"


def no_sample(f: Facts) -> Found:
    if f.no_sample:
        yield "no-sample", f"the trained model left no sample of its work: {f.no_sample}"


def incomplete(f: Facts) -> Found:
    if f.status == "incomplete":
        yield "incomplete", "the run did not reach its end: the numbers cover what was measured before"


CHECKS = (
    incomplete,
    stand_in,
    synthetic_data,
    given_weights,
    random_start,
    target_missed,
    loss_rose,
    at_chance,
    below_bar,
    below_floor,
    few_steps,
    drifting,
    rank_skew,
    device_clock,
    time_unaccounted,
    small_batch,
    left_out,
    emulated_precision,
    precision_differs,
    step_differs,
    skipped_steps,
    mfu_above_100,
    crowded_cores,
    foreign_load,
    sampling,
    throttled,
    memory_errors,
    skipped_files,
    resumed,
    restarted,
    torn_events,
    no_sample,
)
