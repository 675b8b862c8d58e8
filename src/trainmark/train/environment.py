"""What a run ran on: versions, device, processor, threads, and an allow-list of variables. Nothing else is kept."""

from __future__ import annotations

import os
import platform as host_platform
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy
import psutil
import torch

import trainmark
from trainmark.platforms.platform import Device, cpu_name
from trainmark.record import cores
from trainmark.record.events import EnvironmentSeen
from trainmark.record.machine import CpuInfo, DeviceInfo, PlatformInfo

VARIABLES = (
    "GLIBC_TUNABLES", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "MALLOC_CONF", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip
"""Settings known to change speed, beside those the platform file names. Any other variable may hold a
secret and is not looked at."""

MODEL_FILE = Path("/sys/class/dmi/id/product_name")


def collect(device: Device, *, emulated_precision: bool) -> EnvironmentSeen:
    file = device.platform.file
    variables = (*VARIABLES, *file.speed_variables, *filter(None, [file.visible_devices]))
    return EnvironmentSeen(
        trainmark=trainmark.__version__,
        python=host_platform.python_version(),
        torch=str(torch.__version__),  # a kind of text of its own, which only looks like one
        numpy=numpy.__version__,
        os=f"{host_platform.system()} {host_platform.release()}",
        distribution=_distribution(),
        machine=_model(),
        container=container(),
        libc=" ".join(host_platform.libc_ver()),
        device=DeviceInfo(
            type=file.device_type,
            name=device.name(),
            count_visible=device.platform.device_count,
            memory_bytes=device.memory_capacity_bytes(),
            driver=device.platform.driver_version(),
            stand_in=device.is_stand_in,
        ),
        platform=PlatformInfo(
            name=file.name,
            sha256=file.sha256,
            content=file.text if file.is_own else None,
            plugin=file.plugin,
            plugin_version=device.platform.plugin_version(),
        ),
        cpu=CpuInfo(
            name=cpu_name(),
            logical_cores=psutil.cpu_count(),
            usable_cores=cores.usable(),
            capability=torch.backends.cpu.get_cpu_capability(),
            memory_bytes=psutil.virtual_memory().total,
        ),
        threads=torch.get_num_threads(),
        variables={name: os.environ[name] for name in variables if name in os.environ},
        optimised_python=sys.flags.optimize,
        emulated_precision=emulated_precision,
    )


def _distribution() -> str:
    try:
        return host_platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def container(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> str:
    """By the marks that runtimes leave inside; their versions are known only outside."""
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "kubernetes"
    marks = {"docker": ".dockerenv", "podman": "run/.containerenv"}
    return next((name for name, mark in marks.items() if (root / mark).exists()), "none")


def _model() -> str:
    """As the firmware says it; a virtual machine says so."""
    try:
        return MODEL_FILE.read_text(encoding="utf-8", errors="replace").strip()[:80]
    except OSError:
        return ""
