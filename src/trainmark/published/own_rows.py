"""A run of ours as a row of a published table: the same columns, rounded as they are written."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from trainmark.published import names
from trainmark.published.cells import tidy
from trainmark.spec.format import device_name
from trainmark.spec.published_row import PublishedRow, Source
from trainmark.spec.recipe import fix_hp
from trainmark.spec.target import telling_digits

if TYPE_CHECKING:
    from trainmark.spec.record import Record


def own_row(record: Record) -> PublishedRow:
    """What is written of a run. Time and quality stand only where a whole training was done, as published pages do."""
    plan, quality = record.plan, record.quality
    vendor, device = tidy(plan.platform_word), tidy(device_name(record))
    if device.casefold().startswith(f"{vendor.casefold()} "):
        device = device[len(vendor) :].strip()
    device = names.device(device.rstrip(" ,") or vendor).name
    goal = quality.goal
    value = quality.value if plan.limits.full else None
    return PublishedRow(
        name=record.run_id,
        source=Source(title=record.run_id, address="", date=record.created[:10]),
        vendor=vendor,
        device=device,
        workload=tidy(plan.workload),
        topology=plan.topology,
        precision=tidy(record.precision),
        fix_hp=tidy(fix_hp(plan.deviations, most=len(plan.deviations))),
        batch_per_device=int(plan.recipe["batch_per_device"]) if "batch_per_device" in plan.recipe else None,
        item=tidy(record.item),
        e2e_time_s=_metric(record, "e2e_time") if plan.limits.full else None,
        p_whole=_metric(record, "p_whole"),
        p_train=_metric(record, "p_train"),
        p_core=_metric(record, "p_core"),
        quality_name=quality.name,
        quality_unit=quality.unit or "-",
        quality=None if value is None else rounded(value, telling_digits(value, goal, quality.better, least=5)),
        target=goal,
        better=quality.better,
        mem_used_gib=memory_gib(metric(record, "mem")),
        mem_total_gib=memory_gib(metric(record, "mem_total")),
        remark=None,
    )


def rounded(value: float, digits: int = 5) -> float:
    """To so many digits that mean something; what stands before the point is kept whole."""
    return float(round(value)) if abs(value) >= 10 ** (digits - 1) else float(f"{value:.{digits}g}")


def written(value: float | None, unit: str = "") -> str:
    """A figure that is read back as the same: no digit is lost, and no exponent is needed."""
    if value is None:
        return ""
    text = format(Decimal(repr(value)), "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit


def metric(record: Record, alias: str) -> float | None:
    quantity = record.metrics.get(alias)
    return quantity.value if quantity else None


def _metric(record: Record, alias: str) -> float | None:
    value = metric(record, alias)
    return None if value is None else rounded(value)


def memory_gib(value: float | None) -> float | None:
    """As it is written."""
    return None if value is None else round(value, 1) if value >= 10 else rounded(value, 3)
