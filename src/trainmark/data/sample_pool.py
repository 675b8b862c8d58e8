"""Worker processes that write samples into batches in shared memory."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import selectors
import signal
import struct
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from trainmark.data.distributed_sampler import BatchShare
from trainmark.data.jpeg import BadImage
from trainmark.record import cores
from trainmark.record.cores import end_with_parent
from trainmark.record.errors import NotReadyError, WorkloadError

Transform = Literal["train", "eval"]

DEPTH = 2
"""Batches prefetched beyond the one in use."""

_TASK = struct.Struct("<iiii")  # generation, slot, first row, last row
_MAX_CHUNK = 16
_TASKS_PER_WORKER = 2  # per batch: each task costs a wake-up on both sides, and larger ones read more samples ahead
_MAX_TASKS = 1000  # per batch: those of all slots fit into a pipe, so that writing them never blocks
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
    thread that created them. Memory is DEPTH + 1 batches, whatever the size of the data set.
    """

    def __init__(
        self,
        sets: Mapping[str, SampleSet],
        maker: SampleMaker[Made],
        *,
        workers: int,
        batch_capacity: int,
        skip_bad: int = 0,
    ) -> None:
        """Forks `workers` processes (0: make samples in this one). The maker identifies sets by position.

        skip_bad: unreadable files that may be skipped over the pool's life.
        """
        self.skipped: list[tuple[str, str]] = []
        """(path, reason) of every file skipped so far."""
        self._sets = dict(sets)
        self._skip_bad = skip_bad
        self._ring = _Ring(batch_capacity, maker)
        self._slots = [_Slot(number=number) for number in range(DEPTH + 1)]
        self._generation = 0
        self._tasks_per_batch = _TASKS_PER_WORKER * max(1, workers)
        self._decoders = _DecodeWorkers(self._ring, workers) if workers else None
        if self._decoders is not None:
            self._stop = weakref.finalize(self, self._decoders.stop)  # also if the pool is not closed

    def batches(
        self, set_name: str, shares: Iterable[BatchShare], *, transform: Transform, seed: int = 0, epoch: int = 0
    ) -> Iterator[Made]:
        """The shares as decoded batches, in order; decoding starts now and prefetches `DEPTH` batches.

        A batch's images are valid until the next batch is requested, of this iterator or another. Only one iterator is
        alive at a time: a new one abandons the one before.
        """
        if not self._ring.planes:
            raise ValueError("this input pool is closed")
        self._cancel()
        while self._decoders is not None and any(slot.pending for slot in self._slots):
            self._receive(self._decoders)  # workers drop cancelled tasks
        how = (list(self._sets).index(set_name), int(transform == "train"), seed, epoch)
        waiting = iter(shares)
        posted = deque(slot for slot in self._slots if self._post(slot, next(waiting, None), how))
        return self._iterate(self._generation, self._sets[set_name], waiting, how, posted)

    def _iterate(
        self,
        generation: int,
        sample_set: SampleSet,
        waiting: Iterator[BatchShare],
        how: tuple[int, int, int, int],
        posted: deque[_Slot],
    ) -> Iterator[Made]:
        used: _Slot | None = None
        while True:
            if self._generation != generation:
                raise RuntimeError("these batches were abandoned: the pool was closed or another iterator was started")
            if used is not None and self._post(used, next(waiting, None), how):
                posted.append(used)
            if not posted:
                return
            used = posted.popleft()
            self._finish(used)
            indices = self._drop_bad_rows(sample_set, used)
            rows = {name: slots[used.number][: len(indices)] for name, slots in self._ring.tensors.items()}
            yield self._ring.maker.batch(how[0], rows, indices, used.share.global_count)

    def close(self) -> None:
        """Ends the workers and frees the memory once no batch uses it; may be called twice."""
        self._cancel()
        if self._decoders is not None:
            self._stop()
        self._ring.planes.clear()
        self._ring.tensors.clear()

    def _cancel(self) -> None:
        """Cancels the current iterator, if any: workers drop tasks of an older generation."""
        self._generation += 1
        self._ring.generation[0] = self._generation

    def _post(self, slot: _Slot, share: BatchShare | None, how: tuple[int, int, int, int]) -> bool:
        """Sends a share to the workers, to be decoded into a free slot; False if there is none."""
        if share is None:
            return False
        count = len(share.indices)
        if count > self._ring.capacity:
            raise ValueError(f"a batch of {count} does not fit the pool's batch_capacity of {self._ring.capacity}")
        slot.share, slot.bad = share, []
        self._ring.write_request(slot.number, share, how)
        if self._decoders is not None:
            chunk = max(1, min(_MAX_CHUNK, math.ceil(count / self._tasks_per_batch)), math.ceil(count / _MAX_TASKS))
            firsts = range(0, count, chunk)
            slot.pending = len(firsts)
            self._decoders.send([(self._generation, slot.number, first, min(first + chunk, count)) for first in firsts])
        return True

    def _finish(self, slot: _Slot) -> None:
        """Waits until every image of the slot is decoded or known to be bad."""
        if self._decoders is None:
            slot.bad = _make_rows(self._ring, slot.number, 0, len(slot.share.indices), self._generation)
            return
        while slot.pending:
            self._receive(self._decoders)

    def _receive(self, decoders: _DecodeWorkers) -> None:
        """Processes the workers' answers, waiting for at least one."""
        crashes = []
        for number, bad, crash in decoders.receive():
            self._slots[number].pending -= 1
            self._slots[number].bad += bad
            crashes += [crash] if crash else []
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


