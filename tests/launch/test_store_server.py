"""The store at which processes meet: it answers as torch's do, and hears nobody who has not proven the secret."""

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

from trainmark.launch import store_server
from trainmark.launch.store_server import StoreServer, WrongSecretError, prove
from trainmark.train import store_client
from trainmark.train.rank_store import RankStore
from trainmark.train.store_client import LostStoreError, StoreClient

Join = Callable[[], StoreClient]
SECRET = b"what all launchers of a run know"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def server(listener: socket.socket) -> Iterator[StoreServer]:
    opened = StoreServer(listener, SECRET)
    yield opened
    opened.close()


@pytest.fixture
def join(server: StoreServer) -> Iterator[Join]:
    """Connects as a rank does, whose launcher did it for it."""
    with ExitStack() as opened:

        def connect() -> StoreClient:
            return opened.enter_context(closing(StoreClient(server.connect())))

        yield connect


@contextmanager
def dialled(listener: socket.socket, secret: bytes = SECRET) -> Iterator[StoreClient]:
    with socket.create_connection(listener.getsockname(), timeout=10) as connection:
        prove(connection, secret)
        yield StoreClient(connection)


def ended(connection: socket.socket) -> bool:
    """Whether the other side closes the connection; what it says before is not looked at."""
    connection.settimeout(10)
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def say(store: Any) -> list[Any]:
    """Everything torch may ask of a store."""
    store.set("a", "1")
    store.multi_set(["b", "c"], ["2", "3"])
    store.append("a", "0")
    answers = [store.get("a"), store.multi_get(["b", "c"]), store.add("n", 2), store.add("n", -5), store.get("n")]
    answers += [store.check(["a", "b"]), store.check(["a", "nowhere"]), store.num_keys()]
    answers += [
        store.compare_set("new", "", "x"),
        store.compare_set("new", "y", "z"),
        store.compare_set("new", "x", "z"),
    ]
    answers += [store.compare_set("other", "expected", "z"), store.delete_key("a"), store.delete_key("a")]
    store.wait(["b"], timedelta(seconds=1))
    return [*answers, store.check(["a"]), store.num_keys()]


def test_ranks_get_the_answers_that_a_store_of_torch_s_own_gives(join: Join) -> None:
    ours = RankStore(join(), "run1/")
    assert say(ours) == say(HashStore())
    # through C++, as the collectives ask; the prefix keeps them apart from what was said above
    assert say(PrefixStore("inner", RankStore(join(), "run2/"))) == say(HashStore())


def test_a_store_waits_for_a_key_and_says_in_torch_s_words_that_nobody_set_it(join: Join) -> None:
    store = RankStore(join())
    other = join()
    later = threading.Timer(0.05, other.set, ["late", b"\x00\xff"])
    later.start()
    assert store.get("late") == b"\x00\xff"
    with pytest.raises(DistStoreError, match=r"wait timeout: nobody set never within 0.05 s"):
        store.wait(["never"], timedelta(seconds=0.05))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(DistStoreError, match="nobody set never"):
        store.get("never")


def test_threads_share_a_connection_while_one_of_them_waits(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "SLICE_S", 0.02)
    client = join()
    waiting = threading.Thread(target=client.wait, args=(["end"], 20))
    waiting.start()
    assert client.add("n", 1) == 1
    client.set("end", "")
    waiting.join(timeout=10)
    assert not waiting.is_alive()


def test_a_store_that_is_gone_is_a_lost_connection_to_everybody(server: StoreServer, join: Join) -> None:
    client, store = join(), RankStore(join())
    server.close()
    with pytest.raises(LostStoreError, match="connection closed"):
        client.set("a", "1")
    with pytest.raises(DistNetworkError, match="connection closed"):  # what a rank takes for another one's end
        store.get("a")


# Who is not heard


def pickled(connection: socket.socket) -> None:
    """What a rendezvous of torch's would have loaded, and with it run whatever it says."""
    connection.sendall(pickle.dumps({"torch.rendezvous.none": print}))


def a_huge_length(connection: socket.socket) -> None:
    connection.sendall(struct.pack(">I", 2**32 - 1) + bytes(100_000))


def requests_without_a_proof(connection: socket.socket) -> None:
    request = store_client.frame(store_client.Request("set", ["here/1"], [b"a stranger"]))
    connection.sendall(request * 50)


def an_old_proof(connection: socket.socket) -> None:
    """What another connection was answered with: each is asked anew."""
    ours, theirs = bytes(32), bytes(32)
    connection.sendall(ours + store_server._proof(SECRET, b"asker", theirs, ours))


