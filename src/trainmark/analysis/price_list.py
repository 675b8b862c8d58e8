"""What published rows and runs cost by a reader's list of prices: TOML, by device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from trainmark.analysis.device_names import parse_device
from trainmark.record import tables
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.site import HOUR_S, Amount, Currency


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """None where the row does not tell, or its device has no price."""

    device_hour: float | None
    per_million: float | None = None
    """Items, by p_train, else by the next throughput that the row gives."""
    to_target: float | None = None


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    currency: Currency = ""
    device_hour: Mapping[str, Amount]
    """By pattern of the device's name, with its vendor or without, like `A100*`; the first that fits counts."""

    def cost(self, row: PublishedRow) -> RowCost:
        rate = row.p_train or row.p_whole or row.p_core
        return self.reckon(row.device, row.devices, None if row.item == "epochs" else rate, row.took_to_target_s)

    def cost_of_run(self, record: Record) -> RowCost:
        quantities = (record.metrics.get(alias) for alias in ("p_train", "e2e_time"))
        rate, time_s = (found.value if found and record.status == "valid" else None for found in quantities)
        met = record.quality.reached and record.plan.limits.full
        devices = Topology.parse(record.plan.topology).devices
        return self.reckon(device_name(record), devices, rate, time_s if met else None)

    def reckon(self, device: str, devices: int | None, rate: float | None, to_target_s: float | None) -> RowCost:
        names = {device.casefold(), parse_device(device).name.casefold()}
        price = next((at for name, at in self.device_hour.items() if _fits(name, names)), None)
        if price is None or devices is None:
            return RowCost(device_hour=price)
        per_s = devices * price / HOUR_S
        return RowCost(
            device_hour=price,
            per_million=1e6 * per_s / rate if rate else None,
            to_target=to_target_s * per_s if to_target_s else None,
        )


def _fits(pattern: str, names: set[str]) -> bool:
    return any(fnmatchcase(name, pattern.casefold()) for name in names)


def load_price_list(path: Path) -> PriceList:
    try:
        return tables.read(PriceList, tables.load_toml(path), f"price file {path}")
    except OSError as error:
        raise UsageError(f"price file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"price file {path} is not valid TOML: {error}") from None
