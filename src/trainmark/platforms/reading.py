"""One reading of the sensors of a device, and the interface of readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of one device; None for unknown values."""

    device: int
    """As numbered by the tools of the vendor, ignoring visible devices."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Since some time in the past: only differences are meaningful."""
    temperature_c: float | None = None
    utilisation_percent: float | None = None
    clock_mhz: float | None = None
    throttled: tuple[str, ...] | None = None
    """Throttle reasons; empty where it does not throttle."""
    ecc_errors: float | None = None
    """Uncorrectable memory errors, since some time in the past."""


FIELDS = tuple(field.name for field in fields(Reading) if field.name != "device")


class Reader:
    """Reads the sensors of all devices of a platform; this one has none."""

    slow = False
    """True where a reading starts a program."""

    def __init__(self, reason: str = "") -> None:
        self.unavailable = dict.fromkeys(FIELDS, reason)
        """Fields without a value in the last reading, with the reason."""

    def read(self) -> list[Reading]:
        return []

    def parse_devices(self, words: list[str]) -> list[int] | None:
        """The devices that a variable of visible devices names; None where unknown."""
        return [int(word) for word in words] if all(word.isdigit() for word in words) else None

    def close(self) -> None:
        """Releases resources."""


def find_missing(readings: list[Reading], reasons: Mapping[str, str], otherwise: str) -> dict[str, str]:
    """Fields without a value on any device, each with its reason."""
    return {
        name: reasons.get(name, otherwise)
        for name in FIELDS
        if all(getattr(reading, name) is None for reading in readings)
    }
