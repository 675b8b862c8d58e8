"""The rendezvous of nodes: it answers as stores of torch do, and reads nothing of peers without the secret."""

from __future__ import annotations

import gc
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import (  # type: ignore[attr-defined]
    DistError,
    DistNetworkError,
    DistStoreError,
    HashStore,
    PrefixStore,
    TCPStore,
)

from trainmark.launch import rendezvous
from trainmark.launch.rendezvous import Address, StoreServer, WrongSecretError, shake_hands
from trainmark.record.errors import NotReadyError, WorkloadError
from trainmark.train import collectives
from trainmark.train.collectives import RendezvousStore, Request, encode, receive_exactly

Join = Callable[[], RendezvousStore]
SECRET = b"what all launchers of a run know"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def server(listener: socket.socket) -> Iterator[StoreServer]:
    with closing(StoreServer(listener, SECRET)) as opened:
        yield opened


@pytest.fixture
def connect(server: StoreServer, listener: socket.socket) -> Callable[[], socket.socket]:
    """Connects as a launcher does, for itself or a rank."""
    host, port = listener.getsockname()
    return lambda: rendezvous.connect(Address(host, port, SECRET.decode()), 10)


@pytest.fixture
def join(connect: Callable[[], socket.socket]) -> Iterator[Join]:
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(RendezvousStore(connect())))


@contextmanager
def dialled(listener: socket.socket, secret: bytes = SECRET) -> Iterator[RendezvousStore]:
    with socket.create_connection(listener.getsockname(), timeout=10) as connection:
        shake_hands(connection, secret)
        yield RendezvousStore(connection)


def ended(connection: socket.socket) -> bool:
    """Whether the other side closes the connection; what it says before is not looked at."""
    connection.settimeout(10)
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def use(store: Any) -> list[Any]:
    """What torch asks of a store."""
    store.set("a", "1")
    answers = [store.get("a"), store.add("n", 2), store.add("n", -5), store.get("n")]
    answers += [store.check(["a", "n"]), store.check(["a", "nowhere"])]
    for key, expected, desired in (("new", "", "x"), ("new", "y", "z"), ("new", "x", "z"), ("other", "expected", "z")):
        answers.append(store.compare_set(key, expected, desired))
    answers += [store.delete_key("a"), store.delete_key("a")]
    store.wait(["n"], timedelta(seconds=1))
    return [*answers, store.check(["a"])]


def test_ranks_get_the_answers_that_a_store_of_torch_s_own_gives(join: Join) -> None:
    assert use(PrefixStore("run1", join())) == use(HashStore()), "through C++, as the collectives ask"
    assert use(join()) == use(HashStore())


def test_a_store_waits_for_a_key_and_says_in_torch_s_words_that_nobody_set_it(join: Join) -> None:
    store, other = join(), join()
    later = threading.Timer(0.05, other.set, ["late", b"\x00\xff"])
    later.start()
    assert store.get("late") == b"\x00\xff"
    with pytest.raises(DistStoreError, match=r"wait timeout: nobody set never within 0.05 s"):
        store.wait(["never"], timedelta(seconds=0.05))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(DistStoreError, match="nobody set never"):
        store.get("never")


def test_threads_share_a_connection_while_one_of_them_waits(join: Join) -> None:
    store = join()
    waiting = threading.Thread(target=store.wait, args=(["end"], timedelta(seconds=20)))
    waiting.start()
    assert store.add("n", 1) == 1
    store.set("end", "")
    waiting.join(timeout=10)
    assert not waiting.is_alive()


def test_a_store_that_is_gone_is_a_lost_connection_to_everybody(server: StoreServer, join: Join) -> None:
    first, second = join(), join()
    server.close()
    with pytest.raises(WorkloadError, match="connection closed"):  # to a launcher
        first.set("a", "1")
    with pytest.raises(DistNetworkError, match="connection closed"):  # to a rank, which takes it for another one's end
        PrefixStore("run1", second).get("a")


# Unauthenticated peers


def pickled(connection: socket.socket) -> None:
    """What a rendezvous of torch's would have loaded, and with it run whatever it says."""
    connection.sendall(pickle.dumps({"torch.rendezvous.none": print}))


def a_huge_length(connection: socket.socket) -> None:
    connection.sendall(struct.pack(">I", 2**32 - 1) + bytes(100_000))


def requests_without_a_proof(connection: socket.socket) -> None:
    request = encode(Request("set", "here/1", b"a stranger"))
    connection.sendall(request * 50)


def an_old_proof(connection: socket.socket) -> None:
    """What another connection was answered with: each is asked anew."""
    ours, theirs = bytes(32), bytes(32)
    connection.sendall(ours + rendezvous.prove(SECRET, b"client", theirs, ours))


