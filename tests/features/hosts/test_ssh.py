"""Runs on other hosts: what ssh is given, and what is said and left behind when a host fails.

Here `ssh` is a stand-in that does, for each host, what the test wrote down for it; tests/test_hosts.py has real ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import fake_ssh
from support.fake_ssh import ARRIVE
from support.records import make_record

from trainmark.features.hosts import remote_run, ssh
from trainmark.features.hosts.ssh import Host
from trainmark.record.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError
from trainmark.record.plan import Topology
from trainmark.record.site import Network, Remote, Site

ONE = Topology(nodes=1, devices_per_node=1)
TWO = Topology(nodes=2, devices_per_node=1)

WAIT = "cat >/dev/null; touch let-go\n"
"""Until its input ends."""


class World:
    """Hosts that exist only as scripts; each is run by a shell with `$command` being what ssh was told to run."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder = folder
        self.store = store

    def host(self, name: str, script: str) -> None:
        (self.folder / name).write_text(script, encoding="utf-8")

    def run(self, hosts: str, topology: Topology = TWO, remote: Remote | None = None) -> tuple[str | None, int]:
        """The id on the record that came back, if one did, and the exit code."""
        site = Site(remote=remote or Remote())
        record, code = remote_run.run_on_hosts(hosts, ["resnet50"], topology, site, self.store, quiet=False)
        return record and record.run_id, code

    def sends(self, run_id: str = "run-1") -> str:
        """A line of script by which a host sends its record."""
        (self.folder / "record").write_text(make_record(run_id=run_id).dumps() + "\n", encoding="utf-8")
        return "cat record\n"

    def was_let_go(self) -> bool:
        return (self.folder / "let-go").exists()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(fake_ssh.install(tmp_path, monkeypatch), tmp_path / "store")


# Words


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("-oProxyCommand=reboot", "is no host name"),
        ("a;reboot", "is no host name"),
        ("$(reboot)", "is no host name"),
        ("a b", "is no host name"),
        ("a-", "is no host name"),
        ("", "is no host name"),
        ("a,,b", "host '' of --hosts is no host name"),
        ("fe80::1%eth0", "is no host name"),
        ("a:22", "write the port as [remote] port in trainmark.toml"),
        ("@a", "'' is no user name"),
        ("-l@a", "'-l' is no user name"),
        ("a@b@c", "'a@b' is no user name"),
        ("a,u@A", "host 'A' is named twice"),
        ("a", "--hosts names 1 host and topology 2x1 has 2 nodes; name one host for each node"),
        ("a,b,c", "--hosts names 3 hosts and topology 2x1 has 2 nodes"),
    ],
)
def test_a_word_that_is_no_list_of_hosts_is_refused(word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        ssh.parse_node_hosts(word, TWO)
    assert sentence in str(refused.value)


def test_names_addresses_and_users_are_taken() -> None:
    assert ssh.parse_node_hosts("gpu-01.example, 10.0.0.2,trainer@fd00::2", Topology(nodes=3, devices_per_node=8)) == [
        Host(host="gpu-01.example"),
        Host(host="10.0.0.2"),
        Host(host="fd00::2", user="trainer"),
    ]


def test_ssh_asks_nothing_checks_host_keys_and_gets_the_site_s_choices() -> None:
    remote = Remote(user="site", port=2222, ssh_config=Path("/etc/ours"))
    argv = ssh.make_ssh_command(Host(host="a"), remote, "true")
    assert argv[:4] == ["ssh", "-F", "/etc/ours", "-T"]
    options = {argv[place + 1] for place, word in enumerate(argv) if word == "-o"}
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10"} <= options
    assert {"ServerAliveInterval=5", "ServerAliveCountMax=3"} <= options
    assert argv[-7:] == ["-p", "2222", "-l", "site", "--", "a", "true"]
    assert ssh.make_ssh_command(Host(host="a", user="mine"), remote, "true")[-5:] == ["-l", "mine", "--", "a", "true"]


def test_every_word_reaches_the_other_side_as_it_was_written(tmp_path: Path) -> None:
    """A shell reads the command over there: quotes, dollars and spaces must come through it unharmed."""
    tell = tmp_path / "it's python"
    tell.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))\n",
        encoding="utf-8",
    )
    tell.chmod(0o755)
    folder = tmp_path / "a $HOME; folder"
    folder.mkdir()
    words = ["run", "--set", "a=$(x) 'y'", "--quiet"]
    site = Site(remote=Remote(python=str(tell), folder=str(folder)), network=Network(port=1234))
    topology = Topology(nodes=2, devices_per_node=4)
    said = subprocess.run(
        ["sh", "-c", ssh.make_remote_command(words, 1, topology, "a.example", site)], capture_output=True, check=True
    )
    arrived, told = said.stdout.decode().splitlines()
    argv, where, environment = json.loads(told)
    assert arrived == ssh.ARRIVED
    assert argv == ["-m", "trainmark", "run", "--set", "a=$(x) 'y'", "--quiet", "--json"]
    assert where == str(folder)
    assert {name: value for name, value in environment.items() if name.startswith(("PET_", "TRAINMARK_END"))} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "a.example",
        "PET_MASTER_PORT": "1234",
        "TRAINMARK_END_WITH_STDIN": "1",
    }


