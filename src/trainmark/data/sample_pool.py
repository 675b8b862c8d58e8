"""Worker processes that write samples into batches in shared memory."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import math
import mmap
import multiprocessing
import os
import selectors
import signal
import struct
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from trainmark.data.distributed_sampler import BatchShare
from trainmark.data.jpeg import BadImage
from trainmark.record import cores
from trainmark.record.cores import end_with_parent
from trainmark.record.errors import NotReadyError, WorkloadError

Transform = Literal["train", "eval"]

_TASK = struct.Struct("<iiii")  # generation, slot, first row, last row; 16 bytes, written to a pipe atomically
_TASKS_PER_WRITE = 4096 // _TASK.size  # written to a pipe atomically
_MAX_CHUNK = 16
_TASKS_PER_WORKER = 2  # per batch: each task costs a wake-up on both sides, and larger ones read more samples ahead
_JOIN_TIMEOUT_S = 5.0
_TRAINER_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def default_workers(local_ranks: int) -> int:
    """Workers per rank: its share of the cores less one for itself."""
    return max(1, min(16, cores.count_usable_cores() // local_ranks - 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleKey:
    """A sample of a set, and in training its random view."""

    set_number: int
    index: int
    is_random: bool
    seed: int
    epoch: int
    view: int


class SampleSet(Protocol):
    """What the pool needs of a set: a sample's path, for messages."""

    def path(self, index: int, /) -> str: ...


Made = TypeVar("Made", covariant=True)
Pool = TypeVar("Pool", bound="SamplePool[Any]")
Row = Mapping[str, npt.NDArray[Any]]
"""One sample's arrays in shared memory, by plane."""


class SampleMaker(Protocol[Made]):
    """Makes samples in workers, which inherit it by fork, and batches of them."""

    @property
    def planes(self) -> Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]:
        """Shape and type of a sample's arrays, by name."""

    def read(self, sample: SampleKey, /) -> Any:
        """Reads what `make` needs; BadImage or OSError if it cannot be read.

        Several samples are read before the first is made: decoding evicts from the processor's caches what reading
        needs, so alternating would be slower.
        """

    def make(self, sample: SampleKey, read: Any, row: Row, /) -> None:
        """Fills a row; BadImage if the data is invalid."""

    def batch(
        self, set_number: int, rows: Mapping[str, torch.Tensor], indices: npt.NDArray[np.int64], global_count: int, /
    ) -> Made:
        """The batch of finished rows, which are views of shared memory."""