_EMPTY_SHARE = BatchShare(indices=np.empty(0, np.int64), global_count=0)


@dataclass(kw_only=True)
class _Slot:
    """The trainer's state of one batch slot."""

    number: int
    share: BatchShare = _EMPTY_SHARE
    pending: int = 0
    """Chunks sent to the workers and not yet answered."""
    bad: list[tuple[int, str]] = field(default_factory=list)


class _Ring:
    """What workers inherit: the maker, and shared memory for samples and the requests for them.

    Mapped anonymously, so nothing is left behind however the processes end.
    """

    def __init__(self, capacity: int, maker: SampleMaker[Any]) -> None:
        self.maker, self.capacity = maker, capacity
        self.generation = _allocate_shared((1,), np.int64)
        """Tasks of another generation are dropped; one aligned word, so no lock is needed."""
        slots = DEPTH + 1
        self.how = _allocate_shared((slots, 4), np.int64)
        """Per slot: set number, whether to crop at random, seed, epoch."""
        self.indices = _allocate_shared((slots, capacity), np.int64)
        self.views = _allocate_shared((slots, capacity), np.int64)
        self.planes = {
            name: _allocate_shared((slots, capacity, *shape), dtype) for name, (shape, dtype) in maker.planes.items()
        }
        self.tensors = {name: [torch.from_numpy(slot) for slot in plane] for name, plane in self.planes.items()}

    def write_request(self, slot: int, share: BatchShare, how: tuple[int, int, int, int]) -> None:
        self.how[slot] = how
        self.indices[slot, : len(share.indices)] = share.indices
        self.views[slot, : len(share.indices)] = 0 if share.views is None else share.views


def _allocate_shared(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size_bytes), dtype=dtype).reshape(shape)


