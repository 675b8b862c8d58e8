"""What is read of a device's sensors at one moment, and what every reader of them does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was read of one device at one moment; None is what is not known."""

    device: int
    """As the vendor's own tools number it, whatever the variable of visible devices says."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Since some moment in the past: only differences mean anything."""
    temperature_c: float | None = None
    utilisation_percent: float | None = None
    clock_mhz: float | None = None
    throttled: tuple[str, ...] | None = None
    """Why the device runs slower than it could: nothing where it does not."""
    ecc_errors: float | None = None
    """Errors memory could not correct, since some moment in the past."""


FIELDS = tuple(field.name for field in fields(Reading) if field.name != "device")


class Reader:
    """The sensors of all devices of a platform on this machine; this one has nothing to read."""

    slow = False
    """True where a read starts a program, so that it should not be asked for more often than needed."""

    def __init__(self, reason: str = "") -> None:
        self.unavailable = dict.fromkeys(FIELDS, reason)
        """Fields that no device gave at the last read, with the reason."""

    def read(self) -> list[Reading]:
        return []

    def parse_devices(self, words: list[str]) -> list[int] | None:
        """The devices a variable of visible devices names; None where that cannot be told."""
        return [int(word) for word in words] if all(word.isdigit() for word in words) else None

    def close(self) -> None:
        """Lets go of whatever is open."""


def find_missing(readings: list[Reading], reasons: Mapping[str, str], otherwise: str) -> dict[str, str]:
    """Fields that no device gave, each with its reason."""
    return {
        name: reasons.get(name, otherwise)
        for name in FIELDS
        if all(getattr(reading, name) is None for reading in readings)
    }
