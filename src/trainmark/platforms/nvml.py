"""Reads devices through NVML, with the module pynvml of nvidia-ml-py if installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainmark.platforms.reading import Reader, Reading, find_missing

THROTTLES: Mapping[int, str] = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML throttle reasons, without idleness and user settings."""


def open_nvml() -> NvmlReader | str:
    """A reader, or why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nvml = importlib.import_module("pynvml")
    except ImportError:
        return "the module pynvml is not installed; pip install 'trainmark[nvidia]' brings it"
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except Exception as error:  # errors of NVML, or another module of that name
        return f"NVML could not be opened: {error}"
    return NvmlReader(nvml, handles)


class NvmlReader(Reader):
    """All devices of NVML; each value is queried separately, as devices differ in what they support."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        super().__init__("it was not read yet")
        self._nvml = nvml
        self._handles = handles

    def read(self) -> list[Reading]:
        reasons: dict[str, str] = {}
        found = [self._read_device(device, handle, reasons) for device, handle in enumerate(self._handles)]
        self.unavailable = find_missing(found, reasons, "NVML sees no device")
        return found

    def parse_devices(self, words: list[str]) -> list[int] | None:
        """By index, or by prefix of a UUID, as CUDA_VISIBLE_DEVICES allows both."""
        if (numbers := super().parse_devices(words)) is not None:
            return numbers
        names = []
        for handle in self._handles:
            name = self._nvml.nvmlDeviceGetUUID(handle)
            names.append(name.decode() if isinstance(name, bytes) else str(name))
        chosen = [[device for device, name in enumerate(names) if name.startswith(word)] for word in words]
        return [matches[0] for matches in chosen] if all(len(matches) == 1 for matches in chosen) else None

    def close(self) -> None:
        with suppress(Exception):
            self._nvml.nvmlShutdown()

    def _read_device(self, device: int, handle: Any, reasons: dict[str, str]) -> Reading:
        nvml = self._nvml

        def query(names: tuple[str, ...], call: Callable[[], Any]) -> Any:
            try:
                return call()
            except Exception as error:  # an old driver, an unsupported query, a lost device
                for name in names:
                    reasons.setdefault(name, f"NVML: {error}")
                return None

        memory = query(("memory_used_bytes", "memory_total_bytes"), lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        power_mw = query(("power_w",), lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        energy_mj = query(("energy_j",), lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        degrees = query(("temperature_c",), lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        use = query(("utilisation_percent",), lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        clock = query(("clock_mhz",), lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        mask = query(("throttled",), lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        errors = query(
            ("ecc_errors",),
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        )
        return Reading(
            device=device,
            memory_used_bytes=None if memory is None else float(memory.used),
            memory_total_bytes=None if memory is None else float(memory.total),
            power_w=None if power_mw is None else power_mw / 1e3,
            energy_j=None if energy_mj is None else energy_mj / 1e3,
            temperature_c=None if degrees is None else float(degrees),
            utilisation_percent=None if use is None else float(use.gpu),
            clock_mhz=None if clock is None else float(clock),
            throttled=None if mask is None else tuple(name for bit, name in THROTTLES.items() if mask & bit),
            ecc_errors=None if errors is None else float(errors),
        )
