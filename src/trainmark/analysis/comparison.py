"""Compares two subjects by one number; refuses unlike ones, else gives a verdict with its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from trainmark import workloads
from trainmark.analysis import quantities
from trainmark.analysis.judge import Judgement, RunValues, Spread, judge, own_interval
from trainmark.analysis.quantities import Compared
from trainmark.record import escape, metrics
from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.doubts import translate_doubt
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name, number
from trainmark.record.language import ENGLISH, Say
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import REPEATS, Record
from trainmark.record.store import Subject

if TYPE_CHECKING:
    from trainmark.record.record import Record


TRAININGS = 5
NEAR = 0.01
"""Of the median, on either side."""


def compute_stability(values: Sequence[float]) -> float | None:
    """1 - 0.2 for each of the first five values further than 1 % from their median; None of fewer."""
    first = values[:TRAININGS]
    if len(first) < TRAININGS:
        return None
    base = median(first)
    # a distance of 1 % that was rounded up is still one of 1 %
    far = sum(abs(value - base) > abs(base) * NEAR * (1 + 1e-9) for value in first)
    return round(1 - far / TRAININGS, 3)


def stability_of_repeats(repeats: Sequence[Record]) -> float | None:
    """Of the first five repeats of one full run; None where there are fewer, or one of them missed the target."""
    first = sorted(repeats, key=lambda record: (record.created, record.run_id))[:TRAININGS]
    ended = [
        record.quality.value
        for record in first
        if record.status == "valid" and record.plan.limits.full and record.quality.reached
    ]
    return compute_stability([value for value in ended if value is not None])


def make_repeats_document(records: Sequence[Record]) -> dict[str, Any]:
    """Repeats for programs: what each group has in common, with its stability and its range of p_core, then every
    record. Stability is DeepSpark's, and null where it takes more trainings, or full ones."""
    groups: dict[str | None, list[Record]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    summaries = []
    for group, repeats in groups.items():
        plan, values = (
            repeats[0].plan,
            [found.metrics["p_core"].value for found in repeats if "p_core" in found.metrics],
        )
        known = [value for value in values if value is not None]
        summaries.append({
            "group": group,
            "workload": plan.workload,
            "recipe": plan.recipe_name,
            "topology": plan.topology,
            "runs": [record.run_id for record in repeats],
            "valid": sum(record.status == "valid" for record in repeats),
            "stability": stability_of_repeats(repeats),
            "p_core": {"lowest": min(known), "median": median(known), "highest": max(known)} if known else None,
        })  # fmt: skip
    return {"kind": REPEATS, "groups": summaries, "records": [record.to_json() for record in records]}


ANY_VALUE = ("seed",)
"""Recipe values that may differ: a run does not become another training by them."""

ABSENT = "not on the record"
_SOFTWARE = ("python", "torch", "os", "threads")
"""Of a record's environment, what is known to change speed."""
THRESHOLD = 0.03
"""A smaller difference is called the same, unless the user says otherwise."""

PUBLISHED_WITHIN = 2.0
"""Factor by which a published figure may be off; a larger difference decides."""
UNKNOWN_WITHIN = 10.0
"""The same where our own side has no interval."""
UNITS_WITHOUT_LOAD = ("GiB", "W", "°C")
"""Of what other programs on the processors that train do not make worse."""
_MAX_LISTED = 4
"""Differences named in a refusal; `anyway` lists them all."""

ONE_RUN_EACH = "one run each: what changes between processes was not seen, only allowed for; --repeat 5 measures it"

Facts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One fact that is not the same on both sides."""

    name: str
    a: str
    b: str
    unlike: bool
    """True where it makes the two different trainings, so that no verdict should rest on them."""

    def __str__(self) -> str:
        return f"{self.name} {self.a} and {self.b}"


@dataclass(frozen=True, kw_only=True)
class Party:
    """One side with its values."""

    subject: Subject
    side: RunValues
    unit: str
    interval: tuple[float, float] | None
    """95 % confidence of its own value."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """B, the new, compared with A, the base."""

    compared: Compared
    threshold: float
    a: Party
    b: Party
    judgement: Judgement
    verdict: str
    """`faster` or `slower`, `better` or `worse`, `same`, `inconclusive`."""
    unless_off_by: float | None
    """Times by which a published figure would have to be off for the verdict to be wrong; None where none decided."""
    hidden_by_load: float | None
    """The share of the machine that others used, where that may be all of the difference; else None."""
    differences: tuple[Difference, ...]
    faults: tuple[str, ...]
    """Why a side should not be compared at all."""
    knob: Difference | None = None
    """The one setting that was changed between two runs that are alike but for it."""

    @property
    def is_regression(self) -> bool:
        return self.verdict == self.compared.words[1]

    @property
    def is_inconclusive(self) -> bool:
        return self.verdict == "inconclusive"

    @property
    def doubts(self) -> tuple[str, ...]:
        """Of both sides; shared ones once."""
        return self.doubts_in(ENGLISH)

    def doubts_in(self, say: Say) -> tuple[str, ...]:
        a, b = self.a.subject, self.b.subject
        alone = [say(ONE_RUN_EACH)] if len(a.records) == len(b.records) == 1 else []
        return (*self.faults, *alone, *_list_doubts(a, b, say))


def compare(
    a: Subject, b: Subject, *, metric: str = "p_core", threshold: float = THRESHOLD, anyway: bool = False
) -> Comparison:
    """Compares B with A; `anyway` also compares what is not alike, and lists it."""
    if shared := {record.run_id for record in a.records} & {record.run_id for record in b.records}:
        raise UsageError(f"run {min(shared)} is on both sides; compare different runs")
    if a.row is not None and a.row == b.row:
        raise UsageError(f"{a.row.name} is on both sides; compare different rows")
    compared = quantities.find_compared(metric, (a, b))
    faults = [fault for record in (*a.records, *b.records) for fault in _find_faults(record, compared)]
    differing = list_differences(a, b, compared)
    unlike = [str(difference) for difference in differing if difference.unlike]
    knob = find_knob(a, b, differing)
    if (faults or (unlike and knob is None)) and not anyway:
        more = f" and {len(unlike) - _MAX_LISTED} more" if len(unlike) > _MAX_LISTED else ""
        listed = f"{', '.join(unlike[:_MAX_LISTED])}{more}"
        about = f"{a.label} and {b.label} are not alike: {listed}" if unlike else faults[0]
        # names of devices and runs are untrusted
        raise UsageError(escape.terminal(f"{about}; compare like with like, or go on with --anyway"))
    first, second = _make_party(a, compared), _make_party(b, compared)
    judgement = judge(first.side, second.side, threshold=threshold)
    if (off := published_margin(first, second)) is not None:
        judgement = replace(judgement, outcome="above" if judgement.ratio > 1 else "below")
    if load := find_hiding_load(first, second, judgement, compared):
        judgement = replace(judgement, outcome="inconclusive", more=None)
    return Comparison(
        compared=compared,
        threshold=threshold,
        a=first,
        b=second,
        judgement=judgement,
        verdict=name_verdict(judgement, compared),
        unless_off_by=off,
        hidden_by_load=load,
        differences=differing,
        faults=tuple(faults),
        knob=knob,
    )


def find_knob(a: Subject, b: Subject, differing: Sequence[Difference]) -> Difference | None:
    """The setting or precision in which alone two runs of one training differ: what is compared is then its effect."""
    unlike = [difference for difference in differing if difference.unlike]
    if len(unlike) != 1 or not a.records or not b.records:
        return None
    plans = [side.records[0].plan for side in (a, b)]
    settings = {name for plan in plans for name in plan.recipe}
    if plans[0].precision != plans[1].precision:  # where the same was asked for, another one that ran is no choice
        settings.add("precision")
    return unlike[0] if unlike[0].name in settings else None


def published_margin(a: Party, b: Party) -> float | None:
    """Factor by which published figures would have to be off for the sides to be equal; None where none is published,
    or the factor is plausible."""
    published = [party for party in (a, b) if party.side.published]
    if not published:
        return None
    low, high = sorted((a, b), key=lambda party: party.side.mean)
    apart = _bound(high, 0) / _bound(low, 1)
    own = [party for party in (a, b) if not party.side.published]
    allowed = PUBLISHED_WITHIN ** len(published) * (UNKNOWN_WITHIN if own and own[0].interval is None else 1.0)
    return apart if apart > allowed else None


def find_hiding_load(a: Party, b: Party, judgement: Judgement, compared: Compared) -> float | None:
    """The share of the machine that others used beside a side of one device, where it may be why the two differ.

    Others only make a side worse, but by much more than their share: half of a machine made a run 11 times slower. So
    the better side may have been disturbed, and the other not. Of repeats on both sides the loads may overlap; their
    spread then holds what the load does.
    """
    sides = [party.subject.records for party in (a, b)]
    untouched = compared.metric is None or compared.metric.unit in UNITS_WITHOUT_LOAD
    if untouched or not all(sides) or len({device_name(record) for side in sides for record in side}) > 1:
        return None
    loads = [[_foreign_share(record) for record in side] for side in sides]
    if min(map(len, loads)) > 1 and max(map(min, loads)) <= min(map(max, loads)):
        return None
    a_is_worse = (judgement.outcome == "above") is (compared.better == "higher")
    undecided = judgement.outcome in ("same", "inconclusive")
    return max(map(max, loads) if undecided else loads[0 if a_is_worse else 1]) or None


def _bound(party: Party, end: int) -> float:
    return party.interval[end] if party.interval else party.side.mean


def collect_values(records: Sequence[Record], compared: Compared) -> RunValues:
    """The values of runs, with the spread of each from its own steps."""
    return RunValues(
        values=tuple(quantities.value_of_record(record, compared)[0] for record in records),
        spreads=tuple(_spread(record, compared) for record in records),
    )


def name_verdict(judgement: Judgement, compared: Compared) -> str:
    """The outcome in words: a larger value of B is better or worse, by what is compared."""
    better, worse = compared.words
    larger, smaller = (better, worse) if compared.better == "higher" else (worse, better)
    return {"above": larger, "below": smaller}.get(judgement.outcome, judgement.outcome)


def to_json(found: Comparison) -> dict[str, Any]:
    """For programs; intervals are [low, high] at 95 %, null where unknown."""
    judgement = found.judgement
    return {
        "metric": found.compared.name,
        "better": found.compared.better,
        "threshold": found.threshold,
        "verdict": found.verdict,
        "ratio": judgement.ratio,
        "interval": list(judgement.interval) if judgement.interval else None,
        "basis": judgement.basis_in(ENGLISH),
        "unless_off_by": found.unless_off_by,
        "knob": asdict(found.knob) if found.knob else None,
        "hidden_by_load": found.hidden_by_load,
        "too_noisy": judgement.is_too_noisy,
        "smallest_difference": judgement.smallest_difference,
        "would_decide": asdict(judgement.more) if judgement.more else None,
        "a": _party_to_json(found.a),
        "b": _party_to_json(found.b),
        "differences": [asdict(difference) for difference in found.differences],
        "doubts": list(found.doubts),
    }


def _party_to_json(party: Party) -> dict[str, Any]:
    return {
        "label": party.subject.label,
        "runs": [record.run_id for record in party.subject.records],
        "published": party.subject.row.name if party.subject.row else None,
        "value": party.side.mean,
        "unit": party.unit,
        "interval": list(party.interval) if party.interval else None,
        "values": list(party.side.values),
    }


def _make_party(subject: Subject, compared: Compared) -> Party:
    if subject.row is not None:
        value, unit = quantities.value_of_row(subject.row, compared)
        side = RunValues(values=(value,), spreads=(None,), published=True)
    else:
        unit = quantities.value_of_record(subject.records[0], compared)[1]
        side = collect_values(subject.records, compared)
    return Party(subject=subject, side=side, unit=unit, interval=own_interval(side))


def _spread(record: Record, compared: Compared) -> Spread | None:
    interval_of = compared.metric.interval if compared.metric else None
    found = interval_of(_measure_inputs(record)) if interval_of else None
    if found is None:
        return None
    return Spread(error=found.error, degrees=found.degrees, steps=found.steps, disturbed=_foreign_share(record))


def _foreign_share(record: Record) -> float:
    """Share of the CPUs that trained used by other programs, where it is worth a doubt; 0 for an accelerator."""
    others = record.environment.others or 0.0
    return others if others > FOREIGN_LOAD else 0.0


def _measure_inputs(record: Record) -> metrics.Measured:
    return metrics.Measured(item=record.item, timeline=record.timeline, flops=record.environment.flops)


def _find_faults(record: Record, compared: Compared) -> list[str]:
    """Why a record should not be compared at all."""
    if record.status != "valid":
        return [f"run {record.run_id} is {record.status} ({record.ended})"]
    recorded = record.metrics.get(compared.name)
    # recomputing from the series reveals an older definition
    if compared.metric is None or compared.metric.beyond_steps or recorded is None or recorded.value is None:
        return []
    if record.means_only:  # of single steps nothing can be computed anew
        return []
    computed = compared.metric.compute(_measure_inputs(record))
    if computed is not None and math.isclose(computed, recorded.value, rel_tol=1e-6):
        return []
    here = "none" if computed is None else number(computed, 4)
    return [
        f"run {record.run_id} says {compared.name} {number(recorded.value, 4)}, and by this version's definition its "
        f"steps give {here}"
    ]


def _list_doubts(a: Subject, b: Subject, say: Say) -> list[str]:
    """Each doubt once: with its side unless both share it, of repeats with other numbers in it only the first."""
    about: dict[str, list[str]] = {}
    for letter, subject in (("A", a), ("B", b)):
        texts: dict[str, list[str]] = {}
        for record in subject.records:
            for doubt in record.doubts:
                texts.setdefault(doubt.code, []).append(translate_doubt(doubt, say))
            if record.means_only:
                rests = say("the interval rests on means of neighbouring steps: {reason}")
                texts.setdefault("means-only", []).append(rests.format(reason=record.means_only))
        merged = [_merge_texts(alike, len(subject.records), say) for alike in texts.values()]
        merged += [subject.row.remark] if subject.row and subject.row.remark else []
        for text in merged:
            about.setdefault(text, []).append(letter)
    return [text if len(letters) == 2 else f"{letters[0]}: {text}" for text, letters in about.items()]


def _merge_texts(texts: Sequence[str], runs: int, say: Say) -> str:
    if runs == len(texts) and len(set(texts)) == 1:
        return texts[0]
    return say("{doubt} ({count} of {runs} runs say so)").format(doubt=texts[0], count=len(texts), runs=runs)


# What differs: what makes two results unlike, and what is compared on purpose


def list_differences(a: Subject, b: Subject, compared: Compared) -> tuple[Difference, ...]:
    """All that differs; what makes the two unlike comes first, and no further than to the first that explains the
    rest: of two workloads everything differs, of two recipes their settings do."""
    sides = [_row_facts(side.row) if side.row else _run_facts(side.records, compared) for side in (a, b)]
    pages = a.row is not None or b.row is not None
    later = _later_settings(a, b)
    found = []
    for place, unlike in enumerate((True, False)):
        one, other = (side[place] for side in sides)
        for name in {**one, **other}:
            # a page says less than a record: what it leaves out cannot be held against it
            known = name in one and name in other
            if one.get(name, ABSENT) != other.get(name, ABSENT) and (known or not pages) and name not in later:
                found.append(Difference(name=name, a=one.get(name, ABSENT), b=other.get(name, ABSENT), unlike=unlike))
    return _keep_decisive(found, a, b)


def _later_settings(a: Subject, b: Subject) -> set[str]:
    """Settings that the trainmark of one side did not have yet, and that the other left as the reference has them."""
    plans = [side.records[0].plan for side in (a, b) if side.records]
    if len(plans) < 2:
        return set()
    deviating = {deviation.name for plan in plans for deviation in plan.deviations}
    return (set(plans[0].recipe) ^ set(plans[1].recipe)) - deviating


def _keep_decisive(found: Sequence[Difference], a: Subject, b: Subject) -> tuple[Difference, ...]:
    may = [difference for difference in found if not difference.unlike]
    unlike = [difference for difference in found if difference.unlike]
    if workload := [difference for difference in unlike if difference.name == "workload"]:
        return (*workload, *may)
    if a.records and b.records:
        plans = [side.records[0].plan for side in (a, b)]
        settings = {name for plan in plans for name in plan.recipe}
        names = [plan.recipe_name for plan in plans]
        if names[0] != names[1] and any(difference.name in settings for difference in unlike):
            others = [difference for difference in unlike if difference.name not in settings]
            return (Difference(name="recipe", a=names[0], b=names[1], unlike=True), *others, *may)
    return (*unlike, *may)


def _run_facts(records: tuple[Record, ...], compared: Compared) -> tuple[Facts, Facts]:
    """What must be the same, and what may differ."""
    plan = records[0].plan

    def all_of(fact: Callable[[Record], object]) -> str:
        return " or ".join(dict.fromkeys(str(fact(record)) for record in records))

    must = {
        "workload": plan.workload,
        "item": all_of(lambda record: record.item),
        "topology": plan.topology,
        "precision": all_of(lambda record: record.precision),
        "data": _data(plan.data.name, synthetic=plan.data.synthetic),
        "coverage": _coverage(full=plan.limits.full),
        **({"workload file": plan.workload_source.sha256[:12]} if plan.workload_source else {}),
        "initial weights": plan.init_sha256[:12] if plan.init_sha256 else "random",
        "start": "the first step" if plan.resume_from is None else "a checkpoint",
        **{name: str(value) for name, value in plan.recipe.items() if name not in ANY_VALUE},
    }
    may = {
        "device": all_of(device_name),
        "platform": plan.platform_word,
        **{name: all_of(partial(_software, name)) for name in _SOFTWARE},
        "trainmark": all_of(lambda record: record.trainmark),
        "restarts": all_of(lambda record: len(record.restarts)),
        **{name: str(plan.recipe[name]) for name in ANY_VALUE if name in plan.recipe},
    }
    (may if compared.same_at_any_length else must)["limits"] = str(plan.limits)
    return must, may


def _row_facts(row: PublishedRow) -> tuple[Facts, Facts]:
    """The same of a published row, by our words; such pages are of full runs on the real sets."""
    known = workloads.facts(row.workload)
    must = {
        "workload": row.workload,
        "item": row.item,
        "topology": row.topology,
        "precision": {"amp": "amp-fp16"}.get(row.precision, row.precision),
        "data": _data(known.data_set if known else "set", synthetic=False),
        "coverage": _coverage(full=True),
        "batch_per_device": None if row.batch_per_device is None else str(row.batch_per_device),
    }
    return {name: value for name, value in must.items() if value is not None}, {"device": row.device}


def _software(name: str, record: Record) -> str:
    return str(getattr(record.environment, name) or ABSENT)


def _data(name: str, *, synthetic: bool) -> str:
    return f"{'synthetic' if synthetic else 'real'} {name}"


def _coverage(*, full: bool) -> str:
    return "all training steps" if full else "the steady part"
