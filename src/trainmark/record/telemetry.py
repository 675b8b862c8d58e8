"""What a record keeps of the samplers' readings: series, thinned, and what was counted over the training part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from trainmark.record.numbers import Finite, Whole


class Series(Struct, frozen=True, kw_only=True):
    """One reading over time."""

    at_s: Sequence[Finite]
    """Since the launch."""
    values: Sequence[Finite]

    def __post_init__(self) -> None:
        if len(self.at_s) != len(self.values):
            raise ValueError(f"{len(self.values)} values were read at {len(self.at_s)} times")


class DeviceTelemetry(Struct, frozen=True, kw_only=True):
    device: Whole
    """As the vendor's own tools number it."""
    series: Mapping[str, Series] = {}
    throttled: Mapping[str, Whole] = {}
    """Samples of the training part in which the device said it was slowed, by the reason."""
    ecc_errors_new: Finite | None = None
    """Errors its memory could not correct during the run."""
    power_samples: Whole = 0
    power_gap_s: Finite | None = None
    """The longest time between two samples of its power."""


class MachineTelemetry(Struct, frozen=True, kw_only=True):
    host: str
    first_rank: Whole = 0
    every_s: Finite = 0.0
    samples: Whole = 0
    ended_early: bool = False
    sampler_cpu_s: Finite | None = None
    """What sampling itself took; None where the sampler did not get to say it."""
    last_s: Finite = 0.0
    training_s: Annotated[Sequence[Finite], Meta(max_length=2)] = ()
    """From when to when its first rank trained; nothing where it did not begin to."""
    unavailable: Mapping[str, str] = {}
    """What no sensor said, and why."""
    host_series: Mapping[str, Series] = {}
    devices: Sequence[DeviceTelemetry] = ()


class Telemetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    machines: Sequence[MachineTelemetry] = ()
    """Nothing where nothing was sampled."""


@dataclass(frozen=True, kw_only=True)
class Sensed:
    """What the sensors of all devices came to over the part of a run that trained.

    None is what no sensor could say, and `reasons` tells why, by the name of the field here.
    """

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
