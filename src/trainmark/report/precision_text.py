"""How a run's own findings are shown: what its first step was computed in, and the batches it tried before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmark.spec.format import NOTHING, number
from trainmark.spec.precision import said_of_products

if TYPE_CHECKING:
    from rich.table import Table

    from trainmark.report.terminal import Paper


def precision(found: object) -> list[tuple[str, str]]:
    """Names and values of what the watched step showed; nothing where no step was watched."""
    if not isinstance(found, Mapping) or "ran" not in found:
        return []
    flags = [kind for kind, allowed in found["tf32"].items() if allowed]
    total = sum(found["weights"].values()) or 1
    held = [f"{100 * count / total:.1f} % {type_}" for type_, count in sorted(found["weights"].items())]
    pairs = [
        ("ran", found["ran"] if found["ran"] == found["asked"] else f"{found['ran']}; {found['asked']} was asked for"),
        ("products", said_of_products(found["computed"]) or "none seen"),
        ("weights", ", ".join(held)),
        ("autocast", found["autocast"] or "off"),
        ("tf32", f"allowed for {' and '.join(flags)}" if flags else "not allowed"),
    ]
    if found["loss_scale"] is not None:
        pairs.append(("loss scale", f"{number(found['loss_scale'])}, {found['skipped_steps']} steps skipped"))
    return pairs


def tries(found: object) -> list[Mapping[str, Any]]:
    """The batches that were tried, from a record; nothing where none was looked for."""
    curve = found.get("curve") if isinstance(found, Mapping) else None
    return [entry for entry in curve if isinstance(entry, Mapping)] if isinstance(curve, Sequence) else []


def table(paper: Paper, curve: Sequence[Mapping[str, Any]], item: str) -> Table:
    drawn = paper.table()
    for head in ("batch", f"{item}/s", "step s", "mem GiB"):
        drawn.add_column(paper.text(head), justify="right", no_wrap=True)
    drawn.add_column(overflow="fold")
    for entry in curve:
        memory = NOTHING if entry["memory_bytes"] is None else number(entry["memory_bytes"] / 2**30)
        speed = [number(entry[name]) if entry[name] else NOTHING for name in ("items_per_s", "step_s")]
        cells = (str(entry["batch"]), *speed, memory, entry["unfit"])
        drawn.add_row(*(paper.text(cell) for cell in cells))
    return drawn
