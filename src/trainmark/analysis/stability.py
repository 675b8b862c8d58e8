"""What repeats of one plan have in common; with DeepSpark's Stability, how many of five ended near their median."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from trainmark.record.record import REPEATS

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
