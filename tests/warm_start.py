"""Starts `trainmark` as processes of their own from one that has imported torch already.

Importing it takes longer than most commands do, and the tests start hundreds of them. A process that is forked off gets
its own words, variables and streams, and ends like any other; its workers start from nothing, as they do for a user.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

DECIDED_AT_START = ("PYTHON", "LC_", "LANG")
"""Variables an interpreter reads only when it starts: with other ones than ours a process cannot be forked off."""


class WarmStart:
    """A server beside the tests that forks a process for every command."""

    def __init__(self, folder: Path) -> None:
        self._address = folder / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._address))
        listener.listen()
        with listener:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONWARNINGS": ""},
            )

    def serves(self, environment: Mapping[str, str]) -> bool:
        def early(variables: Mapping[str, str]) -> dict[str, str]:
            return {name: value for name, value in variables.items() if name.startswith(DECIDED_AT_START)}

        return early(environment) == {**early(os.environ), "PYTHONWARNINGS": ""}

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], *, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self._address))
            asked = json.dumps({"words": list(words), "environment": dict(environment), "folder": str(Path.cwd())})
            socket.send_fds(line, [len(asked.encode()).to_bytes(8, "little")], [out.fileno(), err.fileno()])
            line.sendall(asked.encode())
            pid = int(_exactly(line, 8))
            line.settimeout(timeout_s)
            try:
                code = int(_exactly(line, 8))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), timeout_s, *map(_read, (out, err))) from None
            return subprocess.CompletedProcess(list(words), code, *map(_read, (out, err)))

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()


def _read(stream: io.BufferedRandom) -> str:
    stream.seek(0)
    return stream.read().decode().replace("\r\n", "\n")


def _exactly(line: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = line.recv(count - len(got))
        if not more:
            raise EOFError("the process that starts commands went away")
        got += more
    return got


def _serve(listener: socket.socket) -> int:
    """Two processes a command: one runs it, its parent waits for it and says how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those parents end
    while True:
        line, _ = listener.accept()
        if os.fork():
            line.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, (out, err), _, _ = socket.recv_fds(line, 8, 2)
        asked = json.loads(_exactly(line, int.from_bytes(head, "little")))
        pid = os.fork()
        if not pid:
            line.close()
            return _command(asked, out, err)
        with contextlib.suppress(BrokenPipeError):
            line.sendall(b"%8d" % pid)
            line.sendall(b"%8d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)


def _command(asked: Mapping[str, object], out: int, err: int) -> int:
    from trainmark.cli.main import main

    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, out, err)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    os.chdir(str(asked["folder"]))
    sys.argv = ["trainmark", *asked["words"]]  # type: ignore[misc]
    return main()


def _warm_up() -> None:
    import torch.distributed.elastic.multiprocessing.errors  # noqa: F401

    from trainmark import workloads
    from trainmark.cli import main, progress  # noqa: F401
    from trainmark.results import describe, table  # noqa: F401
    from trainmark.run import check, fill, gather, launch, planning  # noqa: F401

    for name in workloads.NAMES:
        workloads.load(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from trainmark.data.lifeline import end_with_parent

    end_with_parent(os.getppid())
    _warm_up()
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
