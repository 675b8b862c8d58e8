"""Simulated devices: tensors on the CPU, and a queue in which work finishes later than its launch.

The CPU computes at once, inside the launch. What comes later is everything that a host sees of asynchronous work: marks
are reached, waits end, and numbers arrive in host memory only when the queue gets there; a host that does not wait
reads stale memory. Operations inside `Device.arithmetic` are launches, and memory is that of all live tensors among
their arguments and results. Faults of the script happen there too.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from trainmark.platforms.platform import MATMULS, Device, EventMarks, Platform, WideArithmetic
from trainmark.platforms.standin import Script, load_scripts
from trainmark.record.precision import Precision

NAME = "Stand-in (not a device)"


def count_devices() -> int:
    return len(load_scripts())


def open_device(platform: Platform, index: int) -> Device:
    return StandInDevice(platform, index, load_scripts()[index])


class StandInDevice(Device):
    """A device with its own queue and memory, simulated on the CPU."""

    is_stand_in = True

    def __init__(self, platform: Platform, index: int, script: Script) -> None:
        # without super().__init__: torch does not know a device of this type
        self.platform = platform
        self.is_cpu = False
        self.torch = torch.device("cpu")
        self.queue = Queue(script, f"stand-in device {index}")
        self.memory = Memory(script, self.queue.owner)
        self.marks = EventMarks(lambda: QueueEvent(self.queue, script.event_clock))
        self._script = script
        self._calls: Counter[str] = Counter()
        self._module, self._copies = self, None

    def synchronize(self, device: object = None) -> None:
        self.queue.synchronize()

    def to_device(self, tensor: Tensor) -> Tensor:
        with self._launches(wide=False):
            return tensor.clone()

    def host_buffer(self, length: int) -> Tensor:
        return torch.zeros(length).as_subclass(_make_late_memory(self.queue))

    def arithmetic(self, precision: Precision) -> AbstractContextManager[Any]:
        return self._launches(wide=self.widens(precision))

    def _launches(self, *, wide: bool) -> Launches:
        return Launches(self.queue, self.memory, self._script, self._calls, wide)

    # the interface of torch modules for devices

    def get_device_name(self, device: object = None) -> str:
        return NAME

    def max_memory_allocated(self, device: object = None) -> int:
        return self.memory.peak_bytes

    def memory_allocated(self, device: object = None) -> int:
        return self.memory.held_bytes

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return self.memory.limit_bytes - self.memory.held_bytes, self.memory.limit_bytes


class Queue:
    """Work in the order of its launch: when all that was launched will be done, and what is to be done then."""

    def __init__(self, script: Script, owner: str) -> None:
        self.owner = owner
        self._script = script
        self._latency_ns = script.latency_us * 1e3
        self._busy_until_ns = 0.0
        self.operations = 0
        self._writes: deque[tuple[float, Callable[[], object]]] = deque()

    def launch(self, began_ns: int, took_ns: int) -> None:
        """Adds an operation, launched at `began_ns`, that takes so long."""
        self.operations += 1
        self._raise_if_lost()
        script = self._script
        length_ns = (took_ns if script.operation_us is None else script.operation_us * 1e3) * script.slowdown
        self._busy_until_ns = max(self._busy_until_ns, began_ns + self._latency_ns) + length_ns

    def put(self, write: Callable[[], object] | None = None) -> float:
        """When all launched work is done; `write` happens then, and is seen from the next read of host memory on."""
        self._raise_if_lost()
        self._busy_until_ns = max(self._busy_until_ns, time.perf_counter_ns() + self._latency_ns)
        if self._script.hang_after is not None and self.operations > self._script.hang_after:
            self._busy_until_ns = float("inf")
        if write is not None:
            self._writes.append((self._busy_until_ns, write))
        return self._busy_until_ns

    def wait_until(self, due_ns: float) -> None:
        self._raise_if_lost()
        if due_ns == float("inf"):
            threading.Event().wait()
        while (early_ns := due_ns - time.perf_counter_ns()) > 0:
            time.sleep(early_ns / 1e9)

    def synchronize(self) -> None:
        self.wait_until(self.put())

    def write_what_is_due(self) -> None:
        while self._writes and self._writes[0][0] <= time.perf_counter_ns():
            self._writes.popleft()[1]()

    def _raise_if_lost(self) -> None:
        if self._script.lost_after is not None and self.operations > self._script.lost_after:
            raise torch.AcceleratorError(f"{self.owner} is lost, as its script says")


class QueueEvent:
    """torch.Event of the simulated queue; the script sets the speed of its clock."""

    def __init__(self, queue: Queue, clock: float = 1.0) -> None:
        self._queue = queue
        self._clock = clock
        self.due_ns = float("nan")

    def record(self) -> None:
        self.due_ns = self._queue.put()

    def query(self) -> bool:
        return self.due_ns <= time.perf_counter_ns()

    def synchronize(self) -> None:
        self._queue.wait_until(self.due_ns)

    def elapsed_time(self, later: QueueEvent) -> float:
        if not (self.query() and later.query()):
            raise RuntimeError("elapsed time was requested before both marks were reached")
        return self._clock * (later.due_ns - self.due_ns) / 1e6


class Memory:
    """Counts the live tensors of operations, each storage once, against the limit of the device."""

    def __init__(self, script: Script, owner: str) -> None:
        self.limit_bytes = round(script.memory_mib * 2**20)
        self.held_bytes = self.peak_bytes = 0
        self._plain_error = script.plain_memory_error
        self._owner = owner
        self._storages: dict[int, weakref.ref[Any]] = {}

    def hold(self, values: Any) -> None:
        """Counts the tensors among an operation's arguments or results."""
        for value in values:
            if isinstance(value, Tensor):
                self._hold(value)
            elif isinstance(value, (list, tuple)):
                self.hold(value)

    def _hold(self, tensor: Tensor) -> None:
        if tensor.is_meta or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages or not size:
            return

        def release(_: object) -> None:
            self.held_bytes -= size
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, release)
        self.held_bytes += size
        if self.held_bytes > self.limit_bytes:
            if self._plain_error:
                raise RuntimeError(f"{self._owner}: standinMalloc returned 2 (no room)\n  in standin_allocator.cpp:117")
            raise torch.OutOfMemoryError(
                f"{self._owner} is out of memory: {size / 2**20:.1f} MiB more than fit, with "
                f"{(self.held_bytes - size) / 2**20:.1f} of {self.limit_bytes / 2**20:.1f} MiB in use"
            )
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)


