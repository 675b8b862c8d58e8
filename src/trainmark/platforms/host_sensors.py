"""Reads the sensors of the host, the device of a CPU run: memory, load, and files of the kernel."""

from __future__ import annotations

import re
import time
from pathlib import Path

from trainmark.platforms.reading import Reader, Reading, find_missing

SYSTEM = Path("/sys")
TEMPERATURE_DRIVERS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
"""Kernel drivers of processor temperatures."""
_MAX_CORES_READ = 4


class Counter:
    """An energy counter of the kernel in joules, corrected for wrap-around."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range_uj = _read_number(folder / "max_energy_range_uj")
        self._last_uj = int(self._file.read_text())
        self._sum_uj = 0

    def read_joules(self) -> float:
        now_uj = int(self._file.read_text())
        used_uj = now_uj - self._last_uj
        if used_uj < 0:
            if not self._range_uj:
                raise OSError("the energy counter went back and its range is not known")
            used_uj += int(self._range_uj) + 1
        self._last_uj = now_uj
        self._sum_uj += used_uj
        return self._sum_uj / 1e6


class HostReader(Reader):
    """One device: the machine. Its power is that of all processors, whoever uses them."""

    def __init__(self, powercap: Path, system: Path = SYSTEM) -> None:
        super().__init__("it was not read yet")
        self._reasons: dict[str, str] = {}
        self._counters = self._open_counters(powercap)
        cpus = system / "devices" / "system" / "cpu"
        self._temperatures = [
            file
            for name in sorted((system / "class" / "hwmon").glob("hwmon*/name"))
            if _read_text(name) in TEMPERATURE_DRIVERS and (file := name.parent / "temp1_input").exists()
        ]
        cores = sorted(cpus.glob("cpu[0-9]*"), key=lambda path: int(path.name[3:]))
        clocks = [file for core in cores if (file := core / "cpufreq" / "scaling_cur_freq").exists()]
        self._clocks = clocks[:: max(1, -(-len(clocks) // _MAX_CORES_READ))]
        first = {_read_text(core / "topology" / "physical_package_id"): core for core in reversed(cores)}
        throttles = [core / "thermal_throttle" / "package_throttle_count" for core in first.values()]
        self._throttles = [file for file in throttles if file.exists()]
        self._throttled_before = self._read_throttle_count()
        self._memory_errors = sorted((system / "devices" / "system" / "edac" / "mc").glob("mc*/ue_count"))
        for name, files in {
            "temperature_c": self._temperatures,
            "clock_mhz": self._clocks,
            "throttled": self._throttles,
            "ecc_errors": self._memory_errors,
        }.items():
            if not files:
                self._reasons[name] = "the kernel of this machine does not say it"
        self._energy_before: tuple[float, float] | None = None
        self._use_before: tuple[float, float] | None = None

    def read(self) -> list[Reading]:
        import psutil

        memory = psutil.virtual_memory()
        reasons = dict(self._reasons)
        energy_j, power_w = self._read_energy(reasons)
        throttles = self._read_throttle_count()
        slowed = None if throttles is None else ("thermal",) if throttles > (self._throttled_before or 0) else ()
        self._throttled_before = throttles
        degrees = _read_all(self._temperatures)
        clocks = _read_all(self._clocks)
        errors = _read_all(self._memory_errors)
        reading = Reading(
            device=0,
            memory_used_bytes=float(memory.total - memory.available),
            memory_total_bytes=float(memory.total),
            power_w=power_w,
            energy_j=energy_j,
            temperature_c=max(degrees) / 1e3 if degrees else None,
            utilisation_percent=self._read_utilisation(psutil.cpu_times()),
            clock_mhz=sum(clocks) / len(clocks) / 1e3 if clocks else None,
            throttled=slowed,
            ecc_errors=sum(errors) if errors else None,
        )
        reasons.setdefault("utilisation_percent", "it takes two readings")
        self.unavailable = find_missing([reading], reasons, "it could not be read")
        return [reading]

    def _open_counters(self, powercap: Path) -> list[Counter]:
        """One counter per package; subdomains and the platform domain would count the same energy twice."""
        found = []
        try:
            folders = sorted(folder for folder in powercap.glob("*:*") if re.fullmatch(r"[a-z]+-rapl:\d+", folder.name))
            packages = [folder for folder in folders if _read_text(folder / "name").startswith("package")]
            if not packages:
                raise OSError(f"{powercap} has no energy counter of a processor")
            found = [Counter(folder) for folder in packages]
        except PermissionError as error:
            reason = f"{error.filename} may be read by root only"
            self._reasons |= dict.fromkeys(("power_w", "energy_j"), reason)
        except (OSError, ValueError) as error:
            self._reasons |= dict.fromkeys(("power_w", "energy_j"), str(error))
        return found

    def _read_energy(self, reasons: dict[str, str]) -> tuple[float | None, float | None]:
        if not self._counters:
            return None, None
        try:
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

    def _read_utilisation(self, times: object) -> float | None:
        idle = sum(getattr(times, name, 0.0) for name in ("idle", "iowait"))
        busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
        before, self._use_before = self._use_before, (busy, busy + idle)
        if before is None or busy + idle <= before[1]:
            return None
        return 100 * (busy - before[0]) / (busy + idle - before[1])

    def _read_throttle_count(self) -> float | None:
        counts = _read_all(self._throttles)
        return sum(counts) if counts else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _read_number(file: Path) -> float | None:
    text = _read_text(file)
    return float(text) if re.fullmatch(r"-?[0-9]+", text) else None


def _read_all(files: list[Path]) -> list[float]:
    return [value for file in files if (value := _read_number(file)) is not None]
