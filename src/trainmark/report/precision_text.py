"""How a run's own findings are shown: what its first step was computed in, and the batches it tried before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmark.spec.format import NOTHING, number
from trainmark.spec.machine import BatchTry, PrecisionProof
from trainmark.spec.precision import said_of_products

if TYPE_CHECKING:
    from rich.table import Table

    from trainmark.report.terminal import TerminalWriter


def precision(found: PrecisionProof | None) -> list[tuple[str, str]]:
    """Names and values of what the watched step showed; nothing where no step was watched."""
    if found is None:
        return []
    flags = [kind for kind, allowed in found.tf32.items() if allowed]
    total = sum(found.weights.values()) or 1
    held = [f"{100 * count / total:.1f} % {type_}" for type_, count in sorted(found.weights.items())]
    pairs = [
        ("ran", found.ran if found.ran == found.asked else f"{found.ran}; {found.asked} was asked for"),
        ("products", said_of_products(found.computed) or "none seen"),
        ("weights", ", ".join(held)),
        ("autocast", found.autocast or "off"),
        ("tf32", f"allowed for {' and '.join(flags)}" if flags else "not allowed"),
    ]
    if found.loss_scale is not None:
        pairs.append(("loss scale", f"{number(found.loss_scale)}, {found.skipped_steps} steps skipped"))
    return pairs


def table(writer: TerminalWriter, curve: Sequence[BatchTry], item: str) -> Table:
    drawn = writer.table()
    for head in ("batch", f"{item}/s", "step s", "mem GiB"):
        drawn.add_column(writer.text(head), justify="right", no_wrap=True)
    drawn.add_column(overflow="fold")
    for entry in curve:
        memory = NOTHING if entry.memory_bytes is None else number(entry.memory_bytes / 2**30)
        speed = [number(value) if value else NOTHING for value in (entry.items_per_s, entry.step_s)]
        cells = (str(entry.batch), *speed, memory, entry.unfit)
        drawn.add_row(*(writer.text(cell) for cell in cells))
    return drawn
