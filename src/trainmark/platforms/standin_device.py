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
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from trainmark.platforms.cpu_emulation import RoundedOperands, WideArithmetic
from trainmark.platforms.platform import Device, EventMarks, Platform
from trainmark.platforms.standin import Flip, Script, load_scripts
from trainmark.record.precision import Precision

NAME = "Stand-in (not a device)"
_IDLE_S = 1.0
"""The thread of the queue ends after so long without work."""


class StandInDevices:
    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = scripts
        self.count = len(scripts)

    def open(self, platform: Platform, index: int) -> Device:
        return StandInDevice(platform, index, self._scripts[index])


def devices() -> StandInDevices:
    """Called for the platform file."""
    return StandInDevices(load_scripts())


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
        self._flaws = Flaws(script)
        self.marks = EventMarks(lambda: QueueEvent(self.queue, script.event_clock))
        self._script = script
        told_by = {"module": (self, None), "accelerator": (_Named(), _AsAccelerator(self)), "nobody": (_Named(), None)}
        self._module, self._accelerator = told_by[script.memory_told_by]
        self._copies = None

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
        return Launches(self.queue, self.memory, self._script, self._flaws, wide)

    # the interface of torch modules for devices

    def get_device_name(self, device: object = None) -> str:
        return NAME

    def max_memory_allocated(self, device: object = None) -> int:
        return self.memory.peak_bytes

    def memory_allocated(self, device: object = None) -> int:
        return self.memory.held_bytes

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return self.memory.limit_bytes - self.memory.held_bytes, self.memory.limit_bytes


class _Named:
    """A device module that has only a name."""

    def get_device_name(self, device: object = None) -> str:
        return NAME


class _AsAccelerator:
    """The part of torch.accelerator that reports memory."""

    def __init__(self, device: StandInDevice) -> None:
        self.max_memory_allocated = device.max_memory_allocated
        self.get_memory_info = device.mem_get_info


class Entry:
    """A marker in the queue. It is passed when all work launched before it is done."""

    __slots__ = ("act", "due_ns", "passed")

    def __init__(self, due_ns: float, act: Callable[[], object] | None) -> None:
        self.due_ns = due_ns
        self.act = act
        self.passed = threading.Event()


