"""Writes a doubt as a sentence in the reader's language, from its code and recorded values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainmark.record.format import TOO_NOISY_WORDS, number
from trainmark.record.language import ENGLISH, Say

if TYPE_CHECKING:
    from trainmark.record.record import Doubt

Values = Mapping[str, Any]
"""What a check found, formatted, by placeholder name."""

TEMPLATES = {
    "incomplete": "the run did not reach its end: the numbers cover what was measured before",
    "stand-in": "this is a stand-in, not a device: its speed, memory and power mean nothing",
    "init-from": "training began with the weights of {name}, so its time to target is not that of training from "
    "scratch",
    "random-start": "training began with random weights where the published run began with trained ones: its quality "
    "will stay far below; give a file with --init-from",
    "loss-rose": "the loss rose from {before} to {after} over the run: it did not learn; a smaller learning_rate may "
    "help",
    "below-floor": "{name} of {value} is below what the data makes possible, {floor}: validation text was trained on, "
    "or something is counted wrongly",
    "device-clock": "the events of rank {rank}'s device count {device_s} s of training where the host's clock shows "
    "{host_s} s: its step times are not to be trusted; `trainmark platform check` looks at its events",
    "time-unaccounted": "{other_s} of {training_s} s of training belong to no step: p_core does not tell how long "
    "training takes",
    "left-out": "the recipe left {left_out} of {samples} training samples out: it trained on {kept}",
    "emulated-precision": "this CPU has no instructions for {precision}: matmuls are computed in float32 and rounded",
    "skipped-steps": "{skipped} of {steps} steps changed no weight: their gradients were not finite under the loss "
    "scale of the time",
    "foreign-load": "other programs, or other guests of the host, used {share} % of the machine meanwhile",
    "sampler-ended": "the sampler on {host} ended by itself {last_s} s after the launch: what devices and host did "
    "later is not known",
    "ecc-errors": "device {device} of {host} counted {errors} memory errors it could not correct during the run",
    "skip-bad": "up to {files} unreadable data files were allowed to be left out",
    "torn-events": "the events of rank {ranks} end in the middle of a line, which was dropped",
    "no-sample": "the trained model left no sample of its work: {reason}",
}
"""Doubts with a fixed sentence; `COMPOSED` has the others."""


def translate_doubt(doubt: Doubt, say: Say) -> str:
    """The doubt in the reader's language; the recorded text where an earlier version worded it otherwise."""
    try:
        known = doubt_text(doubt.code, doubt.values, ENGLISH) == doubt.text
        return doubt_text(doubt.code, doubt.values, say) if known else doubt.text
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # a record may hold anything
        return doubt.text


def doubt_text(code: str, values: Values, say: Say) -> str:
    if code in COMPOSED:
        return COMPOSED[code](values, say)
    return say(TEMPLATES[code]).format(**values)


def _write_generated_data(v: Values, say: Say) -> str:
    outcomes = {
        "not evaluated": say("{name} was not evaluated"),
        "learnt": say("{name} only shows that training works"),
        "not learnt": say("{name} says nothing about the real one"),
    }
    said = outcomes[v["outcome"]].format(name=say(v["quality"]))
    return say("synthetic data, not the real {name} set: {said}").format(name=v["data"], said=said)


def _write_at_chance(v: Values, say: Say) -> str:
    classes = v.get("classes")
    among = say(" among {classes} classes").format(classes=classes) if classes else ""
    return say(
        "{quality} of {value} % is what guessing{among} gives ({chance} %): nothing shows yet that the network learnt"
    ).format(quality=say(v["quality"]), value=v["value"], among=among, chance=v["chance"])


def _write_below_bar(v: Values, say: Say) -> str:
    return say(
        "has not learnt: {quality} of {value}{unit} is {side} {bar_word}, which gives {bar} on the same samples"
    ).format(**{**v, "quality": say(v["quality"]), "side": say(v["side"]), "bar_word": say(v["bar_word"])})


def _write_target_missed(v: Values, say: Say) -> str:
    reached = say("none was measured")
    if v.get("value") is not None:
        reached = say("{value}{unit} was reached").format(**v)
    return say("target missed: {name} {sign} {goal}{unit} asked, {reached}").format(**v, reached=reached)


def _write_few_steps(v: Values, say: Say) -> str:
    if "steps" in v:
        return say("too few counted steps for a 95 % interval: {size}").format(size=v["steps"])
    if v.get("percent") is None:
        known = say("{noisy} what p_core is").format(noisy=say(TOO_NOISY_WORDS))
    else:
        known = say("p_core is known to ±{percent} %, not ±1 %").format(percent=v["percent"])
    if v.get("more") is None:
        remedy = say("a quieter machine would help")
    else:
        remedy = say("about {more} more steps would do").format(more=v["more"])
    return say("{known}: {remedy}").format(known=known, remedy=remedy)


