"""Reads the sensors of the host, the device of a CPU run: memory, load, and files of the kernel."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from trainmark.platforms.sensors import Reader, Reading, find_missing

SYSTEM = Path("/sys")
TEMPERATURE_DRIVERS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
"""Kernel drivers of processor temperatures."""
_MAX_CORES_READ = 4


class Counter:
    """An energy counter of the kernel in joules, corrected for wrap-around."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text()) + 1
        self._last_uj = int(self._file.read_text())
        self._sum_uj = 0

    def read_joules(self) -> float:
        now_uj = int(self._file.read_text())
        self._sum_uj += (now_uj - self._last_uj) % self._range_uj
        self._last_uj = now_uj
        return self._sum_uj / 1e6


def open_reader() -> HostReader:
    return HostReader()


class HostReader(Reader):
    """One device: the machine. Its power is that of all processors, whoever uses them."""

    def __init__(self, system: Path = SYSTEM) -> None:
        super().__init__()
        self._no_energy = ""
        self._counters = self._open_counters(system / "class/powercap")
        self._temperatures = [
            name.with_name("temp1_input")
            for name in sorted((system / "class/hwmon").glob("hwmon*/name"))
            if _read_text(name) in TEMPERATURE_DRIVERS
        ]
        cpus = system / "devices/system/cpu"
        clocks = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._clocks = clocks[:: max(1, -(-len(clocks) // _MAX_CORES_READ))]
        # every core of a package shows the same count
        cores = {_read_text(core / "topology/physical_package_id"): core for core in cpus.glob("cpu[0-9]*")}
        self._throttles = [core / "thermal_throttle/package_throttle_count" for core in cores.values()]
        self._throttled_before = sum(_read_all(self._throttles))
        self._memory_errors = sorted((system / "devices/system/edac/mc").glob("mc*/ue_count"))
        self._energy_before: tuple[float, float] | None = None
        self._has_read = False

    def read(self) -> list[Reading]:
        memory, load = psutil.virtual_memory(), psutil.cpu_percent()
        reasons: dict[str, str] = {}
        energy_j, power_w = self._read_energy(reasons)
        degrees, clocks, errors, counts = map(
            _read_all, (self._temperatures, self._clocks, self._memory_errors, self._throttles)
        )
        slowed, self._throttled_before = sum(counts) > self._throttled_before, sum(counts)
        reading = Reading(
            device=0,
            memory_used_bytes=float(memory.total - memory.available),
            memory_total_bytes=float(memory.total),
            power_w=power_w,
            energy_j=energy_j,
            temperature_c=max(degrees) / 1e3 if degrees else None,
            utilisation_percent=load if self._has_read else None,
            clock_mhz=sum(clocks) / len(clocks) / 1e3 if clocks else None,
            throttled=(("thermal",) if slowed else ()) if counts else None,
            ecc_errors=sum(errors) if errors else None,
        )
        if not self._has_read:
            reasons["utilisation_percent"] = "it takes two readings"
        self._has_read = True
        self.unavailable = find_missing([reading], reasons, "the kernel of this machine does not say it")
        return [reading]

    def _open_counters(self, powercap: Path) -> list[Counter]:
        """One counter per package; subdomains and the platform domain would count the same energy twice."""
        folders = [folder for folder in powercap.glob("*:*") if re.fullmatch(r"[a-z]+-rapl:\d+", folder.name)]
        packages = [folder for folder in folders if _read_text(folder / "name").startswith("package")]
        try:
            if not packages:
                raise OSError(f"{powercap} has no energy counter of a processor")
            return [Counter(folder) for folder in packages]
        except PermissionError as error:
            self._no_energy = f"{error.filename} may be read by root only"
        except (OSError, ValueError) as error:
            self._no_energy = str(error)
        return []

    def _read_energy(self, reasons: dict[str, str]) -> tuple[float | None, float | None]:
        try:
            if self._no_energy:
                raise OSError(self._no_energy)
            joules = sum(counter.read_joules() for counter in self._counters)
        except (OSError, ValueError) as error:
            reasons |= dict.fromkeys(("power_w", "energy_j"), str(error))
            return None, None
        now_s, before = time.monotonic(), self._energy_before
        self._energy_before = (now_s, joules)
        if before is None or now_s <= before[0]:
            reasons["power_w"] = "it takes two readings"
            return joules, None
        return joules, (joules - before[1]) / (now_s - before[0])


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _read_all(files: Iterable[Path]) -> list[float]:
    return [float(text) for file in files if re.fullmatch(r"-?[0-9]+", text := _read_text(file))]
