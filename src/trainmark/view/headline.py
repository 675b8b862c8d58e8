"""Summarises a run in one sentence: speed, ratio to a published device, and what it learnt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from trainmark.analysis import device_names as names
from trainmark.analysis.beside import (
    PublishedSpeed,
    find_nearest,
    is_hand_written,
    is_published_network,
    list_speeds,
    rate_per_device,
)
from trainmark.record.endings import BY_SIGNAL, translate_ending
from trainmark.record.format import format_goal, format_quality, number, verdict
from trainmark.record.language import Say, current_language, translator
from trainmark.record.numbers import is_too_noisy, share
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.workloads import facts_of, title_of

ALIKE_WITHIN = 1.05
"""Times that two speeds may differ and still be called about the same."""


def write_headlines(records: Sequence[Record], rows: Sequence[PublishedRow]) -> list[str]:
    """One sentence per plan; repeats are represented by the median run."""
    published, say = list_speeds(rows), translator(current_language())
    plans: dict[str, list[Record]] = {}
    for record in records:
        plans.setdefault(record.plan.fingerprint, []).append(record)
    medians = [_pick_median(alike) for alike in plans.values()]
    return [write_headline(record, published, say, where=_name_machine(record, say)) for record in medians]


def _pick_median(repeats: Sequence[Record]) -> Record:
    """The run with the median speed; where not all have one, the last, which is the one that failed."""
    rates = {record.run_id: rate_per_device(record, "p_core") for record in repeats}
    if any(rate is None for rate in rates.values()):
        return repeats[-1]
    return sorted(repeats, key=lambda record: rates[record.run_id] or 0.0)[len(repeats) // 2]


def _name_machine(record: Record, say: Say) -> str:
    nodes = Topology.parse(record.plan.topology).nodes
    return say("this machine") if nodes == 1 else say("these {count} machines").format(count=nodes)


def write_headline(record: Record, published: Iterable[PublishedSpeed], say: Say, *, where: str) -> str:
    """All of it in one sentence; `where` is the machine as the reader calls it."""
    text = describe_speed(record, say, where=where)
    if beside := compare_with_published(record, published, say):
        text = say("{told}, {more}").format(told=text, more=beside)
    if learnt := describe_learning(record, say):
        text = say("{told}; {more}").format(told=text, more=learnt)
    return say("{sentence}.").format(sentence=text)


def name_network(record: Record) -> str:
    """The network, and by which recipe unless it is the published network: a smoke run trains a far smaller one."""
    title, recipe = title_of(record), record.plan.recipe_name
    return title if recipe == "reference" or is_published_network(record) else f"{title} ({recipe})"


def describe_speed(record: Record, say: Say, *, where: str) -> str:
    """The run's main number in words; a run without one says why."""
    words = {"workload": name_network(record), "where": where}
    p_core = record.metrics.get("p_core")
    rate = f"{number(p_core.value)} {p_core.unit}" if p_core is not None and p_core.value is not None else None
    if record.ended in BY_SIGNAL:
        words["steps"] = str(record.timeline.steps)
        if rate is None:
            return say("{workload} was interrupted on {where} before its speed was known").format(**words)
        return say("{workload} was interrupted on {where} after {steps} steps, at {rate} until then").format(
            **words, rate=rate
        )
    if record.status != "valid":
        failed = say("{workload} did not finish on {where}: {ended}")
        text = say("{workload} gave no valid result on {where}: {ended}") if record.status == "invalid" else failed
        return text.format(**words, ended=translate_ending(record.ended, say))
    if p_core is None or rate is None:
        return say("{workload} was trained on {where}, but no step was counted").format(**words)
    if p_core.interval is None or is_too_noisy(p_core.interval):
        few = say("{workload} trains at about {rate} on {where}, from too few steps for an interval")
        noisy = say("{workload} trains at about {rate} on {where}, which is too noisy to say more")
        return (noisy if p_core.interval else few).format(**words, rate=rate)
    half = number(100 * share(p_core.interval), 2)
    return say("{workload} trains at {rate} ±{half} % on {where}").format(**words, rate=rate, half=half)


def compare_with_published(record: Record, published: Iterable[PublishedSpeed], say: Say) -> str:
    """How many times slower or faster than the published device it is best held against; empty where there is none."""
    found = find_nearest(record, published)
    own = rate_per_device(record, found.metric) if found else None
    if found is None or own is None:
        return ""
    several = Topology.parse(record.plan.topology).devices > 1 or Topology.parse(found.row.topology).devices > 1
    by = say("{metric} a device").format(metric=found.metric) if several else found.metric
    if found.row.findings:
        by = say("{metric}, a row the audit calls {word}").format(
            metric=by, word=say("wrong") if found.row.is_wrong else say("doubtful")
        )
    if is_hand_written(record):
        by = say("{metric}; ours has hand-written gradients, the published one is plain").format(metric=by)
    words = {"times": format_times(own, found.rate), "device": names.short_device(found.row.device), "by": by}
    if max(own, found.rate) / min(own, found.rate) < ALIKE_WITHIN:
        return say("about as fast as a published {device} ({by})").format(**words)
    if own < found.rate:
        return say("{times} times slower than a published {device} ({by})").format(**words)
    return say("{times} times faster than a published {device} ({by})").format(**words)


def format_times(one: float, other: float) -> str:
    """How many times the smaller of two the larger is: `220`, `1.3`."""
    times = max(one, other) / min(one, other)
    return number(float(f"{times:.2g}"), 2 if times < 100 else 3)


def describe_learning(record: Record, say: Say) -> str:
    """Where the loss went, and what became of the quality; of a run that failed nothing."""
    if record.status != "valid":
        return ""
    trends = {"fell": say("loss fell"), "rose": say("loss rose"), "level": say("loss hardly moved")}
    trend = loss_trend(record.loss)
    parts = [trends[trend]] if trend else []
    quality, known = record.quality, facts_of(record)
    judged = known.find_quality(quality.name) if known else None
    words = {
        "quality": say(judged.plain) if judged else quality.name,
        "value": format_quality(quality),
        "goal": format_goal(quality),
    }
    outcomes = {
        "reached": say("{quality} {value}, target {goal} reached"),
        "missed": say("{quality} {value}, target {goal} missed"),
        "not finite": say("{quality} not finite"),
    }
    parts.append(outcomes.get(verdict(record), say("{quality} not evaluated")).format(**words))
    return say(", ").join(parts)


def loss_trend(loss: Sequence[float | None]) -> str | None:
    """`fell`, `rose` or `level`, from the first to the last steps; None where there are too few."""
    finite = [value for value in loss if value is not None]
    if len(finite) < 4:
        return None
    part = min(max(1, len(finite) // 4), 20)
    first, last = fmean(finite[:part]), fmean(finite[-part:])
    if abs(last - first) <= 0.005 * max(abs(first), abs(last)):
        return "level"
    return "fell" if last < first else "rose"
