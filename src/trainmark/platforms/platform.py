"""One Device class for all vendors; their differences are in platform files."""

from __future__ import annotations

import contextlib
import importlib
import platform as host_platform
import re
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from trainmark.platforms import device_errors, scaled_matmul
from trainmark.platforms.files import PlatformFile
from trainmark.platforms.sensors import run_program
from trainmark.record import cores
from trainmark.record.errors import NotReadyError, WorkloadError
from trainmark.record.precision import Precision


class Marks(Protocol):
    """Timestamps of one kind of device. A mark is reached when all work launched before it is done."""

    def mark(self) -> Any: ...

    def is_reached(self, mark: Any) -> bool: ...

    def wait_for(self, mark: Any) -> None: ...

    def between_ns(self, earlier: Any, later: Any) -> int:
        """Both marks must have been reached."""


class HostMarks:
    """For synchronous devices: a mark is a reading of the monotonic clock."""

    mark = staticmethod(time.perf_counter_ns)

    def is_reached(self, mark: int) -> bool:
        return True

    def wait_for(self, mark: int) -> None:
        pass

    def between_ns(self, earlier: int, later: int) -> int:
        return later - earlier


class EventMarks:
    """For asynchronous devices: a mark is an event in the queue, without a sync."""

    def __init__(self, new_event: Callable[[], Any]) -> None:
        """`new_event` makes a torch.Event, or what behaves as one."""
        self._new_event = new_event

    def mark(self) -> Any:
        event = self._new_event()
        event.record()
        return event

    def is_reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def wait_for(self, mark: Any) -> None:
        mark.synchronize()

    def between_ns(self, earlier: Any, later: Any) -> int:
        if earlier is later:
            return 0
        try:
            milliseconds: float = earlier.elapsed_time(later)
            return round(milliseconds * 1e6)
        except RuntimeError as error:
            if later.query():
                raise
            raise WorkloadError(
                "the device said that its work was done before it was: its events, or synchronize, return too early; "
                "`trainmark platform check` looks at both"
            ) from error


DRIVER_TIMEOUT_S = 10.0
MIN_TORCH = "2.6"
"""The first with torch.accelerator."""


class Platform:
    """The devices of a vendor on this machine, which are not touched until one is opened."""

    def __init__(self, file: PlatformFile) -> None:
        self.file = file
        self.is_cpu = file.device_type == "cpu"
        if file.plugin:
            try:
                importlib.import_module(file.plugin)
            except Exception as error:  # a plugin without its driver may raise anything
                raise NotReadyError(f"platform {file.name} needs the module {file.plugin}: {error}") from error
        least = file.least_torch or MIN_TORCH
        if not self.is_cpu and _parse_release(torch.__version__) < _parse_release(least):
            raise NotReadyError(
                f"platform {file.name} needs torch {least} or newer, this is torch {torch.__version__}; "
                f"install a build of torch {least} for {file.title}"
            )
        self._own: Any = None
        """The Python module beside the platform file, with `count_devices` and `open_device`."""
        if file.python:
            self._own = importlib.import_module(f"trainmark.platforms.{file.python}")

    @property
    def device_count(self) -> int:
        """How many devices torch sees; for a CPU its usable cores, which any number of ranks may share."""
        if self._own is not None:
            return int(self._own.count_devices())
        if self.is_cpu:
            return cores.count_usable_cores()
        current = torch.accelerator.current_accelerator()
        if current is None or current.type != self.file.device_type:
            return 0
        return int(torch.accelerator.device_count())

    def plugin_version(self) -> str | None:
        """The version of the plugin module, or of its package."""
        if self.file.plugin is None:
            return None
        top = self.file.plugin.partition(".")[0]
        version = getattr(sys.modules.get(top), "__version__", None)
        packages = metadata.packages_distributions().get(top, [])
        return str(version) if version else metadata.version(packages[0]) if packages else None

    def driver_version(self) -> str | None:
        """By the program of the platform file, else that of CUDA or HIP in torch; None where unknown."""
        driver = self.file.driver
        if driver is None:
            version = torch.version.cuda or torch.version.hip
            return f"{'CUDA' if torch.version.cuda else 'HIP'} {version}" if version else None
        found = re.search(driver.pattern, run_program(driver.argv, DRIVER_TIMEOUT_S)[0])
        return found.group(1)[:80] if found and found.group(1) else None

    def open(self, local_rank: int) -> Device:
        """The device of one rank, made current for this process."""
        if self.is_cpu:
            return Device(self, local_rank)
        if local_rank >= self.device_count:
            raise NotReadyError(
                f"platform {self.file.name} has {self.device_count} {self.file.device_type} devices here, "
                f"device {local_rank} was requested"
            )
        if self._own is not None:
            opened: Device = self._own.open_device(self, local_rank)
            return opened
        torch.accelerator.set_device_index(local_rank)
        return Device(self, local_rank)


