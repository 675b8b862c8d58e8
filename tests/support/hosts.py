"""Several hosts on one machine, for tests: namespaces joined by cables to a switch, each with its own name and sshd.

Every host is a process that holds a network, a name and a mount namespace and reads a pipe from the test. When the
test ends, however it ends, the pipe closes, the holder ends and the kernel takes the namespaces away. Nothing of the
machine's own network or users changes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[2]
INTERFACE = "eth0"
USER = "trainer"
SSHD_PORT = 2222

_HOLD = 'hostname "$1" && mount --bind "$2" /etc/hosts && ip link set lo up && echo held && exec cat'
_TRY = "ip link add b0 type bridge && ip link add v0 type veth peer name v1 && ip link set v0 master b0"


@functools.cache
def missing() -> str | None:
    """Why hosts cannot be made here, as a sentence; None where they can."""
    if os.geteuid() != 0:
        return "making hosts out of namespaces needs root"
    absent = [name for name in ("ip", "tc", "nsenter", "unshare", "mount", "hostname") if not _found(name)]
    if absent:
        return f"making hosts needs the program {absent[0]} (Debian: iproute2, util-linux, mount, hostname)"
    tried = subprocess.run(
        [*_UNSHARE, "sh", "-c", _TRY], env=_environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if tried.returncode:
        return f"the kernel refuses to make namespaces with a bridge in them: {tried.stderr.strip()}"
    return None


@functools.cache
def missing_sshd() -> str | None:
    """Why hosts cannot run an sshd here; None where they can."""
    absent = [name for name in ("sshd", "ssh", "ssh-keygen") if not _found(name)]
    if absent:
        return f"the program {absent[0]} is missing (Debian: openssh-server, openssh-client)"
    return missing()


@functools.cache
def missing_shaper() -> str | None:
    """Why a host's cable cannot be made slow here; None where it can."""
    if why := missing():
        return why
    words = 'ip link set lo up && exec tc qdisc replace dev lo root tbf rate "10mbit" burst 64kb latency 50ms'
    tried = subprocess.run([*_UNSHARE, "sh", "-c", words], env=_environment(), capture_output=True, text=True)
    return f"the kernel refuses a token bucket: {tried.stderr.strip()}" if tried.returncode else None


_UNSHARE = ["unshare", "--net", "--uts", "--mount", "--propagation", "private", "--"]


