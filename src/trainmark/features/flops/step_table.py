"""Renders the counted step by layer, and its bound on each card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from trainmark.features.flops.roofline import Bound
from trainmark.features.flops.step_count import FORWARD, UPDATE, CountedStep, OperatorLaunch
from trainmark.record.format import NOTHING, number
from trainmark.record.plan import Plan
from trainmark.view.terminal import TerminalWriter

MAX_ROWS = 20
"""Layers shown: names are shortened until no more are left."""
MEANS = (
    "The least times are bounds, not forecasts: every operator at its peak or at the full speed of memory, each tensor "
    "read and written once, nothing between two operators. Steps that are compiled or fused move less and may pass "
    "the bound where memory sets it; none passes the time of the matmuls alone."
)


class _Sums(NamedTuple):
    forward: int = 0
    backward: int = 0
    bytes: int = 0
    launches: int = 0

    def plus(self, launch: OperatorLaunch, count: int) -> _Sums:
        flops = launch.flops * count
        return _Sums(
            self.forward + flops * (launch.part == FORWARD),
            self.backward + flops * (launch.part != FORWARD),
            self.bytes + launch.bytes * count,
            self.launches + count,
        )


def to_json(plan: Plan, step: CountedStep, found: Sequence[Bound]) -> dict[str, Any]:
    """The count by operator, for programs."""
    kinds: dict[tuple[str, str, str, str], _Sums] = {}
    for launch, count in step.count.launches:
        kind = launch.layer, launch.part, launch.operator, launch.type
        kinds[kind] = kinds.get(kind, _Sums()).plus(launch, count)
    return {
        "workload": plan.workload,
        "recipe": plan.recipe_name,
        "precision": plan.precision,
        "items": step.items,
        "item": step.item,
        "flops": step.count.flops,
        "stated_flops": step.stated_flops,
        "bytes": step.count.bytes,
        "launches": step.count.launched,
        "batch_bytes": step.batch_bytes,
        "copied_bytes": step.count.copied_bytes,
        "waits": dict(step.count.waits),
        "operators": [
            {
                "layer": layer,
                "part": part,
                "operator": operator,
                "type": factors or None,
                "flops": sums.forward + sums.backward,
                "bytes": sums.bytes,
                "launches": sums.launches,
            }
            for (layer, part, operator, factors), sums in kinds.items()
        ],
        "cards": [asdict(bound) for bound in found],
        "means": MEANS,
    }


def render(
    plan: Plan,
    step: CountedStep,
    found: Sequence[Bound],
    *,
    width: int = 100,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    facts = (plan.workload, plan.recipe_name, plan.precision, "one step of one device")
    writer.put(writer.text(" · ".join(facts), "bold"))
    heads = ["layer", "GFLOP forward", "backward", "share", "MB moved", "launches"]
    writer.put(writer.grid(heads, _rows(step), left={0}), "")
    stated = 100 * step.count.flops / step.stated_flops - 100 if step.stated_flops else 0.0
    writer.put(
        f"{number(step.items)} {step.item} per step; the workload states {number(step.stated_flops / 1e9)} GFLOP, "
        f"from which the count differs by {stated:.1f} %."
    )
    waits = sum(count for _, count in step.count.waits)
    writer.put(
        f"The batch is {number(step.batch_bytes / 1e6)} MB; {number(step.count.copied_bytes / 1e6)} MB more go to the "
        f"device inside the step, and the host waits for it {waits} times."
    )
    if plan.recipe.get("compiled", "no") != "no":
        writer.put("Counted as torch launches the step without compiling it; compiled, it has fewer launches.")
    if not found:
        writer.put("", f"No data sheet here has a peak in {plan.precision}; choose another with --precision.")
        return writer.getvalue()
    heads = ["card", "TFLOP/s", "GB/s", "matmuls ms", "least ms", "by memory", "most MFU"]
    writer.put("", writer.grid(heads, map(_card, found), left={0}), "")
    writer.put(MEANS)
    return writer.getvalue()


def _rows(step: CountedStep) -> list[list[str]]:
    """Groups of equal layers, largest first, then the total."""
    groups: dict[str, _Sums] = {}
    total = _Sums()
    names = _shorten({launch.layer for launch, _ in step.count.launches if launch.part != UPDATE})
    for launch, count in step.count.launches:
        name = "update of the weights" if launch.part == UPDATE else names[launch.layer]
        groups[name] = groups.get(name, _Sums()).plus(launch, count)
        total = total.plus(launch, count)
    biggest = sorted(
        groups.items(), key=lambda group: (group[1].forward + group[1].backward, group[1].bytes), reverse=True
    )
    whole = max(1, total.forward + total.backward)
    return [
        [
            name,
            number(sums.forward / 1e9) if sums.forward else NOTHING,
            number(sums.backward / 1e9) if sums.backward else NOTHING,
            f"{100 * (sums.forward + sums.backward) / whole:.1f} %",
            number(sums.bytes / 1e6),
            f"{sums.launches}",
        ]
        for name, sums in (*biggest, ("all", total))
    ]


def _shorten(layers: Iterable[str]) -> Mapping[str, str]:
    """Names of rows by layer: numbers become `*`, and names are cut to the depth with at most MAX_ROWS."""
    split = {layer: [re.sub(r"(^|_)\d+$", r"\1*", part) for part in layer.split(".")] for layer in layers}
    for depth in range(max(map(len, split.values()), default=1), 0, -1):
        short = {layer: ".".join(parts[:depth]) for layer, parts in split.items()}
        if len(set(short.values())) <= MAX_ROWS:
            break
    return {layer: name or "outside the layers" for layer, name in short.items()}


def _card(bound: Bound) -> list[str]:
    return [
        bound.card,
        number(bound.tflops),
        number(bound.memory_gb_s) if bound.memory_gb_s else NOTHING,
        number(1e3 * bound.products_s),
        number(1e3 * bound.least_s) if bound.least_s else NOTHING,
        f"{bound.memory_percent:.0f} %" if bound.memory_percent is not None else NOTHING,
        f"{bound.most_mfu:.0f} %" if bound.most_mfu is not None else NOTHING,
    ]