class SamplePool(Generic[Made]):
    """Worker processes and a ring of shared batch slots, for one rank and a whole run.

    Create it early and in the main thread: the workers are forked, so no device may be open yet, and they end with the
    thread that created them. Memory is (depth + 1 + hold) batches, whatever the size of the data set.
    """

    def __init__(
        self,
        sets: Mapping[str, SampleSet],
        maker: SampleMaker[Made],
        *,
        workers: int,
        batch_capacity: int,
        depth: int = 2,
        hold: int = 0,
        skip_bad: int = 0,
    ) -> None:
        """Forks `workers` processes (0: make samples in this one). The maker identifies sets by position.

        depth: batches prefetched beyond the one in use.
        hold: batches that stay valid after the next is requested, for asynchronous copies to a device.
        skip_bad: unreadable files that may be skipped over the pool's life.
        """
        if min(workers, hold, skip_bad) < 0 or min(batch_capacity, depth) < 1:
            raise ValueError("an input pool needs workers, hold and skip_bad >= 0, batch_capacity and depth >= 1")
        self.skipped: list[tuple[str, str]] = []
        """(path, reason) of every file skipped so far."""
        self._sets = dict(sets)
        self._workers = workers
        self._hold = hold
        self._skip_bad = skip_bad
        self._ring = _Ring(depth + 1 + hold, batch_capacity, maker.planes)
        self._slots = [_Slot(number) for number in range(depth + 1 + hold)]
        self._maker = maker
        self._job = _Job(maker=maker, ring=self._ring)
        self._lent: deque[_Slot] = deque()
        self._generation = 0
        self._decoders: _DecodeWorkers | None = None
        if workers:
            self._decoders = _DecodeWorkers(self._job, workers)
            # for a pool that is not closed; multiprocessing's own hook, which would wait for ever on workers that
            # ignore SIGTERM, was registered before and so runs after
            self._shut_down = weakref.finalize(self, self._decoders.stop)
            self._shut_down.atexit = False
            atexit.register(self._shut_down)

    def batches(
        self, set_name: str, shares: Iterable[BatchShare], *, transform: Transform, seed: int = 0, epoch: int = 0
    ) -> Iterator[Made]:
        """The shares as decoded batches, in order; decoding starts now and prefetches `depth` batches.

        A batch's images are valid until the next batch is requested (`hold` batches longer), of this iterator or
        another. Only one iterator is alive at a time: a new one abandons the one before.
        """
        if self._ring.closed:
            raise ValueError("this input pool is closed")
        if set_name not in self._sets:
            raise ValueError(f"no set named {set_name!r} in this input pool; it has {', '.join(self._sets)}")
        if transform not in ("train", "eval"):
            raise ValueError(f"no transform named {transform!r}; there are 'train' and 'eval'")
        self._cancel()
        self._drain()
        self._reclaim()
        number = list(self._sets).index(set_name)
        batches = _Batches(self, self._sets[set_name], iter(shares), (number, transform == "train", seed, epoch))
        batches.post()
        return batches

    def close(self) -> None:
        """Ends the workers and frees the memory once no batch uses it; may be called twice."""
        self._cancel()
        if self._decoders is not None:
            self._shut_down()
            atexit.unregister(self._shut_down)
        self._ring.drop()

    def __enter__(self: Pool) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cancel(self) -> None:
        """Cancels the current iterator, if any: workers drop tasks of an older generation."""
        self._generation += 1
        self._ring.generation[0] = self._generation

    def _drain(self) -> None:
        """Frees every slot, waiting for workers to drop cancelled tasks."""
        while self._decoders is not None and any(slot.pending for slot in self._slots):
            self._receive(self._decoders)
        for slot in self._slots:
            slot.clear()

    def _reclaim(self) -> list[_Slot]:
        """Reclaims every lent batch but the `hold` latest; returns their slots."""
        return [self._lent.popleft() for _ in range(len(self._lent) - self._hold)]

    def _post(self, slot: _Slot, share: BatchShare, how: tuple[int, int, int, int]) -> None:
        """Sends a share to the workers, to be decoded into a free slot."""
        count = len(share.indices)
        if count > self._ring.capacity:
            raise ValueError(f"a batch of {count} does not fit the pool's batch_capacity of {self._ring.capacity}")
        slot.clear()
        slot.share = share
        self._ring.write_request(slot.number, share, how)
        chunk = max(1, min(_MAX_CHUNK, math.ceil(count / (_TASKS_PER_WORKER * max(1, self._workers)))))
        tasks = [(self._generation, slot.number, first, min(first + chunk, count)) for first in range(0, count, chunk)]
        slot.pending = len(tasks)
        if self._decoders is not None:
            self._decoders.send(tasks)

    def _finish(self, slot: _Slot) -> None:
        """Waits until every image of the slot is decoded or known to be bad."""
        if self._decoders is None:
            rows = len(slot.share.indices)
            slot.bad = _make_rows(self._job, slot.number, 0, rows, self._generation)
            return
        while slot.pending:
            self._receive(self._decoders)

    def _receive(self, decoders: _DecodeWorkers) -> None:
        """Processes the workers' answers, waiting for at least one."""
        crashes = []
        for number, bad, crash in decoders.receive():
            self._slots[number].pending -= 1
            self._slots[number].bad.extend((row, reason) for row, reason in bad)
            if crash:
                crashes.append(crash)
        if crashes:
            raise RuntimeError(f"a decode worker failed:\n{crashes[0]}")

    def _drop_bad_rows(self, sample_set: SampleSet, slot: _Slot) -> npt.NDArray[np.int64]:
        """The sample indices without bad files; raises once there are more than allowed."""
        indices: npt.NDArray[np.int64] = slot.share.indices
        if not slot.bad:
            return indices
        known = {path for path, _ in self.skipped}
        for row, reason in sorted(slot.bad):
            path = sample_set.path(int(indices[row]))
            if path in known:
                continue
            if len(known) >= self._skip_bad:
                allowed = f" (skip-bad allows {self._skip_bad} and all are used up)" if self._skip_bad else ""
                raise WorkloadError(f"image {path} cannot be read: {reason}{allowed}")
            known.add(path)
            self.skipped.append((path, reason))
        good = np.setdiff1d(np.arange(len(indices)), [row for row, _ in slot.bad])
        if not len(good):
            raise WorkloadError(f"no image of a batch of {len(indices)} can be read, the last is {path}: {reason}")
        for plane in self._ring.planes.values():
            rows = plane[slot.number]
            rows[: len(good)] = rows[good]
        kept: npt.NDArray[np.int64] = indices[good]
        return kept