class Host:
    """One host: `command` and `popen` run something there."""

    def __init__(self, number: int, folder: Path, hosts_file: Path) -> None:
        self.number = number
        self.name = f"trainmark-h{number}"
        self.address = f"10.77.0.{number + 1}"
        self.interface = INTERFACE
        self.folder = folder
        """Of this host alone; everybody there may read it."""
        folder.mkdir(mode=0o755)
        self._holder = _Holder(self.name, hosts_file)
        self._started: list[subprocess.Popen[Any]] = []
        self._servers: set[int] = set()

    def command(self, argv: Sequence[str | Path], cwd: str | Path | None = None) -> list[str]:
        """What to start on the machine so that `argv` runs on this host, in this folder."""
        # a mount namespace is entered at its root, so the folder is looked up again inside
        return [*self._holder.prefix("net", "uts", "mount"), "env", "-C", str(cwd or Path.cwd()), *map(str, argv)]

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Starts something on this host; whatever still runs at the end is killed."""
        options.setdefault("stdin", subprocess.DEVNULL)
        command = self.command(argv, cwd)
        self._started.append(subprocess.Popen(command, env=_environment(env), start_new_session=True, **options))
        return self._started[-1]

    def run(self, argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs something on this host to its end and gives what it said."""
        env = _environment(options.pop("env", None))
        options.setdefault("stdin", subprocess.DEVNULL)
        command = self.command(argv, options.pop("cwd", None))
        return subprocess.run(command, env=env, capture_output=True, text=True, **options)

    def processes(self) -> dict[int, str]:
        """What runs on this host now: each process's command line by its id, without what the test itself needs."""
        own = {self._holder.pid, *self._servers}
        return {pid: words for pid, words in _inside(self._holder.network) if pid not in own}

    # sshd

    def start_sshd(
        self,
        key: Path,
        *,
        reachable: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        port: int = SSHD_PORT,
    ) -> Sshd:
        """Starts an sshd that lets the owner of `key` in as a user known on this host only, who is not root.

        `reachable` are further files and folders the user must get at; `env` are variables of the user's sessions.
        """
        home = self._make_user(Path(f"{key}.pub"))
        self._open_the_way(
            [Path(sys.base_prefix), Path(sys.prefix), REPOSITORY, self.folder, *(path.resolve() for path in reachable)]
        )
        host_key = make_key(self.folder / "host_key")
        variables = {"PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1", **(env or {})}
        settings = [
            f"Port {port}",
            f"ListenAddress {self.address}",
            f"HostKey {host_key}",
            "PidFile none",
            "UsePAM no",
            "UseDNS no",
            "PermitRootLogin no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            f"AllowUsers {USER}",
            "SetEnv " + " ".join(f'"{name}={value}"' for name, value in variables.items()),
        ]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(settings) + "\n", encoding="utf-8")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd locks up its unprivileged half
        log = self.folder / "sshd.log"
        with log.open("w", encoding="utf-8") as out:
            server = self.popen([_found("sshd") or "sshd", "-D", "-e", "-f", config], stderr=out, cwd="/")
        self._servers.add(server.pid)
        _wait_until(lambda: "Server listening" in log.read_text(encoding="utf-8"), server, log)
        public = Path(f"{host_key}.pub").read_text(encoding="utf-8").split()[:2]
        known = f"[{self.name}]:{port},[{self.address}]:{port} {' '.join(public)}\n"
        return Sshd(host=self, user=USER, home=home, port=port, known_hosts=known, process=server)

    def _make_user(self, public_key: Path) -> Path:
        """Lays a list of users with one more over the machine's; only this host sees it."""
        users = Path("/etc/passwd").read_text(encoding="utf-8")
        taken = {int(line.split(":")[2]) for line in users.splitlines() if line.count(":") == 6}
        number = next(number for number in range(20_000, 60_000) if number not in taken)
        home = self.folder / "home"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        shutil.copy(public_key, home / ".ssh" / "authorized_keys")
        for path in (home, *home.rglob("*")):
            os.chown(path, number, number)
        home.chmod(0o700)
        own = self.folder / "passwd"
        own.write_text(f"{users}{USER}:*:{number}:{number}::{home}:/bin/sh\n", encoding="utf-8")
        self._mount("--bind", own, "/etc/passwd")
        return home

    def _open_the_way(self, paths: Sequence[Path]) -> None:
        """Lays an open folder with just these paths in it over every folder that others may not enter."""
        closed: dict[Path, list[Path]] = {}
        for path in dict.fromkeys(paths):
            for folder in reversed(path.parents):
                if not folder.stat().st_mode & 0o001:
                    closed.setdefault(folder, []).append(path)
                    break
        aside = {path: self.folder / "aside" / str(number) for number, path in enumerate(dict.fromkeys(paths))}
        for folder, below in closed.items():
            for path in below:
                self._mount("--bind", path, _place(aside[path], path))
            self._mount("-t", "tmpfs", "-o", "mode=755", "trainmark-test", folder)
            for path in below:
                self.run(["mkdir", "-p", path if path.is_dir() else path.parent], cwd="/", check=True)
                if not path.is_dir():
                    self.run(["touch", path], cwd="/", check=True)
                self._mount("--bind", aside[path], path)
                self._inside("umount", aside[path])

    def _mount(self, *words: str | Path) -> None:
        self._inside("mount", *words)

    def _inside(self, *argv: str | Path) -> None:
        _call([*self._holder.prefix("net", "uts", "mount"), *map(str, argv)])

    def _close(self) -> None:
        deadline = time.monotonic() + 10
        while alive := [pid for pid, _ in _inside(self._holder.network) if pid != self._holder.pid]:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {alive} of {self.name} could not be killed")
            time.sleep(0.02)
        for process in self._started:
            process.wait(timeout=10)
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                pipe.close()
        self._holder.close()


@dataclass(frozen=True, kw_only=True)
class Sshd:
    """A server that listens on one host."""

    host: Host
    user: str
    home: Path
    port: int
    known_hosts: str
    process: subprocess.Popen[Any]