def test_root_is_refused_unless_the_site_allows_it(world: World) -> None:
    world.host("a.settings", "user root\nhostname a\n")
    world.host("a", ARRIVE + world.sends())
    with pytest.raises(UsageError, match=r"host a would be entered as root; name another user as USER@a or as"):
        world.run("a", ONE)
    _, code = world.run("a", ONE, Remote(allow_root=True))
    assert code == 0


def test_the_others_are_told_what_the_first_host_is_really_called(world: World) -> None:
    world.host("a.settings", "user trainer\nhostname 10.9.8.7\n")
    world.host("a", ARRIVE + world.sends())
    world.host("b", ARRIVE + 'echo "$command" > told\n')
    world.run("a,b")
    assert " PET_MASTER_ADDR=10.9.8.7 " in (world.folder / "told").read_text(encoding="utf-8")


# Ends


def test_the_record_comes_from_the_first_host_and_its_talk_passes_through(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    world.host("a", "echo a banner\n" + ARRIVE + "printf 'step 1 \\033[2J\\n' >&2\n" + world.sends())
    world.host("b", ARRIVE + "echo talk of b >&2\n")
    run_id, code = world.run("a,b")
    assert (run_id, code) == ("run-1", 0)
    said = capfd.readouterr().err
    assert "step 1 �[2J\n" in said  # a host cannot steer the user's terminal
    assert "talk of b" not in said


def test_every_host_hears_one_secret_which_no_command_line_shows(world: World) -> None:
    keep = 'printf %s "$command" > "$host.command"; head -n 1 > "$host.secret"\n'
    secrets = set()
    for _ in range(2):
        world.host("a", ARRIVE + keep + world.sends())
        world.host("b", ARRIVE + keep)
        world.run("a,b")
        heard = {(world.folder / f"{host}.secret").read_text(encoding="utf-8").strip() for host in "ab"}
        secrets |= heard
        assert len(heard) == 1
        commands = [(world.folder / f"{host}.command").read_text(encoding="utf-8") for host in "ab"]
        assert not any(secret in command for secret in heard for command in commands)
    assert len(secrets) == 2, "each run has its own"
    assert all(len(secret) == 64 for secret in secrets)


def test_a_host_that_cannot_be_reached_is_named_and_the_others_are_ended(world: World) -> None:
    world.host("a", ARRIVE + WAIT)
    world.host("b", "echo 'ssh: connect to host b port 22: No route to host' >&2; exit 255\n")
    with pytest.raises(NotReadyError, match=r"host b cannot be entered through ssh: .*No route to host"):
        world.run("a,b")
    assert world.was_let_go()


@pytest.mark.parametrize(
    ("script", "error", "sentence"),
    [
        ("echo 'cd: work: No such file' >&2; exit 2", NotReadyError, "host b has no folder 'work' to start in: cd:"),
        (ARRIVE + "echo 'env: py: not found' >&2; exit 127", NotReadyError, "cannot start trainmark with py: env: py"),
        (ARRIVE + "echo 'py: No module named trainmark' >&2; exit 1", NotReadyError, "No module named trainmark; set"),
        (ARRIVE + "exit 255", WorkloadError, "host b was lost: its process was killed or the connection broke"),
        (ARRIVE + "echo 'trainmark: no data' >&2; exit 3", TrainmarkError, "host b ended with exit code 3: no data"),
    ],
)
def test_a_host_that_fails_alone_is_named_with_its_last_line(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str, error: type[TrainmarkError], sentence: str
) -> None:
    monkeypatch.setattr(remote_run, "GRACE_S", 0.1)
    monkeypatch.setattr(remote_run, "REFUSAL_GRACE_S", 0.1)
    world.host("a", ARRIVE + WAIT + "exit 143\n")
    world.host("b", script + "\n")
    with pytest.raises(error) as raised:
        world.run("a,b", remote=Remote(python="py", folder="work"))
    assert sentence in str(raised.value)
    assert raised.value.exit_code == (4 if error is WorkloadError else 3)
    assert world.was_let_go()


def test_the_first_host_is_given_time_to_say_what_happened_to_another(world: World) -> None:
    world.host("a", ARRIVE + "while [ ! -e failed ]; do sleep 0.02; done\n" + world.sends() + "exit 4\n")
    world.host("b", ARRIVE + "touch failed; exit 1\n")
    run_id, code = world.run("a,b")
    assert (run_id, code) == ("run-1", 4)


def test_a_first_host_that_had_to_be_let_go_of_keeps_its_record_and_the_other_is_blamed(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote_run, "GRACE_S", 0.1)
    world.host("a", ARRIVE + WAIT + world.sends() + "exit 143\n")
    world.host("b", ARRIVE + "exit 255\n")
    run_id, code = world.run("a,b")
    assert (run_id, code) == ("run-1", 4)
    assert "trainmark: host b was lost" in capfd.readouterr().err


def test_a_host_that_does_not_end_when_let_go_of_is_not_waited_for_forever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_run, "END_LIMIT_S", 0.1)
    world.host("a", ARRIVE + "exec sleep 600\n")
    world.host("b", "exit 255\n")
    with pytest.raises(NotReadyError, match="host b cannot be entered"):
        world.run("a,b")