class Queue:
    """Work in the order of its launch; a thread passes each entry when it is due."""

    def __init__(self, script: Script, owner: str, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.owner = owner
        self._script = script
        self._now_ns = now_ns
        self._latency_ns = script.latency_us * 1e3
        self._busy_until_ns = 0.0
        self._operations = 0
        self._entries: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._drains = False

    def launch(self, began_ns: int, took_ns: int) -> None:
        """Adds an operation, launched at `began_ns`, that takes so long."""
        self._operations += 1
        self._raise_if_lost()
        script = self._script
        length_ns = (took_ns if script.operation_us is None else script.operation_us * 1e3) * script.slowdown
        self._busy_until_ns = max(self._busy_until_ns, began_ns + self._latency_ns) + length_ns

    def put(self, act: Callable[[], object] | None = None) -> Entry:
        """An entry behind all launched work; `act` is called when it is passed."""
        self._raise_if_lost()
        self._busy_until_ns = max(self._busy_until_ns, self._now_ns() + self._latency_ns)
        hangs = self._script.hang_after is not None and self._operations > self._script.hang_after
        entry = Entry(float("inf") if hangs else self._busy_until_ns, act)
        with self._changed:
            self._entries.append(entry)
            if self._drains:
                self._changed.notify()
            else:
                self._drains = True
                threading.Thread(target=self._drain, name=self.owner, daemon=True).start()
        return entry

    def wait_for(self, entry: Entry) -> None:
        self._raise_if_lost()
        entry.passed.wait()

    def synchronize(self) -> None:
        self.wait_for(self.put())

    def _raise_if_lost(self) -> None:
        if self._script.lost_after is not None and self._operations > self._script.lost_after:
            raise torch.AcceleratorError(f"{self.owner} is lost, as its script says")

    def _drain(self) -> None:
        while (entry := self._next()) is not None:
            if entry.due_ns == float("inf"):
                return
            while (early_ns := entry.due_ns - self._now_ns()) > 0:
                time.sleep(early_ns / 1e9)
            if entry.act is not None:
                entry.act()
            entry.passed.set()

    def _next(self) -> Entry | None:
        with self._changed:
            if not self._entries:
                self._changed.wait(_IDLE_S)
            if self._entries:
                return self._entries.popleft()
            self._drains = False
            return None


class QueueEvent:
    """torch.Event of the simulated queue; the script sets the speed of its clock."""

    def __init__(self, queue: Queue, clock: float = 1.0) -> None:
        self._queue = queue
        self._clock = clock
        self._entry: Entry | None = None

    def record(self) -> None:
        self._entry = self._queue.put()

    def query(self) -> bool:
        return self._recorded.passed.is_set()

    def synchronize(self) -> None:
        self._queue.wait_for(self._recorded)

    def elapsed_time(self, later: QueueEvent) -> float:
        if not (self.query() and later.query()):
            raise RuntimeError("elapsed time was requested before both marks were reached")
        return self._clock * (later._recorded.due_ns - self._recorded.due_ns) / 1e6

    @property
    def _recorded(self) -> Entry:
        if self._entry is None:
            raise RuntimeError("this mark was never recorded")
        return self._entry


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


class Flaws:
    """Counts calls of the faulty operators of a script, and flips bits in their results."""

    def __init__(self, script: Script) -> None:
        self._flips: dict[str, list[Flip]] = {}
        for flip in script.flips:
            self._flips.setdefault(flip.operator, []).append(flip)
        self._unsteady, self._ever_unsteady = script.unsteady_operators, script.ever_unsteady_operators
        self.names = {*self._flips, *self._unsteady, *self._ever_unsteady}
        self._calls: dict[str, int] = {}

    def apply(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Called after each call of one of `names`."""
        name = _name(operation)
        number = self._calls[name] = self._calls.get(name, 0) + 1
        written = _find_written(operation, args, kwargs) or result
        floating = [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        tensors = [tensor for tensor in floating if tensor.numel()]
        if not tensors:
            return
        for flip in self._flips.get(name, ()):
            if number in flip.at or (flip.every and number % flip.every == 0):
                _flip_bit(tensors[flip.tensor % len(tensors)], flip.place, flip.bit)
        deterministic = torch.are_deterministic_algorithms_enabled()
        if name in self._ever_unsteady or (name in self._unsteady and not deterministic):
            _flip_bit(tensors[0], number * 2654435761 >> 7, number % 2)  # scattered, and different each time


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
    bits, width = tensor.detach().view(_INTEGERS[tensor.itemsize]), 8 * tensor.itemsize
    bit %= width
    mask = -(1 << bit) if bit == width - 1 else 1 << bit
    where = torch.unravel_index(torch.tensor(place % tensor.numel()), bits.shape)
    bits[where] = bits[where] ^ mask


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_LAUNCH, _VIEW, _TO_HOST = range(3)
_READS_A_VALUE = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operation is a launch into the queue, and its tensors are in the device's memory."""

    _kinds: dict[Any, int] = {}  # noqa: RUF012 - a cache, the same for all

    def __init__(self, queue: Queue, memory: Memory, script: Script, flaws: Flaws, wide: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queue = queue
        self._memory = memory
        self._script = script
        self._flaws = flaws
        self._lies = bool(script.wrong_operators or script.unwritten_operators or script.missing_operators)
        self._wide = WideArithmetic() if wide else None  # type: ignore[no-untyped-call]
        inside = script.float32_inside
        self._inside = None if inside == "float32" else RoundedOperands(inside)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = self._kinds.get(operation)
        if kind is None:
            kind = self._kinds[operation] = _classify(operation)
        if self._lies and _name(operation) in self._script.missing_operators:
            raise NotImplementedError(_NO_OPERATOR.format(name=operation.name().partition(".")[0]))
        if kind != _LAUNCH:
            if kind == _TO_HOST:
                self._queue.synchronize()
                if operation.namespace == "c10d" and not self._script.exchanges:
                    _, *rest = operation(*tree_map_only(Tensor, Tensor.clone, args), **kwargs)
                    return args[0], *rest
            result = operation(*args, **kwargs)
            if self._flaws.names and operation.namespace == "c10d" and _name(operation) in self._flaws.names:
                result[-1].wait()
                self._flaws.apply(operation, args, kwargs, result)
            return result
        self._memory.hold(args)
        given = args if self._inside is None else self._inside.round_operands(operation, args)
        if self._lies and _name(operation) in self._script.unwritten_operators:
            given = tree_map_only(Tensor, Tensor.clone, given)
        began_ns = time.perf_counter_ns()
        if self._wide is None:
            result = operation(*given, **kwargs)
        else:
            result = self._wide.__torch_dispatch__(operation, types, given, kwargs)
        self._queue.launch(began_ns, time.perf_counter_ns() - began_ns)
        if self._lies and _name(operation) in self._script.wrong_operators:
            result = tree_map_only(Tensor, _enlarge, result)
        if self._flaws.names and _name(operation) in self._flaws.names:
            self._flaws.apply(operation, args, kwargs, result)
        self._memory.hold((result,))
        return result


_NO_OPERATOR = """Could not run '{name}' with arguments from the 'StandIn' backend. This could be because the operator \
doesn't exist for this backend, or was omitted during the selective/custom build process (if using custom build).

StandIn: fallthrough registered at standin_fallback.cpp:3 [backend fallback]
CPU: registered at aten/src/ATen/RegisterCPU.cpp:1 [kernel]"""
"""The message of torch, with the beginning of the dispatcher's table."""


def _name(operation: Any) -> str:
    """`relu` of `aten::relu.out`."""
    return str(operation.name().partition("::")[2].partition(".")[0])


def _enlarge(tensor: Tensor) -> Tensor:
    return tensor * 1.1 if tensor.is_floating_point() else tensor


def _classify(operation: Any) -> int:
    """Views launch nothing. Reading a value syncs; so does a collective, which gloo runs on the host."""
    if operation.namespace == "c10d" or operation in _READS_A_VALUE:
        return _TO_HOST
    aliases = [returned.alias_info for returned in operation._schema.returns]
    return _VIEW if any(alias is not None and not alias.is_write for alias in aliases) else _LAUNCH


def _make_late_memory(queue: Queue) -> type[Tensor]:
    """Host memory that the device writes to when it gets there; reading it does not wait."""

    class LateMemory(Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            if function is not Tensor.copy_:
                return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]
            into, source, *waits = args
            with torch._C.DisableTorchFunctionSubclass():
                plain, value = into.as_subclass(Tensor), source.detach().clone()
            entry = queue.put(lambda: plain.copy_(value))
            if not (waits[0] if waits else kwargs.get("non_blocking", False)):
                queue.wait_for(entry)
            return into

    return LateMemory
