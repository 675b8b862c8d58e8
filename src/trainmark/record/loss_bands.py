"""Holds a run's losses to the band in which public runs of the same recipe lay, long before its target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from trainmark.record.topology import Topology

if TYPE_CHECKING:
    from trainmark.record.plan import Plan

Place = Literal["in the band", "above the band", "below the band"]


class Scored(Protocol):
    """An evaluation, on a record or as a rank has just written it."""

    @property
    def step(self) -> int: ...

    @property
    def values(self) -> Mapping[str, float | None]: ...


class BandPoint(NamedTuple):
    samples: int
    """Trained on before the evaluation."""
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LossBand:
    """Where public runs of a recipe lay, at one batch and learning rate."""

    quality: str
    global_batch: int
    learning_rate: float
    points: tuple[BandPoint, ...]
    source: str
    may_differ: frozenset[str]
    """Fields of the recipe in which those runs differed, too, or that do not change what is learnt."""


class Judged(NamedTuple):
    """One evaluation beside the band."""

    samples: int
    value: float
    point: BandPoint
    place: Place


def band_of(plan: Plan, bands: Sequence[LossBand]) -> LossBand | None:
    """The band a plan's losses are held to; None where no public run was like it."""
    batch = int(plan.recipe["batch_per_device"]) * int(plan.recipe.get("accumulate", 1))
    batch *= Topology.parse(plan.topology).devices
    for band in bands:
        others = {deviation.name for deviation in plan.deviations} - band.may_differ
        alike = (band.global_batch, band.learning_rate) == (batch, plan.recipe["learning_rate"])
        if alike and not others and not plan.data.synthetic and plan.init_from is None:
            return band
    return None


def judged(band: LossBand, history: Sequence[Scored]) -> Iterator[Judged]:
    """Each evaluation at a point of the band, which is the first batch that reaches it."""
    for evaluation in history:
        samples, value = evaluation.step * band.global_batch, evaluation.values.get(band.quality)
        point = next((at for at in band.points if at.samples <= samples < at.samples + band.global_batch), None)
        if point is not None and value is not None:
            place: Place = "in the band"
            if not point.low <= value <= point.high:
                place = "above the band" if value > point.high else "below the band"
            yield Judged(samples, value, point, place)
