"""Looks at a whole machine, thing by thing: device, software, host, site, speed."""

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
from trainmark.record import site
from trainmark.record.checks import VERDICTS, CheckResult, check, failed, format_count
from trainmark.record.errors import TrainmarkError

if TYPE_CHECKING:
    from trainmark.platforms.files import PlatformFile
    from trainmark.platforms.platform import Device

ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be looked at."""

    store: Path
    platform: str | None = None
    """A name, a file, or None for what is there."""
    probe_s: float = 0.0
    """How long to measure speed; 0 leaves it out."""
    root: Path = ROOT
    """Where /proc, /sys and /dev are."""


def examine(asked: Asked, tell: Callable[[str], None] = lambda sentence: None) -> Iterator[CheckResult]:
    """Every result, in the order of the screen; `tell` hears what will take a while."""
    torch_result = _torch()
    devices: Sequence[Device] = ()
    if torch_result.verdict == "failed":
        yield torch_result
    else:
        from trainmark.features.doctor import device_checks

        device_results, devices = _devices(asked)
        yield from device_results
        yield torch_result
        yield device_checks.versions()
    yield site_checks.programs()
    yield from _host(asked, accelerators=0 if any(device.is_cpu for device in devices) else len(devices))
    yield from _site(asked)
    if devices and asked.probe_s > 0:
        tell(f"measuring matrix products and memory for {asked.probe_s:g} s (--quick: 2 s, --no-probe: not at all)")
        yield from _speed(devices, asked.probe_s)


def summary(results: Sequence[CheckResult]) -> str:
    """`ready; 2 doubts, 1 unknown`."""
    numbers = {verdict: sum(result.verdict == verdict for result in results) for verdict in VERDICTS}
    parts = [f"{numbers['failed']} failed"] if numbers["failed"] else []
    parts += [format_count(numbers["doubt"], "doubt")] if numbers["doubt"] else []
    parts += [f"{numbers['unknown']} unknown"] if numbers["unknown"] else []
    return "; ".join(filter(None, ("not ready" if numbers["failed"] else "ready", ", ".join(parts))))


@check("torch", "Software")
def _torch() -> CheckResult:
    try:
        from trainmark.features.doctor import device_checks
    except (ImportError, OSError) as error:  # a build for another system fails to find its libraries
        return failed(f"torch cannot be imported: {error}", "python -m pip install --force-reinstall torch")
    return device_checks.torch_build()


def _devices(asked: Asked) -> tuple[list[CheckResult], Sequence[Device]]:
    """A platform that is not known is a wrong word; one whose devices cannot be opened is what the doctor is for."""
    from trainmark.features.doctor import device_checks
    from trainmark.platforms import detection, files

    word = detection.chosen() if asked.platform in (None, "auto") else str(asked.platform)
    file = files.load(word)
    opened, refusal = _opened(file)
    names = [device.name() for device in opened]
    results = [
        device_checks.platform(
            file,
            chosen_by=device_checks.chosen(file, asked.platform, os.environ),
            device_names=names,
            unused=detection.undescribed_where_chosen(asked.platform),
        ),
        refusal or device_checks.devices(file, opened, environ=os.environ),
        host_checks.driver(asked.root, is_cpu=file.device_type == "cpu"),
    ]
    if opened:
        results.append(device_checks.precision(opened[0]))
    results.append(device_checks.sensors(file))
    return results, opened


def _opened(file: PlatformFile) -> tuple[Sequence[Device], CheckResult | None]:
    """The devices, or what keeps them from being opened."""
    from trainmark.platforms.platform import Platform

    devices: list[Device] = []

    @check("devices", "Device")
    def look() -> CheckResult:
        try:
            platform = Platform(file)
            devices.extend(platform.open(index) for index in range(1 if platform.is_cpu else platform.device_count))
        except (TrainmarkError, RuntimeError) as error:
            devices.clear()
            return failed(str(error).partition("\n")[0], "trainmark run --platform cpu")
        return CheckResult(verdict="ok", sentence="")

    result = look()
    return devices, result if result.verdict != "ok" else None


def _host(asked: Asked, *, accelerators: int) -> Iterator[CheckResult]:
    root = asked.root
    yield host_checks.cores(
        root, os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    yield host_checks.governor(root)
    yield host_checks.load(root)
    yield host_checks.memory(root)
    yield host_checks.shared_memory(root / "dev/shm", accelerators=accelerators)
    yield host_checks.limits(root, shell_limits())
    yield host_checks.clock(root)


def shell_limits() -> Mapping[str, tuple[int, int]]:
    """As the shell set them; -1 where there is none."""
    kinds = {"files": "RLIMIT_NOFILE", "locked_bytes": "RLIMIT_MEMLOCK", "processes": "RLIMIT_NPROC"}
    found = {}
    for name, kind in kinds.items():
        soft, hard = resource.getrlimit(getattr(resource, kind))
        found[name] = tuple(-1 if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    return found  # type: ignore[return-value]


def _site(asked: Asked) -> Iterator[CheckResult]:
    yield site_checks.store(asked.store)
    yield site_checks.site_file(os.environ, Path.cwd())
    try:
        known = site.load()
    except TrainmarkError:
        known = site.Site()  # the result above says what is wrong with it
    for name in datasets.names():
        yield site_checks.data_set(name, known.data.get(name))
    yield site_checks.ports(known.network.port or PORT)


def _speed(devices: Sequence[Device], probe_s: float) -> Iterator[CheckResult]:
    from trainmark.features.doctor import device_checks, device_probe

    precisions = device_checks.families(devices[0])
    share_s = probe_s / (len(precisions) + 1)
    for precision in precisions:
        yield device_probe.matmul_check(devices, precision, budget_s=share_s)
    yield device_probe.copy_check(devices, budget_s=share_s)
