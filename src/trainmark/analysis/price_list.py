"""What published rows cost by a reader's list of prices: TOML, by device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from trainmark.record import tables
from trainmark.record.errors import UsageError
from trainmark.record.published_row import PublishedRow
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
    """By pattern of the device's name, like `A100*`, in any case; the first that fits counts."""

    def cost(self, row: PublishedRow) -> RowCost:
        device = row.device.casefold()
        fitting = (price for name, price in self.device_hour.items() if fnmatchcase(device, name.casefold()))
        price = next(fitting, None)
        if price is None or row.devices is None:
            return RowCost(device_hour=price)
        per_s = row.devices * price / HOUR_S
        rate = row.p_train or row.p_whole or row.p_core
        return RowCost(
            device_hour=price,
            per_million=1e6 * per_s / rate if rate and row.item != "epochs" else None,
            to_target=row.took_to_target_s * per_s if row.took_to_target_s else None,
        )


def load_price_list(path: Path) -> PriceList:
    try:
        return tables.read(PriceList, tables.load_toml(path), f"price file {path}")
    except OSError as error:
        raise UsageError(f"price file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"price file {path} is not valid TOML: {error}") from None
