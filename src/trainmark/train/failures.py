"""Explains the error that ended a rank: exit code, message, and whether another rank caused it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainmark.platforms import device_errors
from trainmark.record.errors import NO_PROCESSES, NotReadyError, TrainmarkError, WorkloadError, is_process_limit
from trainmark.record.events import Failed
from trainmark.workloads import outside

if TYPE_CHECKING:
    from trainmark.platforms.platform import Device

LOST_PEER = r"(?i)(connection (was )?(closed|reset|refused)|broken pipe|socket (closed|timeout)|remote process exited)"
"""What libraries of collectives raise when a peer is gone."""


class OutOfMemoryError(WorkloadError):
    """The device does not have enough memory for the batch."""


def make_failed_event(rank: int, error: BaseException) -> Failed:
    """The event of an error; its traceback goes to the log."""
    if isinstance(error, TrainmarkError):
        code, sentence = error.exit_code, str(error)
    elif is_process_limit(error):
        code, sentence = NotReadyError.exit_code, NO_PROCESSES
    elif plugin := device_errors.describe_broken_plugin(error):
        code, sentence = NotReadyError.exit_code, plugin
    elif device := device_errors.describe(error):
        code, sentence = WorkloadError.exit_code, device
    elif isinstance(error, KeyboardInterrupt):
        code, sentence = 130, "interrupted before the first step"
    elif own := outside.describe_error(error):
        code, sentence = WorkloadError.exit_code, own
    else:
        where = f" at {place}" if (place := device_errors.find_own_line(error)) else ""
        code, sentence = 1, f"unexpected {type(error).__name__}{where}: {device_errors.first_line(error)}"
    return Failed(
        rank=rank,
        exit_code=code,
        sentence=sentence,
        at_ns=time.perf_counter_ns(),
        consequence=is_consequence(error),
        out_of_memory=isinstance(error, OutOfMemoryError) or device_errors.is_out_of_memory(error),
    )


def is_consequence(error: BaseException) -> bool:
    """True for errors that only say that a peer is gone: its own error is the one to show."""
    return isinstance(error, RuntimeError) and re.search(LOST_PEER, str(error)) is not None


@contextmanager
def explain_out_of_memory(batch: int, device: Device) -> Iterator[None]:
    """The batch is never changed silently: the error suggests one to try."""
    try:
        yield
    except Exception as error:
        if device.is_out_of_memory(error):
            raise OutOfMemoryError(describe_out_of_memory(batch, device.peak_memory_bytes(), error)) from error
        raise


def describe_out_of_memory(batch: int, peak_bytes: int | None, error: BaseException) -> str:
    held = "" if peak_bytes is None else f" after holding {peak_bytes / 2**30:.2f} GiB"
    hint = f"try --set batch_per_device={batch // 2}" if batch > 1 else "the model does not fit"
    return f"out of memory with batch_per_device={batch}{held}: {device_errors.first_line(error)}; {hint}"
