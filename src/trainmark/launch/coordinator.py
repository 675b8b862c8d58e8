"""Where the launchers of a run on several machines meet: a store the leader opens for facts, faults, files, ranks."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from trainmark.launch import network
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.secret import VARIABLE as SECRET_VARIABLE, given as given_secret, make as make_secret
from trainmark.launch.store_server import StoreServer, WrongSecretError, prove
from trainmark.spec.errors import HangError, NotReadyError
from trainmark.spec.whole_files import write_whole
from trainmark.train.ranks import host_name
from trainmark.train.store_client import LostStoreError, StoreClient

JOIN_LIMIT_S = 60.0
"""How long the launchers wait for each other to appear."""
READY_LIMIT_S = 900.0
"""How long they wait for each other's data to be made and machine to be looked over."""
TRY_AGAIN_S = 0.2
"""Between two tries to reach a leader that does not listen yet."""
BEAT_S = 0.5
LOST_S = 15.0
"""A launcher not heard from for so long is taken for gone, unless the plan allows less silence."""
GOODBYE_LIMIT_S = 5.0
"""How long the leader waits for the others to have gone, and they for its answer."""
PIECE_BYTES = 1 << 20
MOST_FILE_BYTES = 1 << 30
RANK_FILE = re.compile(
    r"(rank[0-9]{1,7}\.(jsonl(\.gz)?|log|stacks)|launcher[0-9]{1,7}\.log|telemetry[0-9]{1,7}\.jsonl(\.gz)?)"
)
"""The only files a launcher may hand to the leader."""


Fate = Literal["again", "over"]
"""What becomes of the ranks once some have ended: all start again, or it stays as it is."""