def _make_rows(ring: _Ring, slot: int, first: int, last: int, generation: int) -> list[tuple[int, str]]:
    """Makes rows [first, last) of a slot in place; returns unreadable rows with the reason."""
    set_number, is_random, seed, epoch = ring.how[slot].tolist()
    indices, views = ring.indices[slot, first:last].tolist(), ring.views[slot, first:last].tolist()
    bad: list[tuple[int, str]] = []
    found: list[tuple[int, SampleKey, Any]] = []
    for row, index, view in zip(range(first, last), indices, views, strict=True):
        if ring.generation[0] != generation:
            return bad  # this batch was cancelled
        sample = SampleKey(
            set_number=set_number, index=index, is_random=bool(is_random), seed=seed, epoch=epoch, view=view
        )
        try:
            found.append((row, sample, ring.maker.read(sample)))
        except BadImage as error:
            bad.append((row, str(error)))
        except OSError as error:
            bad.append((row, error.strerror or str(error)))
    for row, sample, read in found:
        if ring.generation[0] != generation:
            break
        try:
            ring.maker.make(sample, read, {name: plane[slot, row] for name, plane in ring.planes.items()})
        except BadImage as error:
            bad.append((row, str(error)))
    return bad


class _DecodeWorkers:
    """The worker processes and the pipes to them.

    All workers read tasks from one pipe, so that a slow one takes fewer; each answers on its own, so that its death is
    noticed as EOF.
    """

    def __init__(self, ring: _Ring, workers: int) -> None:
        self._owner_pid = os.getpid()
        self._task_reader, self._task_writer = os.pipe()
        self._pids: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        for number in range(workers):
            reader, writer = Pipe(duplex=False)
            self._selector.register(reader, selectors.EVENT_READ, number)
            try:
                self._pids[number] = _fork(ring, self._task_reader, writer)
            except OSError as error:
                self.stop()
                raise NotReadyError(f"decode worker {number} cannot be started: {error.strerror}") from error
            finally:
                writer.close()

    def send(self, tasks: list[tuple[int, int, int, int]]) -> None:
        os.write(self._task_writer, b"".join(_TASK.pack(*task) for task in tasks))

    def receive(self) -> list[tuple[int, list[tuple[int, str]], str]]:
        """Waits for an answer; returns (slot, bad rows, crash) of each."""
        answers = []
        for key, _ in self._selector.select():
            connection: Any = key.fileobj
            try:
                answers.append(connection.recv())
            except (EOFError, OSError) as error:
                raise WorkloadError(self._describe_death(key.data)) from error
        return answers

    def stop(self) -> None:
        """Kills every worker (it holds nothing that could be lost) and reaps it."""
        if os.getpid() != self._owner_pid:
            return  # in a forked child: the workers are not its own
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._pids.clear()
        for key in self._selector.get_map().values():
            connection: Any = key.fileobj
            connection.close()
        self._selector.close()
        for end in (self._task_reader, self._task_writer):
            os.close(end)

    def _describe_death(self, number: int) -> str:
        pid = self._pids.pop(number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            how += " (the machine may be out of memory)"
        return f"decode worker {number} (pid {pid}) {how}; no further batches can be made"


def _fork(ring: _Ring, tasks: int, answer: Connection) -> int:
    """Starts a worker and returns its process id."""
    parent_pid = os.getpid()
    # blocked until the child ignores them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TRAINER_SIGNALS)
    try:
        with warnings.catch_warnings():
            # newer Pythons warn of fork with threads: the child uses no lock that a thread could hold
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _work(ring, tasks, answer, parent_pid)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(ring: _Ring, tasks: int, answer: Connection, parent_pid: int) -> NoReturn:
    """A worker's loop: takes a task, decodes it in place, answers; ends with the trainer."""
    try:
        end_with_parent(parent_pid)
        # the trainer handles these, and may need one more batch to finish its step; it ends workers with SIGKILL
        for number in _TRAINER_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TRAINER_SIGNALS)
        torch.set_num_threads(1)
        with contextlib.suppress(BrokenPipeError):
            while task := os.read(tasks, _TASK.size):
                generation, slot, first, last = _TASK.unpack(task)
                bad: list[tuple[int, str]] = []
                crash = ""
                try:
                    bad = _make_rows(ring, slot, first, last, generation)
                except Exception:
                    crash = traceback.format_exc()
                answer.send((slot, bad, crash))
    finally:
        os._exit(1)  # never back into the trainer's code
