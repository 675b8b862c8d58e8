"""Starts `trainmark` and its ranks as processes of their own from one that has imported torch already.

Importing it takes longer than most commands do, and the tests start hundreds of processes. One that is forked off gets
its own words, variables and streams, its own network and name where it is to run on another host, and ends like any
other. What ssh, Slurm, Kubernetes or torchrun start is a Python of their own that hands its words over here
(`handing_over`); one test of ssh and one of Slurm start every process from nothing, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

from trainmark.platforms import files

DECIDED_AT_START = ("PYTHON", "LC_", "LANG")
"""Variables an interpreter reads only when it starts: with other ones than ours a process cannot be forked off."""
WARM = ("trainmark.train.worker", "trainmark.launch.sampler", "trainmark.doctor.collective_check")
"""Modules that a command which starts them as programs gets forked off, too."""
STARTING = ("run", "reproduce", "doctor", "verify", "platform")
"""Commands that do."""
_PR_SET_CHILD_SUBREAPER, _PR_SET_DUMPABLE = 36, 4


class WarmStart:
    """A server beside the tests that forks a process for every command."""

    def __init__(self, folder: Path) -> None:
        self.address = folder / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.address))
        self.address.chmod(0o666)  # users of other hosts ask, too; whom the folder keeps out cannot
        listener.listen()
        with listener:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                # what ranks on a CPU begin with; a process that is forked off cannot have other settings of these
                env={**os.environ, **files.load("cpu").host_settings, "PYTHONWARNINGS": ""},
            )

    @property
    def handing_over(self) -> dict[str, str]:
        """Variables under which whatever starts `trainmark` gets it from here."""
        return {"PYTHONPATH": str(Path(__file__).parent / "handing_over"), "WARM_START": str(self.address)}

    def serves(self, environment: Mapping[str, str]) -> bool:
        def early(variables: Mapping[str, str]) -> dict[str, str]:
            return {
                name: value
                for name, value in variables.items()
                if name.startswith(DECIDED_AT_START) and name != "PYTHONPATH"
            }

        return early(environment) == {**early(os.environ), "PYTHONWARNINGS": ""}

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        like: int | None = None,
        streams: Sequence[int] | None = None,
    ) -> Warm:
        """`like` is a process whose network, name and mounts it shall have; `streams` are where it reads, writes and
        complains, if that is not to be kept for `communicate`."""
        return Warm(self.address, words, environment, like, streams)

    @contextlib.contextmanager
    def starting_programs(self) -> Iterator[None]:
        """In which the process of the tests itself has its ranks forked off, as commands have."""
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(self.address))
        _send(line, {"words": None}, [])
        cold = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        try:
            with line:
                _have_forked(line)
                yield
        finally:
            subprocess.Popen._execute_child = cold  # type: ignore[attr-defined]

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()


SERVER: WarmStart | None = None
"""That of this session of tests, once it has begun."""


class Warm:
    """A command that was forked off, with as much of `subprocess.Popen` as tests need."""

    def __init__(
        self,
        address: Path,
        words: Sequence[str],
        environment: Mapping[str, str],
        like: int | None = None,
        streams: Sequence[int] | None = None,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._streams: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed in the end
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(address))
        asked = {"words": self.args, "environment": dict(environment), "folder": str(Path.cwd()), "like": like}
        with Path(os.devnull).open("rb") as nothing:
            kept = [nothing.fileno(), *(stream.fileno() for stream in self._streams)]
            _send(self._line, asked, kept if streams is None else streams)
        self.pid = int(_exactly(self._line, 8))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0005)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = int(_exactly(self._line, 8))  # sent as one, so that it comes whole or not at all
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._line.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        out, err = map(_read, self._streams)
        return out, err

    def __del__(self) -> None:
        for opened in (*self._streams, self._line):
            opened.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace").replace("\r\n", "\n")


def _send(line: socket.socket, message: Mapping[str, Any], streams: Sequence[int]) -> None:
    text = json.dumps(message).encode()
    socket.send_fds(line, [len(text).to_bytes(8, "little")], list(streams))
    line.sendall(text)


def _receive(line: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """None where the other side has gone."""
    head, streams, _, _ = socket.recv_fds(line, 8, 8)
    return (json.loads(_exactly(line, int.from_bytes(head, "little"))), streams) if head else None


def _exactly(line: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = line.recv(count - len(got))
        if not more:
            raise EOFError("the process that starts commands went away")
        got += more
    return got


def _serve(listener: socket.socket) -> NoReturn:
    """Two processes a command: one runs it, its parent waits for it and says how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those parents end
    while True:
        line, _ = listener.accept()
        if os.fork():
            line.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        received = _receive(line)
        if received is None:
            os._exit(0)
        asked, streams = received
        if asked["words"] is None:
            _fork_on_demand(line)
        user, handed_over = None, asked["like"] == "who asks"
        if handed_over:
            asked["like"], *user = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        pid = os.fork()
        if not pid:
            line.close()
            _command(asked, streams, user)
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(BrokenPipeError):
            line.sendall(b"%8d" % pid)
            if handed_over:
                _end_with(line, pid)
            line.sendall(b"%8d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)


def _end_with(line: socket.socket, pid: int) -> None:
    """Waits until the process has ended, and kills it where the one that asked for it has gone."""
    if line in select.select([line, os.pidfd_open(pid)], [], [])[0]:
        os.kill(pid, signal.SIGKILL)


def _command(asked: Mapping[str, Any], streams: Sequence[int], user: Sequence[int] | None) -> NoReturn:
    """`user` are the ids of who it runs as, and of their group, if not who runs the tests."""
    from trainmark.cli.main import main

    os.setsid()
    somebody_else = user and user[0] != os.getuid()  # asked before it goes where users have other numbers
    if asked["like"] is not None:
        _enter(asked["like"])
    if user and somebody_else:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)  # else what the kernel tells of it is root's
    _move_in(asked, streams)
    if asked["words"][:1] and asked["words"][0] in STARTING:
        _fork_what_is_started()
    sys.argv = ["trainmark", *asked["words"]]
    _leave(main())


