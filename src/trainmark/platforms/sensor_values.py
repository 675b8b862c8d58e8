"""Turns the text of a sensor's cell into a number of the field's own unit, or says why that cannot be done."""

from __future__ import annotations

import re
from collections.abc import Mapping

NO_VALUE = re.compile(r"(?i)\[?\s*(n/?a|not (supported|available)|unknown( error)?|error|none|nan|-+)?\s*\]?")
"""What programs write where they have nothing to say."""

_NUMBER = re.compile(r"\(?\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([%°℃A-Za-z]*)\s*\)?")

_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES |= {"bytes": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}

UNITS: Mapping[str, Mapping[str, float]] = {
    "memory_used_bytes": _BYTES,
    "memory_total_bytes": _BYTES,
    "power_w": {"W": 1, "mW": 1e-3, "uW": 1e-6, "kW": 1e3},
    "energy_j": {"J": 1, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "Wh": 3600},
    "temperature_c": {"C": 1, "°C": 1, "℃": 1, "K": 1},
    "utilisation_percent": {"%": 1, "share": 100},
    "clock_mhz": {"MHz": 1, "GHz": 1e3, "kHz": 1e-3, "Hz": 1e-6},
    "ecc_errors": {},
}
"""By field, its units and how many of the field's own one of them is; the first is the field's own."""

_ZERO_CELSIUS_K = 273.15


class NoValueError(Exception):
    """A cell without a value; the text says why, for people."""


def number(name: str, text: str, unit: str, renamed: Mapping[str, str]) -> float:
    """The value of field `name`. A unit written beside the number goes before `unit`; `renamed` says what it means."""
    text = text.strip()
    if NO_VALUE.fullmatch(text):
        raise NoValueError(f"the program says {text or 'nothing'}")
    match = _NUMBER.fullmatch(text)
    if not match:
        comma = ", perhaps with a decimal comma" if re.fullmatch(r"[0-9]+,[0-9]+\D*", text) else ""
        raise NoValueError(f"{text[:40]!r} is not a number{comma}")
    value = float(match[1])
    known = UNITS[name]
    word = renamed.get(match[2], match[2]) or unit or next(iter(known), "")
    written = word if word in known else next((name for name in known if name.lower() == word.lower()), None)
    if known and written is None:
        raise NoValueError(f"the unit of {text[:40]!r} is not known")
    if value < 0 and name != "temperature_c":
        raise NoValueError(f"{text[:40]!r} cannot be")
    if written == "K":
        return value - _ZERO_CELSIUS_K
    return value * known[written] if written is not None else value
