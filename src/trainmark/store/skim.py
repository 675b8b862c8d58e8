"""Reads what lists show of a record out of its file without building the record: all else is passed over."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from trainmark.spec import endings
from trainmark.spec.errors import TrainmarkError
from trainmark.spec.labels import tag_words
from trainmark.spec.numbers import Finite
from trainmark.spec.plan import Plan
from trainmark.store.store import StoreRow


class _Quantity(Struct, frozen=True):
    value: Finite | None
    unit: str


class _Metrics(Struct, frozen=True):
    p_core: _Quantity | None = None


class _Device(Struct, frozen=True):
    name: str = ""


class _Precision(Struct, frozen=True):
    ran: str


class _Environment(Struct, frozen=True):
    device: _Device = _Device()
    precision: _Precision | None = None


class _Quality(Struct, frozen=True):
    name: str
    unit: str
    value: Finite | None = None
    reached: bool = False


class _Sums(Struct, frozen=True):
    steps: int


class _Rank(Struct, frozen=True):
    compute_ns: Raw = Raw(b"[]")
    sums: _Sums | None = None

    @property
    def began(self) -> bool:
        return bool(self.sums.steps) if self.sums else bytes(self.compute_ns).strip(b"[ ]") != b""


class _Series(Struct, frozen=True):
    ranks: list[_Rank]


class _Skimmed(Struct, frozen=True):
    """A record of any schema so far."""

    schema: Annotated[int, Meta(ge=1, le=2)]
    kind: Literal["trainmark record"]
    run_id: str
    created: str
    status: Literal["valid", "invalid", "incomplete"]
    ended: str
    group: str | None
    plan: Raw
    metrics: _Metrics
    quality: _Quality
    doubts: list[Raw]
    environment: _Environment
    series: _Series
    tags: dict[str, str] = {}


_DECODER = msgspec.json.Decoder(_Skimmed)


def skim(content: bytes) -> StoreRow | None:
    """The row of a record file; None where reading the record itself has to say what is wrong with it."""
    try:
        found = _DECODER.decode(content)
        plan = Plan.from_json(msgspec.json.decode(found.plan))
    except (ValueError, RecursionError, TrainmarkError):
        return None
    p_core, proof, quality = found.metrics.p_core, found.environment.precision, found.quality
    return StoreRow(
        run_id=found.run_id,
        created=found.created,
        status=found.status,
        workload=plan.workload,
        recipe=plan.recipe_name,
        topology=plan.topology,
        precision=proof.ran if proof else plan.precision,
        platform=plan.platform_word,
        device=found.environment.device.name,
        p_core=p_core.value if p_core else None,
        unit=p_core.unit if p_core else "",
        quality_name=quality.name,
        quality=quality.value,
        quality_unit=quality.unit,
        doubts=len(found.doubts),
        fingerprint=plan.fingerprint,
        group=found.group,
        tags=tag_words(found.tags),
        reached=quality.reached,
        began=all(rank.began for rank in found.series.ranks),
        interrupted=found.status == "incomplete" and endings.by_signal(found.ended),
    )
