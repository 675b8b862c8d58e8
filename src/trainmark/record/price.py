"""Price of a device-hour and PUE of the building: given by the reader, never measured."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from trainmark.record.errors import UsageError

JOULES_PER_KWH = 3.6e6
HOUR_S = 3600.0
_MIN_PUE, _MAX_PUE = 1.0, 5.0
_SIGN = r"([A-Za-z$€£¥]{0,4})"
_WRITTEN = re.compile(rf"{_SIGN} ?([0-9]+(?:\.[0-9]+)?) ?{_SIGN}/h")

Amount = Annotated[float, msgspec.Meta(gt=0, le=1e9, description="a price above 0")]
Currency = Annotated[str, msgspec.Meta(max_length=4, description="a currency such as EUR")]
Pue = Annotated[float, msgspec.Meta(ge=_MIN_PUE, le=_MAX_PUE, description="a number from 1 to 5")]


class Price(msgspec.Struct, frozen=True, kw_only=True):
    device_hour: Amount | None = None
    """Of one device; None where not given."""
    currency: Currency = ""
    pue: Pue = 1.0
    """Energy of the building over energy of its machines."""


def parse(price: str | None, pue: float | None, usual: Price) -> Price:
    """The price from `--price` and `--pue`, by default `usual`."""
    if pue is not None:
        if not _MIN_PUE <= pue <= _MAX_PUE:
            raise UsageError(f"--pue {pue:g} is not between 1 and 5; a building uses at least what its machines do")
        usual = msgspec.structs.replace(usual, pue=pue)
    if price is None:
        return usual
    match = _WRITTEN.fullmatch(price.strip())
    if not match or (match[1] and match[3]) or not 0 < float(match[2]) <= 1e9:
        raise UsageError(f"--price {price!r} is not a price of one device an hour; try 2.10/h or EUR 2.10/h")
    currency = match[1] or match[3] or usual.currency
    return msgspec.structs.replace(usual, device_hour=float(match[2]), currency=currency)
