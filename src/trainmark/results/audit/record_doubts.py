"""Works out which doubts a record must carry, and holds those it has against them: none hidden, none invented."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

from trainmark.results.audit.checking import Check, Found, check, wrong
from trainmark.results.audit.known import KNOWN
from trainmark.results.audit.record_case import RecordCase
from trainmark.spec import series
from trainmark.spec.target import telling_digits

FOREIGN_LOAD = 0.10
RANK_SKEW = 0.05
MOST_SKIPPED = 0.01
LEAST_POWER_SAMPLES = 60
LONGEST_POWER_GAP_S = 2.0
WANTED_HALF_WIDTH = 0.01

OF_EVENTS = ("torn-events", "no-sample")
"""Doubts about what only the run's events told: they may stand on a record, and nothing on it can confirm them."""

Pieces = tuple[str, ...]
"""What the words of a doubt must hold: its figures, as they are written there."""
Rule = Callable[[RecordCase], "Pieces | None"]
"""None where there is nothing to doubt."""


@check("doubts", "every doubt the numbers ask for stands on the record, with its figures, and no other")
def doubts(case: RecordCase) -> Iterator[Found]:
    said: dict[str, list[str]] = {}
    for doubt in case.record.doubts:
        said.setdefault(doubt.code, []).append(doubt.text)
    for code, rule in RULES.items():
        expected = rule(case)
        texts = said.pop(code, [])
        if expected is None and texts:
            yield wrong(f"{code}: {texts[0]}", "nothing on the record gives reason for it", "the doubts")
        elif expected is not None and not texts:
            yield wrong(
                f"{code}{': ' if expected else ''}{', '.join(expected)}",
                "the numbers ask for this doubt, and it is not there",
                "who took it out",
            )
        elif expected is not None and (lacking := [piece for piece in expected if piece not in " ".join(texts)]):
            yield wrong(f"{code}: {texts[0]}", f"it should say {', '.join(lacking)}", "the doubts")
    for code in said:
        if code not in OF_EVENTS:
            yield wrong(f"{code}: {said[code][0]}", "trainmark has no such doubt, or not in this run", "the doubts")
    codes = [doubt.code for doubt in case.record.doubts if doubt.code not in PER_MACHINE]
    if len(codes) != len(set(codes)):
        yield wrong(", ".join(codes), "a doubt is said once", "the doubts")


def _incomplete(case: RecordCase) -> Pieces | None:
    return () if case.record.status == "incomplete" else None


def _stand_in(case: RecordCase) -> Pieces | None:
    return () if (case.record.environment.get("device") or {}).get("stand_in") else None


def _generated(case: RecordCase) -> Pieces | None:
    data = case.record.plan.data
    return (f"the real {data.name} set",) if data.generated else None


def _init_from(case: RecordCase) -> Pieces | None:
    given = case.record.plan.init_from
    return (PurePath(given).name,) if given else None


def _target_missed(case: RecordCase) -> Pieces | None:
    quality = case.record.quality
    if not case.record.plan.limits.full or quality.reached or case.record.status != "valid":
        return None
    goal = f" {quality.goal:g} "
    if quality.value is None:
        return quality.name, goal, "none was measured"
    return f"{quality.name} ", goal, f"{quality.value:.{telling_digits(quality.value, quality.goal, quality.better)}g}"


def _few_steps(case: RecordCase) -> Pieces | None:
    timeline = case.record.timeline
    if not timeline.steps:
        return None
    seconds, items = timeline.steady(timeline.compute_s), timeline.steady(timeline.step_items)
    found = series.mean_interval(seconds, items)
    if found is None:
        return (f"{seconds.size} counted steps",)
    if found.relative_half_width <= WANTED_HALF_WIDTH:
        return None
    return f"±{100 * found.relative_half_width:.1f} %", f"±{100 * WANTED_HALF_WIDTH:.0f} %"


def _drifting(case: RecordCase) -> Pieces | None:
    timeline = case.record.timeline
    if not timeline.steps:
        return None
    found = series.drift(timeline.steady(timeline.compute_s), timeline.steady(timeline.step_items))
    if found is None or not found.drifting:
        return None
    return (f"{abs(100 * found.relative_change):.1f} % {'slower' if found.relative_change > 0 else 'faster'}",)


def _rank_skew(case: RecordCase) -> Pieces | None:
    skew = case.record.timeline.skew
    if skew is None or skew.factor <= 1 + RANK_SKEW:
        return None
    return (
        f"more than {100 * RANK_SKEW:.0f} %",
        f"rank {skew.slow.rank}",
        f"{skew.factor:.2f} times",
        f"rank {skew.fast.rank}",
    )