class Device:
    """One open device: its torch device, its timestamps and its memory."""

    is_stand_in = False
    """True for a simulated device, whose speed means nothing."""

    def __init__(self, platform: Platform, index: int) -> None:
        self.platform = platform
        self.is_cpu = platform.is_cpu
        self.torch = torch.device("cpu") if self.is_cpu else torch.device(platform.file.device_type, index)
        new_event = partial(torch.Event, self.torch, enable_timing=True)
        self.marks: Marks = HostMarks() if self.is_cpu else EventMarks(new_event)
        self._module: Any = torch.get_device_module(self.torch)
        self._copies: Any = self._module.Stream() if not self.is_cpu and hasattr(self._module, "Stream") else None

    def synchronize(self) -> None:
        """Waits until all launched work is done. Only ever called where a phase begins or ends."""
        if not self.is_cpu:
            torch.accelerator.synchronize(self.torch)

    def name(self) -> str:
        if self.is_cpu:
            return read_cpu_name()
        # without an index where torch has no name: equal devices have equal names
        get_name = getattr(self._module, "get_device_name", None)
        return self.torch.type if get_name is None else str(get_name(self.torch))

    def peak_memory_bytes(self) -> int | None:
        if self.is_cpu:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return int(peak if sys.platform == "darwin" else peak * 1024)
        peak = self._query_memory("max_memory_allocated")
        return None if peak is None else int(peak)

    def allocated_memory_bytes(self) -> int | None:
        """Of live tensors at this moment, by the device's allocator; None where it does not say."""
        held = None if self.is_cpu else self._query_memory("memory_allocated")
        return None if held is None else int(held)

    def memory_capacity_bytes(self) -> int | None:
        if self.is_cpu:
            return int(psutil.virtual_memory().total)
        free_and_total = self._query_memory("mem_get_info")
        return None if free_and_total is None else int(free_and_total[1])

    def _query_memory(self, name: str) -> Any:
        """From the module of the device, else from torch.accelerator, else None."""
        if (query := getattr(self._module, name, None)) is not None:
            return query(self.torch)
        newer = {"mem_get_info": "get_memory_info"}.get(name, name)
        try:
            return getattr(torch.accelerator, newer)(self.torch)
        except (AttributeError, RuntimeError, NotImplementedError):  # not every torch and backend implements it
            return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means out of memory, by type or by the pattern of the platform file."""
        return device_errors.is_out_of_memory(error, self.platform.file.out_of_memory)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on this device; the copy overlaps with computation where the device supports it."""
        if self._copies is None:
            return tensor.to(self.torch)
        current = self._module.current_stream()
        with self._module.stream(self._copies):
            moved = tensor.pin_memory().to(self.torch, non_blocking=True)
        current.wait_stream(self._copies)
        moved.record_stream(current)
        return moved

    def host_buffer(self, length: int) -> torch.Tensor:
        """Pinned host memory that the device writes to without a sync."""
        return torch.zeros(length, pin_memory=not self.is_cpu)

    def set_precision(self, precision: Precision) -> None:
        torch.set_float32_matmul_precision("high" if precision.allows_tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = precision.allows_tf32

    def autocast(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        if precision.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.torch.type, dtype=getattr(torch, precision.autocast))

    def arithmetic(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        """A context for forward and backward pass: empty, unless the precision is emulated."""
        if not self.widens(precision):
            return contextlib.nullcontext()
        return WideArithmetic()  # type: ignore[no-untyped-call]

    def explain_refusal(self, precision: Precision) -> str | None:
        """Why this device cannot train in a precision, or None: two tiny layers are really trained."""
        if precision.name not in self.platform.file.precisions:
            return f"platform {self.platform.file.name} does not have it"
        weights = getattr(torch, precision.weights)
        try:
            with self.autocast(precision):
                layer = torch.nn.Conv2d(4, 4, 3, device=self.torch, dtype=weights)
                linear = torch.nn.Linear(4, 4, device=self.torch, dtype=weights)
                image = torch.ones(1, 4, 3, 3, device=self.torch, dtype=weights)
                linear(layer(image).flatten(1)).float().sum().backward()
            if precision.scaled:
                scaled_matmul.train_small_layer(self.torch)
            self.synchronize()
        except (RuntimeError, AssertionError, TypeError) as error:
            return device_errors.describe(error) or device_errors.first_line(error)
        return None

    def emulates(self, precision: Precision) -> bool:
        """True where a precision runs without instructions for it; torch uses none for 8-bit matmuls on any CPU."""
        return self.torch.type == "cpu" and (precision.scaled is not None or self.widens(precision))

    def widens(self, precision: Precision) -> bool:
        """True where matmuls of a narrow type are computed by float32 kernels, as there are no other fast ones."""
        if self.torch.type != "cpu" or precision.unscaled not in ("bfloat16", "float16"):
            return False
        query = {"bfloat16": "_is_mkldnn_bf16_supported", "float16": "_is_mkldnn_fp16_supported"}[precision.unscaled]
        supported = getattr(torch.ops.mkldnn, query, None)
        return supported is not None and not supported()


def _parse_release(version: str) -> tuple[int, ...]:
    """Major and minor version, without suffixes of vendors."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def read_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return host_platform.processor() or host_platform.machine()


# Emulation of narrow types

_NARROW = (torch.bfloat16, torch.float16)
MATMULS = {
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}


class WideArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, matmuls of bfloat16 and float16 are computed in float32 and rounded once to the narrow type.

    Hardware multiplies narrow numbers and accumulates in float32. On a CPU without instructions for it, torch falls
    back to loops ten times slower than its float32 kernels; this uses the float32 kernels instead.
    """

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation not in MATMULS or args[0].dtype not in _NARROW:
            return operation(*args, **kwargs)
        narrow = args[0].dtype
        result = operation(*tree_map(_make_cast(narrow, torch.float32), args), **kwargs)
        if operation is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            return result[0].to(narrow), *result[1:]  # its log-sum-exp is float32 for every type
        return tree_map(_make_cast(torch.float32, narrow), result)


def _make_cast(source: torch.dtype, target: torch.dtype) -> Callable[[Any], Any]:
    def cast(value: Any) -> Any:
        return value.to(target) if isinstance(value, torch.Tensor) and value.dtype == source else value

    return cast