def _leave(code: object) -> NoReturn:
    """Ends as an interpreter does, but for taking itself apart: that would first copy every page it shares."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        sys.exit(code)
    if isinstance(code, str):
        sys.exit(code)
    os._exit(int(code or 0) & 0xFF)


def _enter(pid: int) -> None:
    """Moves this process to the host that another one is on."""
    kernel = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net", "uts", "mnt"):
        theirs = Path(f"/proc/{pid}/ns/{kind}")
        if theirs.readlink() == Path(f"/proc/self/ns/{kind}").readlink():
            continue
        with theirs.open("rb") as space:
            if kernel.setns(space.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace of process {pid}")


def _move_in(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Takes the streams, variables and folder that a process of its own would have been started with."""
    for target, source in enumerate(streams):
        os.dup2(source, target)
    for source in {*streams} - {0, 1, 2}:
        os.close(source)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        sys.path.insert(0, folder)
        if (Path(folder) / "sitecustomize.py").exists():  # what a Python that starts would run
            runpy.run_path(str(Path(folder) / "sitecustomize.py"))


def _fork_what_is_started() -> None:
    """Has this process's programs forked off a child that stays as it is now, without threads."""
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        _fork_on_demand(theirs)
    theirs.close()
    _have_forked(ours)


def _have_forked(line: socket.socket) -> None:
    """From now on asks there for what is in `WARM`."""
    cold = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    kernel, one_at_a_time = ctypes.CDLL(None), threading.Lock()

    def start(self: Any, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        words = [*map(str, args)] if isinstance(args, (list, tuple)) else []
        options = words[1 : words.index("-m") + 2] if "-m" in words else []
        if not options or words[0] != sys.executable or options[-1] not in WARM:
            cold(self, args, executable, preexec_fn, *rest)
            return
        # by their order in `_execute_child`, which is the same in every Python from 3.9 on
        handed_over, folder, environment, new_session, pipes = rest[1], rest[2], rest[3], rest[18], rest[7:13]
        asked = {
            "words": words[words.index("-m") + 1 :],
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(folder or Path.cwd()),
            "new_session": bool(new_session),
            "handed_over": list(handed_over),
        }
        streams = [number if stream == -1 else stream for number, stream in enumerate((pipes[0], pipes[3], pipes[5]))]
        with one_at_a_time:
            kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that it becomes a child of this process
            _send(line, asked, [*streams, *handed_over])
            self.pid = int(_exactly(line, 8))
            kernel.prctl(_PR_SET_CHILD_SUBREAPER, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


def _fork_on_demand(line: socket.socket) -> NoReturn:
    """Forks programs off until nobody is left to ask for one. Each is an orphan once what forked it has ended, and
    begins only then, when it is a child of the process that asked."""
    while True:
        try:
            received = _receive(line)
        except BaseException:
            os._exit(0)
        if received is None:
            os._exit(0)
        asked, opened = received
        wait, begin = os.pipe()
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            os.close(begin)
            os.read(wait, 1)
            os.close(wait)
            line.sendall(b"%8d" % os.getpid())
            line.close()
            _become(asked, opened)
        os.waitpid(between, 0)
        for descriptor in (wait, begin, *opened):
            os.close(descriptor)


def _become(asked: Mapping[str, Any], opened: Sequence[int]) -> NoReturn:
    """Runs the module it is told to as the program that would have been started."""
    if asked["new_session"]:
        os.setsid()
    aside = [fcntl.fcntl(source, fcntl.F_DUPFD, 100) for source in opened[3:]]
    for source in opened[3:]:
        os.close(source)
    _move_in(asked, opened[:3])
    for source, target in zip(aside, asked["handed_over"], strict=True):
        os.dup2(source, target)
        os.close(source)
    module, *words = asked["words"]
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        _leave(ended.code)
    _leave(0)


def _warm_up() -> None:
    import torch._dynamo
    import torch.utils.flop_counter  # noqa: F401

    from trainmark import workloads
    from trainmark.analysis import audit_record  # noqa: F401
    from trainmark.cli import main, progress, report  # noqa: F401
    from trainmark.report import describe, table  # noqa: F401
    from trainmark.report.html import document  # noqa: F401
    from trainmark.train import after_training, loop, monitor, setup, sharded  # noqa: F401

    for name in workloads.names():
        workloads.load(name)
    for made in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        made.atexit = False  # what imports would take apart in the end, which again copies pages
    _measure_briefly()
    _count_once()
    gc.collect()
    gc.freeze()


def _measure_briefly() -> None:
    """Leaves runs little time for what they measure beside training, which would be most of a small one. With all the
    time they are given, links and peaks are measured by tests of their own, and in processes started from nothing."""
    from trainmark.platforms import matmul_rate
    from trainmark.train import link_levels, setup

    matmul_rate.matmul_flops.__kwdefaults__.update(budget_s=0.02, side=512)
    setup.LINK_BUDGET_S = 0.1
    link_levels.SIZE_S, link_levels.MOST_S = 0.005, 0.05


def _count_once() -> None:
    """Counts the FLOPs of the small network that most runs train here, as counting takes them longer than training."""
    import torch

    from trainmark import workloads
    from trainmark.workloads.vision import ImageClassifier

    count: Any = ImageClassifier.flops_per_item
    counted: dict[tuple[str, int], float] = {}

    def network(workload: Any, recipe: Any) -> tuple[str, int]:
        with torch.device("meta"):
            return repr(workload.build(recipe)), recipe.image_px

    def flops_per_item(self: Any, recipe: Any) -> float:
        known = counted.get(network(self, recipe))
        return count(self, recipe) if known is None else known

    resnet: Any = workloads.load("resnet50")
    tiny = replace(resnet.recipes["smoke"], width=4)
    counted[network(resnet, tiny)] = count(resnet, tiny)
    ImageClassifier.flops_per_item = flops_per_item  # type: ignore[method-assign]


if __name__ == "__main__":
    from trainmark.spec.processes import end_with_parent

    end_with_parent(os.getppid())
    _warm_up()
    _serve(socket.socket(fileno=int(sys.argv[1])))
