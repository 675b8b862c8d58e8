"""Kills a process at every file it opens, moves or removes, and in the middle of what it writes."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator

_AIMED = ("open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree")


def every_kill(
    prepare: Callable[[], None], act: Callable[[], object], *, within: str, bytes_each: int = 997
) -> Iterator[str]:
    """Does `act` in a process of its own that dies at one moment after another; after each, yields which it was.

    Moments are those of files whose path holds `within`. `prepare` makes everything as it was before.
    """
    for number in itertools.count():
        prepare()
        if not _died(act, lambda number=number: kill_at(number, within)):
            break
        yield f"before file operation {number}"
    assert number, "nothing was aimed at"
    for size in itertools.count(0, bytes_each):
        prepare()
        if not _died(act, lambda size=size: kill_beyond(size)):
            return
        yield f"{size} bytes into a file"


def _died(act: Callable[[], object], arm: Callable[[], None]) -> bool:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            arm()
            act()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed by itself"
    return os.WIFSIGNALED(status)


def kill_at(number: int, within: str) -> None:
    seen = itertools.count()

    def hook(event: str, args: tuple[object, ...]) -> None:
        paths = [os.fsdecode(arg) for arg in args if isinstance(arg, (str, bytes, os.PathLike))]
        if event in _AIMED and any(within in path for path in paths) and next(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kill_beyond(size: int) -> None:
    """The kernel writes as much as may be, and then kills."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
