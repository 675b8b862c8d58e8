"""What many tests share: a small image set, and the command line."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # one that others use may take its time
settings.load_profile("any machine")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile us anew
os.environ.pop("COLUMNS", None)  # what runs the tests side by side sets it, and output here is for 120 columns

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what is to run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

TINY_RUN = (
    "run",
    "resnet50",
    "--recipe",
    "smoke",
    "--platform",
    "cpu",
    "--set",
    "width=4",
    "--set",
    "batch_per_device=8",
)
"""A network so small that a run is mostly start-up."""


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageNet-shaped set of three classes; tests that damage it copy it first."""
    from trainmark.data.imagenet import make

    folder = tmp_path_factory.mktemp("pictures") / "set"
    make.make(folder, classes=3, train_per_class=16, val_per_class=4, seed=1)
    return folder


@pytest.fixture(autouse=True)
def trust_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that was a rank in this process trusted its launcher with everything; the next one does not."""
    from trainmark.record import trust

    monkeypatch.setattr(trust, "_trusted", trust._trusted - {trust.ANYWHERE})


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables of a user whose store and cache are the test's own."""
    return {
        **os.environ,
        "TRAINMARK_STORE": str(tmp_path / "store"),
        "TRAINMARK_CACHE": str(tmp_path / "cache"),
        "PYTHONWARNINGS": "",
    }


@pytest.fixture
def cli(environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Cli:
    """Calls `trainmark WORDS...` in this process; the ranks of a run are processes of their own, as always."""
    from trainmark.cli.main import main

    def call(*words: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
        argv = [*map(str, words)]
        capfd.readouterr()
        variables = mock.patch.dict(os.environ, {**environment, **changes}, clear=True)
        with variables, mock.patch.object(sys, "argv", ["trainmark", *argv]):
            code = main(argv)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(argv, code, out, err)

    return call


@pytest.fixture
def process(environment: dict[str, str]) -> Cli:
    """Starts `trainmark WORDS...` from nothing, for what an interpreter reads only when it starts."""

    def call(*words: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trainmark", *map(str, words)]
        variables, nothing = {**environment, **changes}, subprocess.DEVNULL
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, stdin=nothing)

    return call


STARTS_PROCESSES = {"environment", "browser", "cluster"}
"""Fixtures whose tests are slow; others are marked so one by one."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and the modules they import stay to the end: the collector need not look at them again and
    again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if STARTS_PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    if (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        items[:] = dealt(items, workers)


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """An order in which each worker begins with its share of the slow tests: at the end, one that has several of them
    left would keep the others waiting. A worker's first tests are those of one equal part of the list; the tests of a
    module stay together, as they look at the same runs."""
    slow: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(item.path, []).append(item)
    hands: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for path in sorted(slow, key=lambda path: (not path.name.startswith("test_whole_"), -len(slow[path]), path)):
        min(hands, key=len).extend(slow[path])
    others = [item for item in items if not item.get_closest_marker("slow")]
    order: list[pytest.Item] = []
    for number, hand in enumerate(hands):
        part = (len(items) - len(order)) // (workers - number)
        rest = max(0, part - len(hand))
        order += [*hand, *others[:rest]]
        del others[:rest]
    return order + others


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests were skipped, and what would be needed to run them."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="module")
def one_thread() -> Generator[None]:
    """Networks this small gain nothing from threads, and lose much on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