def _small_batch(case: RecordCase) -> Pieces | None:
    batch, known = case.step_batch * case.devices, KNOWN.get(case.record.plan.workload)
    if known is None:  # the reference of another workload is not on the record: the doubt is taken at its word
        return () if any(doubt.code == "small-batch" for doubt in case.record.doubts) else None
    return (f"global batch {batch} ", f"{known.global_batch}") if batch < known.global_batch else None


def _emulated(case: RecordCase) -> Pieces | None:
    return (case.record.plan.precision,) if case.record.environment.get("emulated_precision") else None


def _precision_differs(case: RecordCase) -> Pieces | None:
    proof = case.record.environment.get("precision")
    if not proof or proof["ran"] == proof["asked"]:
        return None
    return f"{proof['asked']} was asked", f"{proof['ran']} ran"


def _skipped_steps(case: RecordCase) -> Pieces | None:
    skipped, steps = (
        (case.record.environment.get("precision") or {}).get("skipped_steps", 0),
        case.record.timeline.steps,
    )
    return (f"{skipped} of {steps} steps",) if skipped > MOST_SKIPPED * steps else None


def _mfu(case: RecordCase) -> Pieces | None:
    value = case.value("mfu")
    return (f"{value:.0f} %",) if value is not None and value > 100 else None


def _foreign_load(case: RecordCase) -> Pieces | None:
    share = case.record.environment.get("foreign_load")
    return (f"{100 * share:.0f} %",) if share is not None and share > FOREIGN_LOAD else None


def _sampler_ended(case: RecordCase) -> Pieces | None:
    early = [machine for machine in case.machines if machine["ended_early"]]
    return tuple(f"{machine['last_s']:.0f} s" for machine in early) or None


def _power_sampling(case: RecordCase) -> Pieces | None:
    if case.value("power") is None:
        return None
    missed: list[str] = []
    pairs = [(machine, device) for machine in case.machines for device in machine["devices"]]
    fewest = min(device["power_samples"] for _, device in pairs)
    slowest = min(device["power_samples"] / _training_s(machine) for machine, device in pairs)
    longest = max(device["power_gap_s"] or 0.0 for _, device in pairs)
    missed += [f"{fewest} samples"] if fewest < LEAST_POWER_SAMPLES else []
    missed += [f"{slowest:.2f} a second"] if slowest < 1 else []
    missed += [f"{longest:.1f} s"] if longest > LONGEST_POWER_GAP_S else []
    return (f"{LEAST_POWER_SAMPLES} samples at 1 Hz", *missed) if missed else None


def _training_s(machine: Mapping[str, list[float]]) -> float:
    begin_s, end_s = machine["training_s"]
    return max(1e-9, end_s - begin_s)


def _throttled(case: RecordCase) -> Pieces | None:
    share = case.value("throttled")
    return (f"{share:.0f} %",) if share else None


def _memory_errors(case: RecordCase) -> Pieces | None:
    counts = [device["ecc_errors_new"] for machine in case.machines for device in machine["devices"]]
    return tuple(f"{count:.0f} memory errors" for count in counts if count) or None


def _skip_bad(case: RecordCase) -> Pieces | None:
    most = case.record.plan.skip_bad
    return (f"up to {most} ",) if most else None


def _resumed(case: RecordCase) -> Pieces | None:
    if not case.resumed:
        return None
    told = any(doubt.code == "resumed" for doubt in case.record.doubts)
    return ("resumed at step",) if told or case.whole.steps else None


def _restarted(case: RecordCase) -> Pieces | None:
    restarts = case.record.restarts
    if not restarts:
        return None
    where = " and ".join(str(restart.step) for restart in restarts)
    return f"{len(restarts)} time", f"at step {where},", f"{case.record.timeline.seconds('restart'):.1f} s lost"


PER_MACHINE = ("sampler-ended", "ecc-errors")

RULES: Mapping[str, Rule] = {
    "incomplete": _incomplete,
    "stand-in": _stand_in,
    "generated-data": _generated,
    "init-from": _init_from,
    "target-missed": _target_missed,
    "few-steps": _few_steps,
    "drifting": _drifting,
    "rank-skew": _rank_skew,
    "small-batch": _small_batch,
    "emulated-precision": _emulated,
    "precision-differs": _precision_differs,
    "skipped-steps": _skipped_steps,
    "mfu-above-100": _mfu,
    "foreign-load": _foreign_load,
    "sampler-ended": _sampler_ended,
    "power-sampling": _power_sampling,
    "throttled": _throttled,
    "ecc-errors": _memory_errors,
    "skip-bad": _skip_bad,
    "resumed": _resumed,
    "restarted": _restarted,
}
"""By the doubt's code."""

CHECKS: tuple[Check[RecordCase], ...] = (doubts,)