def round_operands(type_: str, operation: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with float32 operands of matmuls rounded to a torch type or `tf32`, as some hardware does."""
    if operation not in MATMULS or type_ == "float32":
        return args
    return tuple(
        _round(value, type_) if isinstance(value, Tensor) and value.dtype == torch.float32 else value for value in args
    )


def _round(tensor: Tensor, type_: str) -> Tensor:
    if type_ != "tf32":
        return tensor.to(getattr(torch, type_)).float()
    bits = tensor.contiguous().view(torch.int32)
    even = (bits >> 13) & 1  # to a mantissa of 10 bits, ties to even
    return ((bits + 0xFFF + even) & ~0x1FFF).view(torch.float32).view_as(tensor)


_LAUNCH, _VIEW, _TO_HOST = range(3)
_READS_A_VALUE = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operation is a launch into the queue, and its tensors are in the device's memory."""

    def __init__(self, queue: Queue, memory: Memory, script: Script, calls: Counter[str], wide: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queue, self._memory, self._script, self._calls = queue, memory, script, calls
        self._wide = WideArithmetic() if wide else None  # type: ignore[no-untyped-call]
        self._flawed = {
            *(flip.operator for flip in script.flips),
            *script.unsteady_operators,
            *script.ever_unsteady_operators,
        }

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind, name = _classify(operation)
        if name in self._script.missing_operators:
            raise NotImplementedError(_NO_OPERATOR.format(name=operation.name().partition(".")[0]))
        if kind == _VIEW:
            return operation(*args, **kwargs)
        if kind == _TO_HOST:
            self._queue.synchronize()
            return self._exchange(operation, name, args, kwargs)
        self._memory.hold(args)
        lies = self._queue.operations >= self._script.honest_for
        given = round_operands(self._script.float32_inside, operation, args) if lies else args
        if lies and name in self._script.unwritten_operators:
            given = tree_map_only(Tensor, Tensor.clone, given)
        began_ns = time.perf_counter_ns()
        if self._wide is None:
            result = operation(*given, **kwargs)
        else:
            result = self._wide.__torch_dispatch__(operation, types, given, kwargs)
        self._queue.launch(began_ns, time.perf_counter_ns() - began_ns)
        if lies and name in self._script.wrong_operators:
            result = tree_map_only(Tensor, _enlarge, result)
        if name in self._flawed:
            self._flip_bits(name, _find_written(operation, args, kwargs) or result)
        self._memory.hold((result,))
        return result

    def _exchange(self, operation: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A collective, or a value that the host reads."""
        lies = self._queue.operations >= self._script.honest_for
        if lies and operation.namespace == "c10d" and not self._script.exchanges:
            _, *rest = operation(*tree_map_only(Tensor, Tensor.clone, args), **kwargs)
            return args[0], *rest
        result = operation(*args, **kwargs)
        if operation.namespace == "c10d" and name in self._flawed:
            result[-1].wait()
            self._flip_bits(name, _find_written(operation, args, kwargs) or result)
        return result

    def _flip_bits(self, name: str, written: Any) -> None:
        """Flips bits in what an operator wrote, as the script says for this call of it."""
        self._calls[name] += 1
        number, script = self._calls[name], self._script
        floating = [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        tensors = [tensor for tensor in floating if tensor.numel()]
        if not tensors:
            return
        for flip in script.flips:
            if flip.operator == name and (number in flip.at or (flip.every and number % flip.every == 0)):
                _flip_bit(tensors[flip.tensor % len(tensors)], flip.place, flip.bit)
        unsteady = name in script.unsteady_operators and not torch.are_deterministic_algorithms_enabled()
        if unsteady or name in script.ever_unsteady_operators:
            _flip_bit(tensors[0], number * 2654435761 >> 7, number % 2)  # scattered, and different each time


_NO_OPERATOR = """Could not run '{name}' with arguments from the 'StandIn' backend. This could be because the operator \
doesn't exist for this backend, or was omitted during the selective/custom build process (if using custom build).

StandIn: fallthrough registered at standin_fallback.cpp:3 [backend fallback]
CPU: registered at aten/src/ATen/RegisterCPU.cpp:1 [kernel]"""
"""The message of torch, with the beginning of the dispatcher's table."""


@cache
def _classify(operation: Any) -> tuple[int, str]:
    """Its kind and its name, `relu` of `aten::relu.out`.

    Views launch nothing. Reading a value syncs; so does a collective, which gloo runs on the host.
    """
    name = str(operation.name().partition("::")[2].partition(".")[0])
    if operation.namespace == "c10d" or operation in _READS_A_VALUE:
        return _TO_HOST, name
    aliases = [returned.alias_info for returned in operation._schema.returns]
    return (_VIEW if any(alias is not None and not alias.is_write for alias in aliases) else _LAUNCH), name


def _enlarge(tensor: Tensor) -> Tensor:
    return tensor * 1.1 if tensor.is_floating_point() else tensor


def _find_written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operator writes into."""
    named = zip(operation._schema.arguments, args, strict=False)
    given = {argument.name: value for argument, value in named} | kwargs
    return [
        given[argument.name]
        for argument in operation._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]


def _flip_bit(tensor: Tensor, place: int, bit: int) -> None:
    width = 8 * tensor.itemsize
    bits = tensor.detach().view({16: torch.int16, 32: torch.int32, 64: torch.int64}[width])
    bit %= width
    mask = -(1 << bit) if bit == width - 1 else 1 << bit
    where = torch.unravel_index(torch.tensor(place % tensor.numel()), bits.shape)
    bits[where] = bits[where] ^ mask


def _make_late_memory(queue: Queue) -> type[Tensor]:
    """Host memory that the device writes to when it gets there; reading it does not wait."""

    class LateMemory(Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            queue.write_what_is_due()
            if function is not Tensor.copy_:
                return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]
            into, source, *waits = args
            with torch._C.DisableTorchFunctionSubclass():
                plain, value = into.as_subclass(Tensor), source.detach().clone()
            due_ns = queue.put(lambda: plain.copy_(value))
            if not (waits[0] if waits else kwargs.get("non_blocking", False)):
                queue.wait_until(due_ns)
            return into

    return LateMemory