def the_server_s_own_proof(connection: socket.socket) -> None:
    """A proof of the other side's, sent back to it, as one who listens to another handshake could."""
    said = receive_exactly(connection, len(rendezvous.GREETING) + 32, 10)
    theirs, ours = said[-32:], bytes(32)
    connection.sendall(ours + rendezvous.prove(SECRET, b"server", theirs, ours))


ATTACKS = [pickled, a_huge_length, requests_without_a_proof, an_old_proof, the_server_s_own_proof]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_comes_without_the_proof_has_no_effect(
    server: StoreServer,
    join: Join,
    listener: socket.socket,
    attack: Callable[[socket.socket], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside = join()
    inside.set("here/1", "a friend")
    monkeypatch.setattr(rendezvous, "HANDSHAKE_TIMEOUT_S", 0.2)
    with socket.create_connection(listener.getsockname()) as stranger:
        with suppress(ConnectionError):
            attack(stranger)
        assert ended(stranger)
    assert inside.get("here/1") == b"a friend"
    assert server.rejected == ["127.0.0.1"]


@pytest.mark.slow
def test_a_store_of_torch_s_finds_nobody_to_talk_to(join: Join, listener: socket.socket) -> None:
    inside = join()
    host, port = listener.getsockname()
    with pytest.raises(DistError):
        TCPStore(host, port, is_master=False, timeout=timedelta(seconds=1)).set("torch.rendezvous.none", "x")
    assert not inside.check(["torch.rendezvous.none"])


def test_a_wrong_secret_is_told_from_a_leader_that_is_not_there(server: StoreServer, listener: socket.socket) -> None:
    host, port = listener.getsockname()
    with pytest.raises(
        NotReadyError, match=f"rejected by the leader at {host}:{port}: TRAINMARK_SECRET does not match"
    ):
        rendezvous.connect(Address(host, port, "what others know"), 10)
    with dialled(listener) as client:
        assert client.add("n", 1) == 1, "who knows it still comes in"


def test_a_leader_that_cannot_prove_the_secret_is_told_nothing(listener: socket.socket) -> None:
    """Somebody else took the port: what it hears is a random number and a proof that fits no other handshake."""
    heard = bytearray()

    def pretend() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(rendezvous.GREETING + bytes(32))
            heard.extend(receive_exactly(connection, 64, 10))
            connection.sendall(bytes(32))

    pretender = threading.Thread(target=pretend)
    pretender.start()
    with pytest.raises(WrongSecretError), dialled(listener):
        pass
    pretender.join(timeout=10)
    assert len(heard) == 64
    assert SECRET not in heard


def test_something_else_at_the_port_is_not_taken_for_a_leader(listener: socket.socket) -> None:
    def answer() -> None:
        with listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(200))

    other = threading.Thread(target=answer)
    other.start()
    with pytest.raises(ConnectionError, match="no launcher of trainmark"), dialled(listener):
        pass
    other.join(timeout=10)


def test_who_says_nothing_is_not_waited_for_and_only_so_many_may_try_at_once(
    server: StoreServer, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "HANDSHAKE_TIMEOUT_S", 0.05)
    with socket.create_connection(listener.getsockname()) as silent:
        assert ended(silent)
    monkeypatch.setattr(rendezvous, "MAX_PENDING_HANDSHAKES", 0)
    with socket.create_connection(listener.getsockname()) as one_too_many:
        assert one_too_many.recv(1) == b""


@pytest.mark.parametrize(
    "words",
    [
        struct.pack(">I", collectives.MAX_MESSAGE_BYTES + 1),
        struct.pack(">I", 5) + b"junk!",
        encode(Request("add", "text", number=1)),
    ],
    ids=["too long", "no request", "no number"],
)
def test_what_is_no_request_ends_its_connection_and_no_other(
    join: Join, connect: Callable[[], socket.socket], words: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    inside = join()
    inside.set("text", "one")
    with connect() as confused:
        confused.sendall(words)
        assert ended(confused)
    assert inside.add("n", 1) == 1
    gc.collect()
    assert not caplog.records, "it is no fault of the store's"


def test_a_message_longer_than_is_read_is_not_sent(join: Join) -> None:
    client = join()
    with pytest.raises(ValueError, match="longer than"):
        client.set("a", bytes(collectives.MAX_MESSAGE_BYTES))
    assert not client.check(["a"])


# What the code may not do


def test_nothing_that_comes_from_another_process_is_unpickled() -> None:
    """Collectives of objects, and loading without `weights_only`, would run what another process sends."""
    source = Path(rendezvous.__file__).parent.parent
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in ("object_list(", "gather_object(", "pickle.load", "Unpickler(", "weights_only=False"):
            assert word not in text, path
        assert text.count("torch.load(") == text.count("weights_only=True"), path
        assert "torch.distributed.run" not in text, path
