"""What many tests share: a small picture set, and the command line as a user runs it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import warm_start
from hypothesis import settings
from warm_start import WarmStart

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
    from trainmark.datasets.imagenet import make

    folder = tmp_path_factory.mktemp("pictures") / "set"
    make.make(folder, classes=3, train_per_class=16, val_per_class=4, seed=1)
    return folder


@pytest.fixture
def environment(tmp_path: Path, warm_server: WarmStart) -> dict[str, str]:
    """The variables of a user whose store and cache are the test's own."""
    return {
        **os.environ,
        "TRAINMARK_STORE": str(tmp_path / "store"),
        "TRAINMARK_CACHE": str(tmp_path / "cache"),
        "PYTHONWARNINGS": "",
    }


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStart]:
    server = warm_start.SERVER = WarmStart(tmp_path_factory.mktemp("warm"))
    yield server
    warm_start.SERVER = None
    server.close()


@pytest.fixture
def forked_ranks(warm_server: WarmStart) -> Iterator[None]:
    """For tests that start ranks without a command."""
    with warm_server.starting_programs():
        yield


@pytest.fixture
def cli(environment: dict[str, str], warm_server: WarmStart) -> Cli:
    """Runs `trainmark WORDS...` in a process of its own."""

    def call(*words: str | Path, minutes: float = 2, **changes: str) -> subprocess.CompletedProcess[str]:
        variables = {**environment, **changes}
        if warm_server.serves(variables):
            process = warm_server.start([*map(str, words)], variables)
            try:
                out, err = process.communicate(60 * minutes)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return subprocess.CompletedProcess(process.args, process.returncode or 0, out, err)
        return subprocess.run(
            [sys.executable, "-m", "trainmark", *map(str, words)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=60 * minutes,
            stdin=subprocess.DEVNULL,
        )

    return call


STARTS_PROCESSES = {"warm_server", "browser", "cluster"}
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
