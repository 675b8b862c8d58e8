"""What a record keeps of the samplers' readings: series, thinned, and what was counted over the training part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


class Series(Struct, frozen=True, kw_only=True):
    """One reading over time."""

    at_s: Sequence[float]
    """Since the launch."""
    values: Sequence[float]


class DeviceTelemetry(Struct, frozen=True, kw_only=True):
    device: int
    """As the vendor's own tools number it."""
    series: Mapping[str, Series] = {}
    throttled: Mapping[str, int] = {}
    """Samples of the training part in which the device said it was slowed, by the reason."""
    ecc_errors_new: float | None = None
    """Errors its memory could not correct during the run."""
    power_samples: int = 0
    power_gap_s: float | None = None
    """The longest time between two samples of its power."""


class MachineTelemetry(Struct, frozen=True, kw_only=True):
    host: str
    first_rank: int = 0
    every_s: float = 0.0
    samples: int = 0
    ended_early: bool = False
    sampler_cpu_s: float | None = None
    """What sampling itself took; None where the sampler did not get to say it."""
    last_s: float = 0.0
    training_s: Sequence[float] = ()
    """From when to when its first rank trained; nothing where it did not begin to."""
    unavailable: Mapping[str, str] = {}
    """What no sensor said, and why."""
    host_series: Mapping[str, Series] = {}
    devices: Sequence[DeviceTelemetry] = ()


class Telemetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    machines: Sequence[MachineTelemetry] = ()
    """Nothing where nothing was sampled."""