def _write_drifting(v: Values, say: Say) -> str:
    how = say("slower") if v["after"] < v["before"] else say("faster")
    where = say("little by little") if v.get("step") is None else say("at step {step}").format(step=v["step"])
    until = "" if v.get("until") is None else say(", until step {step}").format(step=v["until"])
    return say(
        "the run became {how} {where}: from {before} to {after} {unit}, so that a step takes {times}{until}; p_core is "
        "the mean over all of it"
    ).format(
        how=how,
        where=where,
        before=number(v["before"]),
        after=number(v["after"]),
        unit=v["unit"],
        times=_in_times(v["before"] / v["after"], say),
        until=until,
    )


def _in_times(ratio: float, say: Say) -> str:
    """How a time changed, given the ratio of new to old."""
    if not 1 / 2 < ratio < 2:
        return say("{ratio} times as long").format(ratio=number(ratio))
    percent = number(abs(100 * (ratio - 1)), 2)
    return (say("{percent} % longer") if ratio > 1 else say("{percent} % less")).format(percent=percent)


def _write_rank_skew(v: Values, say: Say) -> str:
    where = say(" on {host}").format(host=v["host"]) if v["host"] else ""
    own = say("its own computing") if v["exchange_known"] else say("its steps")
    same = say(" for as many items") if v["more_items"] else ""
    return say(
        "ranks differ by more than 5 %: {slow} took {factor} times as long for {own} as rank {rank}, the fastest{same}"
    ).format(slow=f"rank {v['rank']}{where}", factor=v["factor"], own=own, rank=v["fastest"], same=same)


def _write_small_batch(v: Values, say: Say) -> str:
    if v["all_data"]:
        batch = say("global batch {samples}, for want of more data than that,").format(samples=v["batch"])
    else:
        batch = say("global batch {batch}").format(batch=v["batch"])
    return say("{batch} is below the reference recipe's {reference}").format(batch=batch, reference=v["reference"])


def _write_precision_differs(v: Values, say: Say) -> str:
    seen = v["seen"] or say("no matmul")
    inside = say(", and the device itself computes {inside}").format(inside=v["inside"]) if v["inside"] else ""
    return say("{asked} was asked for and {ran} ran: the first step had {seen}").format(**{**v, "seen": seen}) + inside


def _write_cpu_differs(v: Values, say: Say) -> str:
    known = v.get("difference") is not None
    by = say("differs by {difference} %").format(difference=v["difference"]) if known else say("is not a number")
    return say(
        "one step of this network on rank {rank}'s device does not come out as on the CPU: {first} {by}, where "
        "rounding explains {allowed} %, and {differing} of {quantities} quantities differ; `trainmark platform check` "
        "names operators that are wrong"
    ).format(**v, by=by)


def _write_mfu_above_100(v: Values, say: Say) -> str:
    return say(
        "mfu is {value} %, more than a device can do in {precision}: that label is wrong, or its peak of {peak}"
    ).format(**{**v, "peak": v.get("peak") or say("unknown")})


def _write_crowded_cores(v: Values, say: Say) -> str:
    cores = say("{cores} usable core") if v["cores"] == 1 else say("{cores} usable cores")
    return say("{ranks} ranks shared {cores}: they took turns, so the speed says little of more devices").format(
        ranks=v["ranks"], cores=cores.format(cores=v["cores"])
    )


def _write_power_sampling(v: Values, say: Say) -> str:
    missed = {
        "samples": say("{samples} samples of {wanted}"),
        "rate_hz": say("{rate_hz} a second"),
        "gap_s": say("a gap of {gap_s} s"),
    }
    listed = say(", ").join(text.format(**v) for name, text in missed.items() if v.get(name) is not None)
    return say("power does not keep to MLPerf's rule of 60 samples at 1 Hz: {missed}").format(missed=listed)


def _write_throttled(v: Values, say: Say) -> str:
    reasons = say(", ").join(say(reason) for reason in v["reasons"])
    return say("a device was slowed in {share} % of the samples: {reasons}").format(share=v["share"], reasons=reasons)


def _write_resumed(v: Values, say: Say) -> str:
    text = say("resumed at step {step}: times cover only the part after it").format(step=v["step"])
    return say("; ").join([text, *v["damaged"]])


def _write_restarted(v: Values, say: Say) -> str:
    steps = [str(step) for step in v["steps"]]
    times = (say("{count} time") if len(steps) == 1 else say("{count} times")).format(count=len(steps))
    text = say("restarted {times}, at step {where}, {lost_s} s lost, which no throughput holds").format(
        times=times, where=say(" and ").join(steps), lost_s=v["lost_s"]
    )
    return say("; ").join([text, *v["reasons"]])


COMPOSED: Mapping[str, Callable[[Values, Say], str]] = {
    "generated-data": _write_generated_data,
    "at-chance": _write_at_chance,
    "below-bar": _write_below_bar,
    "target-missed": _write_target_missed,
    "few-steps": _write_few_steps,
    "drifting": _write_drifting,
    "rank-skew": _write_rank_skew,
    "small-batch": _write_small_batch,
    "precision-differs": _write_precision_differs,
    "cpu-differs": _write_cpu_differs,
    "mfu-above-100": _write_mfu_above_100,
    "crowded-cores": _write_crowded_cores,
    "power-sampling": _write_power_sampling,
    "throttled": _write_throttled,
    "resumed": _write_resumed,
    "restarted": _write_restarted,
}