class _Batches(Iterator[Made]):
    """One pass over some shares, with the slots it decodes into."""

    def __init__(
        self,
        pool: SamplePool[Made],
        sample_set: SampleSet,
        shares: Iterator[BatchShare],
        how: tuple[int, int, int, int],
    ) -> None:
        self._pool = pool
        self._set = sample_set
        self._shares = shares
        self._how = how
        self._generation = pool._generation
        self._free = deque(slot for slot in pool._slots if slot not in pool._lent)
        self._prefetched: deque[_Slot] = deque()

    def post(self) -> None:
        """Starts decoding into every free slot."""
        while self._free:
            share = next(self._shares, None)
            if share is None:
                return
            slot = self._free.popleft()
            self._pool._post(slot, share, self._how)
            self._prefetched.append(slot)

    def __next__(self) -> Made:
        pool = self._pool
        if pool._generation != self._generation:
            raise RuntimeError("these batches were abandoned when the pool was closed or another iterator was started")
        self._free.extend(pool._reclaim())
        self.post()
        if not self._prefetched:
            raise StopIteration
        slot = self._prefetched.popleft()
        try:
            pool._finish(slot)
            indices = pool._drop_bad_rows(self._set, slot)
        except BaseException:
            pool._cancel()  # continuing after a failure would silently skip a batch
            raise
        pool._lent.append(slot)
        rows = {name: slots[slot.number][: len(indices)] for name, slots in pool._ring.tensors.items()}
        return pool._maker.batch(self._how[0], rows, indices, slot.share.global_count)


_EMPTY_SHARE = BatchShare(indices=np.empty(0, np.int64), global_count=0)


class _Slot:
    """The trainer's state of one batch slot."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.clear()

    def clear(self) -> None:
        self.share = _EMPTY_SHARE
        self.pending = 0
        """Chunks sent to the workers and not yet answered."""
        self.bad: list[tuple[int, str]] = []


class _Ring:
    """The shared memory: samples, and the requests for them.

    Mapped anonymously, so nothing is left behind however the processes end.
    """

    def __init__(self, slots: int, capacity: int, planes: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]) -> None:
        self.capacity = capacity
        self.closed = False
        self.generation = _allocate_shared((1,), np.int64)
        """Tasks of another generation are dropped; one aligned word, so no lock is needed."""
        self.how = _allocate_shared((slots, 4), np.int64)
        """Per slot: set number, whether to crop at random, seed, epoch."""
        self.indices = _allocate_shared((slots, capacity), np.int64)
        self.views = _allocate_shared((slots, capacity), np.int64)
        self.planes = {
            name: _allocate_shared((slots, capacity, *shape), dtype) for name, (shape, dtype) in planes.items()
        }
        self.tensors = {name: [torch.from_numpy(slot) for slot in plane] for name, plane in self.planes.items()}

    def drop(self) -> None:
        """Releases the samples; the memory is freed once no batch uses it."""
        self.closed = True
        self.planes.clear()
        self.tensors.clear()

    def write_request(self, slot: int, share: BatchShare, how: tuple[int, int, int, int]) -> None:
        self.how[slot] = how
        self.indices[slot, : len(share.indices)] = share.indices
        self.views[slot, : len(share.indices)] = 0 if share.views is None else share.views


def _allocate_shared(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size_bytes), dtype=dtype).reshape(shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """State that a worker inherits; the maker's buffers are copied on write."""

    maker: SampleMaker[Any]
    ring: _Ring


def _make_rows(job: _Job, slot: int, first: int, last: int, generation: int) -> list[tuple[int, str]]:
    """Makes rows [first, last) of a slot in place; returns unreadable rows with the reason."""
    ring = job.ring
    set_number, is_random, seed, epoch = ring.how[slot].tolist()
    indices, views = ring.indices[slot, first:last].tolist(), ring.views[slot, first:last].tolist()
    bad: list[tuple[int, str]] = []
    found: list[tuple[int, SampleKey, Any]] = []
    for row, index, view in zip(range(first, last), indices, views, strict=True):
        if ring.generation[0] != generation:
            return bad  # this batch was cancelled
        sample = SampleKey(
            set_number=set_number,
            index=index,
            is_random=bool(is_random),
            seed=seed,
            epoch=epoch,
            view=view,
        )
        try:
            found.append((row, sample, job.maker.read(sample)))
        except BadImage as error:
            bad.append((row, str(error)))
        except OSError as error:
            bad.append((row, error.strerror or str(error)))
    for row, sample, read in found:
        if ring.generation[0] != generation:
            break
        try:
            job.maker.make(sample, read, {name: plane[slot, row] for name, plane in ring.planes.items()})
        except BadImage as error:
            bad.append((row, str(error)))
    return bad