class Hosts:
    """`with Hosts(2) as hosts:` two hosts that reach each other by address and by name, and nothing else."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._hosts: list[Host] = []
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        if why := missing():
            raise RuntimeError(why)
        with contextlib.ExitStack() as undo:  # what was made is taken away again if the rest cannot be
            self.folder = Path(tempfile.mkdtemp(prefix="trainmark-hosts-"))
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.folder.chmod(0o755)
            hosts_file = self.folder / "hosts"
            names = "".join(f"10.77.0.{number + 1} trainmark-h{number}\n" for number in range(self._count))
            hosts_file.write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}", encoding="utf-8")
            self._switch = _Holder("trainmark-switch", hosts_file)
            undo.callback(self._switch.close)
            self._switch.ip("link", "add", "switch", "type", "bridge")
            self._switch.ip("link", "set", "switch", "up")
            for number in range(self._count):
                host = Host(number, self.folder / f"h{number}", hosts_file)
                undo.callback(host._close)
                self._plug_in(host)
                self._hosts.append(host)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def __getitem__(self, number: int) -> Host:
        return self._hosts[number]

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def cut(self, number: int) -> None:
        """Pulls the cable at the switch: the host's packets are lost and nobody tells its programs."""
        self._switch.ip("link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        """Puts the cable back."""
        self._switch.ip("link", "set", f"port{number}", "up")

    def slow(self, number: int, mbit: float) -> None:
        """Makes the host's cable carry so many megabits a second, each way."""
        rate = ["root", "tbf", "rate", f"{round(mbit * 1000)}kbit", "burst", "64kb", "latency", "50ms"]
        self._hosts[number]._holder.call("tc", "qdisc", "replace", "dev", INTERFACE, *rate)
        self._switch.call("tc", "qdisc", "replace", "dev", f"port{number}", *rate)

    def _plug_in(self, host: Host) -> None:
        port, holder = f"port{host.number}", host._holder
        self._switch.ip(*f"link add {port} type veth peer name {INTERFACE} netns {holder.pid}".split())
        self._switch.ip("link", "set", port, "master", "switch", "up")
        holder.ip("address", "add", f"{host.address}/24", "dev", INTERFACE)
        holder.ip("link", "set", INTERFACE, "up")


def ssh_config(path: Path, key: Path, servers: Sequence[Sshd]) -> Path:
    """Writes what an ssh user keeps at home: names, ports, the key to use, and which host keys are the right ones."""
    known_hosts = path.parent / "known_hosts"
    known_hosts.write_text("".join(server.known_hosts for server in servers), encoding="utf-8")
    parts = [f"Host {server.host.name}\n  Port {server.port}\n  User {server.user}\n" for server in servers] + [
        f"Host *\n  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known_hosts}\n"
        "  GlobalKnownHostsFile /dev/null\n"
    ]
    path.write_text("".join(parts), encoding="utf-8")
    return path


def make_key(path: Path) -> Path:
    """A key without a passphrase; its public half lies beside it."""
    _call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "trainmark-test", "-f", str(path)])
    return path


class _Holder:
    """A process that keeps one host's namespaces alive for as long as the test holds the other end of its stdin."""

    def __init__(self, name: str, hosts_file: Path) -> None:
        self._process = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", _HOLD, "sh", name, str(hosts_file)],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the test's terminal is not for it
        )
        if _stream(self._process.stdout).readline() != b"held\n":
            self.close()
            raise RuntimeError(f"the namespaces of {name} could not be made")
        self.pid = self._process.pid
        self.network = Path(f"/proc/{self.pid}/ns/net").readlink()

    def prefix(self, *kinds: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), *(f"--{kind}" for kind in kinds), "--"]

    def call(self, *argv: str) -> None:
        _call([*self.prefix("net"), *argv])

    def ip(self, *words: str) -> None:
        self.call("ip", *words)

    def close(self) -> None:
        _stream(self._process.stdin).close()
        self._process.wait(timeout=10)
        _stream(self._process.stdout).close()


def _inside(network: Path) -> Iterator[tuple[int, str]]:
    """Every living process whose network is this one."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            if (entry / "ns" / "net").readlink() == network:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if words:  # a zombie has none
                    yield int(entry.name), words


def _wait_until(done: Any, process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + 10
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start: {log.read_text(encoding='utf-8')}")
        time.sleep(0.02)


def _call(argv: list[str]) -> None:
    said = subprocess.run(argv, env=_environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if said.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {said.stderr.strip() or said.returncode}")


def _environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables given, or the test's own, with the system's programs on the path."""
    given = os.environ if env is None else env
    return {**given, "PATH": f"{given.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def _found(program: str) -> str | None:
    return shutil.which(program, path=_environment()["PATH"])


def _place(place: Path, like: Path) -> Path:
    """An empty folder or file to bind `like` to."""
    place.parent.mkdir(exist_ok=True)
    if like.is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()
    return place


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