class Coordinator:
    """One for a whole command: every run of it has keys of its own, told apart by their number."""

    def __init__(
        self,
        env: ClusterEnv,
        *,
        secret: str | None = None,
        interface: str | None = None,
        join_limit_s: float = JOIN_LIMIT_S,
    ) -> None:
        """Without a secret, that of the variable counts."""
        self.env = env
        self.host = host_name(os.environ)
        self._join_limit_s = join_limit_s
        self._server: StoreServer | None = None
        if env.leads:
            self._server, self._address = _open_store(env, secret, interface, join_limit_s)
        else:
            self._address = _find_leader(env, secret, join_limit_s)
        self._store = StoreClient(self.connect(join_limit_s))
        self._round = 0
        self._pulse: Heartbeat | None = None
        self._store.set(f"here/{env.launcher}", self.host)
        if self._server:
            try:
                self._wait_for_all("here", join_limit_s, self._who_is_missing)
            except BaseException:
                self._server.close()
                raise

    def connect(self, limit_s: float = JOIN_LIMIT_S) -> socket.socket:
        """A new connection to the store, for this process or a rank that inherits it."""
        return self._server.connect() if self._server else _dial(self._address, limit_s)

    @property
    def rank_prefix(self) -> str:
        """What the keys of this run's ranks begin with."""
        return self._key("ranks")

    def begin(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Starts the next run: every launcher says its facts; the leader gets them all."""
        self._round += 1
        self._put(f"facts/{self.env.launcher}", facts)
        if not self.env.leads:
            return []
        self._wait_for_all(self._key("facts"), READY_LIMIT_S, lambda missing: f"launcher {missing[0]} is not ready")
        return [self._get(f"facts/{launcher}") for launcher in range(self.env.launchers)]

    def announce(self, terms: Mapping[str, Any]) -> None:
        """The leader's word on how this run is made, or why it is not."""
        self._put("terms", terms)

    def terms(self) -> dict[str, Any]:
        self._wait("terms", READY_LIMIT_S, "the leader did not say how to run")
        return self._get("terms")

    def start_heartbeat(self, lost_after_s: float) -> Heartbeat:
        """From now on the launchers hear each other's hearts and faults."""
        self._pulse = Heartbeat(StoreClient(self.connect()), self.env, self._key(""), lost_after_s)
        return self._pulse

    def decide_fate(self, restarts: int, fate: Fate) -> Fate:
        """What the first launcher to decide said: whether the ranks, after so many restarts, start again everywhere."""
        decided = self._store.compare_set(self._key(f"fate/{restarts}"), "", fate)
        return "again" if decided == b"again" else "over"

    def report(self, fault: Mapping[str, Any]) -> None:
        """Tells everybody that something failed here. The order of reports is the order of failures."""
        number = self._store.add(self._key("faults"), 1)
        self._put(f"fault/{number}", fault)

    def faults(self) -> list[dict[str, Any]]:
        """All that was reported so far, first things first."""
        number, found = 1, []
        while self._store.check([self._key(f"fault/{number}")]):
            found.append(self._get(f"fault/{number}"))
            number += 1
        return found

    def send_files(self, files: Mapping[str, Path]) -> None:
        """A follower's last act in a run: its ranks' files, in pieces."""
        sizes = {}
        for name, path in files.items():
            if path.is_file():
                sizes[name] = self._set_in_pieces(f"file/{name}", path.read_bytes()[:MOST_FILE_BYTES])
        self._put(f"done/{self.env.launcher}", {"files": sizes})

    def receive_files(self, launcher: int, folder: Path, alive: Callable[[], bool]) -> bool:
        """The leader's side: waits for a follower's files while its heart beats; False if that stopped before."""
        key = self._key(f"done/{launcher}")
        while not self._store.check([key]):
            if not alive():
                return False
            time.sleep(BEAT_S / 5)
        for name, pieces in self._get(f"done/{launcher}")["files"].items():
            if not RANK_FILE.fullmatch(name):
                raise NotReadyError(
                    f"launcher {launcher} handed over a file with the name {name!r}; nothing was written"
                )
            keys = [self._key(f"file/{name}/{number}") for number in range(pieces)]
            write_whole(folder / name, b"".join(self._store.get(key) for key in keys))
            for key in keys:
                self._store.delete(key)
        return True

    def finish(self, exit_code: int) -> None:
        """The leader's last word on a run."""
        self._put("over", {"exit_code": exit_code})
        self._end_pulse()

    def conclusion(self) -> int:
        """A follower waits for the leader's last word."""
        self._wait("over", READY_LIMIT_S, "the leader did not say how the run ended")
        self._end_pulse()
        return int(self._get("over")["exit_code"])

    def name_of(self, launcher: int) -> str:
        """For people: which node or rank a launcher is, and where."""
        what = "rank" if self.env.is_rank else "node"
        return f"{what} {launcher} ({self._store.get(f'here/{launcher}').decode()})"

    def leave(self) -> None:
        """The store must outlive the last follower's last question."""
        self._end_pulse()
        self._store.answer_limit_s = GOODBYE_LIMIT_S
        with suppress(Exception):  # whoever is gone cannot be waited for
            self._store.set(f"left/{self.env.launcher}", "")
            if self.env.leads:
                self._wait_for_all("left", GOODBYE_LIMIT_S, lambda missing: "")
        self._store.close()
        if self._server:
            self._server.close()

    def _end_pulse(self) -> None:
        if self._pulse:
            self._pulse.stop()
            self._pulse = None

    def _who_is_missing(self, missing: list[int]) -> str:
        joined = [
            self._store.get(f"here/{launcher}").decode()
            for launcher in range(self.env.launchers)
            if launcher not in missing
        ]
        what = "rank" if self.env.is_rank else "node"
        sentence = (
            f"{self._join_limit_s:.0f} s passed and {len(joined)} of {self.env.launchers} {what}s joined "
            f"({', '.join(dict.fromkeys(joined))}); {what} {', '.join(map(str, missing))} did not"
        )
        if self._server and self._server.refused:
            raise NotReadyError(
                f"{sentence}; from {', '.join(self._server.refused)} somebody came without the secret of this node: "
                f"give all nodes the same {SECRET_VARIABLE}"
            )
        return sentence

    def _wait_for_all(self, prefix: str, limit_s: float, sentence: Callable[[list[int]], str]) -> None:
        deadline = time.monotonic() + limit_s
        missing = list(range(self.env.launchers))
        while missing := [launcher for launcher in missing if not self._store.check([f"{prefix}/{launcher}"])]:
            if time.monotonic() > deadline:
                raise HangError(sentence(missing))
            time.sleep(0.05)

    def _wait(self, name: str, limit_s: float, sentence: str) -> None:
        try:
            if self._store.wait([self._key(name)], limit_s):
                return
            why = ""
        except LostStoreError as error:
            why = f": {error}"
        raise HangError(f"{sentence} ({self._address.host}:{self._address.port}){why}")

    def _set_in_pieces(self, name: str, data: bytes) -> int:
        pieces = range(0, len(data), PIECE_BYTES)
        for number, start in enumerate(pieces):
            self._store.set(self._key(f"{name}/{number}"), data[start : start + PIECE_BYTES])
        return len(pieces)

    def _key(self, name: str) -> str:
        return f"run{self._round}/{name}"

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        self._store.set(self._key(name), json.dumps(dict(value)))

    def _get(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._store.get(self._key(name)))
        return document


class Heartbeat:
    """Beats in a thread of its own, so that a cut line stops this thread and not the supervision of the ranks."""

    def __init__(self, store: StoreClient, env: ClusterEnv, prefix: str, lost_after_s: float) -> None:
        self._store = store
        self.lost_after_s = lost_after_s
        self._env = env
        self._prefix = prefix
        self._over = threading.Event()
        self._answered_at_s = time.monotonic()
        self._heard: dict[int, tuple[bytes, float]] = {}
        self.fault = False
        """Somebody reported a fault."""
        self.restarts = 0
        """How often it was decided that all ranks start again."""
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def lost_launchers(self) -> list[int]:
        """Parties not heard from for too long; a follower can lose only the leader."""
        now = time.monotonic()
        if not self._env.leads:
            return [0] if now - self._answered_at_s > self.lost_after_s else []
        return [launcher for launcher, (_, at_s) in self._heard.items() if now - at_s > self.lost_after_s]

    def stop(self) -> None:
        self._over.set()
        self._thread.join(timeout=2)
        self._store.close()

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(BEAT_S):
            count += 1
            try:
                self._store.set(f"{self._prefix}beat/{self._env.launcher}", str(count))
                self.fault = self.fault or self._store.check([f"{self._prefix}fault/1"])
                fate = f"{self._prefix}fate/{self.restarts}"
                if self._store.check([fate]) and self._store.get(fate) == b"again":
                    self.restarts += 1
                if self._env.leads:
                    self._listen()
                self._answered_at_s = time.monotonic()
            except Exception:  # whatever the line's trouble is, silence says it
                return

    def _listen(self) -> None:
        for launcher in range(1, self._env.launchers):
            key = f"{self._prefix}beat/{launcher}"
            said = self._store.get(key) if self._store.check([key]) else b""
            if launcher not in self._heard or self._heard[launcher][0] != said:
                self._heard[launcher] = (said, time.monotonic())


class _Address(NamedTuple):
    """Where a leader listens, and what to prove to it."""

    host: str
    port: int
    secret: str


def _open_store(
    env: ClusterEnv, secret: str | None, interface: str | None, limit_s: float
) -> tuple[StoreServer, _Address]:
    """The leader's part. Where torchrun has a store, the others hear from it where to come and what to prove."""
    secret = make_secret() if env.joins_store else secret or given_secret(os.environ)
    listener = network.listen(env, interface, 0 if env.joins_store else env.port)
    host, port = listener.getsockname()[:2]
    address = _Address(str(host), int(port), secret)
    server = StoreServer(listener, secret.encode())
    if env.joins_store:
        _torchruns_store(env, limit_s).set(_torchruns_key(), msgspec.json.encode(address).decode())
    return server, address


def _find_leader(env: ClusterEnv, secret: str | None, limit_s: float) -> _Address:
    if not env.joins_store:
        return _Address(network.dialled_host(env), env.port, secret or given_secret(os.environ))
    from torch.distributed import DistError

    try:
        return msgspec.json.decode(_torchruns_store(env, limit_s).get(_torchruns_key()), type=_Address)
    except (DistError, ValueError) as error:
        raise HangError(f"rank 0 did not say at torchrun's store where it listens: {_first(error)}") from error


def _torchruns_store(env: ClusterEnv, limit_s: float) -> Any:
    from datetime import timedelta

    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    try:
        return TCPStore(
            env.leader, env.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=limit_s)
        )
    except DistError as error:
        raise HangError(
            f"torchrun's store did not answer at {env.leader}:{env.port} within {limit_s:.0f} s: {_first(error)}"
        ) from error


def _torchruns_key() -> str:
    """One for each time torchrun starts its ranks: what those before them left in its store is of no use."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return "/".join(["trainmark", *(os.environ.get(name, "") for name in names)])


def _dial(address: _Address, limit_s: float) -> socket.socket:
    """A proven connection to the leader, as soon as it listens."""
    where = f"{address.host}:{address.port}"
    deadline_s = time.monotonic() + limit_s
    while True:
        left_s = max(0.1, deadline_s - time.monotonic())
        connection: socket.socket | None = None
        try:
            connection = socket.create_connection((address.host, address.port), timeout=left_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            prove(connection, address.secret.encode())
            return connection
        except WrongSecretError:
            raise NotReadyError(
                f"the leader at {where} has another secret than this node; give all nodes the same {SECRET_VARIABLE}"
            ) from None
        except OSError as error:
            if connection:
                connection.close()
            if time.monotonic() + TRY_AGAIN_S > deadline_s:
                raise HangError(
                    f"the leader did not answer at {where} within {limit_s:.0f} s: {_first(error)}"
                ) from error
        time.sleep(TRY_AGAIN_S)


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]