class _DecodeWorkers:
    """The worker processes and the pipes to them.

    All workers read tasks from one pipe, so that a slow one takes fewer; each answers on its own, so that its death is
    noticed as EOF.
    """

    def __init__(self, job: _Job, workers: int) -> None:
        self._owner_pid = os.getpid()
        self._task_reader, self._task_writer = _pipe()
        os.set_blocking(self._task_writer, False)
        self._backlog: deque[bytes] = deque()
        self._answers: dict[int, tuple[int, Connection]] = {}
        self._processes: list[ForkProcess] = []
        self._selector = selectors.DefaultSelector()
        context = multiprocessing.get_context("fork")
        for number in range(workers):
            reader, writer = _pipe()
            self._answers[reader] = (number, Connection(reader, writable=False))
            self._selector.register(reader, selectors.EVENT_READ)
            ours = [self._task_writer, *self._answers]
            process = context.Process(
                target=_work,
                args=(job, self._task_reader, writer, ours, self._owner_pid),
                name=f"trainmark-decode-{number}",
                daemon=True,
            )
            try:
                _start(process)
            except OSError as error:
                self.stop()
                raise NotReadyError(f"decode worker {number} cannot be started: {error.strerror}") from error
            finally:
                os.close(writer)
            self._processes.append(process)

    def send(self, tasks: list[tuple[int, int, int, int]]) -> None:
        self._backlog.extend(_TASK.pack(*task) for task in tasks)
        self._flush()

    def receive(self) -> list[tuple[int, list[tuple[int, str]], str]]:
        """Waits for an answer; returns (slot, bad rows, crash) of each."""
        self._flush()
        answers = []
        for key, _ in self._selector.select():
            number, connection = self._answers[key.fd]
            try:
                answers.append(json.loads(connection.recv_bytes()))
            except (EOFError, OSError) as error:
                raise WorkloadError(self._describe_death(number)) from error
        return answers

    def stop(self) -> None:
        """Kills every worker (it holds nothing that could be lost) and reaps it."""
        if os.getpid() != self._owner_pid:
            return  # in a forked child: the workers are not its own
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(_JOIN_TIMEOUT_S)
        self._processes.clear()
        self._selector.close()
        for _, connection in self._answers.values():
            connection.close()
        self._answers.clear()
        for end in (self._task_reader, self._task_writer):
            os.close(end)

    def _flush(self) -> None:
        # never blocks: the trainer must stay free to receive answers, or both sides could deadlock
        while self._backlog:
            some = [self._backlog[i] for i in range(min(len(self._backlog), _TASKS_PER_WRITE))]
            try:
                os.write(self._task_writer, b"".join(some))
            except BlockingIOError:
                return
            for _ in some:
                self._backlog.popleft()

    def _describe_death(self, number: int) -> str:
        process = self._processes[number]
        process.join(_JOIN_TIMEOUT_S)
        code = process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (the machine may be out of memory)"
        else:
            how = f"ended with exit code {code}"
        return f"decode worker {number} (pid {process.pid}) {how}; no further batches can be made"


def _start(process: ForkProcess) -> None:
    # signals are blocked until the child has installed its handlers
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TRAINER_SIGNALS)
    try:
        with warnings.catch_warnings():
            # newer Pythons warn of fork with threads: the child uses no lock that a thread could hold
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are not 0, 1 or 2, even if those were closed."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))
        os.close(end)
    return ends[0], ends[1]


def _work(job: _Job, tasks: int, answers: int, not_mine: list[int], parent_pid: int) -> None:
    """A worker's loop: takes a task, decodes it in place, answers; ends with the trainer."""
    end_with_parent(parent_pid)
    # the trainer handles these, and may need one more batch to finish its step; it ends workers with SIGKILL
    for number in _TRAINER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TRAINER_SIGNALS)
    for end in not_mine:
        os.close(end)
    torch.set_num_threads(1)
    with contextlib.suppress(BrokenPipeError), Connection(answers, readable=False) as answer:
        while task := os.read(tasks, _TASK.size):
            generation, slot, first, last = _TASK.unpack(task)
            bad: list[tuple[int, str]] = []
            crash = ""
            try:
                bad = _make_rows(job, slot, first, last, generation)
            except Exception:
                crash = traceback.format_exc()
            answer.send_bytes(json.dumps([slot, bad, crash]).encode())
