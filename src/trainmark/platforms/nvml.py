"""Reads devices through NVML, with the module pynvml of nvidia-ml-py if installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainmark.platforms.sensors import Reader, Reading, find_missing

THROTTLES: Mapping[int, str] = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML throttle reasons, without idleness and user settings."""


QUERIES: Mapping[str, Callable[[Any, Any], Any]] = {
    "memory_used_bytes": lambda nvml, of: float(nvml.nvmlDeviceGetMemoryInfo(of).used),
    "memory_total_bytes": lambda nvml, of: float(nvml.nvmlDeviceGetMemoryInfo(of).total),
    "power_w": lambda nvml, of: nvml.nvmlDeviceGetPowerUsage(of) / 1e3,
    "energy_j": lambda nvml, of: nvml.nvmlDeviceGetTotalEnergyConsumption(of) / 1e3,
    "temperature_c": lambda nvml, of: float(nvml.nvmlDeviceGetTemperature(of, nvml.NVML_TEMPERATURE_GPU)),
    "utilisation_percent": lambda nvml, of: float(nvml.nvmlDeviceGetUtilizationRates(of).gpu),
    "clock_mhz": lambda nvml, of: float(nvml.nvmlDeviceGetClockInfo(of, nvml.NVML_CLOCK_SM)),
    "throttled": lambda nvml, of: _name_throttles(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(of)),
    "ecc_errors": lambda nvml, of: float(
        nvml.nvmlDeviceGetTotalEccErrors(of, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    ),
}
"""Each value is queried separately, as devices differ in what they support."""


def _name_throttles(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in THROTTLES.items() if mask & bit)


def open_reader() -> NvmlReader | str:
    """A reader, or why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nvml = importlib.import_module("pynvml")
    except ImportError:
        return "the module pynvml is not installed; pip install 'trainmark[nvidia]' brings it"
    try:
        nvml.nvmlInit()
        return NvmlReader(nvml)
    except Exception as error:  # errors of NVML, or another module of that name
        return f"NVML could not be opened: {error}"


class NvmlReader(Reader):
    """All devices of NVML."""

    def __init__(self, nvml: Any) -> None:
        super().__init__()
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def read(self) -> list[Reading]:
        reasons: dict[str, str] = {}
        found = []
        for device, handle in enumerate(self._handles):
            values = {}
            for name, query in QUERIES.items():
                try:
                    values[name] = query(self._nvml, handle)
                except Exception as error:  # an old driver, an unsupported query, a lost device
                    reasons.setdefault(name, f"NVML: {error}")
            found.append(Reading(device=device, **values))
        self.unavailable = find_missing(found, reasons, "NVML sees no device")
        return found

    def parse_devices(self, words: list[str]) -> list[int] | None:
        """By index, or by prefix of a UUID, as CUDA_VISIBLE_DEVICES allows both."""
        if (numbers := super().parse_devices(words)) is not None:
            return numbers
        names = [self._nvml.nvmlDeviceGetUUID(handle) for handle in self._handles]
        chosen = [[device for device, name in enumerate(names) if name.startswith(word)] for word in words]
        return [matches[0] for matches in chosen] if all(len(matches) == 1 for matches in chosen) else None

    def close(self) -> None:
        with suppress(Exception):
            self._nvml.nvmlShutdown()