def test_a_record_cut_off_on_its_way_is_no_record(world: World) -> None:
    world.host("a", ARRIVE + 'printf \'{"kind": "trainm\'; exit 255\n')
    with pytest.raises(WorkloadError, match="host a was lost"):
        world.run("a", ONE)


def test_a_record_of_another_kind_is_refused(world: World) -> None:
    world.host("a", ARRIVE + "echo '{}'\n")
    with pytest.raises(WorkloadError, match="host a sent a record that cannot be read"):
        world.run("a", ONE)


def test_a_machine_without_ssh_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError, match="needs the program ssh"):
        remote_run.run_on_hosts("a", [], ONE, Site(), tmp_path, quiet=True)


# Signals


@pytest.fixture
def when() -> Iterator[Callable[[Callable[[], bool], int], None]]:
    """Sends this very process a signal as soon as something is so."""
    threads: list[threading.Thread] = []

    def arrange(so: Callable[[], bool], number: int) -> None:
        def wait() -> None:
            deadline = time.monotonic() + 20
            while not so() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(os.getpid(), number)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield arrange
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_go_of_the_hosts_and_still_brings_the_record(
    world: World, when: Callable[[Callable[[], bool], int], None], number: signal.Signals
) -> None:
    world.host("a", ARRIVE + "touch there\n" + WAIT + world.sends() + "exit 143\n")
    world.host("b", ARRIVE + "cat >/dev/null; exit 143\n")
    when((world.folder / "there").exists, number)
    run_id, code = world.run("a,b")
    assert (run_id, code) == ("run-1", 128 + number)


def test_a_second_signal_ends_at_once(world: World, when: Callable[[Callable[[], bool], int], None]) -> None:
    world.host("a", ARRIVE + "touch there\n" + WAIT + "exec sleep 600\n")
    when((world.folder / "there").exists, signal.SIGINT)
    when((world.folder / "let-go").exists, signal.SIGINT)
    assert world.run("a", ONE) == (None, 130)


# The run folder


def sends_folder(world: World, folder: Path, *, extra: str = "") -> None:
    """Host a runs what it is told, and its python is a script that leaves a run folder and sends a record."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "step-1").write_bytes(b"large")
    (folder / "sub").mkdir()
    (folder / "rank0.jsonl").write_text("{}\n", encoding="utf-8")
    (folder / "sub" / "sample.wav").write_bytes(b"RIFF")
    python = world.folder / "python"
    script = f"#!/bin/sh\necho 'trainmark: run folder {folder}' >&2\n" + world.sends("run-1") + extra
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    world.host("a", 'sh -c "$command"\n')


def test_the_run_folder_is_fetched_without_its_checkpoints(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sends_folder(world, tmp_path / "over there" / "runs" / "run-1")
    world.run("a", ONE, Remote(python="./python"))
    fetched = {
        str(path.relative_to(world.store)): path.read_bytes() for path in world.store.rglob("*") if path.is_file()
    }
    assert fetched == {"runs/run-1/rank0.jsonl": b"{}\n", "runs/run-1/sub/sample.wav": b"RIFF"}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "link").symlink_to("/etc/passwd"), "only plain files are taken from archives"),
        (lambda folder: folder.rename(folder.parent / "moved"), "Cannot stat: No such file or directory"),
        (lambda folder: os.mkfifo(folder / "fifo"), "a named pipe"),
    ],
)
def test_a_run_folder_that_cannot_be_fetched_costs_neither_the_record_nor_leaves_half_a_folder(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], object], sentence: str
) -> None:
    folder = tmp_path / "there" / "runs" / "run-1"
    sends_folder(world, folder)
    spoil(folder)
    run_id, code = world.run("a", ONE, Remote(python="./python"))
    assert (run_id, code) == ("run-1", 0)
    said = capfd.readouterr().err
    assert f"the run folder stays on host a as {folder}: " in said
    assert sentence in said
    assert not world.store.exists() or not any(world.store.iterdir())


@pytest.mark.parametrize(
    ("folder", "run_id"), [("/x/other", "run-1"), ("x/run-1", "run-1"), ("/x/..", ".."), ("/x/a b", "a b")]
)
def test_a_run_that_is_not_where_it_says_is_not_fetched(tmp_path: Path, folder: str, run_id: str) -> None:
    with pytest.raises(NotReadyError, match="do not match"):
        ssh.fetch(Host(host="a"), Remote(), folder, run_id, tmp_path)


# What holds the other side up


def test_a_process_hears_its_secret_and_is_terminated_when_its_input_ends_and_not_before() -> None:
    code = (
        "import signal, sys\nfrom trainmark.launch.signals import end_with_stdin\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print(end_with_stdin(), flush=True)\n"
        "while True: signal.pause()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write("the secret\n")
        process.stdin.flush()
        assert process.stdout.readline() == "the secret\n"
        process.stdin.write("talk is ignored\n")
        process.stdin.flush()
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=20) == 7
