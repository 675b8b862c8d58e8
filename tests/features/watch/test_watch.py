from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.records import make_plan, make_record, renamed

from trainmark.cli import liveness
from trainmark.features.watch import command as watch, live_screen
from trainmark.record.errors import UsageError
from trainmark.record.recipe import Limits
from trainmark.record.store import Store

MS = 1_000_000
RUN = "resnet50-quick-1x2-fp32-20261116T060000-abc123"
NOBODY = 2**22 + 1
"""Above the highest process id Linux gives."""


class Clock:
    """Moved by hand; the wall clock goes with it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Run:
    """A run folder, written by hand as ranks would."""

    def __init__(self, store: Store, run_id: str = RUN, *, ranks: int = 2, **plan: Any) -> None:
        self.folder = store.runs / run_id
        self.folder.mkdir(parents=True)
        self.store = store
        self.numbers = range(ranks)
        self._steps = dict.fromkeys(self.numbers, 0)
        planned = make_plan(**{"topology": f"1x{ranks}", "limits": Limits(steps=60), **plan})
        (self.folder / "plan.json").write_text(json.dumps(planned.to_json()), encoding="utf-8")
        target = {"name": "acc1", "unit": "%", "better": "higher"}
        self.write_head(item="images", target=target)

    def write_head(self, *, item: str, target: dict[str, str], **more: Any) -> None:
        head = {"run_id": self.folder.name, "created": "", "item": item, "target": target, "reference_global_batch": 64}
        head |= more
        (self.folder / "run.json").write_text(json.dumps(head), encoding="utf-8")

    def append(self, name: str, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def event(self, rank: int, kind: str, /, **fields: Any) -> None:
        self.append(f"rank{rank}.jsonl", json.dumps({"event": kind, **fields}) + "\n")

    def begin(self, *, host: str | None = None, pid: int | None = None) -> None:
        for rank in self.numbers:
            where = socket.gethostname() if host is None else host
            self.event(rank, "begin", rank=rank, host=where, pid=pid or os.getpid(), startup_ns=5, restart=0)

    def ready(self, first_step: int = 0, steps_per_epoch: int = 30) -> None:
        for rank in self.numbers:
            self.event(rank, "ready", steps_per_epoch=steps_per_epoch, first_step=first_step, at_ns=1)
            self._steps[rank] = first_step

    def steps(self, rank: int, count: int, *, compute_ms: float = 100, loss: float | None = 2.0) -> None:
        self.event(
            rank,
            "steps",
            first=self._steps[rank],
            wait_ns=[10 * MS] * count,
            compute_ns=[int(compute_ms * MS)] * count,
            exchange_ns=[5 * MS] * count,
            items=[32] * count,
            loss=[loss] * count,
        )
        self._steps[rank] += count

    def trained(self, count: int = 20) -> Run:
        self.begin()
        self.ready()
        for rank in self.numbers:
            self.steps(rank, count, compute_ms=100 + 10 * rank)
        return self


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def looked(run: Run) -> live_screen.Live:
    return watch.Watched(run.folder, run.store).read()


def drawn(frame: live_screen.Live, *, width: int = 100, encoding: str = "utf-8") -> str:
    return live_screen.draw(frame, width=width, color=False, encoding=encoding)


def call(store: Store, *words: str) -> int:
    parser = argparse.ArgumentParser()
    watch.add_arguments(parser)
    return watch.run(parser.parse_args([*words, "--store", str(store.folder)]))


def test_a_frame_says_what_runs_and_how_far_it_is(store: Store) -> None:
    run = Run(store).trained(20)
    run.event(0, "evaluation", step=20, epoch=0.7, values={"acc1": 12.5}, samples=64, elapsed_ns=1)
    shown = drawn(looked(run))
    for said in (
        "resnet50 · quick · cpu · 1x2 · fp32",
        RUN,
        "20 of 60",
        "images/s",
        "acc 12.50 % at step 20, target 75.5 %",
        "about 4 s",
    ):
        assert said in shown


def test_speed_is_that_of_all_devices(store: Store) -> None:
    speed = looked(Run(store).trained(20)).speed()
    assert speed is not None
    rate, interval = speed
    assert rate == pytest.approx(2 * 32 / 0.110)
    assert interval == pytest.approx((rate, rate))
    live = looked(Run(store, "elsewhere-too", ranks=1, topology="2x1").trained())
    assert (live.speed() or (0,))[0] == pytest.approx(rate)
    assert "1 of 2 ranks are visible here" in drawn(live)


def test_a_rank_that_lags_is_named_with_how_far(store: Store) -> None:
    run = Run(store)
    run.begin()
    run.ready()
    run.steps(0, 20, compute_ms=105)
    run.steps(1, 17, compute_ms=205)
    frame = looked(run)
    assert "rank 1 computes 100.0 % longer than the fastest" in drawn(frame)
    assert frame.step == 17


def test_files_that_appear_later_and_torn_lines_are_waited_for(store: Store) -> None:
    folder = store.runs / RUN
    folder.mkdir(parents=True)
    watched = watch.Watched(folder, store)
    assert "a run that begins" in drawn(watched.read())
    folder.rmdir()
    run = Run(store)
    (run.folder / "run.json").write_text('{"item": "ima')
    run.append("rank0.jsonl", '{"event": "begin", "rank": 0, "host": "a"')
    assert watched.read().first.phase == "startup"
    run.append("rank0.jsonl", ', "pid": 7, "startup_ns": 5}\n\nnot json\n{"event": "ready"}\n[1]\n')
    run.write_head(item="images", target={"name": "acc1", "unit": "%", "better": "higher"})
    frame = watched.read()
    assert frame.first.phase == "init"
    assert frame.item == "images"


@pytest.mark.parametrize(
    "fields",
    [
        {"first": 0, "wait_ns": "x", "compute_ns": [1], "items": [1], "loss": [1]},
        {"first": 0, "wait_ns": [1, 2], "compute_ns": [1], "items": [1], "loss": [1]},
        {"first": 0, "wait_ns": [1], "compute_ns": [1], "items": ["many"], "loss": [1]},
        {"first": None, "wait_ns": [1], "compute_ns": [1], "items": [1], "loss": [1]},
        {"first": 0, "wait_ns": [1], "compute_ns": [-5], "items": [1], "loss": [float("nan")]},
        {"first": 0, "wait_ns": [float("inf")], "compute_ns": [1], "items": [1], "loss": [None]},
        {},
    ],
)
def test_events_that_make_no_sense_do_not_end_the_watch(store: Store, fields: dict[str, Any]) -> None:
    run = Run(store, ranks=1)
    run.begin()
    run.ready()
    run.event(0, "steps", **fields)
    run.append("telemetry0.jsonl", '{"event": "devices", "readings": [{"device": "x"}]}\n')
    frame = looked(run)
    assert "resnet50" in drawn(frame)
    assert "resnet50" in live_screen.format_line(frame)
    assert msgspec.json.encode(live_screen.to_json(frame))


def test_silence_is_said_once_it_is_longer_than_steps_take(store: Store) -> None:
    clock = Clock()
    run = Run(store).trained(5)

    def write(at_s: float) -> None:
        for path in run.folder.glob("rank*.jsonl"):
            os.utime(path, (at_s, at_s))

    write(990)
    watched = watch.Watched(run.folder, store, now_s=clock)
    assert watched.read().note is None
    clock.now_s += 30
    assert watched.read().note == "no event for 40 s"
    run.steps(0, 1, compute_ms=20_000)
    run.steps(1, 1, compute_ms=20_000)
    write(clock.now_s)
    clock.now_s += 40  # two such steps are no silence
    assert watched.read().note is None
    run.append("telemetry0.jsonl", '{"event": "host", "at_ns": 5}\n')
    clock.now_s += 60
    assert watched.read().note == "no event for 1 min 40 s"


def test_the_sensors_last_word_is_shown_and_a_missing_one_is_never_zero(store: Store) -> None:
    run = Run(store).trained()
    began = {"event": "begin", "host": "a", "pid": 1, "first_rank": 0, "launched_ns": 10**9, "at_ns": 2 * 10**9}
    began |= {"every_s": 0.5, "devices": [0, 1], "cores": 2}
    reading = {"device": 0, "power_w": 243.2, "temperature_c": 61, "memory_used_bytes": 2**30}
    told = [began, {"event": "devices", "at_ns": 91 * 10**9, "readings": [reading, {"device": 1, "power_w": 250}]}]
    run.append("telemetry0.jsonl", "".join(json.dumps(event) + "\n" for event in told))
    shown = drawn(looked(run))
    assert "device 0  243 W, 61.0 °C, 1.00 GiB" in shown
    assert "device 1  250 W\n" in shown
    assert "1 min 30 s" in shown


@pytest.mark.parametrize(
    ("limits", "planned", "left_s", "said"),
    [
        (Limits(steps=60), 60, 40 * 0.11, "about 4 s"),
        (Limits(seconds=30), None, 30 - 20 * 0.11, "about 28 s"),
        (Limits(), 3000, 2980 * 0.11, "at most about 5 min 28 s"),
        (Limits(epochs=2), 60, 40 * 0.11, "at most about 4 s"),
        (Limits(half_width=0.01), None, None, ""),
    ],
)
def test_what_is_left_follows_from_what_ends_the_run(
    store: Store, limits: Limits, planned: int | None, left_s: float | None, said: str
) -> None:
    frame = looked(Run(store, ranks=1, limits=limits).trained(20))
    assert frame.planned == planned
    assert frame.left_s == (None if left_s is None else pytest.approx(left_s))
    assert said in drawn(frame)


def test_after_a_restart_the_step_is_where_the_ranks_went_on(store: Store) -> None:
    run = Run(store).trained(20)
    for rank in run.numbers:
        run.event(rank, "failed", rank=rank, sentence="it died", exit_code=4, at_ns=1)
    assert "rank 0: it died" in drawn(looked(run))
    for rank in run.numbers:
        run.event(rank, "begin", rank=rank, host="a", pid=1, startup_ns=5, restart=1)
    run.ready(first_step=10)
    frame = looked(run)
    assert (frame.step, frame.phase, frame.note) == (10, "train", None)
    assert "restarted 1 times" in drawn(frame)


def test_following_ends_with_the_record_and_its_result(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(store).trained(20)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        for rank in run.numbers:
            run.steps(rank, 10)
        if len(pauses) == 4:
            store.add(renamed(make_record(), RUN))

    assert watch.follow(watch.Watched(run.folder, store), pause) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "step 20 of 60" in lines[0]
    assert lines[-2].startswith("ResNet-50 (quick) trains at 5.78 images/s")
    assert lines[-1] == f"record: {store.path(RUN)}"
    assert err == ""
    assert len(pauses) == 4


@pytest.mark.parametrize("spoke", [True, False])
def test_a_run_whose_processes_are_gone_without_a_record_ends_the_watch(
    spoke: bool, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(store)
    if spoke:
        run.begin(pid=NOBODY)
        run.ready()
    else:
        launcher = {"launcher_host": socket.gethostname(), "launcher_pid": NOBODY}
        run.write_head(item="images", target={"name": "acc1", "unit": "%", "better": "higher"}, **launcher)
    clock = Clock()
    clock.now_s = began_s = time.time()

    def pause(seconds: float) -> None:
        clock.now_s += 4

    assert watch.follow(watch.Watched(run.folder, store, now_s=clock), pause) == 4
    assert clock.now_s > began_s + watch.RECORD_LIMIT_S
    assert "its processes are gone, and it has left no record" in capsys.readouterr().err


def test_a_folder_that_never_got_its_first_file_ends_the_watch(store: Store) -> None:
    (store.runs / RUN).mkdir(parents=True)
    assert watch.Watched(store.runs / RUN, store, now_s=lambda: 1e12).read().gone


def test_a_launcher_is_known_by_its_number_and_by_when_it_began(store: Store) -> None:
    run = Run(store)
    target = {"name": "acc1", "unit": "%", "better": "higher"}
    run.write_head(item="images", target=target, launcher_host=socket.gethostname(), launcher_pid=os.getpid())
    assert liveness.has_processes(liveness.read_run_folder(run.folder))
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how yet
    run.write_head(item="images", target=target, launcher_host=socket.gethostname(), launcher_pid=ended)
    assert liveness.has_processes(liveness.read_run_folder(run.folder)) is False
    os.waitpid(ended, 0)
    run.write_head(item="images", target=target, launcher_host=socket.gethostname(), launcher_pid=os.getpid())
    os.utime(run.folder / "run.json", (5000, 5000))  # before this process began, so that only its number is the same
    assert liveness.has_processes(liveness.read_run_folder(run.folder)) is False
    run.write_head(item="images", target=target, launcher_host="elsewhere", launcher_pid=os.getpid())
    assert liveness.has_processes(liveness.read_run_folder(run.folder)) is None


def test_a_run_on_another_machine_is_not_called_gone(store: Store) -> None:
    run = Run(store)
    run.begin(host="elsewhere", pid=NOBODY)
    assert liveness.has_processes(liveness.read_run_folder(run.folder)) is None
    assert not watch.Watched(run.folder, store, now_s=lambda: 1e12).read().gone


def test_without_a_name_the_newest_run_that_still_runs_is_watched(store: Store) -> None:
    goes_on = Run(store, "a-goes-on").trained()
    killed = Run(store, "b-killed")
    killed.begin(pid=NOBODY)
    done = Run(store, "c-done").trained()
    store.add(renamed(make_record(), "c-done"))
    for age, run in enumerate((done, killed, goes_on)):
        os.utime(run.folder, (5000 - age, 5000 - age))
    assert watch.choose_folder(store, None) == goes_on.folder
    assert watch.choose_folder(store, "killed") == killed.folder
    store.add(renamed(make_record(), "a-goes-on"))
    assert watch.choose_folder(store, None) == done.folder


def test_once_is_one_frame_and_json_one_document(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(store).trained(20)
    run.event(0, "evaluation", step=20, epoch=0.7, values={"acc1": float("nan")}, samples=64, elapsed_ns=1)
    assert call(store, "--once") == 0
    assert "acc is not finite at step 20" in capsys.readouterr().out
    assert call(store, "abc123", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"], document["planned_step"], document["phase"]) == (20, 60, "train")
    assert document["items_per_s"] == pytest.approx(2 * 32 / 0.110)
    assert document["evaluation"]["values"] == {"acc1": None}
    assert [rank["slower_percent"] for rank in document["ranks"]] == pytest.approx([0, 100 / 9.5], abs=0.1)
    assert document["record"] is None


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_frame_fits_its_width_and_its_encoding(store: Store, width: int) -> None:
    shown = drawn(looked(Run(store).trained(60)), width=width, encoding="ascii")
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= width


def test_hostile_names_do_not_reach_the_terminal(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\u202e<img onerror=1>|=cmd\x07"
    run = Run(store, workload=hostile, precision=hostile).trained(3)
    run.write_head(item=hostile, target={"name": hostile, "unit": hostile, "better": "higher"})
    run.event(0, "evaluation", step=3, epoch=0.1, values={hostile: 1.0}, samples=1, elapsed_ns=1)
    run.event(0, "alive", phase=hostile, samples=1)
    run.event(1, "failed", rank=1, sentence=hostile, exit_code=4, at_ns=1)
    assert call(store, "--once") == 0
    frame = looked(run)
    told = capsys.readouterr().out + live_screen.format_line(frame)
    assert "<img" in told
    for sign in ("\x1b", "\u202e", "\x07"):
        assert sign not in told


def test_a_store_without_runs_says_how_to_make_one(store: Store) -> None:
    with pytest.raises(UsageError, match="trainmark run"):
        call(store)


def test_a_long_run_is_watched_by_its_last_steps_and_says_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(store, limits=Limits(seconds=5000.0)).trained(300)
    whole = looked(run)
    monkeypatch.setattr(watch, "RECENT_STEPS", 250)
    watched = watch.Watched(run.folder, run.store)
    for rank in (0, 1):
        run.steps(rank, 300, loss=1.5)
    live = watched.read()
    assert [len(rank.compute_ns) for rank in live.ranks] == [250, 250]
    assert [rank.step for rank in live.ranks] == [600, 600]
    run.steps(0, 10)
    run.steps(1, 10, compute_ms=105)
    live, again = watched.read(), looked(run)
    for other in (live, again):
        assert (other.step, other.loss, len(other.ranks[0].compute_ns)) == (610, 2.0, 260)
    assert whole.left_s
    assert live.left_s == again.left_s == pytest.approx(whole.left_s - 310 * 0.11)
    assert live.speed() == again.speed()
    assert live.slower_percent() == again.slower_percent()