def the_store_s_own_proof(connection: socket.socket) -> None:
    """A proof of the other side's, sent back to it, as one who listens to another meeting could."""
    said = store_client.receive(connection, len(store_server.GREETING) + 32)
    theirs, ours = said[-32:], bytes(32)
    connection.sendall(ours + store_server._proof(SECRET, b"store", theirs, ours))


ATTACKS = [pickled, a_huge_length, requests_without_a_proof, an_old_proof, the_store_s_own_proof]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_comes_without_the_proof_is_not_read(
    server: StoreServer,
    join: Join,
    listener: socket.socket,
    attack: Callable[[socket.socket], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decode(*words: Any, **named: Any) -> Any:
        raise AssertionError("a stranger's words were read")

    inside = join()
    inside.set("here/1", "a friend")
    monkeypatch.setattr(store_server, "STRANGER_LIMIT_S", 0.2)
    with monkeypatch.context() as patch, socket.create_connection(listener.getsockname()) as stranger:
        patch.setattr(store_server.msgspec.msgpack, "decode", decode)
        with suppress(ConnectionError):
            attack(stranger)
        assert ended(stranger)
    assert inside.get("here/1") == b"a friend"
    assert inside.keys() == ["here/1"]
    assert server.refused == ["127.0.0.1"]


@pytest.mark.slow
def test_a_store_of_torch_s_finds_nobody_to_talk_to(join: Join, listener: socket.socket) -> None:
    inside = join()
    host, port = listener.getsockname()
    with pytest.raises(DistError):
        TCPStore(host, port, is_master=False, timeout=timedelta(seconds=1)).set("torch.rendezvous.none", "x")
    assert inside.keys() == []


def test_a_wrong_secret_is_told_from_a_leader_that_is_not_there(server: StoreServer, listener: socket.socket) -> None:
    with pytest.raises(WrongSecretError), dialled(listener, b"what others know"):
        pass
    with dialled(listener) as client:
        assert client.add("n", 1) == 1, "who knows it still comes in"


def test_a_leader_that_cannot_prove_the_secret_is_told_nothing(listener: socket.socket) -> None:
    """Somebody else took the port: what it hears is a random number and a proof that fits no other meeting."""
    heard = bytearray()

    def pretend() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(store_server.GREETING + bytes(32))
            heard.extend(store_client.receive(connection, 64))
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
    with pytest.raises(ConnectionError, match="something else"), dialled(listener):
        pass
    other.join(timeout=10)


def test_who_says_nothing_is_not_waited_for_and_only_so_many_may_try_at_once(
    server: StoreServer, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "STRANGER_LIMIT_S", 0.05)
    with socket.create_connection(listener.getsockname()) as silent:
        assert ended(silent)
    monkeypatch.setattr(store_server, "MOST_STRANGERS", 0)
    with socket.create_connection(listener.getsockname()) as one_too_many:
        assert one_too_many.recv(1) == b""


@pytest.mark.parametrize(
    "words",
    [
        struct.pack(">I", store_client.MOST_BYTES + 1),
        struct.pack(">I", 5) + b"junk!",
        store_client.frame(store_client.Request("add", [])),
        store_client.frame(store_client.Request("set", ["a", "b"], [b"1"])),
    ],
    ids=["too long", "no request", "no key", "a value too few"],
)
def test_what_is_no_request_ends_its_connection_and_no_other(
    server: StoreServer, join: Join, words: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    inside = join()
    with server.connect() as confused:
        confused.sendall(words)
        assert ended(confused)
    assert inside.add("n", 1) == 1
    gc.collect()
    assert not caplog.records, "it is no fault of the store's"


def test_a_message_longer_than_is_read_is_not_sent(join: Join) -> None:
    client = join()
    with pytest.raises(ValueError, match="longer than"):
        client.set("a", bytes(store_client.MOST_BYTES))
    assert client.keys() == []


# What the code may not do


def test_nothing_that_comes_from_another_process_is_unpickled() -> None:
    """Collectives of objects, and loading without `weights_only`, would run what another process sends."""
    source = Path(store_server.__file__).parent.parent
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in ("object_list(", "gather_object(", "pickle.load", "Unpickler(", "weights_only=False"):
            assert word not in text, path
        assert text.count("torch.load(") == text.count("weights_only=True"), path
        assert "torch.distributed.run" not in text, path
