"""What the sensors of all devices of a run came to, over the part of it that trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Sensed:
    """None is what no sensor could say, and `reasons` tells why, by the name of the field here."""

    power_w: float | None = None
    """Of one device, as a mean over time and devices."""
    power_peak_w: float | None = None
    """The highest sample of any device."""
    energy_j: float | None = None
    """Of all devices together."""
    temperature_peak_c: float | None = None
    throttled_percent: float | None = None
    """Samples in which the device said it was slowed, of the device with most of them."""
    memory_peak_bytes: float | None = None
    """In use on the fullest device, whoever used it."""
    steady_power_w: float | None = None
    """Of one device, as a mean over its samples from the first steady step on, and over devices."""
    steady_memory_bytes: float | None = None
    """In use on one device, likewise."""
    reasons: Mapping[str, str] = field(default_factory=dict)
