"""Checks a whole machine: device, software, host, site, speed."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import data as datasets
from trainmark.features.doctor import host_checks, site_checks
from trainmark.launch.cluster_env import PORT
from trainmark.platforms import files
from trainmark.record import site
from trainmark.record.checks import VERDICTS, CheckResult, check, failed, format_count
from trainmark.record.errors import TrainmarkError

if TYPE_CHECKING:
    from trainmark.platforms.files import PlatformFile
    from trainmark.platforms.platform import Device

ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """What to check."""

    store: Path
    platform: str | None = None
    """A name, a file, or None for what is detected."""
    probe_s: float = 0.0
    """How long to measure speed; 0 leaves it out."""
    root: Path = ROOT
    """Where /proc, /sys and /dev are."""


def examine(options: DoctorOptions, report: Callable[[str], None] = lambda sentence: None) -> Iterator[CheckResult]:
    """Every result, in the order of the screen; `report` gets a sentence before something slow."""
    torch_result = _check_torch()
    devices: Sequence[Device] = ()
    if torch_result.verdict == "failed":
        yield torch_result
    else:
        from trainmark.features.doctor import device_checks

        device_results, devices = _check_devices(options)
        yield from device_results
        yield torch_result
        yield device_checks.check_versions()
    yield site_checks.check_programs()
    yield from _check_host(options, accelerators=0 if any(device.is_cpu for device in devices) else len(devices))
    yield from _check_site(options)
    if devices and options.probe_s > 0:
        report(f"measuring matmuls and memory for {options.probe_s:g} s (--quick: 2 s, --no-probe: not at all)")
        yield from _check_speed(devices, options.probe_s)


def summarize(results: Sequence[CheckResult]) -> str:
    """`ready; 2 doubts, 1 unknown`."""
    numbers = {verdict: sum(result.verdict == verdict for result in results) for verdict in VERDICTS}
    parts = [f"{numbers['failed']} failed"] if numbers["failed"] else []
    parts += [format_count(numbers["doubt"], "doubt")] if numbers["doubt"] else []
    parts += [f"{numbers['unknown']} unknown"] if numbers["unknown"] else []
    return "; ".join(filter(None, ("not ready" if numbers["failed"] else "ready", ", ".join(parts))))


@check("torch", "Software")
def _check_torch() -> CheckResult:
    try:
        from trainmark.features.doctor import device_checks
    except (ImportError, OSError) as error:  # a build for another system fails to find its libraries
        return failed(f"torch cannot be imported: {error}", "python -m pip install --force-reinstall torch")
    return device_checks.check_torch()


def _check_devices(options: DoctorOptions) -> tuple[list[CheckResult], Sequence[Device]]:
    """Raises where the platform is unknown; devices that cannot be opened are a finding."""
    from trainmark.features.doctor import device_checks
    from trainmark.platforms import detection

    word = detection.choose_platform() if options.platform in (None, "auto") else str(options.platform)
    file = files.load(word)
    opened, refusal = _open_devices(file)
    names = [device.name() for device in opened]
    results = [
        device_checks.check_platform(
            file,
            chosen_by=device_checks.explain_choice(file, options.platform, os.environ),
            device_names=names,
            unused=detection.find_undescribed_if_auto(options.platform),
        ),
        refusal or device_checks.check_devices(file, opened, environ=os.environ),
        host_checks.check_driver(options.root, is_cpu=file.device_type == "cpu"),
    ]
    if opened:
        results.append(device_checks.check_precision(opened[0]))
    results.append(device_checks.check_sensors(file))
    return results, opened


def _open_devices(file: PlatformFile) -> tuple[Sequence[Device], CheckResult | None]:
    """The devices, or why they cannot be opened."""
    from trainmark.platforms.platform import Platform

    devices: list[Device] = []

    @check("devices", "Device")
    def result() -> CheckResult:
        try:
            platform = Platform(file)
            devices.extend(platform.open(index) for index in range(1 if platform.is_cpu else platform.device_count))
        except (TrainmarkError, RuntimeError) as error:
            devices.clear()
            return failed(str(error).partition("\n")[0], "trainmark run --platform cpu")
        return CheckResult(verdict="ok", sentence="")

    found = result()
    return devices, found if found.verdict != "ok" else None


def _check_host(options: DoctorOptions, *, accelerators: int) -> Iterator[CheckResult]:
    root = options.root
    yield host_checks.check_cores(
        root, os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    yield host_checks.check_governor(root)
    yield host_checks.check_load(root)
    yield host_checks.check_memory(root)
    yield host_checks.check_shared_memory(root / "dev/shm", accelerators=accelerators)
    yield host_checks.check_limits(root, read_shell_limits())
    yield host_checks.check_clock(root)


def read_shell_limits() -> Mapping[str, tuple[int, int]]:
    """As the shell set them; -1 where there is none."""
    kinds = {"files": "RLIMIT_NOFILE", "locked_bytes": "RLIMIT_MEMLOCK", "processes": "RLIMIT_NPROC"}
    found = {}
    for name, kind in kinds.items():
        soft, hard = resource.getrlimit(getattr(resource, kind))
        found[name] = tuple(-1 if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    return found  # type: ignore[return-value]


def _check_site(options: DoctorOptions) -> Iterator[CheckResult]:
    yield site_checks.check_store(options.store)
    yield site_checks.check_site_file(os.environ, Path.cwd())
    try:
        known = site.load()
    except TrainmarkError:
        known = site.Site()  # the result above reports it
    for name in datasets.names():
        yield site_checks.check_data_set(name, known.data.get(name))
    yield site_checks.check_ports(known.network.port or PORT)


def _check_speed(devices: Sequence[Device], probe_s: float) -> Iterator[CheckResult]:
    from trainmark.features.doctor import device_checks

    precisions = device_checks.list_families(devices[0])
    share_s = probe_s / (len(precisions) + 1)
    for precision in precisions:
        yield device_checks.check_matmul(devices, precision, budget_s=share_s)
    yield device_checks.check_copy(devices, budget_s=share_s)
