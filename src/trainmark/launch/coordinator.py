"""Where the launchers of a run on several machines meet: a torch store the leader opens for facts, faults, files."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.launch.cluster_env import ClusterEnv
from trainmark.spec.errors import HangError, NotReadyError, WorkloadError
from trainmark.spec.whole_files import write_whole
from trainmark.train.ranks import host_name

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

JOIN_LIMIT_S = 60.0
"""How long the launchers wait for each other to appear."""
READY_LIMIT_S = 900.0
"""How long they wait for each other's data to be made and machine to be looked over."""
ANSWER_LIMIT_S = 60.0
"""How long the store may take to answer one question."""
BEAT_S = 0.5
LOST_S = 15.0
"""A launcher not heard from for so long is taken for gone, unless the plan allows less silence."""
PIECE_BYTES = 1 << 20
MOST_FILE_BYTES = 1 << 30
RANK_FILE = re.compile(
    r"(rank[0-9]{1,7}\.(jsonl(\.gz)?|log|stacks)|launcher[0-9]{1,7}\.log|telemetry[0-9]{1,7}\.jsonl(\.gz)?)"
)
"""The only files a launcher may hand to the leader."""


class LostLeaderError(WorkloadError):
    """The store does not answer any more: the leader or the way to it is gone."""


class Coordinator:
    """One for a whole command: every run of it has keys of its own, told apart by their number."""

    def __init__(self, env: ClusterEnv, join_limit_s: float = JOIN_LIMIT_S) -> None:
        self.env = env
        self.host = host_name(os.environ)
        self._join_limit_s = join_limit_s
        self._store = _open_store(env, join_limit_s)
        self._round = 0
        self._pulse: Heartbeat | None = None
        self._set(f"here/{env.launcher}", self.host)
        if env.leads:
            self._wait_for_all("here", join_limit_s, self._who_is_missing)

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
        self._pulse = Heartbeat(_connect(self.env, ANSWER_LIMIT_S), self.env, self._key(""), lost_after_s)
        return self._pulse

    def report(self, fault: Mapping[str, Any]) -> None:
        """Tells everybody that something failed here. The order of reports is the order of failures."""
        with _noticing_loss():
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
        with _noticing_loss():
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
            data = b"".join(self._store.get(self._key(f"file/{name}/{number}")) for number in range(pieces))
            write_whole(folder / name, data)
        return True

    def finish(self, exit_code: int) -> None:
        """The leader's last word on a run."""
        self._put("over", {"exit_code": exit_code})
        self._end_pulse()

    def conclusion(self) -> int:
        """A follower waits for the leader's last word."""
        with _noticing_loss():
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
        with suppress(Exception):  # whoever is gone cannot be waited for
            self._set(f"left/{self.env.launcher}", "")
            if self.env.leads:
                self._wait_for_all("left", LOST_S / 3, lambda missing: "")

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
        return (
            f"{self._join_limit_s:.0f} s passed and {len(joined)} of {self.env.launchers} {what}s joined "
            f"({', '.join(dict.fromkeys(joined))}); {what} {', '.join(map(str, missing))} did not"
        )

    def _wait_for_all(self, prefix: str, limit_s: float, sentence: Callable[[list[int]], str]) -> None:
        deadline = time.monotonic() + limit_s
        missing = list(range(self.env.launchers))
        while missing := [launcher for launcher in missing if not self._store.check([f"{prefix}/{launcher}"])]:
            if time.monotonic() > deadline:
                raise HangError(sentence(missing))
            time.sleep(0.05)

    def _wait(self, name: str, limit_s: float, sentence: str) -> None:
        import torch.distributed

        try:
            self._store.wait([self._key(name)], timedelta(seconds=limit_s))
        except (torch.distributed.DistError, RuntimeError) as error:
            raise HangError(f"{sentence} ({self.env.leader}:{self.env.port})") from error

    def _set_in_pieces(self, name: str, data: bytes) -> int:
        pieces = range(0, len(data), PIECE_BYTES)
        for number, start in enumerate(pieces):
            self._store.set(self._key(f"{name}/{number}"), data[start : start + PIECE_BYTES])  # type: ignore[arg-type]
        return len(pieces)

    def _key(self, name: str) -> str:
        return f"run{self._round}/{name}"

    def _set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        self._store.set(self._key(name), json.dumps(dict(value)))

    def _get(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._store.get(self._key(name)))
        return document


class Heartbeat:
    """Beats in a thread of its own, so that a cut line stops this thread and not the supervision of the ranks."""

    def __init__(self, store: Store, env: ClusterEnv, prefix: str, lost_after_s: float) -> None:
        self._store = store
        self.lost_after_s = lost_after_s
        self._env = env
        self._prefix = prefix
        self._over = threading.Event()
        self._answered_at_s = time.monotonic()
        self._heard: dict[int, tuple[bytes, float]] = {}
        self.fault = False
        """Somebody reported a fault."""
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

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(BEAT_S):
            count += 1
            try:
                self._store.set(f"{self._prefix}beat/{self._env.launcher}", str(count))
                self.fault = self.fault or self._store.check([f"{self._prefix}fault/1"])
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


@contextmanager
def _noticing_loss() -> Iterator[None]:
    try:
        yield
    except (HangError, RuntimeError) as error:  # the latter are torch's
        raise LostLeaderError(f"the leader is gone: {_first(error)}") from error


def _open_store(env: ClusterEnv, limit_s: float) -> Store:
    if not env.leads or env.joins_store:
        return _connect(env, limit_s)
    from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]

    try:
        return TCPStore(
            env.leader, env.port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=READY_LIMIT_S)
        )
    except DistNetworkError as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise NotReadyError(
                f"port {env.port} of this machine is taken; choose another for all nodes (--port N, or port under "
                "[network] in trainmark.toml)"
            ) from error
        raise NotReadyError(f"cannot open {env.leader}:{env.port} for the other nodes: {_first(error)}") from error


def _connect(env: ClusterEnv, limit_s: float) -> Store:
    from torch.distributed import (  # type: ignore[attr-defined]
        DistNetworkError,
        DistStoreError,
        PrefixStore,
        TCPStore,
    )

    try:
        store = TCPStore(
            env.leader, env.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=limit_s)
        )
    except (DistNetworkError, DistStoreError) as error:
        raise HangError(
            f"the leader did not answer at {env.leader}:{env.port} within {limit_s:.0f} s: {_first(error)}"
        ) from error
    store.set_timeout(timedelta(seconds=ANSWER_LIMIT_S))
    return PrefixStore("trainmark", store) if env.joins_store else store


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]
